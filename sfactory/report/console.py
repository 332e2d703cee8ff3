"""Shows progress and messages on stderr and writes them to the run's log file.

A terminal gets a progress bar; other streams get one line per report. A broken terminal or disk does not end the run.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from sfactory.atomic import open_log
from sfactory.messages import PolicyLag

# Statistics shown in progress lines; metrics rows have all of them.
_SHOWN = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "grad_norm", "learning_rate")


@dataclass(frozen=True)
class Progress:
    """The current state of training: rates per second, None for unknown values; busy, bound_by: see bottleneck.Load.

    returns: mean return by policy, if there are several. env_faults: number of env failures by kind.
    """

    env_steps: int
    train_seconds: float
    updates: int
    fps_10s: float | None = None
    fps_60s: float | None = None
    sample_fps: float | None = None
    return_mean: float | None = None
    true_objective_mean: float | None = None
    best_return_mean: float | None = None
    length_mean: float | None = None
    returns: Sequence[float | None] = ()
    lag: PolicyLag = field(default_factory=PolicyLag)
    losses: Mapping[str, float] = field(default_factory=dict)
    busy: Mapping[str, float] = field(default_factory=dict)
    bound_by: str | None = None
    env_faults: Mapping[str, int] = field(default_factory=dict)


class _Bar(tqdm):  # type: ignore[type-arg]  # it is generic to type checkers only
    """A progress bar without tqdm's background thread, which would outlive the run."""

    monitor_interval = 0


class Console:
    """Progress and messages on ``stream`` and in a log file. Methods may be called from any thread."""

    def __init__(
        self,
        total_env_steps: int | None,
        total_seconds: float | None,
        stream: TextIO | None = None,
        log_path: Path | None = None,
    ) -> None:
        """total_env_steps, total_seconds: limits of the run, for the time left. ``stream``: stderr by default."""
        self._total_env_steps, self._total_seconds = total_env_steps, total_seconds
        self._stream: TextIO | None = sys.stderr if stream is None else stream
        self._on_terminal = _has_screen(self._stream)
        self._bar: _Bar | None = None
        self._lock = threading.RLock()
        self._log_file: TextIO | None = None
        if log_path is not None:
            try:
                self._log_file = open_log(log_path)
            except OSError as error:
                self.message(f"{log_path} cannot be written: {error}")

    def line(self, progress: Progress) -> None:
        """Report progress: as key=value pairs in the log and on streams that are not a terminal, as a bar on one."""
        text = _stamped(_pairs(progress, self._seconds_left(progress)))
        with self._lock:
            self._write_log(text)
            if self._on_terminal:
                self._move_bar(progress)
            else:
                self._write_stream(text)

    def message(self, text: str) -> None:
        """Print a message with the time of day, above the progress bar if there is one."""
        with self._lock:
            self._write_log(_stamped(text))
            self._write_stream(_stamped(text))

    def close(self, last_line: str | None = None) -> None:
        """Close the progress bar, write ``last_line`` unchanged, and close the log file."""
        with self._lock:
            if self._bar is not None:
                with self._dropping_broken_stream():
                    self._bar.close()
                self._bar = None
            if last_line is not None:
                self._write_log(last_line)
                self._write_stream(last_line)
            self._close_log()

    @contextlib.contextmanager
    def _dropping_broken_stream(self) -> Iterator[None]:
        """Stop using the stream if it fails: its terminal or pipe has been closed."""
        try:
            yield
        except (OSError, ValueError):
            self._stream = None

    def _move_bar(self, progress: Progress) -> None:
        if self._stream is None:
            return
        with self._dropping_broken_stream():
            if self._bar is None:
                # Created at the first report: the speed of a resumed run must not include earlier sessions.
                _Bar.set_lock(self._lock)
                self._bar = _Bar(
                    total=self._total_env_steps,
                    initial=progress.env_steps,
                    unit="step",
                    unit_scale=True,
                    dynamic_ncols=True,
                    miniters=1,
                    file=self._stream,
                )
            objective = "".join(f" {key}={value}" for key, value in _objective(progress, 2).items())
            text = f"return={_text(progress.return_mean, 2)}{objective} fps={_text(progress.fps_10s, 0)}"
            if self._total_seconds is not None:  # the bar shows the time left until a number of steps by itself
                text += f" left={_duration(self._seconds_left(progress))}"
            self._bar.set_postfix_str(text, refresh=False)
            # The last batch may exceed the limit, where tqdm would drop the total.
            self._bar.n = min(progress.env_steps, self._total_env_steps or progress.env_steps)
            self._bar.refresh()

    def _write_stream(self, text: str) -> None:
        if self._stream is None:
            return
        with self._dropping_broken_stream():
            if self._bar is not None:
                self._bar.clear()
            print(text, file=self._stream, flush=True)
            if self._bar is not None:
                self._bar.refresh()

    def _write_log(self, text: str) -> None:
        if self._log_file is None:
            return
        try:
            print(text, file=self._log_file, flush=True)
        except (OSError, ValueError) as error:
            self._close_log()
            self._write_stream(_stamped(f"the log file can no longer be written: {error}"))

    def _close_log(self) -> None:
        log_file, self._log_file = self._log_file, None
        with contextlib.suppress(OSError, ValueError):
            if log_file is not None:
                log_file.close()

    def _seconds_left(self, progress: Progress) -> float | None:
        """Seconds until the nearer of the two limits; None if unknown."""
        left: list[float] = []
        fps = progress.fps_60s or progress.fps_10s
        if self._total_env_steps is not None and fps:
            left.append((self._total_env_steps - progress.env_steps) / fps)
        if self._total_seconds is not None:
            left.append(self._total_seconds - progress.train_seconds)
        return max(0.0, min(left)) if left else None


