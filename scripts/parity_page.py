"""The section of docs/results.md on parity with Stable-Baselines3's PPO: its table and its chart, from the rows' files.

It has no command of its own: see scripts/reproduce.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scripts.drawing import pyplot, save
from scripts.record import table
from scripts.results_files import Point, curves_of, iqm_text, minutes_text, read_row, where
from scripts.rows import PARITY, PARITY_ENVS, PARITY_FORMS
from sfactory.process.command import number

CHART = "parity.svg"
_SB3 = "SB3"
_COLORS = {_SB3: "tab:orange", "in turn": "tab:blue", "asynchronous": "tab:green"}
_ALONG = {"env_steps": (1e6, "env steps (millions)"), "minutes": (1.0, "minutes of training")}


class Measured(NamedTuple):
    """What one trainer has done on one env. form: SB3's, or one of PARITY_FORMS."""

    env: str
    form: str
    facts: Mapping[str, Any]
    points: Sequence[Point]

    def line(self) -> list[str]:
        """Its line of the table."""
        last = [curve[-1].value for curve in curves_of(self.points)]
        minutes = minutes_text(self.facts, self.points)
        return [self.env, self.form, ", ".join(map(number, last)), iqm_text(last), minutes]


def measured(folder: Path, peer: Path) -> Iterator[Measured]:
    """All that was measured: SB3's files are in ``peer``, ours in ``folder``."""
    for name, env in PARITY_ENVS.items():
        ours = {form: (name + end, folder) for form, end in PARITY_FORMS.items()}
        for form, files in {_SB3: (name, peer), **ours}.items():
            facts, points = read_row(*files)
            if facts:
                yield Measured(env, form, facts, points)


def draw_parity(folder: Path, peer: Path) -> None:
    """Draw the curves of all seeds over steps and over minutes into one SVG in ``folder``; nothing without files."""
    found = list(measured(folder, peer))
    if not found:
        return
    plot = pyplot(font_size=7)
    envs = list(dict.fromkeys(one.env for one in found))
    panels, axes = plot.subplots(2, len(envs), figsize=(3 * len(envs), 4), layout="constrained", squeeze=False)
    for one in found:
        for line, (along, (scale, label)) in enumerate(_ALONG.items()):
            place = axes[line, envs.index(one.env)]
            for run, curve in enumerate(curves_of(one.points)):
                over = [getattr(point, along) / scale for point in curve]
                values = [point.value for point in curve]
                shown = one.form if run == 0 else None
                place.plot(over, values, color=_COLORS[one.form], linewidth=0.8, alpha=0.8, label=shown)
            place.set(title=one.env, xlabel=label)
            place.grid(alpha=0.3)
    axes[0, 0].legend()
    save(panels, folder / CHART)


def parity_section(folder: Path, peer: Path) -> list[str]:
    """The lines of the section; a sentence without files."""
    found = list(measured(folder, peer))
    title = ["", "### Parity with the PPO of Stable-Baselines3", ""]
    if not found:
        return [
            *title,
            "The rows `parity_*` of `scripts/reproduce.py` train with the settings of Stable-Baselines3's PPO",
            "([sb3_ppo.yaml](examples/sb3_ppo.yaml)), to be compared with it; they are not measured yet.",
        ]
    head = ("env", "collects", "training return of each seed", "interquartile mean", "minutes")
    return [
        *title,
        "[sb3_ppo.yaml](examples/sb3_ppo.yaml) has the settings of Stable-Baselines3's PPO for 8 envs of 256 steps,",
        "with VecNormalize. In turn, we collect and learn one after the other, as SB3 does; asynchronously, both go on",
        "at the same time, with V-trace and rollouts of 64. 1,000,000 env steps, the mean of the last 100 episodes.",
        "",
        table(head, [one.line() for one in found]),
        "",
        *(f"- {one.env}, {one.form}: {where(one.facts)}." for one in found),
        *(f"- `{row.name}`: {row.tried}." for row in PARITY.values() if row.tried),
        "",
        f"![Curves of SB3, in turn, and asynchronous over env steps and minutes](results/rows/{CHART})",
    ]
