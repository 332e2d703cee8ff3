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
import re
import socket
import struct
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, SupportsFloat

from sfactory import atomic
from sfactory.config.flags import all_flags, utf8_text, values_of
from sfactory.config.saved_config import NOT_RESUMED
from sfactory.config.schema import Config

Scalars = Mapping[str, SupportsFloat | None]

# The metrics beside the hyperparameters of runs.
_RESULTS = ("train/episode_return_mean", "eval/episode_return_mean", "perf/fps_60s")
# Titles of charts by category, their kind, and the scalars in them, as regular expressions where there are many lines.
_CHARTS = {
    "returns": {
        "training and evaluation": ("Multiline", ["(train|eval)/episode_return_mean"]),
        "training, least to greatest": (
            "Margin",
            [f"train/episode_return_{kind}" for kind in ("mean", "min", "max")],
        ),
    },
    "learning": {
        "losses": ("Multiline", ["train/(policy|value|aux)_loss"]),
        "entropy and KL": ("Multiline", ["train/(entropy|kl)"]),
        "policy lag, least to greatest": ("Margin", [f"policy_lag/{kind}" for kind in ("mean", "min", "max")]),
    },
    "speed": {
        "steps per second": ("Multiline", ["perf/(fps_60s|sample_fps)"]),
        "busy shares": ("Multiline", ["load/.*_busy"]),
    },
}

_EVENTS = "events.out.tfevents."
_STARTED = re.compile(rf"{re.escape(_EVENTS)}(\d+)\.", re.ASCII)  # the second in which a session began

_log = logging.getLogger(__name__)


