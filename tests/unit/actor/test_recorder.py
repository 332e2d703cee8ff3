"""Every way that a row can go, as the table of NOTE [Row life] has it, down to the last number.

Rollout 4, two or three slots. A scripted env shows 100 x episode + step and pays that number plus 0.5.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from sfactory.actor.split import Split
from sfactory.shared.trajectories import Slot, TrajectoryBuffer
from tests.support.episodes import finished_episodes
from tests.support.parts import SCALAR, small_layout
from tests.support.scripted_env import Episode, ScriptedEnv

T = 4
ACTIONS = [1, 2, 3, 4]  # of the rows of every slot


class Rows(NamedTuple):
    """What one env leaves in one slot. obs, is_first: T+1 entries; the others T. Flags are places, not masks."""

    obs: list[int]
    reward: list[float]
    terminated: tuple[int, ...] = ()
    truncated: tuple[int, ...] = ()
    invalid: tuple[int, ...] = ()
    is_first: tuple[int, ...] = ()


class Story(NamedTuple):
    """A script; what it leaves in the slots; the (return, length) of finished episodes; the actions the env got."""

    script: list[Episode]
    slots: list[Rows]
    episodes: list[tuple[float, int]]
    taken: list[int]


ORDINARY_SECOND = Rows(obs=[4, 5, 6, 7, 8], reward=[4.5, 5.5, 6.5, 7.5])

STORIES = {
    "ordinary steps, and a slot that ends in mid-episode": Story(
        [],
        [Rows([0, 1, 2, 3, 4], [0.5, 1.5, 2.5, 3.5], is_first=(0,)), ORDINARY_SECOND],
        [],
        [1, 2, 3, 4, 1, 2, 3, 4],
    ),
    "terminated in mid-slot": Story(
        [(2, "terminated")],
        [
            Rows([0, 1, 100, 101, 102], [0.5, 1.5, 100.5, 101.5], terminated=(1,), is_first=(0, 2)),
            Rows([102, 103, 104, 105, 106], [102.5, 103.5, 104.5, 105.5]),
        ],
        [(2.0, 2)],
        [1, 2, 3, 4, 1, 2, 3, 4],
    ),
    "truncated in mid-slot": Story(
        [(2, "truncated")],
        [
            Rows([0, 1, 2, 100, 101], [0.5, 1.5, 0, 100.5], truncated=(1,), invalid=(2,), is_first=(0, 3)),
            Rows([101, 102, 103, 104, 105], [101.5, 102.5, 103.5, 104.5]),
        ],
        [(2.0, 2)],
        [1, 2, 4, 1, 2, 3, 4],
    ),
    "terminated and truncated at once: terminated wins": Story(
        [(2, "both")],
        [
            Rows([0, 1, 100, 101, 102], [0.5, 1.5, 100.5, 101.5], terminated=(1,), is_first=(0, 2)),
            Rows([102, 103, 104, 105, 106], [102.5, 103.5, 104.5, 105.5]),
        ],
        [(2.0, 2)],
        [1, 2, 3, 4, 1, 2, 3, 4],
    ),
    "terminated at the slot's end: the next slot starts with a first row": Story(
        [(4, "terminated")],
        [
            Rows([0, 1, 2, 3, 100], [0.5, 1.5, 2.5, 3.5], terminated=(3,), is_first=(0, 4)),
            Rows([100, 101, 102, 103, 104], [100.5, 101.5, 102.5, 103.5], is_first=(0,)),
        ],
        [(8.0, 4)],
        [1, 2, 3, 4, 1, 2, 3, 4],
    ),
    "truncated at the slot's end: the next slot starts with the truncation over": Story(
        [(4, "truncated")],
        [
            Rows([0, 1, 2, 3, 4], [0.5, 1.5, 2.5, 3.5], truncated=(3,), is_first=(0,)),
            Rows([100, 101, 102, 103, 104], [100.5, 101.5, 102.5, 103.5], is_first=(0,)),
        ],
        [(8.0, 4)],
        [1, 2, 3, 4, 1, 2, 3, 4],
    ),
    "terminated and truncated at once at the slot's end": Story(
        [(4, "both")],
        [
            Rows([0, 1, 2, 3, 100], [0.5, 1.5, 2.5, 3.5], terminated=(3,), is_first=(0, 4)),
            Rows([100, 101, 102, 103, 104], [100.5, 101.5, 102.5, 103.5], is_first=(0,)),
        ],
        [(8.0, 4)],
        [1, 2, 3, 4, 1, 2, 3, 4],
    ),
    "truncated one before the slot's end: the truncation row is the last": Story(
        [(3, "truncated")],
        [
            Rows([0, 1, 2, 3, 100], [0.5, 1.5, 2.5, 0], truncated=(2,), invalid=(3,), is_first=(0, 4)),
            Rows([100, 101, 102, 103, 104], [100.5, 101.5, 102.5, 103.5], is_first=(0,)),
        ],
        [(4.5, 3)],
        [1, 2, 3, 1, 2, 3, 4],
    ),
    "truncated at the first step of a slot": Story(
        [(5, "truncated")],
        [
            Rows([0, 1, 2, 3, 4], [0.5, 1.5, 2.5, 3.5], is_first=(0,)),
            Rows([4, 5, 100, 101, 102], [4.5, 0, 100.5, 101.5], truncated=(0,), invalid=(1,), is_first=(2,)),
        ],
        [(12.5, 5)],
        [1, 2, 3, 4, 1, 3, 4],
    ),
    "terminated episodes of one step": Story(
        [(1, "terminated")] * 6,
        [
            Rows(
                [0, 100, 200, 300, 400],
                [0.5, 100.5, 200.5, 300.5],
                terminated=(0, 1, 2, 3),
                is_first=(0, 1, 2, 3, 4),
            ),
            Rows([400, 500, 600, 601, 602], [400.5, 500.5, 600.5, 601.5], terminated=(0, 1), is_first=(0, 1, 2)),
        ],
        [(0.5, 1), (100.5, 1), (200.5, 1), (300.5, 1), (400.5, 1), (500.5, 1)],
        [1, 2, 3, 4, 1, 2, 3, 4],
    ),
    "truncated episodes of one step": Story(
        [(1, "truncated")] * 3,
        [
            Rows([0, 1, 100, 101, 200], [0.5, 0, 100.5, 0], truncated=(0, 2), invalid=(1, 3), is_first=(0, 2, 4)),
            Rows([200, 201, 300, 301, 302], [200.5, 0, 300.5, 301.5], truncated=(0,), invalid=(1,), is_first=(0, 2)),
        ],
        [(0.5, 1), (100.5, 1), (200.5, 1)],
        [1, 3, 1, 3, 4],
    ),
    "truncated on the slot's end, and again on the next one's": Story(
        [(4, "truncated"), (4, "truncated")],
        [
            Rows([0, 1, 2, 3, 4], [0.5, 1.5, 2.5, 3.5], truncated=(3,), is_first=(0,)),
            Rows([100, 101, 102, 103, 104], [100.5, 101.5, 102.5, 103.5], truncated=(3,), is_first=(0,)),
            Rows([200, 201, 202, 203, 204], [200.5, 201.5, 202.5, 203.5], is_first=(0,)),
        ],
        [(8.0, 4), (408.0, 4)],
        [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4],
    ),
}
SHORT = {name: story for name, story in STORIES.items() if len(story.slots) == 2}


def make_split(scripts: list[list[Episode]]) -> tuple[Split, list[ScriptedEnv], list[Slot]]:
    envs = [ScriptedEnv(script) for script in scripts]
    split = Split.of_envs(0, envs, SCALAR, T)
    split.reset(list(range(len(envs))), "actor 0")
    slots = TrajectoryBuffer(SCALAR, small_layout(num_actors=1, rows=len(envs), slots_per_split=3)).slots()
    for slot in slots:
        soil(slot)
    return split, envs, slots


def soil(slot: Slot) -> None:
    """Leave an earlier rollout's traces, which must not show through."""
    slot.obs["obs"].fill(-7)
    slot.reward.fill(-7)
    for flags in (slot.terminated, slot.truncated, slot.is_first):
        flags.fill(True)
    slot.valid.fill(False)


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
        "obs": slot.obs["obs"][:, env, 0].tolist(),
        "reward": slot.reward[:, env].tolist(),
        "terminated": slot.terminated[:, env].tolist(),
        "truncated": slot.truncated[:, env].tolist(),
        "valid": slot.valid[:, env].tolist(),
        "is_first": slot.is_first[:, env].tolist(),
    }
    assert found == {
        "obs": rows.obs,
        "reward": rows.reward,
        "terminated": flags(T, rows.terminated),
        "truncated": flags(T, rows.truncated),
        "valid": [not invalid for invalid in flags(T, rows.invalid)],
        "is_first": flags(T + 1, rows.is_first),
    }


