"""Writes scalars to metrics.jsonl and TensorBoard event files; rows that a full disk refuses are dropped.

TensorBoard files are written here with tensorboardX's message types, because its SummaryWriter waits forever after its
background thread has ended at a failed write.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, SupportsFloat

from sfactory import atomic

Scalars = Mapping[str, SupportsFloat | None]

_log = logging.getLogger(__name__)


class _RecordFile:
    """A file that grows by complete records, also where its folder is renamed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._warned = False
        with contextlib.suppress(OSError):
            self._open()

    def append(self, record: bytes) -> None:
        """Append ``record`` completely or not at all; the first failure is logged."""
        try:
            atomic.append_whole(self._open(), record)
        except OSError as error:
            if not self._warned:
                self._warned = True
                _log.warning("%s: rows are lost until this is fixed: %s; training continues", self._path, error)

    def _open(self) -> int:
        if self._fd is None:
            self._fd = atomic.opened(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        return self._fd

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class MetricsWriter(_RecordFile):
    """metrics.jsonl: one JSON object per row, with ``time`` (ISO), ``env_steps`` and all scalars by name.

    A resumed run appends. Numbers that are not finite become null.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with contextlib.suppress(OSError):
            atomic.cut_torn_line(self._open())

    def write(self, env_steps: int, scalars: Scalars) -> None:
        """Append one row; readers can see it when this returns."""
        time_of_day = datetime.now().astimezone().isoformat(timespec="milliseconds")
        row = {"time": time_of_day, **numbers_of(env_steps, scalars)}
        self.append(json.dumps(row, allow_nan=False).encode() + b"\n")


def numbers_of(env_steps: int, scalars: Scalars) -> dict[str, float | None]:
    """The content of a row except the time of day; None for numbers that are not finite."""
    return {"env_steps": env_steps, **{key: _number(value) for key, value in scalars.items()}}


def _number(value: SupportsFloat | None) -> float | None:
    """A Python int or float; None for numbers that are not finite."""
    if value is None or type(value) is int:
        return value
    number = float(value)
    return number if math.isfinite(number) else None


class TensorBoardWriter(_RecordFile):
    """A TensorBoard event file of scalars over env steps, one per session."""

    def __init__(self, directory: Path, flush_secs: float) -> None:
        """Rows reach the file every ``flush_secs`` seconds and at ``close``."""
        # Imported only on use: this takes a second and imports torch.
        from tensorboardX.proto import event_pb2, summary_pb2
        from tensorboardX.record_writer import masked_crc32c

        self._events: Any = event_pb2
        self._summaries: Any = summary_pb2
        self._checksum: Callable[[bytes], int] = masked_crc32c
        # TensorBoard reads the files of a directory sorted by name, so the start time comes first.
        name = f"events.out.tfevents.{int(_wall_time_s())}.{socket.gethostname()}.{os.getpid()}"
        super().__init__(directory / name)
        self._flush_secs = flush_secs
        self._flushed_at = time.monotonic()
        self._pending = [self._record(wall_time=_wall_time_s(), file_version="brain.Event:2")]

    def write(self, env_steps: int, scalars: Scalars) -> None:
        """Add one point to the curve of each scalar that is a finite number."""
        values = [
            self._summaries.Summary.Value(tag=key, simple_value=number)
            for key, value in scalars.items()
            if (number := _number(value)) is not None
        ]
        summary = self._summaries.Summary(value=values)
        self._pending.append(self._record(wall_time=_wall_time_s(), step=env_steps, summary=summary))
        if time.monotonic() - self._flushed_at >= self._flush_secs:
            self._flush()

    def close(self) -> None:
        """Write pending records and close the file."""
        self._flush()
        super().close()

    def _flush(self) -> None:
        if self._pending:
            self.append(b"".join(self._pending))
        self._pending.clear()
        self._flushed_at = time.monotonic()

    def _record(self, **event: Any) -> bytes:
        """One event framed as a TFRecord: length, its checksum, data, its checksum, all little-endian."""
        data: bytes = self._events.Event(**event).SerializeToString()
        length = struct.pack("<Q", len(data))
        checksums = [struct.pack("<I", self._checksum(part)) for part in (length, data)]
        return b"".join((length, checksums[0], data, checksums[1]))


def _wall_time_s() -> float:
    return datetime.now().timestamp()
