"""Room: what the person at the terminal sees. In: progress and messages. Out: stderr, and the run's log file.

On a terminal a progress bar with the time left, elsewhere one line per report; stdout is never touched. A
terminal or disk that goes away costs output, never the run.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

from tqdm import tqdm

from sfactory.messages import PolicyLag

if TYPE_CHECKING:
    _Tqdm = tqdm[NoReturn]  # generic to type checkers only
else:
    _Tqdm = tqdm

# Of what is known of training; rows of metrics tell all of it.
_SHOWN = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "grad_norm", "learning_rate")


@dataclass(frozen=True)
class Progress:
    """Where training stands. Rates are per second, None while there is no such number.

    returns: mean return by policy, where there are several
    busy: share of time by kind of process. bound_by: who sets the pace, see ``Load``. env_faults: see there.
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


class _Bar(_Tqdm):
    """A bar without tqdm's background thread, which would outlive the run."""

    monitor_interval = 0


class Console:
    """Progress and messages on ``stream`` and in a log file. Its methods may be called from any thread."""

    def __init__(
        self,
        total_env_steps: int | None,
        total_seconds: float | None,
        stream: TextIO | None = None,
        log_path: Path | None = None,
    ) -> None:
        """Limits of the run, where there are any, tell the time left; ``stream`` is stderr if not given."""
        self._total_env_steps = total_env_steps
        self._total_seconds = total_seconds
        self._stream: TextIO | None = sys.stderr if stream is None else stream
        self._on_terminal = _has_screen(self._stream)
        self._bar: _Bar | None = None
        self._lock = threading.RLock()
        self._log_file: TextIO | None = None
        if log_path is not None:
            try:
                self._log_file = log_path.open("a", encoding="utf-8", errors="replace", buffering=1)
            except OSError as error:
                self.message(f"{log_path} cannot be written: {error}")

    def line(self, progress: Progress) -> None:
        """Report progress: the log gets a line of key=value pairs, and so does a stream that is no terminal."""
        text = _stamped(_pairs(progress, self._seconds_left(progress)))
        with self._lock:
            self._write_log(text)
            if self._on_terminal:
                self._move_bar(progress)
            else:
                self._write_stream(text)

    def message(self, text: str) -> None:
        """Print a message with the time of day, above the bar if there is one."""
        with self._lock:
            self._write_log(_stamped(text))
            self._write_stream(_stamped(text))

    def handler(self) -> logging.Handler:
        """A handler that turns log records into messages."""
        return _ConsoleHandler(self)

    def close(self, last_line: str | None = None) -> None:
        """Leave the bar where it stands, write ``last_line`` as it is, and close the log file."""
        with self._lock:
            if self._bar is not None:
                self._guarded_bar_close()
            if last_line is not None:
                self._write_log(last_line)
                self._write_stream(last_line)
            if self._log_file is not None:
                log_file, self._log_file = self._log_file, None
                _close_quietly(log_file)

    def _move_bar(self, progress: Progress) -> None:
        if self._stream is None:
            return
        try:
            if self._bar is None:
                # Begun at the first report, so that a resumed run's speed is not that of its whole past.
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
            self._bar.set_postfix_str(self._postfix(progress), refresh=False)
            # A last batch may go past the limit, where tqdm would forget that there is one.
            self._bar.n = min(progress.env_steps, self._total_env_steps or progress.env_steps)
            self._bar.refresh()
        except (OSError, ValueError):
            self._stream = None

    def _guarded_bar_close(self) -> None:
        bar, self._bar = self._bar, None
        try:
            if bar is not None and self._stream is not None:
                bar.close()
        except (OSError, ValueError):
            self._stream = None

    def _write_stream(self, text: str) -> None:
        """Write a line; a stream that fails once (its terminal is gone, its pipe closed) is given up."""
        if self._stream is None:
            return
        try:
            if self._bar is not None:
                self._bar.clear()
            print(text, file=self._stream, flush=True)
            if self._bar is not None:
                self._bar.refresh()
        except (OSError, ValueError):
            self._stream = None

    def _write_log(self, text: str) -> None:
        if self._log_file is None:
            return
        try:
            print(text, file=self._log_file, flush=True)
        except (OSError, ValueError) as error:
            log_file, self._log_file = self._log_file, None
            _close_quietly(log_file)
            self._write_stream(_stamped(f"the log file cannot be written any more: {error}"))

    def _postfix(self, progress: Progress) -> str:
        objective = "".join(f" {key}={value}" for key, value in _objective(progress, 2).items())
        text = f"return={_text(progress.return_mean, 2)}{objective} fps={_text(progress.fps_10s, 0)}"
        # The bar tells the time left to a number of steps by itself.
        return text if self._total_seconds is None else f"{text} left={_duration(self._seconds_left(progress))}"

    def _seconds_left(self, progress: Progress) -> float | None:
        """Until the nearer of the two limits; None if there is none that can be told."""
        left: list[float] = []
        fps = progress.fps_60s or progress.fps_10s
        if self._total_env_steps is not None and fps:
            left.append((self._total_env_steps - progress.env_steps) / fps)
        if self._total_seconds is not None:
            left.append(self._total_seconds - progress.train_seconds)
        return max(0.0, min(left)) if left else None


class _ConsoleHandler(logging.Handler):
    """Log records as messages of a console."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.message(f"{record.levelname}: {self.format(record)}")


def _has_screen(stream: TextIO) -> bool:
    """Whether a person can see a bar there; a pseudo-terminal without a width is a script's, and gets lines."""
    if not stream.isatty():
        return False
    try:
        return os.get_terminal_size(stream.fileno()).columns > 0
    except (OSError, ValueError):
        return True


def _close_quietly(file: TextIO) -> None:
    try:
        file.close()
    except (OSError, ValueError):
        return


def _stamped(text: str) -> str:
    return f"[{datetime.now().isoformat(sep=' ', timespec='seconds')}] {text}"


def _pairs(progress: Progress, seconds_left: float | None) -> str:
    """The report as ``key=value`` pairs; a dash where there is no number."""
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
    """The true objective, where it is not the return."""
    if progress.true_objective_mean in (None, progress.return_mean):
        return {}
    return {"true_objective": _text(progress.true_objective_mean, digits)}


def _text(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _duration(seconds: float | None) -> str:
    # Longer than a timedelta can hold is as good as no end at all.
    if seconds is None or seconds > timedelta.max.total_seconds():
        return "-"
    return str(timedelta(seconds=int(seconds)))