@pytest.mark.parametrize("name", STORIES)
def test_rows_go_as_the_table_has_it(name: str) -> None:
    story = STORIES[name]
    split, (env,), slots = make_split([story.script])

    valid = play(split, slots[: len(story.slots)])

    for slot, rows in zip(slots, story.slots, strict=False):
        assert_rows(slot, 0, rows)
    assert env.taken == story.taken
    assert valid == len(story.taken)


@pytest.mark.parametrize("name", STORIES)
def test_returns_and_lengths_are_those_of_the_envs_own_steps(name: str) -> None:
    story = STORIES[name]
    split, _, slots = make_split([story.script])

    play(split, slots[: len(story.slots)])

    assert finished_episodes(split.episodes) == story.episodes


def test_an_episode_that_begins_after_a_truncation_has_its_own_return_and_length() -> None:
    # One truncated in mid-slot, one on the slot's end, one after it.
    split, _, slots = make_split([[(1, "truncated"), (2, "truncated"), (3, "terminated")]])

    play(split, slots[:2])

    assert finished_episodes(split.episodes) == [(0.5, 1), (100.5 + 101.5, 2), (200.5 + 201.5 + 202.5, 3)]


def test_envs_of_a_split_do_not_touch_each_other() -> None:
    stories = list(SHORT.values())
    split, envs, slots = make_split([story.script for story in stories])

    valid = play(split, slots[:2])

    for index, story in enumerate(stories):
        for slot, rows in zip(slots[:2], story.slots, strict=True):
            assert_rows(slot, index, rows)
        assert envs[index].taken == story.taken
    assert valid == sum(len(story.taken) for story in stories)


