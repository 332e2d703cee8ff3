"""Writes a Markdown page about the calls and the memory of one step of a split.

    python scripts/profile_hot_path.py --out docs/performance/hot_path.md

Exits with 1, and says why, if anything was pickled, a lock was taken, or memory grew with the number of steps.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that this may be started as a file and imported as a module
from scripts.hot_path import (
    DECODED,
    ENCODED,
    ENVS,
    EPISODE,
    FENCE,
    LOCKS,
    PICKLING,
    ROLLOUT,
    STEPS_OF_A_DATASET,
    Call,
    Growth,
    HotPath,
    Inference,
    Traced,
    called,
    growth,
    profiled,
    traced,
)
from scripts.record import machine, table

ROOT = Path(__file__).parents[1]
INFERENCES: tuple[Inference, ...] = ("central", "local")
WARM_UP, PROFILED, FEW, MANY, ROWS = 640, 2048, 2048, 16384, 25
PASSES = 3
MOST_BLOCKS, MOST_BYTES = 0.02, 1.0  # that may stay per split step; a float is one block of 24 bytes

PAGE = """# The hot path: what it calls and what it keeps

One step of a split is: the actor asks, the policy worker answers, the actor steps {envs} envs and records; with local
inference the actor answers itself. This page shows that it pickles nothing, waits for no lock of Python's, and leaves
nothing in memory. `tests/flow/test_hot_path.py` holds the same. Written by

    python scripts/profile_hot_path.py --out docs/performance/hot_path.md

on {date}: {cores} cores of {cpu}, Python {python}, torch {torch}, numpy {numpy}, gymnasium {gymnasium}, sfactory
{sfactory}.

The parts of a run (`sfactory/shared/objects.py:SharedObjects`, `sfactory/actor/actor_process.py:make_actor`,
`sfactory/inference/policy_worker.py:PolicyWorker`, with the channels of every run) take turns in one process, as in
serial mode: two splits of {envs} envs whose step costs next to nothing, episodes of {episode} steps, a 64x64 MLP,
rollout {rollout}.
The learner's assembler copies slots and hands them back; every {dataset} split steps weights are published, and what
main receives is read. {warm_up} split steps go before what is measured. Calls and times
are those of the fastest of {passes} passes, on a machine that did other things, too.

## Calls

cProfile, {profiled:,} split steps. It sees every function in Python, and those in C that Python calls. faster-fifo is
compiled: what it does beside calling the codec, the mutex in shared memory that it takes for each `put` and `get`
included, is not seen, and its time is that of `Channel.try_put` and `Channel.get`. Every message passes the codec once
on either side, and is bytes in between.

{calls}

{tables}
## What stays

The parts run on from one row to the next. Blocks are those of Python's allocator (`sys.getallocatedblocks`), the heap
is that of the C library, with what torch takes of it (`mallinfo2`), and garbage is the number of objects that only the
garbage collector can free; it is off until the steps are over. (The garbage of any number of steps is one type,
`c_ulong_Array_1`, which ctypes makes for faster-fifo once after each collection.) Bytes are those of Python and numpy
that tracemalloc knows of, its own and this script's left out, in a pass of its own.

{memory}

The lines with the largest differences between tracemalloc's snapshots; where one lost what another gained, an object
was replaced by one of its kind:

