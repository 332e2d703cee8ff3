"""Rings that nobody reads: those that carry work fail loudly and lose nothing, those of reports hold nobody up."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

from sfactory.config.schema import LearnerConfig, SamplingConfig
from sfactory.errors import ChannelFull, ExitCode, MessageTooLarge
from sfactory.layout import Layout
from sfactory.messages import MAX_REPORT_BYTES, TO_LEARNER, TO_MAIN, EpisodesDone, ToLearner, ToMain, TrajectoryReady
from sfactory.shared.channel import Channel
from tests.support.trainer import RunTrainer

pytestmark = pytest.mark.faults

ENDLESS = 1_000_000_000
BANDIT = "sfactory_envs.synthetic.bandit:Bandit"
REPORTS = 64  # the ring of reports to main holds so many of the largest
EPISODE_BYTES = 16


def read_into_pipe(channel: Channel[ToLearner], pipe: int) -> None:
    """Tell through the pipe the slot of each message, as it comes, until none comes for a second."""
    while messages := channel.get(1.0):
        os.write(pipe, b"".join(b"%d\n" % message.slot for message in messages))


def test_a_ring_whose_reader_is_stopped_fails_loudly_and_nothing_that_it_took_is_lost() -> None:
    channel: Channel[ToLearner] = Channel("sf-learner-0", TO_LEARNER, capacity=50)
    read_end, write_end = os.pipe()
    channel.put(TrajectoryReady(0, 0))
    reader = os.fork()
    if not reader:
        os.close(read_end)
        os.kill(os.getpid(), signal.SIGSTOP)
        read_into_pipe(channel, write_end)
        os._exit(0)
    os.close(write_end)
    try:
        os.waitpid(reader, os.WUNTRACED)

        sent = 1
        while channel.try_put(TrajectoryReady(0, sent)):
            sent += 1
        began = time.monotonic()
        with pytest.raises(ChannelFull, match="the ring of sf-learner-0 is full"):
            channel.put(TrajectoryReady(0, sent))

        assert sent >= 50
        assert time.monotonic() - began < 5.0, "a full ring was waited for"
    finally:
        os.kill(reader, signal.SIGCONT)
    with os.fdopen(read_end) as told:
        assert [int(line) for line in told] == list(range(sent))
    os.waitpid(reader, 0)


def test_a_message_that_never_fits_is_told_apart_from_a_full_ring_at_once() -> None:
    channel: Channel[ToMain] = Channel("sf-main", TO_MAIN, capacity=1)
    began = time.monotonic()

    with pytest.raises(MessageTooLarge, match="for sf-main; its ring holds"):
        channel.put(EpisodesDone(0, np.zeros(4096), np.ones(4096, np.int64)))

    assert time.monotonic() - began < 5.0


def test_a_main_that_reads_no_reports_holds_nobody_up_and_misses_no_episode(run_trainer: RunTrainer) -> None:
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