def test_a_row_is_written_before_actions_are_asked_for_it() -> None:
    split, _, slots = make_split([[(2, "truncated")]])
    split.begin(slots[0])
    seen = [slots[0].obs["obs"][0, 0, 0]]

    for t in range(3):
        slots[0].actions["action"][t] = 0
        split.step()
        seen.append(slots[0].obs["obs"][split.t, 0, 0])

    assert seen == [0.0, 1.0, 2.0, 100.0]


def test_waiting_between_two_slots_changes_nothing() -> None:
    # The split may wait long for a free slot: its truncated env is reset when the slot comes, and only then.
    split, (env,), slots = make_split([[(4, "truncated")]])
    play(split, slots[:1])
    assert len(env.seeds) == 1

    play(split, slots[1:2])

    assert len(env.seeds) == 2
    assert np.array_equal(slots[1].obs["obs"][:, 0, 0], [100, 101, 102, 103, 104])


def test_the_first_observation_is_held_to_the_space() -> None:
    class Liar(ScriptedEnv):
        def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
            return np.zeros(2, np.float32), {}

    envs = [ScriptedEnv([]), Liar([])]
    split = Split.of_envs(1, envs, SCALAR, T)

    with pytest.raises(Exception, match=r"actor 3, first reset of split 1, env 1: .*shape \(2,\)"):
        split.reset([0, 1], "actor 3")
