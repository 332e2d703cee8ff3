"""A split records every kind of step as NOTE [Row life] says, down to the last number.

Rollout 4, two or three slots. A scripted env shows 100 x episode + step and pays that number plus 0.5.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from sfactory.actor.env_batch import EnvBatch
from sfactory.actor.split import Split
from sfactory.shared.trajectories import Slot, TrajectoryBuffer
from tests.support.episodes import finished_episodes
from tests.support.parts import SCALAR, small_layout
from tests.support.scripted_env import Episode, ScriptedEnv, batch_of, no_faults

T = 4
ACTIONS = [1, 2, 3, 4]  # of the rows of every slot


class Rows(NamedTuple):
    """What one env leaves in one slot: T+1 observations, and the places of flags.

    The reward of a valid row is its observation plus 0.5, that of an invalid row is 0.
    """

    obs: list[int]
    terminated: tuple[int, ...] = ()
    truncated: tuple[int, ...] = ()
    invalid: tuple[int, ...] = ()
    is_first: tuple[int, ...] = ()


def steps_from(number: int, starts: bool = False) -> Rows:
    """T ordinary steps from the observation ``number``, which may start an episode."""
    return Rows(list(range(number, number + T + 1)), is_first=(0,) if starts else ())


class Case(NamedTuple):
    """A script; what it leaves in the slots; (return, length) of finished episodes."""

    script: list[Episode]
    slots: list[Rows]
    episodes: list[tuple[float, int]]

    def taken(self) -> list[int]:
        """The actions that the env gets: those of valid rows."""
        return [ACTIONS[t] for rows in self.slots for t in range(T) if t not in rows.invalid]


CASES = {
    "ordinary steps": Case([], [steps_from(0, starts=True), steps_from(4)], []),
    "terminated in mid-slot": Case(
        [(2, "terminated")],
        [Rows([0, 1, 100, 101, 102], terminated=(1,), is_first=(0, 2)), steps_from(102)],
        [(2.0, 2)],
    ),
    "truncated in mid-slot": Case(
        [(2, "truncated")],
        [Rows([0, 1, 2, 100, 101], truncated=(1,), invalid=(2,), is_first=(0, 3)), steps_from(101)],
        [(2.0, 2)],
    ),
    "terminated and truncated at once: terminated wins": Case(
        [(2, "both")], [Rows([0, 1, 100, 101, 102], terminated=(1,), is_first=(0, 2)), steps_from(102)], [(2.0, 2)]
    ),
    "terminated at the slot's end: the next slot starts with a first row": Case(
        [(4, "terminated")],
        [Rows([0, 1, 2, 3, 100], terminated=(3,), is_first=(0, 4)), steps_from(100, starts=True)],
        [(8.0, 4)],
    ),
    "truncated at the ends of two slots: the next slot starts with the reset": Case(
        [(4, "truncated"), (4, "truncated")],
        [
            Rows([0, 1, 2, 3, 4], truncated=(3,), is_first=(0,)),
            Rows([100, 101, 102, 103, 104], truncated=(3,), is_first=(0,)),
            steps_from(200, starts=True),
        ],
        [(8.0, 4), (408.0, 4)],
    ),
    "truncated one before the slot's end: the truncation row is the last": Case(
        [(3, "truncated")],
        [Rows([0, 1, 2, 3, 100], truncated=(2,), invalid=(3,), is_first=(0, 4)), steps_from(100, starts=True)],
        [(4.5, 3)],
    ),
    "truncated at the first step of a slot": Case(
        [(5, "truncated")],
        [steps_from(0, starts=True), Rows([4, 5, 100, 101, 102], truncated=(0,), invalid=(1,), is_first=(2,))],
        [(12.5, 5)],
    ),
    "terminated episodes of one step": Case(
        [(1, "terminated")] * 6,
        [
            Rows([0, 100, 200, 300, 400], (0, 1, 2, 3), is_first=(0, 1, 2, 3, 4)),
            Rows([400, 500, 600, 601, 602], (0, 1), is_first=(0, 1, 2)),
        ],
        [(0.5, 1), (100.5, 1), (200.5, 1), (300.5, 1), (400.5, 1), (500.5, 1)],
    ),
    "truncated episodes of one step": Case(
        [(1, "truncated")] * 3,
        [
            Rows([0, 1, 100, 101, 200], truncated=(0, 2), invalid=(1, 3), is_first=(0, 2, 4)),
            Rows([200, 201, 300, 301, 302], truncated=(0,), invalid=(1,), is_first=(0, 2)),
        ],
        [(0.5, 1), (100.5, 1), (200.5, 1)],
    ),
}


def make_split(scripts: list[list[Episode]]) -> tuple[Split, list[ScriptedEnv], list[Slot]]:
    envs = [ScriptedEnv(script) for script in scripts]
    split = Split.of_envs(0, envs, SCALAR, T, no_faults())
    split.reset(list(range(len(envs))), "actor 0")
    return split, envs, used_slots(len(envs))


def used_slots(rows: int) -> list[Slot]:
    """Three slots with traces of an earlier rollout, which must not show through."""
    slots = TrajectoryBuffer(SCALAR, small_layout(num_actors=1, rows=rows, slots_per_split=3)).slots()
    for slot in slots:
        slot.obs["obs"].fill(-7)
        slot.reward.fill(-7)
        for flags in (slot.terminated, slot.truncated, slot.is_first):
            flags.fill(True)
        slot.valid.fill(False)
    return slots


def play(split: Split, slots: list[Slot]) -> int:
    """Fill the slots with ACTIONS; returns the valid env steps counted."""
    valid = 0
    for slot in slots:
        split.begin(slot)
        for t, action in enumerate(ACTIONS):
            assert split.t == t
            slot.actions["action"][t] = action
            valid += split.step()
        assert split.completed
        assert split.finish()[0] is slot
        assert split.needs_slot
    return valid


def flags(length: int, places: tuple[int, ...]) -> list[bool]:
    return [place in places for place in range(length)]


def assert_rows(slot: Slot, env: int, rows: Rows) -> None:
    found: dict[str, Any] = {
        name: getattr(slot, name)[:, env].tolist()
        for name in ("reward", "terminated", "truncated", "valid", "is_first")
    }
    assert found | {"obs": slot.obs["obs"][:, env, 0].tolist()} == {
        "obs": rows.obs,
        "reward": [0.0 if t in rows.invalid else rows.obs[t] + 0.5 for t in range(T)],
        "terminated": flags(T, rows.terminated),
        "truncated": flags(T, rows.truncated),
        "valid": [not invalid for invalid in flags(T, rows.invalid)],
        "is_first": flags(T + 1, rows.is_first),
    }


@pytest.mark.parametrize("name", CASES)
def test_rows_and_episodes_follow_the_script(name: str) -> None:
    case = CASES[name]
    split, (env,), slots = make_split([case.script])

    valid = play(split, slots[: len(case.slots)])

    for slot, rows in zip(slots, case.slots, strict=False):
        assert_rows(slot, 0, rows)
    assert env.taken == case.taken()
    assert valid == len(case.taken())
    assert finished_episodes(split.episodes) == case.episodes


def test_envs_of_a_split_do_not_affect_each_other() -> None:
    cases = [case for case in CASES.values() if len(case.slots) == 2]
    split, envs, slots = make_split([case.script for case in cases])

    valid = play(split, slots[:2])

    for index, case in enumerate(cases):
        for slot, rows in zip(slots[:2], case.slots, strict=True):
            assert_rows(slot, index, rows)
        assert envs[index].taken == case.taken()
    assert valid == sum(len(case.taken()) for case in cases)


def test_the_next_row_is_written_before_its_actions_are_requested() -> None:
    split, _, slots = make_split([[(2, "truncated")]])
    split.begin(slots[0])
    seen = [slots[0].obs["obs"][0, 0, 0]]

    for t in range(3):
        slots[0].actions["action"][t] = 0
        split.step()
        seen.append(slots[0].obs["obs"][split.t, 0, 0])

    assert seen == [0.0, 1.0, 2.0, 100.0]


def test_an_env_truncated_at_the_end_of_a_slot_is_reset_when_the_next_slot_begins() -> None:
    split, (env,), slots = make_split([[(4, "truncated")]])

    play(split, slots[:1])
    assert env.seeds == [0]
    split.begin(slots[1])
    assert env.seeds == [0, None]


def test_the_first_observation_must_fit_the_space() -> None:
    class WrongShape(ScriptedEnv):
        def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
            return np.zeros(2, np.float32), {}

    split = Split.of_envs(1, [ScriptedEnv([]), WrongShape([])], SCALAR, T, no_faults())

    with pytest.raises(Exception, match=r"actor 3, first reset of split 1, env 1: .*shape \(2,\)"):
        split.reset([0, 1], "actor 3")


def test_too_few_actions_are_an_error() -> None:
    with pytest.raises(ValueError, match="1 actions for 2 envs"):
        EnvBatch([ScriptedEnv([]), ScriptedEnv([])]).step([0])


class NumpyFlags(ScriptedEnv):
    """Returns numpy's bools, and its number of steps in the info of every step."""

    def step(self, action: int) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        info = {"episode_extra_stats": {"steps": len(self.taken)}}
        return obs, reward, np.bool_(terminated), np.bool_(truncated), info


def test_flags_may_be_numpy_bools() -> None:
    batch = batch_of([NumpyFlags([(1, "truncated")]), NumpyFlags([(1, "terminated")])])
    batch.reset([0, 1])

    batch.step([0, 0])

    assert (batch.terminated, batch.truncated) == ([1], [0])


def test_extra_statistics_are_taken_only_at_the_ends_of_episodes() -> None:
    batch = batch_of([NumpyFlags([(2, "terminated"), (1, "both")]), NumpyFlags([(4, "truncated")]), NumpyFlags([])])
    batch.reset([0, 1, 2])

    for _ in range(6):
        batch.step([0, 0, 0])
        batch.extras.keep()

    sent: list[Any] = []
    batch.extras.send(9, lambda message: bool(sent.append(message)))  # type: ignore[func-returns-value]
    assert [(sent[0].actor, sent[0].name, sent[0].values.tolist())] == [(9, "steps", [2.0, 3.0, 4.0])]
