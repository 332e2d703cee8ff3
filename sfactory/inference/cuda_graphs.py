"""Runs forward passes as CUDA graphs, for batches of any size.

Launching the small kernels of a forward pass takes longer than running them. A CUDA graph launches all of them at once,
but always on the same memory. Batches are therefore padded to a few sizes; each size has its own memory and graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sfactory.model.actor_critic import Acted

Act = Callable[[dict[str, Tensor], Tensor], Acted]

_WARM_UPS = 3  # passes before the capture: libraries choose kernels and allocate workspaces in the first passes


class GraphPass:
    """A forward pass that is captured once, with its own inputs, and then replayed with new random numbers.

    Write ``obs`` and ``state``, then call ``run``, which overwrites and returns the same tensors each time. Passes of
    one ``stream`` and ``pool``, which is torch's graph_pool_handle(), share memory: ``run`` may overwrite what another
    one has returned.
    """

    def __init__(self, act: Act, obs: dict[str, Tensor], state: Tensor, stream: torch.cuda.Stream, pool: Any) -> None:
        self.obs, self.state = obs, state
        device = state.device
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                act(obs, state)
        torch.cuda.current_stream(device).wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads and processes keep using the device during the capture.
        with torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self._acted = act(obs, state)

    def run(self) -> Acted:
        """Run the pass on ``obs`` and ``state``."""
        self._graph.replay()
        return self._acted


MakePass = Callable[[Act, dict[str, Tensor], Tensor], GraphPass]


def captured_on(device: torch.device) -> MakePass:
    """Makes passes that share one stream of ``device`` and one pool of memory.

    With a stream for each of them, libraries would keep a workspace for each, some 30 MB on large GPUs.
    """
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    pool = torch.cuda.graph_pool_handle()
    return lambda act, obs, state: GraphPass(act, obs, state, stream, pool)


def padded_rows(rows: int) -> int:
    """The padded size of a batch of ``rows``: the next power of two, or three quarters of it."""
    power = 1 << max(0, rows - 1).bit_length()
    less = 3 * power // 4
    return less if rows <= less else power


class FixedShapes:
    """Calls ``act`` with batches padded to a few sizes. Results are valid until the next call."""

    def __init__(self, act: Act, make_pass: MakePass) -> None:
        self._act, self._make_pass = act, make_pass
        self._passes: dict[int, GraphPass] = {}

    def act(self, obs: dict[str, Tensor], state: Tensor) -> Acted:
        """Sample actions for obs {key: [B, ...]} and state [B, S], as ``ActorCritic.act``."""
        rows = len(state)
        size = padded_rows(rows)
        if size not in self._passes:
            memory = {key: tensor.new_zeros(size, *tensor.shape[1:]) for key, tensor in obs.items()}
            self._passes[size] = self._make_pass(self._act, memory, state.new_zeros(size, state.shape[1]))
        chosen = self._passes[size]
        for key, tensor in obs.items():
            chosen.obs[key][:rows].copy_(tensor, non_blocking=True)
        chosen.state[:rows].copy_(state, non_blocking=True)
        acted = chosen.run()
        actions = {key: tensor[:rows] for key, tensor in acted.actions.items()}
        return Acted(actions, acted.log_prob[:rows], acted.value[:rows], acted.state[:rows])
