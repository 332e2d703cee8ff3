"""A pseudo terminal, and what is to be seen on it."""

from __future__ import annotations

import os
import select
import termios
from typing import TextIO

import pyte

ROWS, COLUMNS = 24, 80
_WIDE = 1000


class Terminal:
    """A pseudo terminal of 24 x 80. ``stream`` and ``fd`` write to it.

    Its screen is much wider than it claims to be, so that a line that is too long shows as one. ``rows`` reads what was
    written: after some thousand characters without it a writer waits.
    """

    def __init__(self, rows: int = ROWS, columns: int = COLUMNS) -> None:
        self._reader, self.fd = os.openpty()
        self.resize(rows, columns)
        self.stream: TextIO = os.fdopen(os.dup(self.fd), "w", encoding="utf-8")
        self._screen = pyte.HistoryScreen(_WIDE, rows, history=1000)
        self._parser = pyte.ByteStream(self._screen)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size that the terminal claims to have."""
        termios.tcsetwinsize(self.fd, (rows, columns))

    def type(self, keys: str) -> None:
        """Send what a user types."""
        os.write(self._reader, keys.encode())

    def print(self, text: str) -> None:
        """Print as another process does."""
        os.write(self.fd, text.encode())

    def rows(self, wait_s: float = 0.0) -> list[str]:
        """The rows of the screen now, or once something came within ``wait_s``."""
        while select.select([self._reader], [], [], wait_s)[0]:
            self._parser.feed(os.read(self._reader, 65536))
            wait_s = 0.0
        return [row.rstrip() for row in self._screen.display]

    @property
    def scrolled_off(self) -> list[str]:
        """Rows that have left the screen at the top."""
        return ["".join(row[x].data for x in range(_WIDE)).rstrip() for row in self._screen.history.top]

    def region(self) -> tuple[int, int] | None:
        """First and last row of the scrolling region, from 0; None: the whole screen."""
        margins = self._screen.margins
        return None if margins is None else (margins.top, margins.bottom)

    def close(self) -> None:
        """Close it."""
        self.stream.close()
        os.close(self.fd)
        os.close(self._reader)
