"""Runs forward passes as CUDA graphs, for batches of any size.

A graph always computes on the same memory. Batches are therefore padded to a few sizes; each size has its own memory
and graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from torch import Tensor

from sfactory.model.actor_critic import Acted
from sfactory.system.cuda_graphs import WARM_UPS, Recorder, first_cause

_log = logging.getLogger(__name__)

Act = Callable[[dict[str, Tensor], Tensor], Acted]


class GraphPass:
    """A forward pass that is recorded once, with its own inputs, and then replayed with new random numbers.

    Write ``obs`` and ``state``, then call ``run``, which overwrites and returns the same tensors each time. Passes of
    one ``recorder`` share memory: ``run`` may overwrite what another one has returned.
    """

    def __init__(self, act: Act, obs: dict[str, Tensor], state: Tensor, recorder: Recorder) -> None:
        self.obs, self.state = obs, state
        for _ in range(WARM_UPS):
            recorder.warm_up(lambda: act(obs, state))
        self.run = recorder.record(lambda: act(obs, state))


def padded_rows(rows: int) -> int:
    """The padded size of a batch of ``rows``: the next power of two, or three quarters of it."""
    power = 1 << max(0, rows - 1).bit_length()
    less = 3 * power // 4
    return less if rows <= less else power


def padded_sizes(rows: int, requests: int) -> list[int]:
    """The padded sizes of batches of 1 to ``requests`` times ``rows``, the largest first.

    Recorded in this order, smaller passes fit into the memory of the first.
    """
    return sorted({padded_rows(count * rows) for count in range(1, requests + 1)}, reverse=True)


class FixedShapes:
    """Calls ``act`` with batches padded to a few sizes. Results are valid until the next call.

    If a pass cannot be recorded, the cause is logged once, and all are computed kernel by kernel, without padding.
    """

    def __init__(self, act: Act, recorder: Recorder) -> None:
        self._act = act
        self._recorder: Recorder | None = recorder
        self._passes: dict[int, GraphPass] = {}

    def act(self, obs: dict[str, Tensor], state: Tensor) -> Acted:
        """Sample actions for obs {key: [B, ...]} and state [B, S], as ``ActorCritic.act``."""
        rows = len(state)
        chosen = self._pass(padded_rows(rows), obs, state)
        if chosen is None:
            return self._act(obs, state)
        for key, tensor in obs.items():
            chosen.obs[key][:rows].copy_(tensor, non_blocking=True)
        chosen.state[:rows].copy_(state, non_blocking=True)
        acted = chosen.run()
        actions = {key: tensor[:rows] for key, tensor in acted.actions.items()}
        return Acted(actions, acted.log_prob[:rows], acted.value[:rows], acted.state[:rows])

    def _pass(self, size: int, obs: dict[str, Tensor], state: Tensor) -> GraphPass | None:
        """The pass for batches of ``size``, which is made if there is none; None if passes cannot be recorded."""
        if size not in self._passes and self._recorder is not None:
            memory = {key: tensor.new_zeros(size, *tensor.shape[1:]) for key, tensor in obs.items()}
            try:
                empty_state = state.new_zeros(size, state.shape[1])
                self._passes[size] = GraphPass(self._act, memory, empty_state, self._recorder)
            except RuntimeError as error:
                cause = first_cause(error)
                _log.warning("--cuda_graphs: actions are chosen kernel by kernel, since recording failed: %s", cause)
                self._recorder = None
                self._passes.clear()
        return self._passes.get(size)
