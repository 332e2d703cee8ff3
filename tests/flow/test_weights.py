"""Readers never see two publications in one copy and never go back, however hard the writer writes or ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.context import SpawnProcess

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


class Findings:
    """What readers report in shared memory, so that nothing stands between them and the next copy."""

    def __init__(self, readers: int) -> None:
        names = ("ready", "copies", "torn", "backward", "newest", "distinct", "stop", "enough")
        self.arrays = SharedArrays("findings", {name: TensorSpec((readers,), "int64") for name in names})

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
def test_no_copy_is_torn_at_full_speed_and_a_killed_reader_blocks_no_process(nbytes: int, count: int) -> None:
    weights, findings = SharedWeights(nbytes), Findings(count)
    readers = start_readers(weights, findings, count)

    writer = SPAWN.Process(target=write_constants, args=(weights, findings, 1.5))
    writer.start()
    met = eventually(lambda: weights.publications > 100 and min(findings.of_all("distinct")) > 20, START_S)
    victim, *survivors = readers
    victim.kill()
    victim.join(START_S)
    due = weights.publications + 20
    continued = eventually(lambda: weights.publications > due, START_S)
    findings.arrays["enough"][:] = 1
    writer.join(START_S)
    # Every other reader arrives at the last publication.
    settled = eventually(lambda: set(findings.of_all("newest")[1:]) == {weights.publications}, START_S)

    assert_whole(findings, survivors)
    assert met, "readers and writer did not meet, so nothing is shown"
    assert continued
    assert settled
    assert writer.exitcode == 0


def copied_since(findings: Findings, copies: list[int]) -> bool:
    return all(now > then for now, then in zip(findings.of_all("copies"), copies, strict=True))


def test_killed_writer_leaves_whole_copies_and_a_successor_continues() -> None:
    weights, findings = SharedWeights(2_000_000), Findings(2)
    readers = start_readers(weights, findings, 2)

    for _ in range(2):
        due = weights.publications + 20
        writer = SPAWN.Process(target=write_constants, args=(weights, findings, 0.0))
        writer.start()
        assert eventually(lambda due=due: weights.publications > due, START_S)  # type: ignore[misc]
        writer.kill()
        writer.join(START_S)
        assert writer.exitcode == -signal.SIGKILL
        before = findings.of_all("copies")
        # No reader waits for the dead writer: all copy the last whole publication.
        assert eventually(lambda before=before: copied_since(findings, before), START_S)  # type: ignore[misc]

    assert_whole(findings, readers)
    assert weights.publications > 40
