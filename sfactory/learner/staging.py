"""Memory for one dataset: ``Staging`` in host memory, ``DeviceSlot`` on the learner's device, with the same tensors.

Copying a slot's rows into a staging area is what frees the slot (unless collection waits, see NOTE [Collection waits]).

NOTE [Device slot life]: a loader copies a staging area into an idle slot on an own stream and records an event at the
copy's end, for which the training stream waits before it reads. It records an event after its last read, for which the
loader's next copy waits. The loader alone waits for the device, before a staging area is filled again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfactory.layout import Layout
from sfactory.model.precision import torch_dtype
from sfactory.shared.trajectories import ALL_ROWS, NOBODY, Array, RowsOf, Slot
from sfactory.spec import EnvSpec

_SCALARS = {
    "log_prob": torch.float32,
    "value": torch.float32,
    "reward": torch.float32,
    "terminated": torch.bool,
    "valid": torch.bool,
    "policy_version": torch.int64,
}
REPLAYED, HELD = "replayed", "held"
ENV_STEP, RUN_STEP = "counts_for_policy", "counts_env_step"
FINAL_VALUE = "final_value"  # [T, R] float32 - in datasets of some TensorEnvs, see NOTE [Final values]

Copy = tuple[Array, Array]  # target, source


class Columns:
    """R rows of T steps, time-major. R = ``layout.dataset_rows``: num_batches_per_epoch minibatches of B rows.

    obs: {key: [T+1, R, ...]}; actions: {key: [T, R, ...]}; scalars: {field of Slot: [T, R]}, and
    with replay "replayed": bool - the row was in a dataset before;
    with agents and an RNN, or if they act in turn, "held": bool - the agent was inactive;
    with several agents "counts_for_policy", "counts_env_step": bool - an env step of the policy, of the run.
    is_first: [T+1, R] bool; rnn_states: [K+1, R, S] float32; as in Slot.
    filled: rows that are filled so far, from the first on. valid_steps: those that were counted in them.
    """

    def __init__(self, spec: EnvSpec, layout: Layout, device: torch.device, pin: bool, replay: bool) -> None:
        """``pin``: page-locked host memory, for asynchronous copies to a GPU."""
        steps, self.rows = layout.rollout, layout.dataset_rows

        def block(times: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.zeros((times, self.rows, *shape), dtype=dtype, device=device, pin_memory=pin)

        self.obs = {key: block(steps + 1, t.shape, torch_dtype(t.dtype)) for key, t in spec.obs}
        self.actions = {h.key: block(steps, h.tensor.shape, torch_dtype(h.tensor.dtype)) for h in spec.actions}
        agents, self.in_turns = spec.num_agents > 1, spec.in_turns
        held = bool(spec.agents) and (layout.state_size > 0 or spec.in_turns)  # a sole agent may sleep, too
        wanted = {REPLAYED: replay, HELD: held, ENV_STEP: agents, RUN_STEP: agents}
        scalars = _SCALARS | {name: torch.bool for name, given in wanted.items() if given}
        self.scalars = {name: block(steps, (), dtype) for name, dtype in scalars.items()}
        self.is_first = block(steps + 1, (), torch.bool)
        self.rnn_states = block(steps // layout.recurrence + 1, (layout.state_size,), torch.float32)
        self.clear()

    def clear(self) -> None:
        """Start over; old contents stay until they are overwritten."""
        self.filled = self.valid_steps = 0

    @property
    def full(self) -> bool:
        """True when all R rows are filled."""
        return self.filled == self.rows

    def tensors(self) -> list[Tensor]:
        """All tensors, in the same order for all ``Columns`` of a run."""
        columns = [*self.obs.values(), *self.actions.values(), *self.scalars.values()]
        return [*columns, self.is_first, self.rnn_states]


class CopyThreads:
    """Threads that share the copying for all staging areas of a learner; 1 copies in the calling thread."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="copy") if threads > 1 else None

    def copy(self, copies: Sequence[Copy]) -> None:
        """Make each of the ``copies``."""
        if self._pool is None:
            for to, of in copies:
                to[:] = of
            return
        # numpy releases the GIL while it copies; cut along time so that threads share large observations.
        parts: list[Copy] = []
        for to, of in copies:
            step = -(-len(to) // self._threads)
            parts += [(to[start : start + step], of[start : start + step]) for start in range(0, len(to), step)]
        list(self._pool.map(lambda part: np.copyto(*part), parts))


class Staging(Columns):
    """A dataset that is being filled, in host memory."""

    def __init__(
        self,
        spec: EnvSpec,
        layout: Layout,
        pin: bool,
        copying: CopyThreads | None = None,
        replay: bool = False,
        policy: int = 0,
    ) -> None:
        """``policy`` learns. ``pin``: see Columns. ``copying``: None copies in the calling thread."""
        super().__init__(spec, layout, torch.device("cpu"), pin, replay)
        self._obs_views = _views(self.obs)
        self._action_views = _views(self.actions)
        others = {"is_first": self.is_first} | ({"rnn_states": self.rnn_states} if layout.state_size else {})
        self._scalar_views = _views({name: self.scalars[name] for name in _SCALARS} | others)
        self._env_steps = [self.scalars[name].numpy() for name in (ENV_STEP, RUN_STEP) if name in self.scalars]
        self._held = self.scalars[HELD].numpy() if HELD in self.scalars else None
        self._replayed = self.scalars[REPLAYED].numpy() if replay else None
        self._policy = policy
        self._copying = copying or CopyThreads(1)

    @property
    def rows_left(self) -> int:
        """Rows that are not filled yet."""
        return self.rows - self.filled

    def take(self, slot: Slot, start: int, most: int, columns: RowsOf = ALL_ROWS) -> int:
        """Copy ``most`` of the ``columns`` of ``slot``, from the ``start``-th on; returns how many had room."""
        count = min(most, self.rows_left)
        part, target = slice(start, start + count), slice(self.filled, self.filled + count)
        source = part if isinstance(columns, slice) else columns[part]
        copies = [(view[:, target], slot.obs[key][:, source]) for key, view in self._obs_views.items()]
        copies += [(view[:, target], slot.actions[key][:, source]) for key, view in self._action_views.items()]
        copies += [(view[:, target], getattr(slot, name)[:, source]) for name, view in self._scalar_views.items()]
        self._copying.copy(copies)
        if slot.counts_env_step is not None:
            run = slot.counts_env_step
            own = run if slot.counts_for_policy is None else slot.counts_for_policy
            for to, of in zip(self._env_steps, (own, run), strict=True):
                to[:, target] = of[:, source]
        if slot.policy_id is not None:  # steps in which another policy acts become invalid
            acting = slot.policy_id[:, source]
            self._scalar_views["valid"][:, target] &= acting == self._policy
            if self._held is not None:
                self._held[:, target] = acting == NOBODY
        if self._replayed is not None:
            self._replayed[:, target] = False
        self.valid_steps += int(np.count_nonzero(self._scalar_views["valid"][:, target]))
        self.filled += count
        return count

    def take_replayed(self, sources: Sequence[Array], rows: npt.NDArray[np.int64]) -> None:
        """Copy ``rows`` of columns kept for replay. ``sources``: their arrays, in the order of ``views``."""
        assert self._replayed is not None
        target = slice(self.filled, self.filled + len(rows))
        for to, of in zip(self.views(), sources, strict=True):
            to[:, target] = of[:, rows]
        self._replayed[:, target] = True
        self.filled += len(rows)

    def views(self) -> list[Array]:
        """Arrays of all that is copied of a row, always in the same order."""
        held = self._env_steps if self._held is None else [*self._env_steps, self._held]
        return [*self._obs_views.values(), *self._action_views.values(), *self._scalar_views.values(), *held]


def _views(tensors: dict[str, Tensor]) -> dict[str, Array]:
    return {key: tensor.numpy() for key, tensor in tensors.items()}


class DeviceSlot(Columns):
    """Memory of one dataset on ``device``, see NOTE [Device slot life]. On a CPU copies are synchronous."""

    def __init__(self, spec: EnvSpec, layout: Layout, device: torch.device, replay: bool) -> None:
        super().__init__(spec, layout, device, pin=False, replay=replay)
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            # The host waits for the first, in a loader, and leaves its core to others meanwhile.
            self._loaded = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._read = torch.cuda.Event()  # type: ignore[no-untyped-call]
            # ``__init__`` writes on the caller's stream.
            self._read.record(torch.cuda.current_stream(device))

    @staticmethod
    def bytes_of(spec: EnvSpec, layout: Layout, replay: bool) -> int:
        """The memory that one takes."""
        planned = Columns(spec, layout, torch.device("meta"), pin=False, replay=replay)
        return sum(tensor.nbytes for tensor in planned.tensors())

    def load(self, staging: Staging) -> None:
        """Copy a full staging area here, and wait for the end of the copy: the area may then be filled again."""
        self.filled, self.valid_steps = staging.filled, staging.valid_steps
        if self._stream is not None:
            self._stream.wait_event(self._read)
        with contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            for to, of in zip(self.tensors(), staging.tensors(), strict=True):
                to.copy_(of, non_blocking=True)
        if self._stream is not None:
            self._loaded.record(self._stream)
            self._loaded.synchronize()

    def before_reading(self) -> None:
        """Call before the present stream reads: it waits, on the device, for the copy."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_event(self._loaded)

    def after_reading(self) -> None:
        """Call after the last work that reads the present content was given to the present stream."""
        if self._stream is not None:
            self._read.record(torch.cuda.current_stream(self._device))
