"""A step of a split pickles nothing, takes no lock, and leaves nothing in memory, with central and local inference."""

from __future__ import annotations

import copy
import json
import multiprocessing
import pickle
import threading
from collections.abc import Callable, Iterable

import pytest
from faster_fifo import Queue

from scripts.hot_path import (
    DECODED,
    ENCODED,
    FENCE,
    LOCKS,
    PICKLING,
    ROLLOUT,
    STEPS_OF_A_DATASET,
    Growth,
    HotPath,
    Inference,
    called,
    growth,
    profiled,
)

ENVS = 8  # of a split: what costs most is a step of an env, and nothing here depends on how many there are
WARM_UP = 10 * STEPS_OF_A_DATASET
PROFILED = 8 * STEPS_OF_A_DATASET
FEW, MANY = 20 * STEPS_OF_A_DATASET, 110 * STEPS_OF_A_DATASET
# A leak of one object per slot is one block per ROLLOUT split steps. Half of that is far more than caches take.
STEPS_PER_BLOCK = 2 * ROLLOUT
BYTES_PER_STEP = 32  # of C's heap; a tensor of one number takes hundreds
BOTH = pytest.mark.parametrize("inference", ["central", "local"])


def grew(path: HotPath) -> tuple[Growth, int]:
    """How much more stays of MANY split steps than of FEW, and the blocks that would be too many."""
    few, many = growth(path, FEW), growth(path, MANY)
    more = Growth(
        steps=many.steps - few.steps,
        cpu_s=many.cpu_s - few.cpu_s,
        blocks=many.blocks - few.blocks,
        heap_bytes=many.heap_bytes - few.heap_bytes,
        cyclic=many.cyclic - few.cyclic,
    )
    return more, more.steps // STEPS_PER_BLOCK


PICKLES = (
    lambda: pickle.dumps(1),
    lambda: pickle.loads(b"I1\n."),
    lambda: pickle.dumps(PICKLING.keys),
    lambda: Queue(4096).put(1),
    lambda: json.dumps(1),
    lambda: copy.deepcopy([1]),
)


def take_lock() -> None:
    with threading.Lock():
        pass


@BOTH
def test_no_step_pickles_or_takes_a_lock(inference: Inference) -> None:
    with HotPath(inference, ENVS) as path:
        path.run(WARM_UP)
        calls = profiled(lambda: path.run(PROFILED))

    slots = PROFILED // ROLLOUT
    # Per step a request and a reply with central inference; per slot the news that it is complete, and free.
    messages = 2 * slots + (2 * PROFILED if inference == "central" else 0)
    assert called(calls, r"actor\.split:Split\.step$") == PROFILED
    assert called(calls, ENCODED) >= messages
    assert called(calls, DECODED) >= messages
    assert called(calls, ENCODED) == called(calls, r"channel:Channel\.try_put$"), "something is sent by another way"
    assert {name: called(calls, pattern) for name, pattern in PICKLING.items()} == dict.fromkeys(PICKLING, 0)
    assert called(calls, LOCKS) == called(calls, FENCE) > 0, "a lock other than the fence of published weights"


@pytest.mark.long
@pytest.mark.parametrize("inference", ["central", "local"])
def test_what_stays_does_not_grow_with_the_steps(inference: Inference) -> None:
    with HotPath(inference, ENVS) as path:
        path.run(WARM_UP)
        more, too_many = grew(path)

    assert more.blocks < too_many
    assert more.cyclic < too_many
    assert more.heap_bytes < BYTES_PER_STEP * more.steps


@pytest.mark.long
def test_growth_is_detected() -> None:
    class Growing:
        def __init__(self) -> None:
            self.kept: list[object] = []

        def turn(self, timeout: float) -> None:
            self.kept.append(object())
            circle: list[object] = []
            circle.append(circle)

    with HotPath("central", ENVS) as path:
        path.workers.append(Growing())
        path.run(WARM_UP)
        more, too_many = grew(path)

    assert more.blocks >= too_many
    assert more.cyclic >= too_many


@pytest.mark.parametrize(
    ("work", "patterns"),
    [
        *((work, PICKLING.values()) for work in PICKLES),
        (take_lock, [LOCKS]),
        (lambda: threading.Lock().acquire(), [LOCKS]),
        (lambda: multiprocessing.get_context("fork").Lock().acquire(), [LOCKS]),
    ],
)
def test_pickles_and_locks_are_detected(work: Callable[[], object], patterns: Iterable[str]) -> None:
    calls = profiled(work)

    assert sum(called(calls, pattern) for pattern in patterns) > 0
