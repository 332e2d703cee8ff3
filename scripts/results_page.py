"""What docs/results.md makes of the files of measured rows: the table and its charts.

It has no command of its own: see scripts/reproduce.py. Drawing needs matplotlib: pip install -e '.[plot]'
"""

from __future__ import annotations

import re
import shlex
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.command import ROOT
from scripts.drawing import hardware, pyplot, save
from scripts.parity_page import draw_parity, parity_section
from scripts.record import table
from scripts.results_files import (
    SEEDS,
    Point,
    beside,
    curves_of,
    iqm_text,
    measurements,
    minutes_text,
    read_row,
    timed,
    where,
)
from scripts.rows import ENVPOOL_ROWS, EPISODES, IN_WORDS, RATING, ROWS, SOURCES, Row
from sfactory.process.command import number
from sfactory.statistics import bootstrap_interval

PAGE, RESULTS = ROOT / "docs/results.md", ROOT / "docs/results/rows"
BEGIN, END = "<!-- The table: written by scripts/reproduce.py --page -->", "<!-- The end of the table -->"
CHARTS = {"env_steps": "env steps (thousands)", "minutes": "minutes of training"}
HEAD = (
    "row",
    "env",
    "env steps",
    "at least",
    "each seed",
    "interquartile mean",
    "minutes",
    "published",
    "flags of the command",
)
_COLUMNS = 4


def bar_of(row: Row) -> str:
    """What a row has to reach, in words."""
    bar = row.bar if isinstance(row.bar, str) else f"{'at most ' if row.at_most else ''}{number(row.bar)}"
    return f"{bar}, {IN_WORDS[row.metric]}"


def outcome(row: Row, reached: Mapping[str, float], published: Mapping[str, Any]) -> str:
    """What seeds have reached, in a line: beside the bar, the published figure and the facts in docs/results/rows."""
    values = list(reached.values())
    seeds = f"seed{'s' if len(values) > 1 else ''} {', '.join(reached)}: {', '.join(map(number, values))}"
    count = f"reached by {sum(map(row.reached, values))} of {len(values)}"
    peer = re.sub(r"\((.+?)\)", lambda found: f"({found[1]}, {SOURCES[found[1]].partition(': ')[0]})", row.peer)
    if published:
        known = ", ".join(map(number, published["reached"].values()))
        known += f" ({published['date']}, {hardware(published)}, commit {published['commit']})"
    parts = {
        "bar": f"{bar_of(row)}, {'which no figure decides' if isinstance(row.bar, str) else count}",
        "published": peer or "no figure",
        "docs/results/rows": known if published else "not run",
    }
    return f"{row.name}, {seeds}; " + "; ".join(f"{name}: {text}" for name, text in parts.items())


def line_of(row: Row, facts: Mapping[str, Any], points: Sequence[Point]) -> list[str]:
    """The line of a row in the table."""
    measured = ["not run", "", ""]
    if facts:
        values = list(facts["reached"].values())
        count = "" if isinstance(row.bar, str) else f": {sum(map(row.reached, values))} of {len(values)}"
        measured = [", ".join(map(number, values)) + count, iqm_text(values), minutes_text(facts, points)]
    asked = [f"`{row.name}`", row.about or row.env, f"{row.steps:,}", bar_of(row)]
    return [*asked, *measured, row.peer, f"`{shlex.join(row.words())}`"]


def counts_line(known: Mapping[str, Mapping[str, Any]]) -> str:
    """How many rows reach their bars. known: the facts of each, by name; empty where it was not run."""
    bars = Counter[str]()
    for name, facts in known.items():
        row, values = ROWS[name], list(facts.get("reached", {}).values())
        reached = sum(map(row.reached, values))
        if not values:
            bars["not run"] += 1
        elif isinstance(row.bar, str):
            bars["in words"] += 1
        else:
            bars["all" if reached == len(values) else "some" if reached else "none"] += 1
            bars["few"] += reached == len(values) < SEEDS
    return (
        f"{len(known)} rows: {bars['all']} reached by all of their seeds ({bars['few']} of these with fewer than "
        f"{SEEDS} seeds), {bars['some']} by some, {bars['none']} by none; {bars['in words']} measured, but with a bar "
        f"in words; {bars['not run']} not run."
    )