{lines}
"""


class Found(NamedTuple):
    """The measurements of one kind of inference."""

    calls: list[Call]
    growths: list[Growth]
    traces: list[Traced]


def measure(inference: Inference) -> Found:
    """Measure one kind of inference."""
    with HotPath(inference) as path:
        path.run(WARM_UP)
        # Other programs take time, too: the fastest of some passes is the least disturbed.
        passes = [profiled(lambda: path.run(PROFILED)) for _ in range(PASSES)]
        calls = min(passes, key=lambda calls: sum(call.own_s for call in calls))
        return Found(calls, [growth(path, steps) for steps in (FEW, MANY)], traced(path, FEW, MANY))


def locks(calls: Sequence[Call]) -> int:
    """How often a lock was taken that is not the fence of SharedWeights."""
    return called(calls, LOCKS) - called(calls, FENCE)


def problems(inference: Inference, found: Found) -> list[str]:
    """Problems, one text each."""
    calls, grown, stayed = found.calls, found.growths[-1], found.traces[-1]
    wrong = {f"{name} was called": called(calls, pattern) > 0 for name, pattern in PICKLING.items()}
    wrong["a lock was taken"] = locks(calls) != 0
    wrong["no message passed the codec"] = 0 in (called(calls, ENCODED), called(calls, DECODED))
    wrong[f"{grown.blocks} blocks stayed of {grown.steps} split steps"] = grown.blocks > MOST_BLOCKS * grown.steps
    wrong[f"{grown.cyclic} objects became garbage"] = grown.cyclic > MOST_BLOCKS * grown.steps
    wrong[f"{grown.heap_bytes} bytes of the heap stayed"] = grown.heap_bytes > MOST_BYTES * grown.steps
    wrong[f"{stayed.size} bytes stayed"] = stayed.size > MOST_BYTES * stayed.steps
    return [f"{inference}: {problem}" for problem, holds in wrong.items() if holds]


def calls_table(found: dict[Inference, Found]) -> str:
    """Numbers of calls."""
    rows: list[list[object]] = [
        [f"calls of {name}", *(called(each.calls, pattern) for each in found.values())]
        for name, pattern in PICKLING.items()
    ]
    rows.append(["locks taken, apart from the next row's", *(locks(each.calls) for each in found.values())])
    for name, pattern in {
        "the fence of published weights (a lock of this thread alone)": FENCE,
        "messages made bytes by the codec": ENCODED,
        "bytes made messages by the codec": DECODED,
    }.items():
        rows.append([name, *(f"{called(each.calls, pattern):,}" for each in found.values())])
    return table([f"in {PROFILED:,} split steps", *found], rows)


def time_table(inference: Inference, found: Found) -> str:
    """The functions with the most own time."""
    plain_us = found.growths[-1].cpu_s / MANY * 1e6
    slow_us = sum(call.own_s for call in found.calls) / PROFILED * 1e6
    rows = [
        (f"`{call.name}`", f"{call.times / PROFILED:.2f}", f"{call.own_s / PROFILED * 1e6:.1f}")
        for call in found.calls[:ROWS]
    ]
    return (
        f"**{inference.capitalize()} inference.** A split step takes {plain_us:.0f} us of CPU time, and "
        f"{slow_us:.0f} us under cProfile, which adds to each call.\n"
        f"The {ROWS} functions with the most own time, of {len(found.calls)}:\n\n"
        f"{table(['function', 'calls per split step', 'own us per split step'], rows)}\n"
    )


def memory_table(found: dict[Inference, Found]) -> str:
    """What stayed, in all and per split step."""

    def both(count: int, steps: int) -> str:
        return f"{count:,} ({count / steps:.4f})"

    rows = [
        [
            inference,
            f"{grown.steps:,}",
            both(grown.blocks, grown.steps),
            both(stayed.size, grown.steps),
            both(grown.heap_bytes, grown.steps),
            grown.cyclic,
        ]
        for inference, each in found.items()
        for grown, stayed in zip(each.growths, each.traces, strict=True)
    ]
    head = [
        "inference",
        "split steps",
        "blocks (per step)",
        "bytes (per step)",
        "bytes of the heap (per step)",
        "garbage",
    ]
    return table(head, rows)


def lines_of(found: dict[Inference, Found]) -> str:
    """The lines that tracemalloc names."""
    return "\n".join(
        f"- {inference}, {stayed.steps:,} split steps: {', '.join(stayed.lines) or 'none'}"
        for inference, each in found.items()
        for stayed in each.traces
    )


def page(found: dict[Inference, Found]) -> str:
    """The page."""
    facts: dict[str, Any] = machine()
    return PAGE.format(
        envs=ENVS,
        episode=EPISODE,
        rollout=ROLLOUT,
        dataset=STEPS_OF_A_DATASET,
        warm_up=WARM_UP,
        profiled=PROFILED,
        passes=PASSES,
        calls=calls_table(found),
        tables="\n".join(time_table(inference, each) for inference, each in found.items()),
        memory=memory_table(found),
        lines=lines_of(found),
        **facts,
    )


def main() -> int:
    """Read the command line, measure, write the page and say what should not be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/performance/hot_path.md")
    given = parser.parse_args()
    found = {inference: measure(inference) for inference in INFERENCES}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(page(found), encoding="utf-8")
    wrong = [problem for inference, each in found.items() for problem in problems(inference, each)]
    print(f"failed: {'; '.join(wrong)}" if wrong else "passed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
