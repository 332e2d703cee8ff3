"""Envs of a worker start at different moments of their episodes, and workers at different moments of their rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sfactory.actor.decorrelation import FirstWait, warm_up
from sfactory.actor.split import Split
from sfactory.clock import BLOCK_S
from sfactory.shared.control import Control, Stop
from sfactory.shared.status import StatusBoard, StatusRow, Stopwatch
from sfactory.shared.trajectories import TrajectoryBuffer
from tests.support.episodes import finished_episodes
from tests.support.parts import SCALAR, small_layout
from tests.support.scripted_env import EnvStock, Episode, Faults, ScriptedEnv, no_faults, obs_at
from tests.unit.actor.test_env_faults import make_split, waits

__all__ = ["waits"]

T = 4


@pytest.fixture
def row() -> StatusRow:
    return StatusBoard(["sf-actor-0"]).row("sf-actor-0")


def fresh_split(*scripts: list[Episode]) -> tuple[Split, list[ScriptedEnv]]:
    envs = [ScriptedEnv(script) for script in scripts]
    split = Split.of_envs(0, envs, SCALAR, T, no_faults())
    split.reset(list(range(len(envs))), "actor 0")
    return split, envs


def first_rows_of_a_slot(split: Split) -> np.ndarray:
    """Fill a slot; returns its is_first [T+1, N]."""
    slot = TrajectoryBuffer(SCALAR, small_layout(rows=split.batch.size, rollout=T)).slot(0)
    split.begin(slot)
    for t in range(T):
        slot.actions["action"][t] = 0
        split.step()
    split.finish()
    return slot.is_first


def test_random_steps_change_one_env_and_not_the_others(row: StatusRow) -> None:
    split, envs = fresh_split([], [])

    warm_up(split, 1, 5, 7, Control(1), row)

    assert [obs[0] for obs in split.batch.observations] == [obs_at(0, 0), obs_at(0, 5)]
    assert [len(env.taken) for env in envs] == [0, 5]
    assert row.get("busy_since") > 0


def test_an_episode_that_continues_is_reported_whole_and_its_first_row_is_no_first_step(row: StatusRow) -> None:
    # Episode 0 has 7 steps: 5 of them random, 2 recorded.
    split, _ = fresh_split([(7, "terminated")], [(2, "terminated")])

    warm_up(split, 0, 5, 7, Control(1), row)
    is_first = first_rows_of_a_slot(split)

    assert finished_episodes(split.episodes) == [(sum(range(7)) + 3.5, 7), (0.5 + 1.5, 2)]
    assert is_first[:, 0].tolist() == [False, False, True, False, False]
    assert is_first[:, 1].tolist() == [True, False, True, False, False]


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_an_episode_that_ends_during_the_random_steps_is_not_reported(ending: Any, row: StatusRow) -> None:
    split, envs = fresh_split([(3, ending), (4, "terminated")])

    warm_up(split, 0, 5, 7, Control(1), row)
    first_rows_of_a_slot(split)

    # 2 random steps and 2 recorded ones make up the second episode.
    assert finished_episodes(split.episodes) == [(100.5 + 101.5 + 102.5 + 103.5, 4)]
    assert envs[0].seeds == [0, None, None]


def test_after_an_episode_that_ends_with_the_last_random_step_the_slot_starts_with_a_first_row(row: StatusRow) -> None:
    split, _ = fresh_split([(5, "truncated")])

    warm_up(split, 0, 5, 7, Control(1), row)

    assert first_rows_of_a_slot(split)[:, 0].tolist() == [True, False, False, False, False]


@pytest.mark.parametrize("faults", [Faults(steps=[3]), Faults(resets=[2]), Faults(shown={5: np.zeros(2)})], ids=str)
def test_an_env_that_fails_in_its_random_steps_is_recreated(faults: Faults, row: StatusRow, waits: list[float]) -> None:
    env = ScriptedEnv([(2, "terminated")] if faults.resets else [], faults)
    split, record, _ = make_split([env, ScriptedEnv()], EnvStock())

    warm_up(split, 0, 5, 7, Control(1), row)

    assert env.closed
    assert record.counts() == (1, 0)
    assert [obs[0] for obs in split.batch.observations] == [1000, 0]
    assert first_rows_of_a_slot(split)[0].tolist() == [True, True]


def test_a_stop_while_an_env_is_recreated_ends_the_random_steps(row: StatusRow) -> None:
    split, record, _ = make_split([ScriptedEnv([], Faults(steps=[1]))], EnvStock())
    record.control.order_stop(Stop.SAVE)

    warm_up(split, 0, 5, 7, Control(1), row)


def test_a_stop_ends_the_random_steps(row: StatusRow) -> None:
    split, envs = fresh_split([])
    control = Control(1)
    control.order_stop(Stop.SAVE)

    warm_up(split, 0, 10**9, 7, control, row)

    assert envs[0].taken == []


class Sleeps:
    """Replaces ``time.sleep``: records the sleeps, lets time pass, and orders a stop after ``stop_after`` of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, control: Control, stop_after: int = -1) -> None:
        self.slept: list[float] = []
        self._control, self._stop_after = control, stop_after
        monkeypatch.setattr("sfactory.actor.decorrelation.time.sleep", self._sleep)
        monkeypatch.setattr("sfactory.clock.now", lambda: sum(self.slept))

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == self._stop_after:
            self._control.order_stop(Stop.SAVE)


def test_an_actor_waits_once_after_the_first_trajectory_of_its_last_split(
    row: StatusRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = Control(1)
    sleeps = Sleeps(monkeypatch, control)
    wait = FirstWait(2, 1.75 * BLOCK_S, control, Stopwatch(row))

    slept = []
    for split in (0, 0, 1, 0, 1):
        wait.completed(split)
        slept.append(sum(sleeps.slept))
    FirstWait(1, 0.0, control, Stopwatch(row)).completed(0)

    assert slept == pytest.approx([0, 0, 1.75 * BLOCK_S, 1.75 * BLOCK_S, 1.75 * BLOCK_S])
    assert max(sleeps.slept) <= BLOCK_S
    assert len(sleeps.slept) == 2


def test_a_stop_ends_the_wait(row: StatusRow, monkeypatch: pytest.MonkeyPatch) -> None:
    control = Control(1)
    sleeps = Sleeps(monkeypatch, control, stop_after=3)

    FirstWait(1, 1000.0, control, Stopwatch(row)).completed(0)

    assert sleeps.slept == [BLOCK_S] * 3


def test_an_actor_that_waits_is_not_busy(row: StatusRow) -> None:
    watch = Stopwatch(row)

    FirstWait(1, 0.01, Control(1), watch).completed(0)

    assert row.get("waiting_s") >= 0.01
    assert row.get("busy_since") == row.get("heartbeat") > 0
