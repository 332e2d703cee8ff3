"""Rings that are not read: those that carry work fail and lose nothing, those of reports block no process."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import NamedTuple

import numpy as np
import pytest

from sfactory.config.schema import LearnerConfig, SamplingConfig
from sfactory.errors import ChannelFull, ExitCode, MessageTooLarge
from sfactory.layout import Layout
from sfactory.messages import MAX_REPORT_BYTES, TO_LEARNER, TO_MAIN, EpisodesDone, ToLearner, ToMain, TrajectoryReady
from sfactory.shared.channel import Channel
from tests.support.long import LONG
from tests.support.processes import eventually, is_stopped
from tests.support.trainer import RunTrainer

pytestmark = pytest.mark.faults

ENDLESS = 1_000_000_000
BANDIT = "sfactory_envs.synthetic.bandit:Bandit"
REPORTS = 64  # the ring of reports to main holds so many of the largest
EPISODE_BYTES = 16
SPAWN = multiprocessing.get_context("spawn")
READER_S = 60.0  # bound on whatever one process does, its start included


def stand_still_then_read(channel: Channel[ToLearner], reports: Connection) -> None:
    """Once continued, tell of the slot of each message, as it comes, until none comes for a second."""
    os.kill(os.getpid(), signal.SIGSTOP)
    while messages := channel.get(1.0):
        reports.send([message.slot for message in messages])
    reports.close()


def read_to_the_end(reports: Connection) -> Iterator[int]:
    """All slots that the reader tells of."""
    with contextlib.suppress(EOFError):
        while reports.poll(READER_S):
            yield from reports.recv()
        pytest.fail("the reader neither reads nor ends")


class StoppedReader(NamedTuple):
    """A ring that holds one message; the process that reads it and stands still; what tells of all that it reads."""

    ring: Channel[ToLearner]
    process: SpawnProcess
    reports: Connection

    def go_on(self) -> None:
        """Read from now on."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGCONT)


@pytest.fixture
def reader() -> Iterator[StoppedReader]:
    """Somebody who stands still; ended after the test, whatever has become of it."""
    ring: Channel[ToLearner] = Channel("sf-learner-0", TO_LEARNER, capacity=50)
    ring.put(TrajectoryReady(0, 0))
    reports, telling = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=stand_still_then_read, args=(ring, telling))
    process.start()
    telling.close()
    pid = process.pid
    assert pid is not None
    try:
        assert eventually(lambda: is_stopped(pid), READER_S), "it does not come to stand still"
        yield StoppedReader(ring, process, reports)
    finally:
        process.kill()
        process.join(READER_S)
        reports.close()


def test_a_ring_whose_reader_is_stopped_fails_loudly_and_nothing_that_it_took_is_lost(reader: StoppedReader) -> None:
    sent = 1
    while reader.ring.try_put(TrajectoryReady(0, sent)):
        sent += 1
    began = time.monotonic()
    with pytest.raises(ChannelFull, match="the ring of sf-learner-0 is full"):
        reader.ring.put(TrajectoryReady(0, sent))

    assert sent >= 50
    assert time.monotonic() - began < 5.0, "a full ring was waited for"
    reader.go_on()
    assert list(read_to_the_end(reader.reports)) == list(range(sent))
    reader.process.join(READER_S)
    assert reader.process.exitcode == 0


def test_message_larger_than_its_ring_is_another_error_than_a_full_ring() -> None:
    channel: Channel[ToMain] = Channel("sf-main", TO_MAIN, capacity=1)
    began = time.monotonic()

    with pytest.raises(MessageTooLarge, match="for sf-main; its ring holds"):
        channel.put(EpisodesDone(0, np.zeros(4096), np.ones(4096, np.int64)))

    assert time.monotonic() - began < 5.0


@LONG
def test_main_that_reads_no_reports_blocks_no_process_and_misses_no_episode(run_trainer: RunTrainer) -> None:
    sampling = SamplingConfig(num_workers=2, num_envs_per_worker=256, worker_num_splits=2, rollout=64)
    learner = LearnerConfig(batch_size=16_384)
    run = run_trainer(
        env=BANDIT,
        env_kwargs={"length": 1},
        num_workers=sampling.num_workers,
        num_envs_per_worker=sampling.num_envs_per_worker,
        rollout=sampling.rollout,
        batch_size=learner.batch_size,
        train_for_env_steps=ENDLESS,
    )
    run.wait_until_training()
    # Every step is an episode: after so many steps the ring is full, whatever was in it.
    enough = 1.2 * REPORTS * MAX_REPORT_BYTES / EPISODE_BYTES

    run.signal_main(signal.SIGSTOP)
    before = run.saved_env_steps()
    run.wait_until(lambda: run.saved_env_steps() > before + enough, 200)
    run.signal_main(signal.SIGCONT)
    layout = Layout.plan(sampling, learner, "central")
    under_way = layout.rollout * (layout.num_slots * layout.rows + (layout.datasets + 1) * layout.dataset_rows)
    # What actors could not tell then goes with the report of a slot that they finish now.
    since = run.saved_env_steps()
    run.wait_until(lambda: run.saved_env_steps() > since + 2 * under_way)
    run.signal_main(signal.SIGINT)

    run.assert_ended(ExitCode.SIGINT, 60)
    summary = run.result()
    assert summary["env_steps"] > before + enough
    assert summary["env_steps"] <= summary["episodes"] <= summary["env_steps"] + under_way
