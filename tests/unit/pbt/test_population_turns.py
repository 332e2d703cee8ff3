"""Turns of a population: their events and times; an interruption changes none of them."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sfactory import atomic
from sfactory.config.flags import config_of
from sfactory.config.hyperparameters import hyperparameters
from sfactory.config.schema import Config
from sfactory.config.validation import check
from sfactory.errors import EnvError
from sfactory.pbt.event_log import EVENT_LOG_NAME, Event, Kind, read_events
from sfactory.pbt.population import Population
from sfactory.pbt.state import load_state
from tests.support.long import long

PERIOD, START = 1000, 4000
FLAGS: dict[str, Any] = {
    "env": "CartPole-v1",
    "num_policies": 4,
    "with_pbt": True,
    "pbt_period_env_steps": PERIOD,
    "pbt_start_mutation": START,
    "pbt_mutation_rate": 0.5,
}
SHAPING = {"win": 1.0, "delta": {"health": -0.01, "on": True, "speeds": [0.5, 2]}}
NO_STEPS: dict[int, int] = {}
LAST_IS_WORST: dict[int, float | None] = {0: 100.0, 1: 10.0, 2: 90.0, 3: 5.0}


def begun(
    path: Path, seed: int = 5, shaping: Any = SHAPING, env_steps: Mapping[int, int] = NO_STEPS, **flags: Any
) -> Population:
    path.mkdir(exist_ok=True)
    return Population.begin(path, config(**flags), seed, env_steps, shaping)


def restored(path: Path, env_steps: Mapping[int, int] = NO_STEPS, **flags: Any) -> Population:
    population = Population.restore(path, config(**flags), env_steps)
    assert population is not None
    return population


def config(**flags: Any) -> Config:
    return config_of({**FLAGS, **flags})


GIVEN = {each.name: each.default for each in hyperparameters(config())}  # the values of the flags


def values(population: Population, name: str) -> list[float]:
    """A hyperparameter of each member."""
    return [member.hyperparameters[name] for member in population.members.values()]


def objectives(policy: int, env_steps: int) -> dict[int, float | None]:
    """Objectives in a different order at each step."""
    return {other: float((17 * (other + 1) * (env_steps // 7 + policy + 1)) % 23) - 11 for other in range(4)}


def take_turn(population: Population, policy: int, env_steps: int, known: Mapping[int, float | None]) -> Event:
    event = population.turn(policy, env_steps, known)
    population.record(event)
    return event


def play(population: Population, steps: range) -> list[Event]:
    """Play all turns of four policies with the same env steps."""
    events = []
    for env_steps in steps:
        for policy in range(4):
            known = objectives(policy, env_steps)
            population.look_at(known)
            if population.due(policy, env_steps):
                events.append(take_turn(population, policy, env_steps, known))
    return events


def test_first_policy_starts_with_the_flags_and_others_with_mutated_values(tmp_path: Path) -> None:
    population = begun(tmp_path)

    members = [population.members[policy] for policy in range(4)]

    assert members[0].hyperparameters == GIVEN
    assert members[0].reward_shaping == SHAPING
    assert len({json.dumps(dict(member.hyperparameters)) for member in members}) == 4
    assert [(member.parent, member.next_turn, member.turns) for member in members] == [(None, START, 1)] * 4
    assert [event.kind for event in read_events(tmp_path)] == [Kind.BEGIN] * 4


def test_turns_come_once_a_period_and_one_that_was_not_recorded_comes_again(tmp_path: Path) -> None:
    population = begun(tmp_path)
    assert [population.due(2, START - 1), population.due(2, START)] == [False, True]

    event = population.turn(2, START, LAST_IS_WORST)

    assert population.due(2, START)
    assert take_turn(population, 2, START, LAST_IS_WORST) == event
    assert [population.due(2, START + PERIOD - 1), population.due(2, START + PERIOD)] == [False, True]


def test_worst_policy_copies_one_of_the_best_with_mutated_values(tmp_path: Path) -> None:
    population = begun(tmp_path, pbt_mutation_rate=1.0)

    event = population.turn(3, START, LAST_IS_WORST)
    parent = population.members[event.parent or 0]
    population.record(event)

    assert event.kind is Kind.REPLACE
    assert event.parent in (0, 2)
    assert event.hyperparameters.keys() == parent.hyperparameters.keys()
    # One mutation in a hundred resets a value to the default.
    assert all(
        0.6 < event.hyperparameters[name] / value < 1.6 or event.hyperparameters[name] == GIVEN[name]
        for name, value in parent.hyperparameters.items()
    )
    child = population.members[3]
    assert (child.parent, child.next_turn, child.turns) == (event.parent, START + PERIOD, 2)
    assert (child.hyperparameters, child.reward_shaping) == (event.hyperparameters, event.reward_shaping)
    first, *others = [member.reward_shaping or {} for member in population.members.values()]
    assert first == SHAPING
    assert all(shaping != SHAPING and shaping["delta"]["on"] is True for shaping in others)


@pytest.mark.parametrize(
    ("policy", "known", "kind", "reason"),
    [
        (0, {0: 100.0, 1: 50.0, 2: 20.0, 3: 99.0}, Kind.KEEP, "among the best"),
        (1, {0: 100.0, 1: 50.0, 2: 20.0, 3: 99.0}, Kind.MUTATE, "in the middle"),
        (0, {0: 50.0, 1: 100.0, 2: 40.0, 3: 45.0}, Kind.MUTATE, "in the middle"),
        (0, {0: 1.0, 1: 100.0, 2: 40.0, 3: 45.0}, Kind.REPLACE, "among the worst, by more than the gaps"),
        (3, {0: -100.0, 1: -101.0, 2: -102.0, 3: -103.0}, Kind.MUTATE, "among the worst, by less than the gaps"),
        (1, {0: 5.0, 1: None, 2: 3.0, 3: float("nan")}, Kind.KEEP, "too few episodes to be ranked"),
    ],
)
def test_kind_of_a_turn_follows_from_the_rank(
    tmp_path: Path, policy: int, known: dict[int, float | None], kind: Kind, reason: str
) -> None:
    population = begun(tmp_path, pbt_replace_fraction=0.25, pbt_mutation_rate=1.0)
    before = population.members[policy].hyperparameters

    event = take_turn(population, policy, START, known)

    assert (event.kind, event.reason) == (kind, reason)
    assert event.parent == (1 if kind is Kind.REPLACE else None)
    assert event.objectives == {other: None if value != value else value for other, value in known.items()}
    member = population.members[policy]
    assert (member.hyperparameters == before) is (kind is Kind.KEEP)
    assert (member.hyperparameters, member.parent) == (event.hyperparameters, event.parent)
    assert member.next_turn == START + PERIOD
    if kind is Kind.MUTATE:  # the next turn draws other factors
        again = take_turn(population, policy, START + PERIOD, known)
        rates = [each["learning_rate"] for each in (before, event.hyperparameters, again.hyperparameters)]
        assert rates[1] / rates[0] != pytest.approx(rates[2] / rates[1])


def test_skipped_event_leaves_the_member_unchanged(tmp_path: Path) -> None:
    population = begun(tmp_path)
    before = population.members[3]

    event = population.turn(3, START, LAST_IS_WORST)
    population.record(dataclasses.replace(event, kind=Kind.SKIP, reason="checkpoint_p0 cannot be read"))

    after, last = population.members[3], read_events(tmp_path)[-1]
    assert (after.hyperparameters, after.reward_shaping) == (before.hyperparameters, before.reward_shaping)
    assert (after.parent, after.next_turn) == (None, START + PERIOD)
    assert (last.kind, last.parent, last.reason) == (Kind.SKIP, event.parent, "checkpoint_p0 cannot be read")
    assert last.hyperparameters == before.hyperparameters


def test_member_without_weights_copies_one_of_the_best_with_weights(tmp_path: Path) -> None:
    population = begun(tmp_path)

    event = population.reseed(0, 1234, {0: 1000.0, 1: 10.0, 2: 90.0, 3: 500.0}, {0, 3})

    assert event is not None
    assert (event.kind, event.parent, event.reason) == (Kind.REPLACE, 2, "its own weights are lost")
    population.record(event)
    assert population.members[0].next_turn == START  # no turn is before the first one
    with pytest.raises(ValueError, match="no member other than policy 0"):
        population.reseed(0, 0, {}, {0, 1, 2, 3})


def test_member_without_weights_waits_at_most_a_period_for_a_ranking(tmp_path: Path) -> None:
    begun(tmp_path)
    again = restored(tmp_path, {0: 0, 1: 5000, 2: 5000, 3: 5000})
    some: dict[int, float | None] = {0: None, 1: 2.0, 2: None, 3: 4.0}

    assert again.reseed(0, PERIOD - 1, some, {0}) is None
    for env_steps, known, parents in ((PERIOD - 1, {**some, 2: 3.0}, (2, 3)), (PERIOD, {}, (1, 2, 3))):
        event = again.reseed(0, env_steps, known, {0})
        assert event is not None
        assert event.parent in parents


def test_config_of_a_member_has_its_values_and_is_valid(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"pbt_optimize_batch_size": True, "pbt_optimize_gamma": True, "batch_size": 1056}
    population = begun(tmp_path, pbt_mutation_rate=1.0, **flags)
    events = play(population, range(START, START + 20 * PERIOD, PERIOD))

    for policy, member in population.members.items():
        own = population.config_for(policy)
        assert own.optim.learning_rate == member.hyperparameters["learning_rate"]
        assert own.learner.batch_size == member.hyperparameters["batch_size"]
        assert own.run == config(**flags).run
        assert check(own) == []
    # 33 rollouts can be doubled, and halved again; half of them are no whole rollouts.
    assert {event.hyperparameters["batch_size"] for event in events} == {1056, 2112, 4224}


@pytest.mark.parametrize("pause", [long(START + 100), START + 1300, long(START + 5200)])
def test_interrupted_population_has_the_same_turns(tmp_path: Path, pause: int) -> None:
    whole = begun(tmp_path / "whole")
    expected = play(whole, range(0, START + 12 * PERIOD, 100))
    parts = tmp_path / "parts"
    population = begun(parts)

    events = play(population, range(0, pause, 100))
    again = restored(parts, dict.fromkeys(range(4), pause))

    assert again.members == population.members
    kinds = [event.kind for event in read_events(parts)]
    assert kinds == [Kind.BEGIN] * 4 + [event.kind for event in events] + [Kind.RESTORE] * 4
    events += play(again, range(pause, START + 12 * PERIOD, 100))
    assert events == expected
    assert {Kind.REPLACE, Kind.MUTATE, Kind.KEEP} == {event.kind for event in events}
    assert again.members == whole.members
    assert load_state(parts) == again.state


@pytest.mark.parametrize("resumed", [True, False], ids=["resumed population", "new population of a trained run"])
def test_in_a_trained_run_turns_wait_at_most_a_period_for_a_ranking(tmp_path: Path, resumed: bool) -> None:
    pause, some = START + 100, {0: 1.0, 1: 2.0, 2: None, 3: 4.0}
    new = begun(tmp_path)
    new.look_at(some)
    assert new.due(0, START)  # a new run waits for no ranking
    steps = dict.fromkeys(range(4), pause)
    again = restored(tmp_path, steps) if resumed else begun(tmp_path / "trained", env_steps=steps)

    again.look_at(some)

    assert [again.due(0, pause + later) for later in (0, PERIOD - 1, PERIOD)] == [False, False, True]
    for third in (3.0, None):  # None: policy 2 was replaced, and its episodes are forgotten
        again.look_at({**some, 2: third})
        assert again.due(0, pause + 1)


def test_member_restored_from_before_its_last_turn_waits_a_period(tmp_path: Path) -> None:
    play(begun(tmp_path), range(START, START + 10 * PERIOD, PERIOD))

    again = restored(tmp_path, {0: 20, 1: START + 1, 2: START + 9 * PERIOD, 3: 30 * PERIOD})

    next_turns = [member.next_turn for member in again.members.values()]
    assert next_turns == [START, START + 1 + PERIOD, START + 10 * PERIOD, START + 10 * PERIOD]


@pytest.mark.parametrize(
    ("start", "later"),
    [(2_000_000, 20_000_000), (20_000_000, 2_000_000), (2_000_000, 500_000)],
)
def test_a_first_turn_that_is_still_to_come_moves_with_its_flag(tmp_path: Path, start: int, later: int) -> None:
    begun(tmp_path, pbt_start_mutation=start, pbt_period_env_steps=5_000_000)
    steps = dict.fromkeys(range(4), 1_000_000)

    again = restored(tmp_path, steps, pbt_start_mutation=later, pbt_period_env_steps=5_000_000)

    assert [member.next_turn for member in again.members.values()] == [later] * 4


def test_a_later_turn_is_not_before_a_first_turn_that_is_put_off(tmp_path: Path) -> None:
    play(begun(tmp_path), range(START, START + 2 * PERIOD, PERIOD))
    steps = dict.fromkeys(range(4), START + PERIOD + 1)

    again = restored(tmp_path, steps, pbt_start_mutation=10 * PERIOD)

    assert [member.next_turn for member in again.members.values()] == [10 * PERIOD] * 4


@pytest.mark.parametrize("logged", [False, True])
def test_turn_that_was_not_saved_is_repeated_after_a_kill(
    tmp_path: Path, logged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path, value: object) -> None:
        raise KeyboardInterrupt

    population = begun(tmp_path)
    event = population.turn(3, START, objectives(3, START))
    if logged:
        with monkeypatch.context() as patch:
            patch.setattr(atomic, "write_json", killed)
            with pytest.raises(KeyboardInterrupt):
                population.record(event)
        assert read_events(tmp_path)[-1] == event

    again = restored(tmp_path)

    assert again.due(3, START)
    assert take_turn(again, 3, START, objectives(3, START)) == event
    kinds = [each.kind for each in read_events(tmp_path)]
    assert kinds == [Kind.BEGIN] * 4 + [Kind.RESTORE] * 4 + [event.kind]


def test_full_disk_is_a_warning_and_the_next_turn_saves_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    population = begun(tmp_path)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        take_turn(population, 1, START, objectives(1, START))
    assert "cannot be saved" in caplog.text
    assert len(read_events(tmp_path)) == 4
    take_turn(population, 2, START, objectives(2, START))

    assert load_state(tmp_path) == population.state
    assert [event.policy for event in read_events(tmp_path)] == [0, 1, 2, 3, 2]


def test_mutable_flags_may_change_between_sessions(tmp_path: Path) -> None:
    population = begun(tmp_path)

    again = restored(tmp_path, pbt_optimize_gamma=True, gamma=0.95, pbt_hyperparameters={"learning_rate": None})

    assert values(again, "gamma") == [0.95] * 4
    assert all("learning_rate" not in member.hyperparameters for member in again.members.values())
    assert values(again, "ppo_clip_ratio") == values(population, "ppo_clip_ratio")


def test_values_that_are_not_valid_any_more_are_replaced_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    population = begun(tmp_path, pbt_optimize_batch_size=True, batch_size=1024, pbt_mutation_rate=1.0)
    was, rates = values(population, "batch_size")[1], values(population, "learning_rate")
    assert was in (512, 2048)

    low, high = 0.9 * rates[0], 1.1 * rates[0]
    narrow = {"learning_rate": {"min": low, "max": high}}
    again = restored(tmp_path, pbt_optimize_batch_size=True, batch_size=1056, rollout=33, pbt_hyperparameters=narrow)

    assert values(again, "batch_size") == [1056] * 4
    bounded = [min(max(rate, low), high) for rate in rates]
    assert values(again, "learning_rate") == pytest.approx(bounded)
    assert bounded != rates
    assert check(again.config_for(1)) == []
    assert f"batch_size={was:g} is not valid" in caplog.text


def test_values_that_are_not_mutated_any_more_are_named_in_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    was = values(begun(tmp_path, pbt_optimize_gamma=True, pbt_mutation_rate=1.0), "gamma")
    changed = {policy: value for policy, value in enumerate(was) if value != 0.99}
    assert len(changed) == 2

    again = restored(tmp_path)

    assert all("gamma" not in member.hyperparameters for member in again.members.values())
    assert caplog.messages == [
        f"policy {policy}: gamma={value:g} is no longer mutated, --gamma=0.99 is used"
        for policy, value in changed.items()
    ]


def test_policy_that_starts_to_learn_becomes_a_member(tmp_path: Path) -> None:
    begun(tmp_path, train_policies=(0, 1))

    again = restored(tmp_path, {0: 50, 1: 60, 2: 0, 3: 0})

    assert sorted(again.members) == [0, 1, 2, 3]
    assert again.members[2].hyperparameters != again.members[3].hyperparameters
    kinds = [(event.kind, event.policy) for event in read_events(tmp_path)[2:]]
    assert kinds == [(Kind.RESTORE, 0), (Kind.RESTORE, 1), (Kind.BEGIN, 2), (Kind.BEGIN, 3)]


def test_new_population_keeps_the_event_log(tmp_path: Path) -> None:
    play(begun(tmp_path), range(START, START + PERIOD, 100))
    before = read_events(tmp_path)

    again = begun(tmp_path, seed=6)

    events = read_events(tmp_path)
    assert events[: len(before)] == before
    assert [event.kind for event in events[len(before) :]] == [Kind.BEGIN] * 4
    assert load_state(tmp_path) == again.state
    assert [member.turns for member in again.members.values()] == [1] * 4
    # The seed determines the values.
    assert begun(tmp_path / "same", seed=6).members == again.members != begun(tmp_path / "other").members


def test_reward_shaping_is_checked_and_tuples_in_it_become_lists(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="holds nan at win"):
        begun(tmp_path, shaping={"win": float("nan")})
    assert not (tmp_path / EVENT_LOG_NAME).exists()

    population = begun(tmp_path, shaping={"speeds": (1.0, 2.0)})

    assert population.state.reward_shaping == {"speeds": [1.0, 2.0]}
    assert load_state(tmp_path) == population.state