def draw_rows(measured: Mapping[str, Sequence[Point]], over: str, target: Path) -> None:
    """Draw the curves of rows, by name, into one SVG: a line for each seed, and the bar. over: a name of CHARTS."""
    plot = pyplot(font_size=7)
    columns = min(_COLUMNS, len(measured))
    lines = -(-len(measured) // columns)
    size = 2.5 * columns, 1.9 * lines
    panels, axes = plot.subplots(lines, columns, figsize=size, layout="constrained", squeeze=False)
    for place in axes.flat[len(measured) :]:
        place.set_visible(False)
    scale = 1000 if over == "env_steps" else 1
    for place, (name, points) in zip(axes.flat, measured.items(), strict=False):
        for curve in curves_of(points):
            along = [getattr(point, over) / scale for point in curve]
            place.plot(along, [point.value for point in curve], color="tab:blue", linewidth=0.8, alpha=0.8)
        row = ROWS[name]
        if not isinstance(row.bar, str) and row.metric != RATING:
            place.axhline(row.bar, color="black", linewidth=0.6, linestyle=":")
        place.set(title=name)
        place.locator_params(nbins=4)
        place.grid(alpha=0.3)
    panels.supxlabel(CHARTS[over])
    save(panels, target)


def section(folder: Path) -> str:
    """The text of the table, from the files in ``folder``."""
    known = {name: read_row(name, folder) for name in ROWS}
    measured: dict[str, list[str]] = {}
    for name, (facts, _) in known.items():
        for one in measurements(facts) if facts else ():
            seeds = f" (seed{'s' if len(one['reached']) > 1 else ''} {', '.join(one['reached'])})"
            measured.setdefault(where(one), []).append(f"`{name}`{seeds if 'earlier' in facts else ''}")
    text = [
        "## The table",
        "",
        "`python scripts/reproduce.py ROW` trains a row with seeds 1, 2 and 3. `python -m sfactory.train` with all",
        "flags of the last column and a `--seed`, in the root of the repository, trains the same: all else are the",
        "defaults of the env. The steps matter, since many rates fall to 0 over the run. A training return is the",
        f"mean of the last 100 episodes; a greedy return that of {EPISODES} episodes after training, unless a note",
        "says how many, in which the policy takes its most probable actions. After the seeds it says how many of them",
        "reach the bar. The interquartile mean has a 95% bootstrap interval",
        f"([Agarwal et al. 2021](https://arxiv.org/abs/2108.13264)) from {SEEDS}",
        "seeds on. Minutes are of training, without the start, and the median of the seeds; those beside other work",
        "on the same cores are longer than those of a run alone, and where the seeds are of several machines or",
        "commits, they are of the newest. Published figures are of the same env after as many steps, unless they say",
        "otherwise. Bars were set before the runs, mostly at or below a published figure: a bar that is reached does",
        "not say that the published figure is. Curves are of training, and dotted lines the bars.",
        "",
        counts_line({name: facts for name, (facts, _) in known.items()}),
        "",
        table(HEAD, [line_of(ROWS[name], *files) for name, files in known.items()]),
        "",
        *(f"- {name}: {source}." for name, source in SOURCES.items()),
        *(f"- `{row.name}`: {row.tried}." for row in ROWS.values() if row.tried),
    ]
    if measured:
        text += ["", "Measured, with the files of each row in [results/rows](results/rows/README.md):", ""]
        text += [f"- {place}: {', '.join(names)}." for place, names in measured.items()]
        for over, label in CHARTS.items():
            text += ["", f"![Curves of all measured rows over {label}](results/rows/{over}.svg)"]
    peer = folder.with_name("sb3")
    text += [*beside_sb3(folder, peer), *beside_envpool(folder), *parity_section(folder, peer)]
    return "\n".join(text)


def minutes_to(points: Sequence[Point], value: float) -> float:
    """Minutes until a curve first reaches ``value``, which each has to reach: the median of the seeds."""
    firsts = [next(point.minutes for point in curve if point.value >= value) for curve in curves_of(points)]
    return statistics.median(firsts)


def beside_sb3(folder: Path, peer: Path) -> list[str]:
    """The lines of the comparison with Stable-Baselines3, of the rows that were run with both; empty without any."""
    lines = []
    for name in ROWS:
        (facts, ours), (theirs_facts, theirs) = read_row(name, folder), read_row(name, peer)
        if not (ours and theirs):
            continue
        # What every seed of both has reached.
        value = min(max(point.value for point in curve) for points in (ours, theirs) for curve in curves_of(points))
        minutes, slower = minutes_to(timed(facts, ours), value), minutes_to(theirs, value)
        seeds = f"{len(curves_of(ours))}, {len(curves_of(theirs))}"
        times = f"{minutes:.3g}{beside(facts)}", f"{slower:.3g}", f"{slower / minutes:.1f}"
        last = statistics.median(curve[-1].value for curve in curves_of(theirs))
        versions = theirs_facts["stable-baselines3"], facts["commit"]
        lines.append([f"`{name}`", number(value), *times, number(last), seeds, *versions])
    if not lines:
        return []
    head = ("row", "return", "minutes", "of SB3", "times as fast", "SB3's last return", "seeds", "SB3", "commit")
    return [
        "",
        "### Minutes beside Stable-Baselines3",
        "",
        "Stable-Baselines3's PPO with the settings of RL Zoo, on the same machine (`scripts/sb3_rows.py`, settings",
        "in [results/sb3](results/sb3/README.md)). The return is the highest mean of 100 training episodes that",
        "every seed of both has reached; the minutes are those of training until then, the median of the seeds.",
        "Where SB3's last return is far below what RL Zoo publishes, its seed here learned less than there: the",
        "ratio is then one of what was learned as much as one of speed.",
        "",
        table(head, lines),
    ]


def beside_envpool(folder: Path) -> list[str]:
    """EnvPool's envs beside those of other packages, in lines; empty where one has fewer than SEEDS seeds."""
    lines = []
    for name, pooled in ENVPOOL_ROWS.items():
        scores = [list(read_row(row, folder)[0].get("reached", {}).values()) for row in (name, pooled)]
        if min(map(len, scores)) >= SEEDS:
            (low, high), (pooled_low, pooled_high) = map(bootstrap_interval, scores)
            overlap = "yes" if low <= pooled_high and pooled_low <= high else "no"
            named = [f"`{row}`: {ROWS[row].env}" for row in (name, pooled)]
            lines.append([*named, *map(iqm_text, scores), overlap])
    if not lines:
        return []
    return [
        "",
        "### EnvPool's envs beside those of other packages",
        "",
        "The same task with the same flags; EnvPool brings simulators of its own. The returns are those of the table.",
        "",
        table(("row", "of EnvPool", "its interquartile mean", "that of EnvPool", "the intervals overlap"), lines),
    ]


def write_page(page: Path, folder: Path) -> None:
    """Replace what is between BEGIN and END in ``page``, and draw the charts. Exits if they are not in it."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"error: {page} needs the lines {BEGIN!r} and {END!r}, in this order")
    curves = {name: points for name in ROWS if (points := read_row(name, folder)[1])}
    for over in CHARTS if curves else ():
        draw_rows(curves, over, folder / f"{over}.svg")
    draw_parity(folder, folder.with_name("sb3"))
    page.write_text(f"{before}{BEGIN}\n\n{section(folder)}\n\n{END}{after}", encoding="utf-8")
