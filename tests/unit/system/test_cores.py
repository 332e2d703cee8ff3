"""A run divides the cores of its mask and quota among its processes, and freed memory stays in these processes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from sfactory.system.cores import NATIVE, Cores


def test_quota_lowers_the_number_of_cores() -> None:
    assert [Cores((0, 1, 2, 5), quota).count for quota in (None, 0.5, 1.5, 3.0, 64.0)] == [4, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("cores", "actors", "pinned_to"),
    [
        (Cores((2, 3, 7), None), 3, [{2}, {3}, {7}]),
        (Cores((2, 3), None), 3, [None] * 3),
        (Cores((2, 3), 1.5), 1, [None]),
        (Cores((2, 3), None, kept=1, pins=False), 1, [None]),
        (Cores((1, 3, 5, 7), None).keeping(2), 2, [{5}, {7}]),
        (Cores((1, 3, 5, 7), None).keeping(2), 1, [{5, 7}]),
        (Cores((1, 3, 5, 7), None), 2, [None] * 2),
        (Cores((1, 3, 5, 7), None).keeping(2), 3, [{5, 7}] * 3),
        (Cores((1, 3, 5, 7), 3.0).keeping(2), 2, [{5, 7}] * 2),
    ],
)
def test_actors_are_pinned_to_cores_that_are_not_reserved(
    cores: Cores, actors: int, pinned_to: list[set[int] | None]
) -> None:
    assert [cores.cores_of_actor(actor, actors) for actor in range(actors)] == pinned_to


def test_learner_gets_the_cores_without_actors() -> None:
    cores = Cores(tuple(range(8)), None)

    assert [cores.learner_threads(actors) for actors in (1, 6, 7, 8, 100)] == [7, 2, 1, 1, 1]
    assert replace(cores, learner_alone=True).learner_threads(7) == 8
    assert cores.keeping(2).learner_threads(7) == 2
    assert replace(cores, learner_use=3).learner_threads(1) == 3
    assert [replace(cores, learner_least=4).learner_threads(actors) for actors in (1, 7)] == [7, 4]
    assert [cores.learner_threads(2, learners) for learners in (1, 2, 4, 9)] == [6, 3, 1, 1]


def test_number_of_actors_starting_at_once_follows_the_cores() -> None:
    few, many = Cores((0, 1), None), Cores(tuple(range(16)), None)

    assert [few.actors_starting(wanted) for wanted in (0, 100)] == [8, 100]
    assert [many.actors_starting(wanted) for wanted in (0, 1)] == [32, 1]


# In a thread, as in the learner. Each round allocates the memory of some layers and frees it in the same order. The
# last ones are above 32 MiB: by default, glibc maps and unmaps each of these alone.
ROUNDS, MIB = 4, [8] * 30 + [48] * 2
PAGES = ROUNDS * sum(MIB) * 2**20 // 4096
PROGRAM = f"""
import resource, threading, torch

def learn(rounds):
    for _ in range(rounds):
        layers = [torch.empty(mib * 2**18).fill_(1.0) for mib in {MIB}]
        while layers:
            layers.pop(0)

def faults(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=learn, args=(rounds,))
    thread.start()
    thread.join()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

faults(1)
faults({ROUNDS})
"""


def faults_of_later_rounds(variables: dict[str, str]) -> int:
    clean = {name: value for name, value in os.environ.items() if name not in NATIVE}
    command, env = [sys.executable, "-c", PROGRAM], {**clean, **variables}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    return int(done.stdout.split()[-1])


@pytest.mark.long
def test_freed_memory_is_reused_without_page_faults() -> None:
    assert faults_of_later_rounds(NATIVE) < PAGES // 1000


@pytest.mark.long
def test_freed_memory_is_not_reused_without_the_settings_of_a_run() -> None:
    assert faults_of_later_rounds({}) > PAGES // 10
