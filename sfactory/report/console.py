"""Shows progress and messages on stderr and writes them to the run's log file.

A terminal gets a live view; other streams get one line per report. A broken terminal or disk does not end the run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TextIO

from sfactory.atomic import append_line, open_log
from sfactory.report.live_view import LiveView, screen_of
from sfactory.report.progress import Progress, line_of


class Console:
    """Progress and messages on ``stream`` and in a log file. Methods may be called from any thread."""

    def __init__(
        self,
        total_env_steps: int | None,
        total_seconds: float | None,
        stream: TextIO | None = None,
        log_path: Path | None = None,
        quiet: bool = False,
        title: str = "",
        on_view: Callable[[bool], None] = lambda is_open: None,
    ) -> None:
        """total_env_steps, total_seconds: limits of each policy, for the time left. ``stream``: stderr by default.

        quiet: the stream gets warnings, errors and the last line alone. title: what the live view is headed by.
        on_view: see LiveView.
        """
        self._total_env_steps, self._total_seconds = total_env_steps, total_seconds
        self._stream: TextIO | None = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._view = None if quiet or screen_of(self._stream) is None else LiveView(self._stream, title, on_view)
        self._is_drawn = False  # by the last ``show``
        self._lock = threading.RLock()
        self._log_path, self._log_fd, self._loses_lines = log_path, -1, False
        if log_path is not None:
            try:
                self._log_fd = open_log(log_path)
            except OSError as error:
                self.message(f"{log_path} cannot be written: {error}", logging.WARNING)

    @property
    def is_live(self) -> bool:
        """Whether there is a live view, which wants ``show`` every second, and gets no lines of progress."""
        return self._view is not None

    def line(self, progress: Progress) -> None:
        """Report progress as key=value pairs, in the log, and on the stream unless a live view is there to see."""
        text = _stamped(line_of(progress, self._seconds_left(progress)))
        with self._lock:
            self._write_log(text)
            if not (self._is_drawn or self._quiet):
                self._write_stream(text)

    def show(self, progress: Progress) -> None:
        """Draw the live view."""
        with self._lock, self._dropping_broken_stream():
            if self._view is not None:
                self._is_drawn = self._view.show(progress, self._total_env_steps, self._seconds_left(progress))

    def message(self, text: str, level: int = logging.INFO) -> None:
        """Print a message with the time of day. ``level``: of the module logging."""
        with self._lock:
            self._write_log(_stamped(text))
            is_warning = level >= logging.WARNING
            if self._view is not None:
                self._view.warnings += is_warning
                if is_warning:
                    self._view.last_warning = text.partition("\n")[0]
                self._write_stream(self._folded(text))
            elif is_warning or not self._quiet:
                self._write_stream(_stamped(text))

    def close(self, last_line: str | None = None, prints: bool = True) -> None:
        """End the live view, write ``last_line`` unchanged, and close the log file. ``prints``: on the stream, too."""
        with self._lock:
            with self._dropping_broken_stream():
                if self._view is not None:
                    self._view.close()
            self._view = None
            if last_line is not None:
                self._write_log(last_line)
                if prints:
                    self._write_stream(last_line)
            fd, self._log_fd = self._log_fd, -1
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)

    @contextlib.contextmanager
    def _dropping_broken_stream(self) -> Iterator[None]:
        """Stop using the stream if it fails: its terminal or pipe has been closed."""
        try:
            yield
        except (OSError, ValueError):
            self._stream = self._view = None

    def _folded(self, text: str) -> str:
        """The message in lines that fit the terminal, the time of day before the first."""
        size = None if self._stream is None else screen_of(self._stream)
        stamp = datetime.now().strftime("%H:%M:%S ")
        indent = " " * len(stamp)
        width = size.columns if size else 80
        form = textwrap.TextWrapper(width - 1, subsequent_indent=indent, break_on_hyphens=False)
        return "\n".join(filter(None, map(form.fill, f"{stamp}{text}".splitlines())))

    def _write_stream(self, text: str) -> None:
        if self._stream is None:
            return
        with self._dropping_broken_stream():
            print(text, file=self._stream, flush=True)

    def _write_log(self, text: str) -> None:
        """Whole lines, or none: each is tried, as a disk that is full may have space again. The first loss is said."""
        if self._log_fd < 0:
            return
        try:
            append_line(self._log_fd, text)
        except OSError as error:
            if not self._loses_lines:
                self._loses_lines = True
                lost = f"{self._log_path}: lines are lost until this is fixed: {error}; training continues"
                self._write_stream(_stamped(lost))

    def _seconds_left(self, progress: Progress) -> float | None:
        """Seconds until the nearer of the two limits; None if unknown."""
        left: list[float] = []
        if self._total_env_steps is not None and (seconds := progress.seconds_until(self._total_env_steps)) is not None:
            left.append(seconds)
        if self._total_seconds is not None:
            left.append(self._total_seconds - progress.train_seconds)
        return max(0.0, min(left)) if left else None


class ConsoleHandler(logging.Handler):
    """Prints log records as messages of a console."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record; one that cannot be formatted is reported as other handlers of logging do."""
        try:
            self._console.message(f"{record.levelname}: {self.format(record)}", record.levelno)
        except Exception:  # a library's mistake in a message must not fail the call that logs it
            self.handleError(record)


def _stamped(text: str) -> str:
    return f"[{datetime.now().isoformat(sep=' ', timespec='seconds')}] {text}"
