"""Returns and lengths of episodes are exact, and none is lost or told twice."""

from __future__ import annotations

import numpy as np

from sfactory.actor.episodes import EpisodeTally


def rewards(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def test_an_episode_is_told_when_it_ends_with_its_own_sum_and_length() -> None:
    tally = EpisodeTally(2)
    for step in range(3):
        tally.step(rewards(1.0 + step, 10.0))
    tally.end(0)
    tally.step(rewards(5.0, 10.0))
    tally.end(0)
    tally.end(1)

    returns, lengths = tally.take(10)

    assert returns.tolist() == [6.0, 5.0, 40.0]
    assert lengths.tolist() == [3, 1, 4]
    assert (str(returns.dtype), str(lengths.dtype)) == ("float64", "int64")


def test_a_step_in_which_an_env_was_reset_belongs_to_no_episode() -> None:
    tally = EpisodeTally(1)
    tally.step(rewards(2.0))
    tally.end(0)
    tally.step(rewards(0.0))
    tally.start(0)
    for _ in range(2):
        tally.step(rewards(3.0))
    tally.end(0)

    returns, lengths = tally.take(10)

    assert (returns.tolist(), lengths.tolist()) == ([2.0, 6.0], [1, 2])


def test_long_sums_are_exact() -> None:
    tally = EpisodeTally(1)
    for _ in range(10_000):
        tally.step(rewards(2.0**24 + 1.0))
    tally.end(0)

    assert tally.take(1)[0].tolist() == [10_000 * (2.0**24 + 1.0)]


def test_episodes_are_taken_once_in_order_and_no_more_than_asked_for() -> None:
    tally = EpisodeTally(1)
    for number in range(5):
        tally.step(rewards(number))
        tally.end(0)

    taken = [tally.take(2)[0].tolist() for _ in range(4)]

    assert taken == [[0.0, 1.0], [2.0, 3.0], [4.0], []]


def test_episodes_put_back_come_first_again() -> None:
    tally = EpisodeTally(1)
    for number in range(4):
        tally.step(rewards(number))
        tally.end(0)

    tally.put_back(*tally.take(2))

    returns, lengths = tally.take(10)
    assert returns.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert lengths.tolist() == [1, 1, 1, 1]
