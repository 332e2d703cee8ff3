"""Readers never see two publications in one copy and never go back, however hard the writer writes or ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import partial
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple

import numpy as np
import pytest

from sfactory.clock import Deadline
from sfactory.shared.memory import SharedArrays
from sfactory.shared.weights import SharedWeights
from sfactory.spec import TensorSpec
from tests.support.long import long
from tests.support.processes import eventually

SPAWN = multiprocessing.get_context("spawn")
START_S = 60.0


class Findings(NamedTuple):
    """What readers report in shared memory, so that nothing stands between them and the next copy."""

    arrays: SharedArrays

    @staticmethod
    def of(readers: int) -> Findings:
        names = ("ready", "copies", "torn", "backward", "newest", "distinct", "stop", "enough")
        return Findings(SharedArrays("findings", {name: TensorSpec((readers,), "int64") for name in names}))

    def of_all(self, name: str) -> list[int]:
        found: list[int] = self.arrays[name].tolist()
        return found


def be_nice() -> None:
    """Several processes that never wait are to leave a core to those that other tests wait for."""
    os.nice(10)


def write_constants(weights: SharedWeights, findings: Findings, seconds: float) -> None:
    """Publish vectors of the publication's own number, as version 3 x that number, one after the other.

    For ``seconds`` at least, and until every reader has seen enough.
    """
    be_nice()
    deadline, source = Deadline(seconds), np.empty(weights.nbytes // 4, np.uint32)
    while not (deadline.passed and findings.arrays["enough"][0]):
        k = weights.publications + 1
        source.fill(k)
        weights.publish(source.view(np.uint8), 3 * k)


def read_constants(weights: SharedWeights, findings: Findings, reader: int) -> None:
    """Copy without pause until the stop; count copies that hold two values, or an older one than the last."""
    be_nice()
    arrays, target = findings.arrays, np.zeros(weights.nbytes // 4, np.uint32)
    arrays["ready"][reader] = 1
    assert weights.published.wait(START_S)
    last = 0
    while not arrays["stop"][0]:
        publication, version = weights.read_into(target.view(np.uint8))
        whole = bool((target == publication).all()) and version == 3 * publication
        arrays["torn"][reader] += not whole
        arrays["backward"][reader] += publication < last
        arrays["distinct"][reader] += publication != last
        arrays["newest"][reader] = last = publication
        arrays["copies"][reader] += 1


def start_readers(weights: SharedWeights, findings: Findings, count: int) -> list[SpawnProcess]:
    readers = [SPAWN.Process(target=read_constants, args=(weights, findings, index)) for index in range(count)]
    for reader in readers:
        reader.start()
    assert eventually(lambda: all(findings.of_all("ready")), START_S), findings.of_all("ready")
    return readers


def assert_whole(findings: Findings, readers: list[SpawnProcess]) -> None:
    findings.arrays["stop"][:] = 1
    for reader in readers:
        reader.join(START_S)
    assert [reader.exitcode for reader in readers] == [0] * len(readers)
    assert not any(findings.of_all("torn")), findings.of_all("torn")
    assert not any(findings.of_all("backward")), findings.of_all("backward")


@pytest.mark.parametrize(("nbytes", "count"), [long(100_000, 2), (1_000_000, 3), long(4_000_000, 2)])
def test_no_copy_is_torn_while_the_writer_writes_at_full_speed(nbytes: int, count: int) -> None:
    weights, findings = SharedWeights(nbytes), Findings.of(count)
    readers = start_readers(weights, findings, count)

    writer = SPAWN.Process(target=write_constants, args=(weights, findings, 1.5))
    writer.start()
    met = eventually(lambda: weights.publications > 100 and min(findings.of_all("distinct")) > 20, START_S)
    findings.arrays["enough"][:] = 1
    writer.join(START_S)
    # Everybody arrives at the last publication.
    settled = eventually(lambda: set(findings.of_all("newest")) == {weights.publications}, START_S)

    assert_whole(findings, readers)
    assert met, "readers and writer did not meet, so nothing is shown"
    assert settled
    assert writer.exitcode == 0


def published_since(weights: SharedWeights, publication: int) -> bool:
    return weights.publications > publication


def copied_since(findings: Findings, copies: list[int]) -> bool:
    return all(now > then for now, then in zip(findings.of_all("copies"), copies, strict=True))


def test_a_writer_killed_anywhere_leaves_whole_copies_and_a_successor_goes_on() -> None:
    weights, findings = SharedWeights(2_000_000), Findings.of(2)
    readers = start_readers(weights, findings, 2)

    for _ in range(2):
        before = weights.publications
        writer = SPAWN.Process(target=write_constants, args=(weights, findings, 0.0))
        writer.start()
        assert eventually(partial(published_since, weights, before + 20), START_S)
        writer.kill()
        writer.join(START_S)
        assert writer.exitcode == -signal.SIGKILL
        copies = findings.of_all("copies")
        # Nobody waits for the dead: every reader goes on copying the last whole publication.
        assert eventually(partial(copied_since, findings, copies), START_S)

    assert_whole(findings, readers)
    assert weights.publications > 40


def test_reader_killed_in_a_copy_blocks_no_process() -> None:
    weights, findings = SharedWeights(1_000_000), Findings.of(2)
    victim, survivor = start_readers(weights, findings, 2)
    writer = SPAWN.Process(target=write_constants, args=(weights, findings, 0.0))
    writer.start()
    assert eventually(lambda: min(findings.of_all("distinct")) > 3, START_S)

    victim.kill()
    victim.join(START_S)
    after_death = weights.publications
    went_on = eventually(lambda: weights.publications > after_death + 20, START_S)
    findings.arrays["enough"][:] = 1
    writer.join(START_S)

    assert writer.exitcode == 0
    assert went_on
    assert eventually(lambda: findings.of_all("newest")[1] == weights.publications, START_S)
    assert_whole(findings, [survivor])


def test_a_copy_under_which_the_buffer_changes_is_taken_again() -> None:
    # The writer is here, so that it publishes twice exactly between the two looks of one copy.
    weights = SharedWeights(64)
    weights.publish(np.full(64, 1, np.uint8), 10)

    class Intruded(np.ndarray[Any, Any]):
        intrusions = 0

        def __setitem__(self, key: Any, value: Any) -> None:
            super().__setitem__(key, value)
            if Intruded.intrusions < 2:
                Intruded.intrusions += 1
                for _ in range(2):
                    number = weights.publications + 1
                    weights.publish(np.full(64, number, np.uint8), 10 * number)

    target = np.zeros(64, np.uint8).view(Intruded)
    publication, version = weights.read_into(target)

    assert Intruded.intrusions == 2
    assert (publication, version) == (5, 50)
    assert np.asarray(target).tolist() == [5] * 64
