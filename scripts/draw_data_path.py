"""Draws docs/data-path.svg, the picture of the data path. Run it after a change here.

Numbers of the arrows are those of the steps in docs/architecture.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

TARGET = Path(__file__).parents[1] / "docs" / "data-path.svg"
WIDTH, HEIGHT = 1000, 560
PROCESS, MEMORY, MAIN = "#dbe9f6", "#fbeecb", "#e6e6e6"
LINE, TEXT = "#333333", "#1a1a1a"

Point = tuple[int, int]


@dataclass(frozen=True)
class Box:
    """A process or a block of shared memory; the first line is its name."""

    x: int
    y: int
    width: int
    height: int
    fill: str
    lines: tuple[str, ...]

    def svg(self) -> str:
        """The rectangle and its text, centred."""
        middle = self.x + self.width // 2
        top = self.y + self.height / 2 - 9 * (len(self.lines) - 1) + 4
        rows = [
            f'<text x="{middle}" y="{top + 18 * row:g}" text-anchor="middle" '
            f'font-weight="{"bold" if row == 0 else "normal"}">{escape(line)}</text>'
            for row, line in enumerate(self.lines)
        ]
        shape = (
            f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="6" '
            f'fill="{self.fill}" stroke="{LINE}"/>'
        )
        return "\n".join([shape, *rows])


@dataclass(frozen=True)
class Arrow:
    """A broken line with a head at its last point. ``at``: where the label begins; ``dashed``: not on the data path."""

    points: tuple[Point, ...]
    label: str
    at: Point
    dashed: bool = False

    def svg(self) -> str:
        """The line and its label."""
        path = " ".join(f"{x},{y}" for x, y in self.points)
        dashes = ' stroke-dasharray="5 4"' if self.dashed else ""
        line = f'<polyline points="{path}" fill="none" stroke="{LINE}"{dashes} marker-end="url(#head)"/>'
        return f'{line}\n<text x="{self.at[0]}" y="{self.at[1]}" font-size="12">{escape(self.label)}</text>'


BOXES = (
    Box(20, 40, 260, 64, MAIN, ("main", "plans, starts, supervises, reports")),
    Box(500, 40, 300, 64, MEMORY, ("SharedWeights", "two buffers and their version")),
    Box(20, 170, 260, 84, PROCESS, ("actor (one per --num_workers)", "steps its envs, split by split", "records rows")),
    Box(400, 170, 210, 84, PROCESS, ("policy worker", "one forward pass", "for all requests")),
    Box(730, 170, 250, 84, PROCESS, ("learner", "copies rows into staging,", "trains on full datasets (9)")),
    Box(
        20, 400, 960, 84, MEMORY, ("TrajectoryBuffer and SlotTable", "a slot: one rollout of one split, [T+1, N, ...]")
    ),
)

ARROWS = (
    Arrow(((50, 254), (50, 400)), "1 obs[t]", (56, 330)),
    Arrow(((280, 195), (400, 195)), "2 ActRequest", (298, 189)),
    Arrow(((440, 400), (440, 254)), "3 gather obs[t]", (446, 350)),
    Arrow(((570, 254), (570, 400)), "4 actions, log-probs, values", (576, 370)),
    Arrow(((400, 232), (280, 232)), "5 ActReply", (305, 226)),
    Arrow(((140, 254), (140, 400)), "6 reward, ends, obs[t+1]", (146, 370)),
    Arrow(((230, 254), (230, 285), (770, 285), (770, 254)), "7 TrajectoryReady", (290, 280)),
    Arrow(((840, 400), (840, 254)), "8 copy, then free", (846, 350)),
    Arrow(((800, 254), (800, 315), (190, 315), (190, 254)), "8 SlotFreed", (290, 310)),
    Arrow(((770, 170), (770, 104)), "10 publish", (778, 142)),
    Arrow(((540, 104), (540, 170)), "11 refresh", (548, 142)),
    Arrow(((150, 170), (150, 104)), "EpisodesDone", (158, 142), dashed=True),
    Arrow(((930, 170), (930, 20), (150, 20), (150, 40)), "TrainStats", (860, 15), dashed=True),
)

NOTES = (
    "Blue: processes. Yellow: shared memory. Solid: the path of one observation. Dashed: reports.",
    "With --inference=local the actor has its own policy: there is no 2 and 5, and 3, 4 and 11 happen in the actor.",
)


def drawing() -> str:
    """The whole SVG."""
    notes = [
        f'<text x="20" y="{HEIGHT - 42 + 20 * row}" font-size="12">{escape(note)}</text>'
        for row, note in enumerate(NOTES)
    ]
    head = (
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        f'orient="auto"><path d="M0,0 L10,5 L0,10 z" fill="{LINE}"/></marker></defs>'
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="{TEXT}">',
        "<title>The path of one observation, from an environment to published weights</title>",
        head,
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *(box.svg() for box in BOXES),
        *(arrow.svg() for arrow in ARROWS),
        *notes,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    TARGET.write_text(drawing(), encoding="utf-8")
    print(f"wrote {TARGET}")
