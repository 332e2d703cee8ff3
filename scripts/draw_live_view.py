"""The picture of the live view in docs/quickstart.md: a terminal of 80 columns while a run trains in it.

    python scripts/draw_live_view.py docs/live_view.svg

trains CartPole-v1 for some seconds, and draws the screen once the share ``--at`` of the steps is done. Needs pyte.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path

import pyte

ROWS, COLUMNS = 24, 80
TRAIN = ("--env=CartPole-v1", "--experiment=cartpole", "--seed=1")
LIMIT_S, END_S = 300.0, 60.0
WIDTH, HEIGHT, MARGIN = 8.4, 18.0, 14.0  # of a character, and around the screen
PAPER, INK = "#1e1e2e", "#cdd6f4"
COLOURS = {"dim": "#8087a2", "brown": "#f9c74f"}  # pyte calls yellow brown
EIGHTHS = "▁▂▃▄▅▆▇█"
SHADE, LINE = "░", "─"


def screen_of_run(share: float) -> pyte.Screen:
    """The screen of a terminal in which a run has made this share of its steps. Raises SystemExit if it never does."""
    pyte.graphics.FG_ANSI[2] = "dim"  # which pyte takes for no style at all
    screen = pyte.Screen(COLUMNS, ROWS)
    parser = pyte.ByteStream(screen)
    reader, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (ROWS, COLUMNS))
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
        command = [sys.executable, "-m", "sfactory.train", *TRAIN]
        run = subprocess.Popen(command, cwd=folder, env=env, stdin=terminal, stdout=terminal, stderr=terminal)
        os.close(terminal)
        ends = time.monotonic() + LIMIT_S
        try:
            while time.monotonic() < ends:
                if select.select([reader], [], [], 1.0)[0]:
                    parser.feed(os.read(reader, 65536))
                done = re.search(r"(\d+)%  [\d,]+ of [\d,]+ env steps", "\n".join(screen.display))
                if done and int(done[1]) >= 100 * share and any(" warnings " in row for row in screen.display):
                    return screen
        except OSError as error:  # the run has ended
            raise SystemExit("error: the run ended before; the screen:\n" + "\n".join(screen.display)) from error
        finally:
            run.send_signal(signal.SIGTERM)
            os.close(reader)
            run.wait(END_S)
    raise SystemExit(f"error: the run has not come so far in {LIMIT_S:g} s")


def pieces(screen: pyte.Screen, row: int) -> Iterator[tuple[int, str, str, bool]]:
    """(column, text, colour, bold) of the characters of a row that belong together; a piece of blocks has one kind."""
    cells = [(column, screen.buffer[row][column]) for column in range(screen.columns)]

    def style(cell: tuple[int, pyte.screens.Char]) -> tuple[str, bool, str]:
        char = cell[1]
        return COLOURS.get(char.fg, INK), char.bold, char.data if char.data in EIGHTHS + SHADE else ""

    for (colour, bold, _), same in itertools.groupby(cells, style):
        found = list(same)
        text = "".join(char.data for _, char in found)
        start = found[0][0] + len(text) - len(text.lstrip())
        if text.strip():
            yield start, text.strip(), colour, bold


def drawn(column: int, row: int, text: str, colour: str, bold: bool) -> str:
    """A piece as SVG: text with a fixed width, as fonts differ; blocks and lines as shapes."""
    x, y = MARGIN + column * WIDTH, MARGIN + row * HEIGHT
    width = len(text) * WIDTH
    if text[0] in EIGHTHS + SHADE + LINE:
        high = (HEIGHT - 4) * (EIGHTHS.index(text[0]) + 1) / 8 if text[0] in EIGHTHS else HEIGHT - 4
        top, faint = y + HEIGHT - 2 - high, ' opacity="0.25"' if text[0] == SHADE else ""
        if text[0] == LINE:
            top, high = y + HEIGHT / 2, 1.0
        return f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{high:.1f}" fill="{colour}"{faint}/>'
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:.1f}" y="{y + HEIGHT - 5:.1f}" textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text {place} fill="{colour}"{weight} xml:space="preserve">{escape(text)}</text>'


def svg(screen: pyte.Screen) -> str:
    """The screen as a picture."""
    rows = max(row + 1 for row, text in enumerate(screen.display) if text.strip())
    wide, high = screen.columns * WIDTH + 2 * MARGIN, rows * HEIGHT + 2 * MARGIN
    shapes = [
        drawn(column, row, text, colour, bold)
        for row in range(rows)
        for column, text, colour, bold in pieces(screen, row)
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high:.0f}" width="{wide:.0f}" '
        'font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="14">'
    )
    paper = f'<rect width="{wide:.0f}" height="{high:.0f}" rx="8" fill="{PAPER}"/>'
    return "\n".join([head, paper, *shapes, "</svg>", ""])


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="the SVG to write")
    parser.add_argument("--at", type=float, default=0.7, help="share of the steps, from 0 to 1")
    given = parser.parse_args()
    given.target.write_text(svg(screen_of_run(given.at)), encoding="utf-8")
    print(given.target)


if __name__ == "__main__":
    main()