class _RecordFile:
    """A file that grows by complete records, also where its folder is renamed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._warned = False
        self._folder, self._held = None, contextlib.ExitStack()
        with contextlib.suppress(OSError):
            # A file that is begun again is in this folder: another run may have taken the name of one that was removed.
            self._folder = self._held.enter_context(atomic.opened_folder(path.parent))
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
        deleted = self._fd is not None and os.fstat(self._fd).st_nlink == 0
        if deleted:
            self._close_file()
        if self._fd is None:
            path = self._path if self._folder is None else self._path.name
            self._fd = atomic.opened(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, self._folder)
        if deleted:
            _log.warning("%s was deleted: its rows are lost, and the next ones begin a new file", self._path)
        return self._fd

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._close_file()
        self._folder = None
        self._held.close()

    def _close_file(self) -> None:
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

    def show(self, env_steps: int, name: str, gif: Path) -> None:
        """Nothing: rows have numbers alone."""


def numbers_of(env_steps: int, scalars: Scalars) -> dict[str, float | None]:
    """The content of a row except the time of day; None for numbers that are not finite."""
    return {"env_steps": env_steps, **{key: _number(value) for key, value in scalars.items()}}


def _number(value: SupportsFloat | None) -> float | None:
    """A Python int or float; None for numbers that are not finite."""
    if value is None or type(value) is int:
        return value
    number = float(value)
    return number if math.isfinite(number) else None


class TensorBoard:
    """TensorBoard files of a run in its folder; with several policies, each has a folder of its own below it.

    There its scalars have the names that they have in a run of one policy, so that charts lay all policies together.
    For its methods see TensorBoardWriter.
    """

    def __init__(self, directory: Path, flush_secs: float, config: Config) -> None:
        """Writes the settings of ``config``, too, as text and as hyperparameters."""
        policies = config.population.num_policies
        folders = {f"policy_{number}/": directory / f"policy_{number}" for number in range(policies) if policies > 1}
        for folder in folders.values():
            with contextlib.suppress(OSError):  # what is lost is logged where it is written
                folder.mkdir(exist_ok=True)
        self._of_run = TensorBoardWriter(directory, flush_secs)
        self._of_run.describe(values_of(config))
        self._of_policies = {name: TensorBoardWriter(folder, flush_secs) for name, folder in folders.items()}

    def write(self, env_steps: int, scalars: Scalars) -> None:
        left = dict(scalars)
        for prefix, writer in self._of_policies.items():
            own = {name: left.pop(name) for name in scalars if name.startswith(prefix)}
            if own:
                writer.write(env_steps, {name.removeprefix(prefix): value for name, value in own.items()})
        self._of_run.write(env_steps, left)

    def show(self, env_steps: int, name: str, gif: Path) -> None:
        self._of_run.show(env_steps, name, gif)

    def close(self) -> None:
        for writer in (self._of_run, *self._of_policies.values()):
            writer.close()


class TensorBoardWriter(_RecordFile):
    """A TensorBoard event file of scalars and pictures over env steps, one per session."""

    def __init__(self, directory: Path, flush_secs: float) -> None:
        """Rows reach the file every ``flush_secs`` seconds and at ``close``."""
        # Imported only on use: this takes a second and imports torch.
        from tensorboardX.proto import event_pb2, summary_pb2
        from tensorboardX.record_writer import masked_crc32c

        self._events: Any = event_pb2
        self._summaries: Any = summary_pb2
        self._checksum: Callable[[bytes], int] = masked_crc32c
        # TensorBoard reads the files of a directory sorted by name, so the start time comes first.
        earlier = [int(found[1]) for path in directory.glob(f"{_EVENTS}*") if (found := _STARTED.match(path.name))]
        self._clock = _Clock(1.0 + max(earlier, default=0))
        super().__init__(directory / f"{_EVENTS}{int(self._clock.now())}.{socket.gethostname()}.{os.getpid()}")
        self._flush_secs = flush_secs
        self._flushed_at = time.monotonic()
        self._pending = [self._record(file_version="brain.Event:2")]

    def write(self, env_steps: int, scalars: Scalars) -> None:
        """Add one point to the curve of each scalar that is a finite number."""
        values = [
            self._summaries.Summary.Value(tag=key, simple_value=number)
            for key, value in scalars.items()
            if (number := _number(value)) is not None
        ]
        summary = self._summaries.Summary(value=values)
        self._pending.append(self._record(step=env_steps, summary=summary))
        if time.monotonic() - self._flushed_at >= self._flush_secs:
            self._flush()

    def show(self, env_steps: int, name: str, gif: Path) -> None:
        """Add a picture, which may move; a file that is not there is logged."""
        try:
            data = atomic.read_bytes(gif)
            width, height = struct.unpack_from("<HH", data, len("GIF89a"))
        except (OSError, struct.error) as error:
            _log.warning("%s is not in TensorBoard: %s", gif, error)
            return
        image = self._summaries.Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=data)
        summary = self._summaries.Summary(value=[self._summaries.Summary.Value(tag=name, image=image)])
        self._pending.append(self._record(step=env_steps, summary=summary))

    def describe(self, values: Mapping[str, object]) -> None:
        """Add all flags as a text, those that people vary as hyperparameters, and a layout of charts."""
        from tensorboardX.summary import custom_scalars, hparams, text

        flags = all_flags()
        varied = {
            name: value if isinstance(value, bool | int | float) else utf8_text(value)
            for name, value in values.items()
            if name not in NOT_RESUMED and (flags[name].info.mutable or value != flags[name].default)
        }
        cells = {name: utf8_text(value).replace("|", "\\|").replace("\n", " ") for name, value in values.items()}
        table = "\n".join(["| flag | value |", "|---|---|", *(f"| {name} | {cell} |" for name, cell in cells.items())])
        experiment, session, _ = hparams(varied, dict.fromkeys(_RESULTS))
        for summary in (experiment, session, text("settings", table), custom_scalars(_CHARTS)):
            self._pending.append(self._record(summary=summary))

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
        """An event of now, framed as a TFRecord: length, its checksum, data, its checksum, all little-endian."""
        data: bytes = self._events.Event(wall_time=self._clock.now(), **event).SerializeToString()
        length = struct.pack("<Q", len(data))
        checksums = [struct.pack("<I", self._checksum(part)) for part in (length, data)]
        return b"".join((length, checksums[0], data, checksums[1]))


class _Clock:
    """Seconds of the wall clock; where that is set back it goes on from where it was, so that curves go forward."""

    def __init__(self, begin: float) -> None:
        """begin: it is never before that."""
        self._last, self._ahead = begin, 0.0

    def now(self) -> float:
        moment = datetime.now().timestamp()
        self._ahead = max(self._ahead, self._last - moment)
        self._last = moment + self._ahead
        return self._last