class ConsoleHandler(logging.Handler):
    """Prints log records as messages of a console."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        self._console.message(f"{record.levelname}: {self.format(record)}")


def _has_screen(stream: TextIO) -> bool:
    """Whether a progress bar can be shown; a pseudo-terminal without a width belongs to a script."""
    if not stream.isatty():
        return False
    try:
        return os.get_terminal_size(stream.fileno()).columns > 0
    except (OSError, ValueError):
        return True


def _stamped(text: str) -> str:
    return f"[{datetime.now().isoformat(sep=' ', timespec='seconds')}] {text}"


def _pairs(progress: Progress, seconds_left: float | None) -> str:
    """Progress as ``key=value`` pairs; a dash for unknown values."""
    pairs = {
        "env_steps": str(progress.env_steps),
        "fps_10s": _text(progress.fps_10s, 0),
        "fps_60s": _text(progress.fps_60s, 0),
        "sample_fps": _text(progress.sample_fps, 0),
        "return": _text(progress.return_mean, 3),
        **_objective(progress, 3),
        "best": _text(progress.best_return_mean, 3),
        **({"returns": ",".join(_text(mean, 3) for mean in progress.returns)} if progress.returns else {}),
        "length": _text(progress.length_mean, 1),
        "lag": "/".join(_text(value, 1) for value in (progress.lag.min, progress.lag.mean, progress.lag.max)),
        "updates": str(progress.updates),
        **{name: f"{value:.4g}" for name, value in progress.losses.items() if name in _SHOWN and not math.isnan(value)},
        **({"busy": ",".join(f"{kind}:{share:.2f}" for kind, share in progress.busy.items())} if progress.busy else {}),
        **({} if progress.bound_by is None else {"bound_by": progress.bound_by}),
        **{name: str(count) for name, count in progress.env_faults.items() if count},
        "left": _duration(seconds_left),
    }
    return " ".join(f"{key}={value}" for key, value in pairs.items())


def _objective(progress: Progress, digits: int) -> dict[str, str]:
    """The true objective, if it is not the return."""
    if progress.true_objective_mean in (None, progress.return_mean):
        return {}
    return {"true_objective": _text(progress.true_objective_mean, digits)}


def _text(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _duration(seconds: float | None) -> str:
    # Longer than a timedelta can hold counts as unknown.
    if seconds is None or seconds > timedelta.max.total_seconds():
        return "-"
    return str(timedelta(seconds=int(seconds)))
