"""Room: the tensors of one dataset. In: sizes. Out: [T+1, R, ...] blocks in host or device memory.

What stages a dataset on the host and what holds it on the device are blocks of the same names and shapes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sfactory.layout import Layout
from sfactory.model.dtypes import torch_dtype
from sfactory.spec import EnvSpec

_SCALARS = {
    "log_prob": torch.float32,
    "value": torch.float32,
    "reward": torch.float32,
    "terminated": torch.bool,
    "valid": torch.bool,
    "policy_version": torch.int32,
}
REPLAYED = "replayed"
HELD = "held"
ENV_STEP, RUN_STEP = "counts_for_policy", "counts_env_step"


class Columns:
    """R rows of T steps, time-major. R = rows of a dataset: num_batches_per_epoch minibatches of B rows.

    obs: {key: [T+1, R, ...]}; actions: {key: [T, R, ...]}; scalars: {field of Slot: [T, R]}, and, with replay,
    "replayed": [T, R] bool - the row has been learned from before; where agents may sleep and policies remember,
    "held": [T, R] bool - nobody acted in the step, and memory stays as it is; with many agents "counts_for_policy" and
    "counts_env_step": [T, R] bool - the step counts as an env step of the policy, or of the run.
    is_first: [T+1, R] bool; rnn_states: [K+1, R, S] float32; as in Slot.
    """

    def __init__(self, spec: EnvSpec, layout: Layout, rows: int, device: torch.device, pin: bool, replay: bool) -> None:
        """``pin``: page-locked host memory, for asynchronous copies to a GPU."""
        steps, self.rows = layout.rollout, rows

        def block(times: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.zeros((times, rows, *shape), dtype=dtype, device=device, pin_memory=pin)

        self.obs = {key: block(steps + 1, t.shape, torch_dtype(t.dtype)) for key, t in spec.obs}
        self.actions = {h.key: block(steps, h.tensor.shape, torch_dtype(h.tensor.dtype)) for h in spec.actions}
        scalars = _SCALARS | ({REPLAYED: torch.bool} if replay else {})
        if spec.num_agents > 1 and layout.state_size:
            scalars[HELD] = torch.bool
        if spec.num_agents > 1:
            scalars |= {ENV_STEP: torch.bool, RUN_STEP: torch.bool}
        self.scalars = {name: block(steps, (), dtype) for name, dtype in scalars.items()}
        self.is_first = block(steps + 1, (), torch.bool)
        self.rnn_states = block(steps // layout.recurrence + 1, (layout.state_size,), torch.float32)

    def tensors(self) -> list[Tensor]:
        """All blocks, in the same order for all columns of a run."""
        others = [self.is_first, self.rnn_states]
        return [*self.obs.values(), *self.actions.values(), *self.scalars.values(), *others]
