"""The synthetic envs do what they say, and the checker of Counting's rows lets no corruption pass."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import signal
from collections.abc import Callable
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
from sfactory_envs.synthetic.faulty import EnvFault, Faulty, Fuse
from sfactory_envs.synthetic.poles import Pole, Poles
from tests.support.counting_check import Column, check_column, check_columns
from tests.support.counting_play import play_column

ROLLOUT = 8


def good_column(seed: int = 5) -> tuple[Column, Counting]:
    env = Counting()
    return play_column(env, seed=seed, slots=12, rollout=ROLLOUT), env


@pytest.mark.parametrize("make", [Counting, Bandit, CostFree, Faulty])
def test_envs_keep_to_gymnasium(make: Callable[[], gymnasium.Env[Any, Any]]) -> None:
    env = make()
    env.spec = None

    # On purpose, Counting counts on where a reset is given the same seed again, and CostFree reuses its observation.
    if make not in (Counting, CostFree):
        check_env(env, skip_render_check=True)

    obs, _ = env.reset(seed=3)
    assert env.observation_space.contains(obs)
    obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
    assert env.observation_space.contains(obs)
    assert isinstance(reward, float)
    assert isinstance(terminated, bool)
    assert isinstance(truncated, bool)


@given(
    identity=st.integers(0, IDENTITY_LIMIT - 1),
    episode=st.integers(0, FIELD_LIMIT - 1),
    step=st.integers(0, FIELD_LIMIT - 1),
    size=st.integers(8, 20),
)
def test_positions_survive_float32(identity: int, episode: int, step: int, size: int) -> None:
    position = Position(identity, episode, step)

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

    assert decode(first) == Position(123456789012345678, 0, 0)
    assert decode(second) == Position(123456789012345678, 1, 0)


def test_counting_without_a_seed_or_id_still_tells_envs_apart() -> None:
    first, second = (decode(Counting().reset()[0]) for _ in range(2))

    assert first.identity != second.identity


def test_counting_refuses_a_step_after_the_end() -> None:
    env = Counting(env_id=1, min_length=1, max_length=1)
    env.reset()
    env.step(np.int64(0))

    with pytest.raises(RuntimeError, match="after the end"):
        env.step(np.int64(0))


def test_counting_ends_fall_on_every_place_of_a_rollout() -> None:
    columns = [good_column(seed)[0] for seed in range(40)]

    for flag in ("terminated", "truncated"):
        places = {int(row) % ROLLOUT for column in columns for row in np.flatnonzero(getattr(column, flag))}
        assert places == set(range(ROLLOUT)), flag


@pytest.mark.parametrize("ends", ["mixed", "terminated", "truncated", "both"])
@pytest.mark.parametrize("rollout", [1, 2, 7, 32])
def test_rows_recorded_by_the_rules_pass(ends: Any, rollout: int) -> None:
    envs = [Counting(ends=ends, max_length=9) for _ in range(5)]
    columns = [play_column(env, seed=seed, slots=70, rollout=rollout) for seed, env in enumerate(envs)]

    tallies = check_columns(columns, envs[0].rules)

    for tally in tallies:
        assert tally.transitions + tally.invalid_rows == 70 * rollout
        assert tally.ends > 70 * rollout // 20
        # With one-step slots every truncation falls on a slot's end, and none needs a row of its own.
        has_rows = ends in ("mixed", "truncated") and rollout > 1
        assert (tally.invalid_rows > 0) == has_rows


def test_rows_pass_where_only_part_of_the_facts_is_given() -> None:
    column, env = good_column()
    part = dataclasses.replace(column, slot_end_obs=None, slot_end_is_first=None)

    tally = check_column(part, env.rules)

    assert tally.identity == 5


def test_two_columns_of_the_same_env_are_refused() -> None:
    column, env = good_column()

    with pytest.raises(AssertionError, match="same env"):
        check_columns([column, column], env.rules)


def test_a_column_that_misses_its_beginning_is_refused() -> None:
    column, env = good_column()
    later = rows_of(column, slice(ROLLOUT, None))

    with pytest.raises(AssertionError, match="row 0"):
        check_column(later, env.rules, start=(0, 0))


def rows_of(column: Column, rows: Any) -> Column:
    """The same column with other rows, taken for one piece without slot borders."""
    names = ("obs", "action", "reward", "terminated", "truncated", "valid", "is_first")
    picked: dict[str, Any] = {name: np.array(getattr(column, name)[rows]) for name in names}
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


def corruptions() -> dict[str, Callable[[Column], Column]]:
    column, _ = one_slot()
    row = ordinary_row(column)
    ended = int(np.flatnonzero(column.terminated)[0])
    cut = int(np.flatnonzero(column.truncated)[0])
    everything = list(range(len(column.obs)))
    swapped = [*everything[:row], row + 1, row, *everything[row + 2 :]]
    torn = column.obs[row].copy()
    torn[5:] = column.obs[row + 1][5:]
    return {
        "a row lost": lambda c: rows_of(c, everything[:row] + everything[row + 1 :]),
        "a row twice": lambda c: rows_of(c, everything[:row] + everything[row - 1 :]),
        "two rows swapped": lambda c: rows_of(c, swapped),
        "a truncation row lost": lambda c: rows_of(c, everything[: cut + 1] + everything[cut + 2 :]),
        "the truncation row shows the reset": set_at("obs", cut + 1, column.obs[cut + 2]),
        "an observation torn": set_at("obs", row, torn),
        "an observation of the next step": set_at("obs", row, column.obs[row + 1]),
        "one field changed": set_at("obs", row, column.obs[row] + np.eye(8, dtype=np.float32)[7]),
        "another env's observation": set_at("obs", row, encode(Position(6, 0, 1), 8)),
        "another action": set_at("action", row, (column.action[row] + 1) % 7),
        "an action out of range": set_at("action", row, column.action[row] + 7),
        "the next step's reward": set_at("reward", row, column.reward[row + 1]),
        "the last reward of an episode lost": set_at("reward", ended, -1.0),
        "a termination lost": set_at("terminated", ended, False),
        "a termination too many": set_at("terminated", row, True),
        "a truncation lost": set_at("truncated", cut, False),
        "a truncation too many": set_at("truncated", row, True),
        "a termination marked as truncation": lambda c: set_at("truncated", ended, True)(
            set_at("terminated", ended, False)(c)
        ),
        "a transition masked": set_at("valid", row, False),
        "a truncation row not masked": set_at("valid", cut + 1, True),
        "a truncation row that terminates": set_at("terminated", cut + 1, True),
        "is_first lost after a termination": set_at("is_first", ended + 1, False),
        "is_first lost after a truncation": set_at("is_first", cut + 2, False),
        "is_first in mid-episode": set_at("is_first", row, True),
        "is_first on a truncation row": set_at("is_first", cut + 1, True),
    }


def test_the_uncorrupted_column_passes() -> None:
    column, env = one_slot()

    assert check_column(column, env.rules, start=(0, 0)).transitions == int(column.valid.sum())


@pytest.mark.parametrize("name", list(corruptions()))
def test_every_corruption_is_caught(name: str) -> None:
    column, env = one_slot()
    corrupted = corruptions()[name](column)

    with pytest.raises(AssertionError, match=r"^row \d+"):
        check_column(corrupted, env.rules, start=(0, 0))


@pytest.mark.parametrize("slot", range(12))
def test_every_corruption_of_a_slot_end_is_caught(slot: int) -> None:
    column, env = good_column()
    assert column.slot_end_obs is not None
    assert column.slot_end_is_first is not None
    wrong_obs = set_at("slot_end_obs", slot, column.obs[slot * ROLLOUT])(column)
    wrong_first = set_at("slot_end_is_first", slot, not column.slot_end_is_first[slot])(column)

    for corrupted in (wrong_obs, wrong_first):
        with pytest.raises(AssertionError, match=f"of slot {slot} is"):
            check_column(corrupted, env.rules)


def test_the_bandit_pays_for_the_action_its_observation_names() -> None:
    env = Bandit(num_contexts=5, length=200)
    obs, _ = env.reset(seed=1)
    right = wrong = 0.0
    for step in range(200):
        best = int(np.argmax(obs))
        played = best if step % 2 == 0 else (best + 1) % 5
        obs, reward, terminated, truncated, _ = env.step(np.int64(played))
        right, wrong = (right + reward, wrong) if step % 2 == 0 else (right, wrong + reward)

    assert (right, wrong) == (100.0, 0.0)
    assert (terminated, truncated) == (True, False)


def test_the_costfree_env_has_the_shape_and_length_ordered() -> None:
    env = CostFree(obs_shape=(3, 5), obs_dtype="uint8", num_actions=4, length=3)
    obs, _ = env.reset(seed=0)

    ends = [env.step(np.int64(0))[2:4] for _ in range(3)]

    assert (obs.shape, obs.dtype, env.action_space.n) == ((3, 5), np.uint8, 4)
    assert ends == [(False, False), (False, False), (False, True)]


def test_a_pole_that_falls_is_set_up_again_until_the_episode_is_over() -> None:
    env = Pole(length=30)
    env.reset(seed=0)

    told = [env.step(np.int64(0)) for _ in range(30)]

    rewards = [reward for _, reward, *_ in told]
    fallen = [abs(obs[2]) > 0.2095 for obs, *_ in told]  # radians, where CartPole ends
    assert 2 <= rewards.count(0.0) <= 4
    assert rewards.count(1.0) + rewards.count(0.0) == 30
    assert not any(fallen)
    assert [truncated for *_, truncated, _ in told] == [False] * 29 + [True]


def test_poles_in_one_env_are_that_many_poles() -> None:
    poles = Poles(agents=2, length=3)
    first, _ = poles.reset(seed=5)
    other, _ = poles.reset(seed=5)

    told = [poles.step({"pole_0": np.int64(0), "pole_1": np.int64(1)}) for _ in range(3)]

    assert all(np.array_equal(first[agent], other[agent]) for agent in poles.possible_agents)
    assert not np.array_equal(first["pole_0"], first["pole_1"])
    assert told[0][0]["pole_0"][1] < told[0][0]["pole_1"][1]  # pushed to the left, to the right
    assert [truncated for _, _, _, truncated, _ in told] == [
        {"pole_0": over, "pole_1": over} for over in (False, False, True)
    ]
    assert [(terminated, infos) for _, _, terminated, _, infos in told] == [
        ({"pole_0": False, "pole_1": False}, {"pole_0": {}, "pole_1": {}})
    ] * 3
    assert poles.agents == []


def test_poles_without_anybody_to_play_are_refused() -> None:
    with pytest.raises(ValueError, match="agents is 0"):
        Poles(agents=0)


def step_often(env: Faulty, times: int) -> list[tuple[Any, ...]]:
    env.reset(seed=0)
    results = []
    for _ in range(times):
        result = env.step(np.int64(0))
        results.append(result)
        if result[2]:
            env.reset()
    return results


def test_the_faulty_env_raises_at_its_step_and_at_each_one_after() -> None:
    env = Faulty(raise_at=10)
    step_often(env, 9)

    for step in (10, 11):
        with pytest.raises(EnvFault, match=f"step {step} raises"):
            env.step(np.int64(0))


def test_the_faulty_env_raises_in_reset_and_constructor() -> None:
    env = Faulty(raise_in_reset=2)
    env.reset()

    with pytest.raises(EnvFault, match="reset 2"):
        env.reset()
    with pytest.raises(EnvFault, match="constructor"):
        Faulty(raise_in_constructor=True)


def test_the_faulty_env_returns_nan_where_ordered() -> None:
    rewards = [result[1] for result in step_often(Faulty(nan_reward_at=3), 3)]
    observations = [result[0] for result in step_often(Faulty(nan_obs_at=2), 2)]

    assert [math.isnan(reward) for reward in rewards] == [False, False, True]
    assert [bool(np.isnan(obs).all()) for obs in observations] == [False, True]


def test_the_faulty_env_gives_infinity_and_short_observations_where_ordered() -> None:
    rewards = [result[1] for result in step_often(Faulty(inf_reward_at=2), 2)]
    infinite = [result[0] for result in step_often(Faulty(inf_obs_at=2), 2)]
    short = [result[0] for result in step_often(Faulty(short_obs_at=2), 2)]

    assert [math.isinf(reward) for reward in rewards] == [False, True]
    assert [bool(np.isinf(obs).all()) for obs in infinite] == [False, True]
    assert [obs.shape for obs in short] == [(4,), (3,)]


def test_the_faulty_env_sends_itself_a_signal() -> None:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=step_often, args=(Faulty(signal_at=4, signal_name="SIGKILL"), 4))

    process.start()
    process.join(60)

    assert process.exitcode == -signal.SIGKILL


def test_the_fuse_lets_the_ordered_trips_through_and_no_more(tmp_path: Path) -> None:
    path = str(tmp_path / "fuse")
    fuses = [Fuse(path, skip=1, count=2) for _ in range(5)]

    trips = [fuse.trip() for fuse in fuses]

    assert trips == [False, True, True, False, False]


def test_a_fused_fault_happens_once_over_all_envs(tmp_path: Path) -> None:
    path = str(tmp_path / "fuse")

    def faults(env: Faulty) -> int:
        env.reset(seed=0)
        count = 0
        for _ in range(5):
            try:
                env.step(np.int64(0))
            except EnvFault:
                count += 1
        return count

    assert [faults(Faulty(raise_at=2, fuse=path, length=100)) for _ in range(3)] == [1, 0, 0]
