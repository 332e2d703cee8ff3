"""Returns, lengths and extra statistics of episodes are exact, and none is lost or sent twice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from sfactory.actor.episode_stats import EpisodeRecorder, EpisodeTracker, ExtraStatsTracker
from sfactory.messages import (
    MAX_EPISODES_PER_REPORT,
    MAX_REPORT_BYTES,
    MAX_STAT_NAME_CHARS,
    TO_MAIN,
    EpisodeEnd,
    EpisodeExtras,
    EpisodesDone,
    ExtrasRefused,
)
from tests.support.episodes import finished_episodes


def rewards(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def test_each_episode_has_its_own_return_and_length() -> None:
    tracker = EpisodeTracker(2)
    for step in range(3):
        tracker.step(rewards(1.0 + step, 10.0))
    tracker.end([0])
    tracker.step(rewards(5.0, 10.0))
    tracker.end([0])
    tracker.end([1])

    assert finished_episodes(tracker) == [(6.0, 3), (5.0, 1), (40.0, 4)]
    assert finished_episodes(tracker) == []


def test_a_started_episode_discards_the_unfinished_one_and_the_step_of_the_reset() -> None:
    tracker = EpisodeTracker(2)
    tracker.step(rewards(2.0, 1.0))
    tracker.step(rewards(0.0, 1.0))
    tracker.start([0])
    tracker.step(rewards(5.0, 1.0))
    tracker.end([0, 1])

    assert finished_episodes(tracker) == [(5.0, 1), (3.0, 3)]


def test_long_sums_are_exact() -> None:
    tracker = EpisodeTracker(1)
    for _ in range(10_000):
        tracker.step(rewards(2.0**24 + 1.0))
    tracker.end([0])

    assert finished_episodes(tracker) == [(10_000 * (2.0**24 + 1.0), 10_000)]


class Main:
    """Receives extra statistics: takes ``capacity`` messages, then no more."""

    def __init__(self, capacity: int = 10**9) -> None:
        self.capacity = capacity
        self.extras: dict[str, list[float]] = {}
        self.refused: list[str] = []

    def put(self, message: EpisodeExtras | ExtrasRefused) -> bool:
        if not self.capacity:
            return False
        self.capacity -= 1
        assert message.actor == 3
        if isinstance(message, ExtrasRefused):
            self.refused.append(message.reason)
        else:
            assert message.values.dtype == np.float64
            self.extras.setdefault(message.name, []).extend(message.values.tolist())
        return True


def received(*infos: object) -> Main:
    """What main receives of episodes that ended with these infos."""
    tracker, main = ExtraStatsTracker(), Main()
    for info in infos:
        tracker.add(info)
    assert tracker.send(3, main.put)
    return main


def extras(**stats: Any) -> dict[str, Any]:
    return {"episode_extra_stats": stats}


def test_extra_statistics_are_sent_by_name_and_in_order() -> None:
    main = received(extras(kills=1, coins=np.float32(0.5)), {}, extras(kills=True), extras(coins="2.5", kills=3))

    assert main.extras == {"kills": [1.0, 1.0, 3.0], "coins": [0.5, 2.5]}
    assert main.refused == []


def test_a_true_objective_beside_the_extra_statistics_wins_over_one_among_them() -> None:
    main = received(
        {"true_objective": 1}, extras(true_objective=2), {"true_objective": 3, **extras(true_objective=4, a=5)}
    )

    assert main.extras == {"true_objective": [1.0, 2.0, 3.0], "a": [5.0]}


def test_what_main_cannot_take_is_kept_and_sent_once() -> None:
    tracker, main = ExtraStatsTracker(), Main(capacity=2)
    tracker.add(extras(a=1, b=2, c=3))

    assert not tracker.send(3, main.put)
    assert main.extras == {"a": [1.0], "b": [2.0]}

    tracker.add(extras(a=10, c=30))
    main.capacity = 5
    assert tracker.send(3, main.put)
    assert tracker.send(3, main.put)
    assert main.extras == {"a": [1.0, 10.0], "b": [2.0], "c": [3.0, 30.0]}


def test_only_the_last_values_are_kept_while_main_takes_none() -> None:
    main = received(*(extras(kills=number) for number in range(MAX_EPISODES_PER_REPORT + 100)))

    assert main.extras == {"kills": [float(number) for number in range(100, 4196)]}


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (extras(kills=None), "'kills' is not a number, but of type NoneType"),
        (extras(kills=float("nan")), "'kills' is nan, which is not finite"),
        ({"true_objective": -np.inf}, "'true_objective' is -inf, which is not finite"),
        (extras(kills=np.zeros(3)), "'kills' is not a number, but of type ndarray"),
        ({"true_objective": "high"}, "'true_objective' is not a number, but of type str"),
        ({"episode_extra_stats": [1, 2]}, "episode_extra_stats is of type list, not a mapping of names to numbers"),
        (extras(**{"x" * 101: 1}), f"the name {'x' * 40!r}... has 101 characters, 100 are possible"),
    ],
)
def test_an_invalid_statistic_is_left_out_and_the_first_reason_sent_once(info: dict[str, Any], reason: str) -> None:
    main = received(info, extras(good=1, wrong=None, also=2), info, {"episode_extra_stats": 5})

    assert main.extras == {"good": [1.0], "also": [2.0]}
    assert main.refused == [reason]


@pytest.mark.parametrize("info", [None, 7, "text", {}, {"episode_extra_stats": None}, {"other": object()}])
def test_an_info_without_statistics_is_valid(info: object) -> None:
    main = received(info)

    assert (main.extras, main.refused) == ({}, [])


def test_names_are_converted_to_text() -> None:
    main = received({"episode_extra_stats": {1: 1.0, ("a", 2): 2.0, "half \ud800 pair": 3.0, "x" * 100: 4.0}})

    assert main.extras == {"1": [1.0], "('a', 2)": [2.0], "half ? pair": [3.0], "x" * 100: [4.0]}


class Endless(Mapping[str, float]):
    """Has endless names. Reading ``fails_at`` raises."""

    def __init__(self, fails_at: str = "") -> None:
        self._fails_at = fails_at

    def __getitem__(self, key: str) -> float:
        if key == self._fails_at:
            raise RuntimeError("the simulator is gone")
        return 1.0

    def __len__(self) -> int:
        return 2**62

    def __iter__(self) -> Iterator[str]:
        number = 0
        while True:
            yield f"name{number}"
            number += 1


def test_at_most_64_names_and_the_true_objective_are_kept_even_of_an_endless_mapping() -> None:
    main = received({"true_objective": 7.0, "episode_extra_stats": Endless()}, extras(name64=1, name5=55))

    assert len(main.extras) == 65
    assert main.extras["name5"] == [1.0, 55.0]
    assert main.extras["true_objective"] == [7.0]
    assert main.refused == ["'name64' is one name too many: there may be 64 in all"]


def test_a_mapping_that_raises_loses_its_remaining_statistics_only() -> None:
    main = received({"episode_extra_stats": Endless(fails_at="name2")}, extras(name1=3))

    assert main.extras == {"name0": [1.0], "name1": [1.0, 3.0]}
    assert main.refused == ["episode_extra_stats cannot be read: RuntimeError"]


class Recorded:
    """A split of two envs with two agents each whose episodes are recorded one by one. Main has room for ``room``."""

    def __init__(self) -> None:
        self.episodes, self.extras, self.room = EpisodeTracker(4), ExtraStatsTracker(), 10**9
        self.episodes.recorder = self.extras.recorder = EpisodeRecorder(first_env=6, agents=2)
        self.ends: list[EpisodeEnd] = []

    def put(self, message: EpisodesDone | EpisodeEnd) -> bool:
        if isinstance(message, EpisodeEnd):
            if len(self.ends) == self.room:
                return False
            self.ends.append(message)
        return True

    def numbers(self) -> list[list[dict[str, float]]]:
        """[stats, info] of all episodes that main gets."""
        self.episodes.send(3, self.put)
        return [json.loads(end.numbers) for end in self.ends]


def test_single_episodes_come_with_the_numbers_of_their_own_last_step() -> None:
    split = Recorded()
    split.extras.add({"episode_extra_stats": {"team_return": 9.0}}, 1)  # after the end of an episode: of no other one
    split.episodes.start([1])
    split.episodes.step(rewards(1.0, 2.0, 3.0, 4.0))
    stats = {"kills": 3, "name": "abc", "return": -1.0, "bad": float("nan")}
    info = {"won": True, "place": np.float32(0.5), "text": "7", "row": [1, 2], "true_objective": 0.25}
    split.extras.add({**info, "episode_extra_stats": stats}, 3)
    split.episodes.end([3])
    split.episodes.step(rewards(1.0, 2.0, 3.0, 4.0))
    split.episodes.end([1, 3])

    assert split.numbers() == [
        [
            {"kills": 3.0, "true_objective": 0.25, "return": 4.0, "length": 1, "agent": 1},
            {"won": 1.0, "place": 0.5, "true_objective": 0.25},
        ],
        [{"return": 4.0, "length": 2, "agent": 1}, {}],
        [{"return": 4.0, "length": 1, "agent": 1}, {}],
    ]
    assert [(end.actor, end.policy, end.env) for end in split.ends] == [(3, 0, 7), (3, 0, 6), (3, 0, 7)]


def test_single_episodes_wait_for_room_in_order_and_the_largest_fits() -> None:
    split = Recorded()
    split.room = 1
    names = [chr(1) * (MAX_STAT_NAME_CHARS - 2) + f"{number:02}" for number in range(99)]
    huge = dict.fromkeys(names, -1.2345678901234567e-300)
    split.extras.add({**huge, "episode_extra_stats": huge}, 0)
    split.episodes.end([0])
    split.episodes.step(rewards(5.0, 0.0, 0.0, 0.0))
    split.episodes.end([0])

    assert [len(numbers) for numbers in split.numbers()[0]] == [64 + 3, 32]
    split.room = 2
    assert split.numbers()[1][0]["return"] == 5.0
    assert 59_000 < len(TO_MAIN.encode(split.ends[0])) <= MAX_REPORT_BYTES
