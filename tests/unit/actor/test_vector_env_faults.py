"""A vector env that raises, or gives no data, is made good as a whole: one step of all is lost, and no other."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from sfactory.actor.env_restarts import EnvFaults, StopOrdered
from sfactory.actor.split import Split
from sfactory.env.conversion import BadObservation
from sfactory.shared.control import Stop
from sfactory.shared.trajectories import TrajectoryBuffer
from tests.support.episodes import finished_episodes
from tests.support.fragile_env import Broken, Care, Faults, FragileEnv
from tests.support.parts import SCALAR, small_layout
from tests.support.scripted_env import Episode
from tests.unit.actor.test_env_faults import waits
from tests.unit.actor.test_recorder import Rows, T, assert_rows, play, soil

__all__ = ["waits"]

Mode = Literal["NextStep", "SameStep"]
MODES: list[Mode] = ["NextStep", "SameStep"]
One = tuple[Sequence[Episode], Faults]
GOOD: One = ([], Faults())
FRESH = [Rows([1000, 1001, 1002, 1003, 1004], [1000.5, 1001.5, 1002.5, 1003.5], is_first=(0,))]


class Hall:
    """Makes vector envs: the first of ``ones``, then good ones with a base of 1000 k, or what ``stock`` raises."""

    def __init__(self, mode: Mode, *ones: One, stock: Sequence[Exception] = ()) -> None:
        self._mode, self._ones, self._stock = AutoresetMode(mode), ones, list(stock)
        self.made: list[SyncVectorEnv] = []
        self.seeds: list[int] = []

    def make(self, seed: int) -> SyncVectorEnv:
        self.seeds.append(seed)
        if self.made and self._stock:
            raise self._stock.pop(0)
        base = 1000.0 * len(self.made)
        ones = self._ones if not self.made else [GOOD] * len(self._ones)
        makers = [functools.partial(FragileEnv, script, faults, base) for script, faults in ones]
        self.made.append(SyncVectorEnv(makers, autoreset_mode=self._mode))
        return self.made[-1]

    def split(self, **limits: Any) -> tuple[Split, Care, list[Any]]:
        care = Care(self.make, **limits)
        split = Split.of_vector(0, self.make(0), SCALAR, T, care.care)
        split.reset([0] * len(self._ones), "actor 0")
        slots = TrajectoryBuffer(SCALAR, small_layout(num_actors=1, rows=len(self._ones))).slots()
        for slot in slots:
            soil(slot)
        return split, care, slots


@pytest.mark.parametrize("mode", MODES)
def test_one_step_of_all_envs_is_lost_and_all_begin_anew(mode: Mode, waits: list[float]) -> None:
    hall = Hall(
        mode, GOOD, ([(1, "terminated")], Faults()), ([], Faults(steps=[3])), stock=[RuntimeError("no licence")]
    )
    split, care, slots = hall.split()

    valid = play(split, slots[:2])

    lost = Rows([0, 1, 2, 1000, 1001], [0.5, 1.5, 0, 1000.5], invalid=(2,), is_first=(0, 3))
    assert_rows(slots[0], 0, lost)
    assert_rows(slots[0], 2, lost)
    assert slots[0].valid[2:, 1].tolist() == [False, True]
    assert slots[0].obs["obs"][3:, 1, 0].tolist() == [1000, 1001]
    assert_rows(slots[1], 0, Rows([1001, 1002, 1003, 1004, 1005], [1001.5, 1002.5, 1003.5, 1004.5]))
    # With resets in the next step the row behind the terminated one is invalid, too.
    assert valid == 24 - 3 - (mode == "NextStep")
    assert finished_episodes(split.episodes) == [(0.5, 1)]
    assert care.counts() == (2, 0)
    assert waits == [0.1, 0.2]
    assert hall.seeds == [0, 7001, 7002]
    assert hall.made[0].closed


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_an_end_whose_reset_the_failure_took_is_over_all_the_same(mode: Mode, ending: Any, waits: list[float]) -> None:
    # The first episode ends with step 2 or, in the other mode, in step 3 would be reset.
    at = 3 if mode == "NextStep" else 4
    split, _, slots = Hall(mode, ([(2, ending)], Faults()), ([], Faults(steps=[at]))).split()

    play(split, slots[:2])

    assert slots[0].is_first[at].tolist() == [True, True]
    assert slots[0].valid[at - 1].tolist() == [False, False]
    assert slots[0].valid[at:].all()
    assert slots[1].valid.all()
    assert [length for _, length in finished_episodes(split.episodes)] == [2]


@pytest.mark.parametrize("mode", MODES)
def test_a_failure_in_the_last_step_of_a_slot_begins_the_next_one_anew(mode: Mode, waits: list[float]) -> None:
    split, _, slots = Hall(mode, ([], Faults(steps=[4])), GOOD).split()

    play(split, slots[:2])

    for env in (0, 1):
        assert_rows(slots[0], env, Rows([0, 1, 2, 3, 1000], [0.5, 1.5, 2.5, 0], invalid=(3,), is_first=(0, 4)))
        assert_rows(slots[1], env, FRESH[0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "faults",
    [
        Faults(rewards={2: math.nan}),
        Faults(rewards={2: math.inf}),
        Faults(shown={2: np.array([math.nan], np.float32)}),
        Faults(shown={2: np.array([-math.inf], np.float32)}),
    ],
)
def test_no_data_of_one_env_has_all_of_them_reset_and_counts_once(mode: Mode, faults: Faults) -> None:
    split, care, slots = Hall(mode, GOOD, ([], faults), GOOD).split()

    valid = play(split, slots[:1])

    for env in range(3):
        assert_rows(slots[0], env, Rows([0, 1, 100, 101, 102], [0.5, 0, 100.5, 101.5], invalid=(1,), is_first=(0, 2)))
    assert valid == 9
    assert care.counts() == (0, 1)
    assert np.isfinite(slots[0].reward).all()


@pytest.mark.parametrize("mode", MODES)
def test_what_the_first_reset_shows_is_looked_at_too(mode: Mode) -> None:
    split, care, slots = Hall(mode, GOOD, ([], Faults(reset_shown={1: np.array([math.nan], np.float32)}))).split()

    assert play(split, slots[:1]) == 8
    assert_rows(slots[0], 1, Rows([100, 101, 102, 103, 104], [100.5, 101.5, 102.5, 103.5], is_first=(0,)))
    assert care.counts() == (0, 1)


class Shrinking(SyncVectorEnv):
    """Shows one env too few in its third step."""

    def step(self, actions: Any) -> Any:
        """As SyncVectorEnv."""
        self.steps = getattr(self, "steps", 0) + 1
        obs, *rest = super().step(actions)
        return (obs[:-1] if self.steps == 3 else obs, *rest)


def test_a_batch_of_another_shape_counts_for_all_envs(waits: list[float]) -> None:
    env = Shrinking([FragileEnv, FragileEnv], autoreset_mode=AutoresetMode.NEXT_STEP)
    care = Care(lambda seed: env)
    split = Split.of_vector(0, env, SCALAR, T, care.care)
    split.reset([0, 0], "actor 0")
    slot = TrajectoryBuffer(SCALAR, small_layout(rows=2)).slot(0)

    play(split, [slot])

    assert slot.valid.tolist() == [[True] * 2, [True] * 2, [False] * 2, [True] * 2]
    assert care.counts() == (0, 2)


def test_the_budget_holds_for_vector_envs_and_names_the_first_of_their_envs(waits: list[float]) -> None:
    split, care, slots = Hall("NextStep", ([], Faults(steps=[2])), GOOD, stock=[Broken("again")] * 9).split(
        most_restarts=4
    )

    with pytest.raises(EnvFaults, match=r"^env 0 of sf-actor-0 raised Broken: again; 4 of .*--max_env_restarts=4"):
        play(split, slots[:1])

    split.batch.close("split 0")
    assert care.counts() == (4, 0)


def test_a_stop_ends_the_wait_for_a_vector_env(waits: list[float]) -> None:
    split, care, slots = Hall("NextStep", ([], Faults(steps=[1]))).split()
    split.begin(slots[0])
    slots[0].actions["action"].fill(0)
    care.control.order_stop(Stop.SAVE)

    with pytest.raises(StopOrdered):
        split.step()
    assert split.t == 0
    assert care.counts() == (0, 0)


def test_a_vector_env_without_care_raises_what_it_raises() -> None:
    envs = [Hall("NextStep", ([], faults)).make(0) for faults in (Faults(steps=[1]), Faults(rewards={1: math.nan}))]

    for env, error in zip(envs, (Broken, BadObservation), strict=True):
        split = Split.of_vector(0, env, SCALAR, T)
        split.reset([0], "actor 0")
        with pytest.raises(error):
            play(split, TrajectoryBuffer(SCALAR, small_layout(rows=1)).slots()[:1])
