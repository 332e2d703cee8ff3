"""Room: one dataset on the learner's device. In: full staging areas. Out: the same columns, once they have arrived.

NOTE [Device slot life]: a loader copies a staging area into an idle slot on a stream of its own and marks the copy's
end by an event; the training stream waits for it before it reads, and marks by another one that it has read for the
last time, for which the loader's next copy waits. No host waits for a device, but for the loader, before a staging
area is filled anew.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch

from sfactory.layout import Layout
from sfactory.learner.columns import Columns
from sfactory.learner.staging import Staging
from sfactory.spec import EnvSpec


class DeviceSlot(Columns):
    """Memory of one dataset on ``device``, used again and again. On a CPU a copy is over when ``load`` returns."""

    def __init__(self, spec: EnvSpec, layout: Layout, device: torch.device, replay: bool) -> None:
        super().__init__(spec, layout, layout.dataset_rows, device, pin=False, replay=replay)
        self.valid_steps = 0  # of the staging area that was loaded last
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._loaded, self._read = (torch.cuda.Event() for _ in range(2))  # type: ignore[no-untyped-call]
            # What ``__init__`` and ``poison`` write, they write on the stream of whoever calls them.
            self._read.record(torch.cuda.current_stream(device))

    def load(self, staging: Staging) -> None:
        """Copy a full staging area here, and wait for the end of the copy: the area may then be filled anew."""
        self.valid_steps = staging.valid_steps
        with self._copying():
            for to, of in zip(self.tensors(), staging.tensors(), strict=True):
                to.copy_(of, non_blocking=True)
        if self._stream is not None:
            self._loaded.record(self._stream)
            self._loaded.synchronize()

    def before_reading(self) -> None:
        """The present stream is about to read: it waits, on the device, for what was copied."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_event(self._loaded)

    def after_reading(self) -> None:
        """The present stream has been given its last work on the present content."""
        if self._stream is not None:
            self._read.record(torch.cuda.current_stream(self._device))

    def poison(self) -> None:
        """Fill with NaN, or the largest number: whoever still reads it is found out. For tests."""
        for tensor in self.tensors():
            if tensor.dtype.is_floating_point:
                tensor.fill_(torch.nan)
            elif tensor.dtype is not torch.bool:
                tensor.fill_(torch.iinfo(tensor.dtype).max)

    def _copying(self) -> AbstractContextManager[object]:
        if self._stream is None:
            return contextlib.nullcontext()
        self._stream.wait_event(self._read)
        return torch.cuda.stream(self._stream)
