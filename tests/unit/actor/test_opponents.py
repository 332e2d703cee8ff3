"""Opponents are drawn among snapshots, play one side of an env, and the better side wins."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import numpy as np
import pytest

from sfactory.actor.opponents import Opponents, sides_of
from sfactory.config.schema import PopulationConfig
from sfactory.shared.opponents import EPISODES, POINTS, OpponentPool

AGENTS = ("red_0", "red_1", "blue_0")
ENVS, EPISODES_DRAWN = 4, 4000


def pool_of(snapshots: int) -> OpponentPool:
    pool = OpponentPool(4, weight_bytes=8, num_actors=1)
    for number in range(snapshots):
        pool.add(np.zeros(8, np.uint8), number, number)
    return pool


def opponents(
    pool: OpponentPool, sampling: Literal["uniform", "recent", "pfsp"] = "uniform", share: float = 1.0
) -> Opponents:
    config = PopulationConfig(opponent_pool=4, opponent_sampling=sampling, opponent_share=share)
    made = Opponents(pool, config, AGENTS, ENVS, actor=0, seed=5)
    made.refresh()
    return made


def drawn(opponents: Opponents) -> list[list[int]]:
    before = np.zeros(len(AGENTS), np.int16)
    return [opponents.draw(env % ENVS, env // ENVS, before) for env in range(EPISODES_DRAWN)]


@pytest.mark.parametrize(
    ("agents", "sides"),
    [
        (("red_0", "blue_0", "red_1"), ([0, 2], [1])),
        (("first_0", "second_0"), ([0], [1])),
        (("white", "black"), ([0], [1])),
        (("player_0", "player_1"), ([0], [1])),
        (("agent_0", "agent_1", "agent_2"), ([0, 1], [2])),
        (("a", "b", "c", "d"), ([0, 1], [2, 3])),
    ],
)
def test_sides_follow_from_names_or_are_halves(agents: tuple[str, ...], sides: tuple[list[int], list[int]]) -> None:
    assert sides_of(agents) == sides


def test_without_a_snapshot_the_policy_plays_all_agents() -> None:
    assert drawn(opponents(pool_of(0))) == [[0, 0, 0]] * EPISODES_DRAWN


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_one_opponent_plays_one_side_for_as_many_episodes_as_there_are_envs(share: float) -> None:
    ids = [each for each in drawn(opponents(pool_of(3), share=share)) if any(each)]

    assert len(ids) / EPISODES_DRAWN == pytest.approx(share, abs=0.03)
    for start in range(0, len(ids) - ENVS, ENVS):
        assert len({max(each) for each in ids[start : start + ENVS]}) == 1
    # A side is red or blue, and each of three snapshots plays it as often as the others.
    patterns = Counter(tuple(agent > 0 for agent in each) for each in ids)
    assert patterns.keys() == {(True, True, False), (False, False, True)}
    assert min(patterns.values()) > 0.4 * len(ids)
    players = Counter(max(each) for each in ids)
    assert players.keys() == {1, 2, 3}
    assert min(players.values()) > 0.27 * len(ids)


@pytest.mark.parametrize(("sampling", "expected"), [("recent", [3, 2, 1]), ("pfsp", [1, 4, 9])])
def test_opponents_are_drawn_by_age_or_by_what_was_won_against_them(
    sampling: Literal["recent", "pfsp"], expected: list[int]
) -> None:
    pool = pool_of(3)
    newest = pool.newest()
    for slot, won in zip(newest, (75, 50, 25), strict=True):
        for episode in range(100):
            pool.record(0, slot, float((episode * won) % 100 < won))

    players = Counter(max(each) - 1 for each in drawn(opponents(pool, sampling)))

    shares = [players[slot] / EPISODES_DRAWN for slot in newest]
    assert shares == pytest.approx([weight / sum(expected) for weight in expected], abs=0.06)


def test_the_side_with_the_higher_mean_return_wins_and_play_against_oneself_is_no_match() -> None:
    pool = pool_of(1)
    played = opponents(pool)
    drawn(played)

    for ids, returns in (
        ([1, 1, 0], [9.0, 0.0, 5.0]),  # 5 against 4.5
        ([0, 0, 1], [9.0, 0.0, 5.0]),
        ([0, 0, 1], [4.0, 6.0, 5.0]),
        ([0, 0, 0], [1.0, 2.0, 3.0]),
    ):
        played.record(0, np.array(ids, np.int16), np.array(returns))

    won, even, lost = pool.results()[0, :POINTS].tolist()
    assert (won, even, lost) == (1.0, 1.0, 1.0)
    assert pool.results()[0, EPISODES] == pytest.approx(3.0, abs=0.05)

    for number in range(1, 2 * len(pool.weights)):
        pool.add(np.zeros(8, np.uint8), number, number)
    assert pool.env_steps(0) > 0
    played.record(0, np.array([0, 0, 1], np.int16), np.array([9.0, 0.0, 5.0]))
    assert pool.results()[0, EPISODES] == 0.0, "a newer snapshot had taken the place of the opponent"
