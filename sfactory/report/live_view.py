"""Draws the state of a run into the last rows of a terminal, while messages scroll above them.

NOTE [Rows of the view]: the rows lie below the terminal's scrolling region. So what children, envs and libraries print
scrolls as ever, and neither disturbs the view nor is erased by it. The cursor stays in the region. Before Ctrl-Z stops
main it gives the terminal its rows back, and after an abrupt end of main the watcher does.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import TextIO

from sfactory.process.command import number
from sfactory.process.signals import in_main_thread
from sfactory.report.progress import Progress, duration
from sfactory.system.operating_system import POSIX
from sfactory.system.streams import say_at_once

HEIGHT = 15  # rows, always: a region that changes its size would move what stands in it
_LEAST_COLUMNS, _LEAST_ROWS = 60, HEIGHT + 6
_LABEL = 10  # columns
_BAR = 20
_SPARKS = "▁▂▃▄▅▆▇█"
_SAVE, _RESTORE, _WHOLE = "\x1b7", "\x1b8", "\x1b[r"
_BOLD, _DIM, _YELLOW, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[33m", "\x1b[0m"
_LOSSES = {"policy_loss": "policy", "value_loss": "value", "entropy": "entropy", "kl": "kl"}


class Sparkline:
    """Values as a row of blocks, which spans all of them: where there are too many, two blocks become their mean."""

    def __init__(self, most: int = 24) -> None:
        """most: blocks, an even number."""
        self._most = most
        self._means: list[float] = []
        self._per_block, self._pending = 1, list[float]()  # number of values of a block, and those of the next one

    def add(self, value: float) -> None:
        """Add a value at the right, if it is finite."""
        if not math.isfinite(value):
            return
        self._pending.append(value)
        if len(self._pending) < self._per_block:
            return
        self._means.append(sum(self._pending) / self._per_block)
        self._pending.clear()
        if len(self._means) == self._most:
            self._means = [(one + other) / 2 for one, other in zip(self._means[::2], self._means[1::2], strict=True)]
            self._per_block *= 2

    def __str__(self) -> str:
        low, high = min(self._means, default=0.0), max(self._means, default=0.0)
        scale = (len(_SPARKS) - 1) / ((high - low) or 1.0)
        return "".join(_SPARKS[round((mean - low) * scale)] for mean in self._means)


class LiveView:
    """The last rows of a terminal. ``show`` draws them, ``close`` gives them back. For the main thread."""

    def __init__(self, stream: TextIO, title: str, on_open: Callable[[bool], None] = lambda is_open: None) -> None:
        """on_open: called with True before each time that it is drawn, with False once it has given its rows back."""
        self._stream, self._title, self._on_open = stream, title, on_open
        self._size: os.terminal_size | None = None  # of the terminal when the region was set; None: it is not set
        self._returns = Sparkline()
        self._styled = "NO_COLOR" not in os.environ
        self.warnings, self.last_warning = 0, ""

    def show(self, progress: Progress, total_env_steps: int | None, seconds_left: float | None) -> bool:
        """Draw the rows; False if the terminal is too small, or another program is in its foreground."""
        if progress.return_mean is not None:
            self._returns.add(progress.return_mean)
        size = screen_of(self._stream)
        if size is None or not _in_foreground(self._stream):
            self.close()
            return False
        self._on_open(True)  # each time: the watcher may be another one, after the fork server had ended
        if size != self._size:
            self._give_back(self._write)
            self._begin(size)
        labelled = list(self._rows(progress, total_env_steps, seconds_left, size.columns - _LABEL - 3))
        first = size.lines - HEIGHT
        text = f"\x1b[{first + 1};1H\x1b[2K" + self._style("─" * (size.columns - 1), _DIM)
        for row in range(1, HEIGHT):
            label, content, style = labelled[row - 1] if row <= len(labelled) else ("", "", "")
            content = content[: size.columns - _LABEL - 2]
            text += f"\x1b[{first + 1 + row};1H\x1b[2K {self._style(f'{label:<{_LABEL}}', _DIM)}"
            text += self._style(content, style) if style else content
        self._write(f"{_SAVE}{text}{_RESTORE}")
        if self._size is None:  # Ctrl-Z came while this was written
            self._size = size
            self.close()
        return True

    def close(self) -> None:
        """Clear the rows, and let the whole terminal scroll again."""
        if self._size is not None:
            self._give_back(self._write)
            self._on_open(False)

    def _give_back(self, write: Callable[[str], object]) -> None:
        size = self._size
        if size is None:
            return
        try:
            # In the order of the rows: setting the region moves the cursor.
            write(f"{_SAVE}{_WHOLE}\x1b[{size.lines - HEIGHT + 1};1H\x1b[J{_RESTORE}")
        finally:
            self._size = None
            if signal.getsignal(signal.SIGTSTP) == self._stop:
                signal.signal(signal.SIGTSTP, signal.SIG_DFL)

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        """Handle Ctrl-Z: give the rows back, and stop as without a view. The next ``show`` begins again."""
        self._give_back(lambda text: say_at_once(text, self._stream.fileno()))  # this may interrupt a write
        self._on_open(False)
        signal.signal(signum, signal.SIG_DFL)
        signal.raise_signal(signum)

    def _begin(self, size: os.terminal_size) -> None:
        """Free the last rows of what stands there, and set the region to the others."""
        above = size.lines - HEIGHT
        self._size = size
        if in_main_thread() and signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._stop)
        self._write("\n" * HEIGHT + f"\x1b[{HEIGHT}A{_SAVE}\x1b[1;{above}r{_RESTORE}")

    def _write(self, text: str) -> None:
        # One write for all: another process may print at any time.
        self._stream.write(text)
        self._stream.flush()

    def _style(self, text: str, style: str) -> str:
        return f"{style}{text}{_PLAIN}" if self._styled else text

    def _rows(
        self, progress: Progress, total: int | None, seconds_left: float | None, width: int
    ) -> Iterator[tuple[str, str, str]]:
        """Label, content and style of each row."""
        clock = f"{duration(progress.train_seconds)}  left {duration(seconds_left)}"
        yield "run", f"{self._title[: width - len(clock)]}  {clock}", _BOLD
        done = None if seconds_left is None else progress.train_seconds / ((progress.train_seconds + seconds_left) or 1)
        steps = f"{progress.env_steps:,} env steps"
        if total:
            done = progress.least_env_steps / total
            each = " of each policy" if progress.learning else ""
            steps = f"{progress.least_env_steps:,} of {total:,} env steps{each}"
        yield "", steps if done is None else f"{_bar(done, width - len(steps) - 8)} {min(done, 1):4.0%}  {steps}", ""
        pure = progress.pure_fps and progress.fps_10s and f"{progress.fps_10s / progress.pure_fps:.0%}"
        speed = {"trained": number(progress.fps_10s), "sampled": number(progress.sample_fps)}
        last_minute = {"last minute": number(progress.fps_60s)}
        of_pure = {"of pure simulation": pure} if pure else {}
        yield "steps/s", _pairs(speed | (of_pure or last_minute)), ""
        returns = {"mean": number(progress.return_mean), "best": number(progress.best_return_mean)}
        objective = {} if progress.objective_mean is None else {"objective": number(progress.objective_mean)}
        length = {"length": number(progress.length_mean)}
        yield "return", f"{_pairs(returns | objective | length)}  {self._returns}", ""
        if progress.returns:
            yield "policies", "  ".join(map(number, progress.returns)), ""
        yield "loss", _pairs({short: _loss(progress, name) for name, short in _LOSSES.items()}), ""
        lag = "/".join(number(value) for value in (progress.lag.min, progress.lag.mean, progress.lag.max))
        rate, norm = _loss(progress, "learning_rate"), _loss(progress, "grad_norm")
        updates = {"policy lag": lag, "learning rate": rate, "gradient": norm}
        yield "updates", f"{progress.updates:,}  {_pairs(updates)}", ""
        for kind, share in progress.busy.items():
            slowest = progress.bound_by == kind
            text = f"{_bar(share, _BAR)} {share:4.0%} busy{', sets the pace' if slowest else ''}"
            yield kind, text, _YELLOW if slowest else ""
        yield "slots", _pairs({state: str(count) for state, count in progress.slots.items()}) or "-", ""
        yield "queues", _pairs({what: number(depth) for what, depth in progress.queues.items()}) or "-", ""
        megabytes = dict(progress.memory_mb)
        total_mb = number(megabytes.pop("total", None))
        yield "memory", f"{total_mb} MB  {_pairs({kind: number(mb) for kind, mb in megabytes.items()})}", ""
        faults = _pairs({name.replace("_", " "): str(count) for name, count in progress.env_faults.items() if count})
        last = self.last_warning.encode("ascii", "replace").decode()  # each character has one column
        warnings = f"{self.warnings}, the last: {last}" if self.warnings else ""
        text = "  ".join(filter(None, (faults, warnings)))
        yield "warnings", text or "none", _YELLOW if text else ""


def screen_of(stream: TextIO) -> os.terminal_size | None:
    """The size of the terminal that ``stream`` writes to; None if it is none, or cannot show the view."""
    if not POSIX or not stream.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        return None
    if "utf" not in (getattr(stream, "encoding", None) or "").lower():
        return None
    with contextlib.suppress(OSError, ValueError):
        size = os.get_terminal_size(stream.fileno())
        if size.columns >= _LEAST_COLUMNS and size.lines >= _LEAST_ROWS:
            return size
    return None


def _in_foreground(stream: TextIO) -> bool:
    try:
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except OSError:  # it is not the terminal that controls this process
        return True


def _bar(share: float, width: int) -> str:
    full = round(min(max(share, 0.0), 1.0) * width)
    return "█" * full + "░" * (width - full)


def _pairs(values: Mapping[str, str]) -> str:
    return "  ".join(f"{name} {value}" for name, value in values.items())


def _loss(progress: Progress, name: str) -> str:
    value = progress.losses.get(name)
    return "-" if value is None or value != value else f"{value:.3g}"
