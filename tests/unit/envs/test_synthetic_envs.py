"""Synthetic envs behave as described, and the checker of Counting's rows finds every corruption."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from sfactory_envs.synthetic.bandit import Bandit
from sfactory_envs.synthetic.costfree import CostFree
from sfactory_envs.synthetic.counting import FIELD_LIMIT, IDENTITY_LIMIT, Counting, Position, decode, encode
from sfactory_envs.synthetic.echo import Echo
from sfactory_envs.synthetic.faulty import EnvFault, Faulty, Fuse
from sfactory_envs.synthetic.poles import Pole, Poles
from sfactory_envs.synthetic.rock_paper_scissors import RockPaperScissors
from tests.support.counting_check import NAMES, Column, check_column, check_columns

ROLLOUT = 8


def play_column(env: Counting, *, seed: int, slots: int, rollout: int) -> Column:
    """The rows of ``slots`` consecutive slots, recorded plainly, with actions drawn from ``seed``."""
    rng = np.random.default_rng(seed)
    obs, _ = env.reset(seed=seed)
    rows: list[tuple[Any, ...]] = []
    slot_ends: list[tuple[Any, bool]] = []
    is_first, truncated = True, False
    for row in range(slots * rollout):
        action = np.int64(rng.integers(env.rules.num_actions))
        reset, shown, began = truncated, obs, is_first
        reward, terminated, truncated = 0.0, False, False
        if not reset:
            obs, reward, terminated, cut, _ = env.step(action)
            truncated = cut and not terminated
        rows.append((shown, action, reward, terminated, truncated, not reset, began))
        is_first = reset or terminated
        if is_first:
            obs, _ = env.reset()
        if (row + 1) % rollout == 0:
            slot_ends.append((obs, is_first))
            if truncated:
                obs, _ = env.reset()
                is_first, truncated = True, False
    types = (np.float32, np.int64, np.float32, bool, bool, bool, bool)
    arrays: list[Any] = [np.array(values, kind) for values, kind in zip(zip(*rows, strict=True), types, strict=True)]
    fields: dict[str, Any] = dict(zip(NAMES, arrays, strict=True))
    end_obs, end_is_first = (np.array(values) for values in zip(*slot_ends, strict=True))
    return Column(**fields, rollout=rollout, slot_end_obs=end_obs, slot_end_is_first=end_is_first)


def good_column(seed: int = 5) -> tuple[Column, Counting]:
    env = Counting()
    return play_column(env, seed=seed, slots=12, rollout=ROLLOUT), env


@pytest.mark.parametrize("make", [Counting, Bandit, CostFree, Faulty, Echo, partial(Echo, "tuple")])
def test_envs_keep_to_gymnasium(make: Callable[[], gymnasium.Env[Any, Any]]) -> None:
    env = make()
    env.spec = None
    # Counting keeps its identity when a reset is seeded again, and CostFree reuses its observation.
    if make not in (Counting, CostFree):
        check_env(env, skip_render_check=True)
    obs, _ = env.reset(seed=3)
    assert env.observation_space.contains(obs)
    obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
    assert env.observation_space.contains(obs)
    assert (type(reward), type(terminated), type(truncated)) == (float, bool, bool)


def test_echo_pays_for_the_same_choice_and_a_near_number() -> None:
    env = Echo("tuple")
    choice, number = env.reset(seed=1)[0]

    assert [env.step((choice + wrong, number))[1] for wrong in (0, 1)] == [1.0, 0.5]
    assert env.step((choice, number / 2))[1] == pytest.approx(1 - abs(float(number[0])) / 4)


fields = st.integers(0, FIELD_LIMIT - 1)


@given(st.builds(Position, st.integers(0, IDENTITY_LIMIT - 1), fields, fields), st.integers(8, 20))
def test_positions_survive_float32(position: Position, size: int) -> None:
    obs = encode(position, size)

    assert obs.dtype == np.float32
    assert obs.max() < 2**24
    assert decode(obs) == position


@given(left=st.integers(0, 1000), right=st.integers(0, 1000), cut=st.integers(1, 7))
def test_an_observation_mixed_of_two_is_refused(left: int, right: int, cut: int) -> None:
    first, second = encode(Position(left, 3, 4), 8), encode(Position(right, 5, 6), 8)

    torn = np.concatenate([first[:cut], second[cut:]])

    if not np.array_equal(torn, first) and not np.array_equal(torn, second):
        with pytest.raises(ValueError, match="torn observation"):
            decode(torn)


def test_counting_takes_its_identity_from_its_first_seed() -> None:
    env = Counting()

    first, _ = env.reset(seed=123456789012345678)
    second, _ = env.reset(seed=9)
    unseeded = {decode(Counting().reset()[0]).identity for _ in range(2)}

    assert decode(first) == Position(123456789012345678, 0, 0)
    assert decode(second) == Position(123456789012345678, 1, 0)
    assert len(unseeded) == 2


def test_counting_ends_fall_on_every_place_of_a_rollout() -> None:
    columns = [good_column(seed)[0] for seed in range(40)]

    for flag in ("terminated", "truncated"):
        places = {int(row) % ROLLOUT for column in columns for row in np.flatnonzero(getattr(column, flag))}
        assert places == set(range(ROLLOUT)), flag


@pytest.mark.parametrize("ends", ["mixed", "terminated", "truncated", "both"])
@pytest.mark.parametrize("rollout", [1, 7])
def test_rows_recorded_by_the_rules_pass(ends: Any, rollout: int) -> None:
    envs = [Counting(ends=ends, max_length=9) for _ in range(5)]
    columns = [play_column(env, seed=seed, slots=70, rollout=rollout) for seed, env in enumerate(envs)]

    for counts in check_columns(columns, envs[0].rules):
        assert counts.rows["valid"] + counts.rows["invalid"] == 70 * rollout
        assert counts.ends > 70 * rollout // 20
        # With one-step slots every truncation falls on a slot's end, and none needs a row of its own.
        has_rows = ends in ("mixed", "truncated") and rollout > 1
        assert (counts.rows["invalid"] > 0) == has_rows


def test_columns_of_the_same_env_and_those_without_their_beginning_are_refused() -> None:
    column, env = good_column()

    with pytest.raises(AssertionError, match="same env"):
        check_columns([column, column], env.rules)
    with pytest.raises(AssertionError, match="row 0"):
        check_column(rows_of(column, slice(ROLLOUT, None)), env.rules, start=(0, 0))


def rows_of(column: Column, rows: Any) -> Column:
    """The same column with other rows, taken for one piece without slot borders."""
    picked: dict[str, Any] = {name: np.array(getattr(column, name)[rows]) for name in NAMES}
    return Column(**picked)


def one_slot() -> tuple[Column, Counting]:
    """Rows without borders, in which there are ordinary steps, terminations and truncation rows."""
    env = Counting()
    column = play_column(env, seed=5, slots=1, rollout=96)
    bare = rows_of(column, slice(None))
    assert bare.terminated.any()
    assert (~bare.valid).sum() >= 2
    return bare, env


def ordinary_row(column: Column) -> int:
    """A row in mid-episode, with neighbors in the same episode."""
    steps = column.obs[:, 4]
    inside = (steps[1:-1] > 0) & column.valid[1:-1] & column.valid[2:] & (steps[2:] > steps[1:-1])
    return int(np.flatnonzero(inside)[0]) + 1


def set_at(name: str, row: int, value: object) -> Callable[[Column], Column]:
    def corrupt(column: Column) -> Column:
        values = getattr(column, name).copy()
        values[row] = value
        return dataclasses.replace(column, **{name: values})

    return corrupt


def corruptions() -> list[Callable[[Column], Column]]:
    column, _ = one_slot()
    row = ordinary_row(column)
    ended = int(np.flatnonzero(column.terminated)[0])
    cut = int(np.flatnonzero(column.truncated)[0])
    everything = list(range(len(column.obs)))
    torn = column.obs[row].copy()
    torn[5:] = column.obs[row + 1][5:]
    return [
        lambda c: rows_of(c, everything[:row] + everything[row + 1 :]),  # a row lost
        lambda c: rows_of(c, everything[:row] + everything[row - 1 :]),  # a row twice
        lambda c: rows_of(c, [*everything[:row], row + 1, row, *everything[row + 2 :]]),  # two rows swapped
        lambda c: rows_of(c, everything[: cut + 1] + everything[cut + 2 :]),  # a truncation row lost
        set_at("obs", cut + 1, column.obs[cut + 2]),  # the truncation row shows the reset
        *(set_at("obs", row, obs) for obs in (torn, column.obs[row + 1], encode(Position(6, 0, 1), 8))),
        *(set_at("action", row, action) for action in ((column.action[row] + 1) % 7, column.action[row] + 7)),
        set_at("reward", row, column.reward[row + 1]),
        set_at("reward", ended, -1.0),
        *(set_at("terminated", at, at != ended) for at in (ended, row, cut + 1)),
        *(set_at("truncated", at, at != cut) for at in (cut, row)),
        lambda c: set_at("truncated", ended, True)(set_at("terminated", ended, False)(c)),
        *(set_at("valid", at, at != row) for at in (row, cut + 1)),
        *(set_at("is_first", at, False) for at in (ended + 1, cut + 2)),
        *(set_at("is_first", at, True) for at in (row, cut + 1)),
    ]


def test_every_corruption_is_caught() -> None:
    column, env = one_slot()
    assert check_column(column, env.rules, start=(0, 0)).rows["valid"] == int(column.valid.sum())

    for corrupt in corruptions():
        with pytest.raises(AssertionError, match=r"^row \d+"):
            check_column(corrupt(column), env.rules, start=(0, 0))

    column, env = good_column()
    assert column.slot_end_is_first is not None
    for slot in (0, 11):
        wrong_obs = set_at("slot_end_obs", slot, column.obs[slot * ROLLOUT])
        wrong_first = set_at("slot_end_is_first", slot, not column.slot_end_is_first[slot])
        for corrupt in (wrong_obs, wrong_first):
            with pytest.raises(AssertionError, match=f"of slot {slot} is"):
                check_column(corrupt(column), env.rules)


def test_the_bandit_rewards_the_action_that_its_observation_shows() -> None:
    env = Bandit(num_contexts=5, length=2)
    obs, _ = env.reset(seed=1)

    obs, right, *_ = env.step(np.int64(np.argmax(obs)))
    _, wrong, *ends, _ = env.step(np.int64((np.argmax(obs) + 1) % 5))

    assert (right, wrong, ends) == (1.0, 0.0, [True, False])


def test_a_pole_that_falls_is_reset_until_the_episode_ends() -> None:
    env = Pole(length=30)
    env.reset(seed=0)

    steps = [env.step(np.int64(0)) for _ in range(30)]

    rewards = [reward for _, reward, *_ in steps]
    assert 2 <= rewards.count(0.0) <= 4
    assert rewards.count(1.0) + rewards.count(0.0) == 30
    assert all(abs(obs[2]) <= 0.2095 for obs, *_ in steps)  # radians, where CartPole ends
    assert [truncated for *_, truncated, _ in steps] == [False] * 29 + [True]


def test_poles_of_one_env_are_independent() -> None:
    poles = Poles(agents=2, length=3)
    first, _ = poles.reset(seed=5)
    other, _ = poles.reset(seed=5)

    steps = [poles.step({"pole_0": np.int64(0), "pole_1": np.int64(1)}) for _ in range(3)]

    assert all(np.array_equal(first[agent], other[agent]) for agent in poles.possible_agents)
    assert not np.array_equal(first["pole_0"], first["pole_1"])
    assert steps[0][0]["pole_0"][1] < steps[0][0]["pole_1"][1]  # pushed to the left, to the right
    assert [step[3]["pole_1"] for step in steps] == [False, False, True]


def test_fault_with_a_fuse_happens_as_often_as_ordered_over_all_envs(tmp_path: Path) -> None:
    fuses = [Fuse(str(tmp_path / "fuse"), skip=1, count=2) for _ in range(5)]
    assert [fuse.trip() for fuse in fuses] == [False, True, True, False, False]

    first, second = (Faulty(raise_at=1, fuse=str(tmp_path / "once")) for _ in range(2))
    first.reset(seed=0)
    second.reset(seed=0)
    with pytest.raises(EnvFault):
        first.step(np.int64(0))
    second.step(np.int64(0))


def test_each_choice_of_rock_paper_scissors_beats_one_and_loses_to_one() -> None:
    env = RockPaperScissors(rounds=9)
    env.reset()
    results = [env.step([first, second]) for first in range(3) for second in range(3)]

    rewards = np.array([rewards[0] for _, rewards, _ in results]).reshape(3, 3)
    # Rows and columns: rock, paper, scissors.
    assert rewards.tolist() == [[0, -1, 1], [1, 0, -1], [-1, 1, 0]]
    assert all(sum(rewards) == 0 for _, rewards, _ in results)
    assert [change is not None for _, _, change in results] == [False] * 8 + [True]
