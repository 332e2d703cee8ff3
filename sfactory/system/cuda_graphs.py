"""Records work on a GPU as CUDA graphs.

Launching small kernels one by one takes longer than running them. A CUDA graph launches all of them at once, but always
with the same memory and the same numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

from sfactory.errors import first_line

R = TypeVar("R")

WARM_UPS = (
    3  # runs of some work before it is recorded: libraries choose kernels and allocate workspaces in the first ones
)


def first_cause(error: BaseException) -> str:
    """Why a recording failed, in one line: the end of a failed capture fails, too."""
    while error.__context__ is not None:
        error = error.__context__
    return first_line(error)


class Recorder(Protocol):
    """Records work, see ``GraphRecorder``."""

    def warm_up(self, work: Callable[[], R]) -> R:
        """Run ``work`` as it will be recorded."""

    def record(self, work: Callable[[], R]) -> Callable[[], R]:
        """What runs recorded ``work``; each call overwrites, and returns, the same tensors."""

    def use_other_memory(self) -> None:
        """All that was recorded has been dropped."""


class GraphRecorder:
    """Records work of the calling thread as CUDA graphs, which share one stream of ``device`` and one pool of memory.

    With a stream for each of them, libraries would keep a workspace for each, some 30 MB on large GPUs. What one graph
    returns may be overwritten by the run of another one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Callable[[], R]) -> R:
        """Run ``work`` on the stream of recordings, between what was given to the present stream and what will be."""
        present = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(present)
        with torch.cuda.stream(self._stream):
            result = work()
        present.wait_stream(self._stream)
        return result

    def record(self, work: Callable[[], R]) -> Callable[[], R]:
        """What runs ``work`` again on the present stream; nothing is computed now. Raises RuntimeError if it cannot be
        recorded, as where it waits for the device."""
        graph = torch.cuda.CUDAGraph()
        # Other threads and processes keep using the device during the capture. The outer context brings the present
        # stream back where the end of a capture fails.
        try:
            with (
                torch.cuda.stream(self._stream),
                torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
            ):
                result = work()
        except BaseException:
            # If its end fails, a capture stays open in torch's allocator, which then frees no cached memory any more.
            with contextlib.suppress(RuntimeError, AttributeError):  # torch may rename it
                torch._C._cuda_endAllocateToPool(self._stream.device_index, self._pool)
            raise

        def replay() -> R:
            graph.replay()
            return result

        return replay

    def use_other_memory(self) -> None:
        """Call after all graphs were dropped: torch gives up their pool, and lets no new graph share it."""
        self._pool = torch.cuda.graph_pool_handle()
