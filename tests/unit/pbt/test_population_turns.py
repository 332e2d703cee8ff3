"""Turns of a population: their events and times; an interruption changes none of them."""

from __future__ import annotations

import errno
import itertools
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
from sfactory.errors import EnvError, RunDirError
from sfactory.pbt.event_log import EVENT_LOG_NAME, Event, Kind, read_events
from sfactory.pbt.population import Population
from sfactory.pbt.state import STATE_NAME, load_state

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


def config(**flags: Any) -> Config:
    return config_of({**FLAGS, **flags})


def begun(path: Path, settings: Config | None = None, seed: int = 5) -> Population:
    path.mkdir(exist_ok=True)
    return Population.begin(path, settings or config(), seed, NO_STEPS, SHAPING)


def restored(path: Path, settings: Config | None = None, env_steps: Mapping[int, int] = NO_STEPS) -> Population:
    population = Population.restore(path, settings or config(), env_steps)
    assert population is not None
    return population


def objectives(policy: int, env_steps: int) -> dict[int, float | None]:
    """Objectives in a different order at each step."""
    return {other: float((17 * (other + 1) * (env_steps // 7 + policy + 1)) % 23) - 11 for other in range(4)}


def play(population: Population, steps: range) -> list[Event]:
    """Play all turns of four policies with the same env steps."""
    events = []
    for env_steps in steps:
        for policy in range(4):
            known = objectives(policy, env_steps)
            population.look_at(known)
            if population.due(policy, env_steps):
                events.append(population.turn(policy, env_steps, known))
                population.record(events[-1])
    return events


def test_first_policy_starts_with_the_flags_and_others_with_mutated_values(tmp_path: Path) -> None:
    population = begun(tmp_path)
    given = {each.name: each.default for each in hyperparameters(config())}

    members = [population.members[policy] for policy in range(4)]

    assert members[0].hyperparameters == given
    assert members[0].reward_shaping == SHAPING
    assert all(member.hyperparameters != given for member in members[1:])
    assert len({json.dumps(dict(member.hyperparameters)) for member in members}) == 4
    assert [(member.parent, member.next_turn, member.turns) for member in members] == [(None, START, 1)] * 4
    assert [event.kind for event in read_events(tmp_path)] == [Kind.BEGIN] * 4


def test_turns_start_at_pbt_start_mutation_and_come_once_per_period(tmp_path: Path) -> None:
    population = begun(tmp_path)

    events = play(population, range(0, START + 3 * PERIOD, 300))

    by_policy = {policy: [event.env_steps for event in events if event.policy == policy] for policy in range(4)}
    # The first multiple of 300 from 4,000 on, and then the first one 1,000 or more later.
    assert by_policy == {policy: [4200, 5400, 6600] for policy in range(4)}


def test_a_policy_has_one_turn_at_a_time(tmp_path: Path) -> None:
    population = begun(tmp_path)

    event = population.turn(2, START, {})

    assert not population.due(2, START + 10 * PERIOD)
    assert population.due(1, START)
    population.record(event)
    assert not population.due(2, START + PERIOD - 1)
    assert population.due(2, START + PERIOD)


def test_cancelled_turn_comes_again(tmp_path: Path) -> None:
    population = begun(tmp_path)
    event = population.turn(3, START, objectives(3, START))

    population.call_off(3)

    assert population.due(3, START)
    assert population.turn(3, START, objectives(3, START)) == event


def test_worst_policy_copies_one_of_the_best_with_mutated_values(tmp_path: Path) -> None:
    population = begun(tmp_path, config(pbt_mutation_rate=1.0))

    event = population.turn(3, START, {0: 100.0, 1: 10.0, 2: 90.0, 3: 5.0})
    parent = population.members[event.parent or 0]
    population.record(event)

    assert event.kind is Kind.REPLACE
    assert event.parent in (0, 2)
    assert event.hyperparameters.keys() == parent.hyperparameters.keys()
    # One mutation in a hundred resets a value to the default.
    assert all(
        0.6 < event.hyperparameters[name] / value < 1.6 or event.hyperparameters[name] == _default(name)
        for name, value in parent.hyperparameters.items()
    )
    child = population.members[3]
    assert (child.parent, child.next_turn, child.turns) == (event.parent, START + PERIOD, 2)
    assert (child.hyperparameters, child.reward_shaping) == (event.hyperparameters, event.reward_shaping)


def _default(name: str) -> float:
    (found,) = [each.default for each in hyperparameters(config()) if each.name == name]
    return found


def test_best_policies_are_kept_and_middle_ones_mutated(tmp_path: Path) -> None:
    population = begun(tmp_path, config(pbt_replace_fraction=0.25, pbt_mutation_rate=1.0))
    values: dict[int, float | None] = {0: 100.0, 1: 50.0, 2: 20.0, 3: 99.0}

    best, middle, near = (population.turn(policy, START, values) for policy in (0, 1, 3))
    first = population.members[1]
    population.record(middle)

    assert (best.kind, best.parent, best.reason) == (Kind.KEEP, None, "among the best")
    assert best.hyperparameters == population.members[0].hyperparameters
    assert (middle.kind, middle.parent) == (Kind.MUTATE, None)
    assert near.kind is Kind.MUTATE
    assert middle.hyperparameters != first.hyperparameters
    assert population.members[1].parent is None
    assert population.members[1].hyperparameters == middle.hyperparameters


def test_first_policy_is_mutated_and_replaced_like_all_others(tmp_path: Path) -> None:
    population = begun(tmp_path, config(pbt_replace_fraction=0.25, pbt_mutation_rate=1.0))

    middle = population.turn(0, START, {0: 50.0, 1: 100.0, 2: 40.0, 3: 45.0})
    population.record(middle)
    worst = population.turn(0, START + PERIOD, {0: 1.0, 1: 100.0, 2: 40.0, 3: 45.0})

    assert middle.kind is Kind.MUTATE
    assert (worst.kind, worst.parent) == (Kind.REPLACE, 1)


def test_each_turn_draws_new_factors(tmp_path: Path) -> None:
    population = begun(tmp_path, config(pbt_replace_fraction=0.25, pbt_mutation_rate=1.0))
    rates = [population.members[1].hyperparameters["learning_rate"]]

    for turn in range(5):
        event = population.turn(1, START + turn * PERIOD, {0: 9.0, 1: 8.0, 2: 7.0, 3: 6.0})
        population.record(event)
        rates.append(event.hyperparameters["learning_rate"])

    assert len({round(new / old, 9) for old, new in itertools.pairwise(rates)}) == 5


def test_worst_policy_within_the_gaps_is_mutated(tmp_path: Path) -> None:
    population = begun(tmp_path, config(pbt_mutation_rate=1.0))

    event = population.turn(3, START, {0: -100.0, 1: -101.0, 2: -102.0, 3: -103.0})

    assert (event.kind, event.parent) == (Kind.MUTATE, None)
    assert event.reason == "among the worst, by less than the gaps"


def test_policy_without_enough_episodes_is_kept(tmp_path: Path) -> None:
    population = begun(tmp_path)

    event = population.turn(1, START, {0: 5.0, 1: None, 2: 3.0, 3: float("nan")})
    population.record(event)

    assert (event.kind, event.reason) == (Kind.KEEP, "too few episodes to be ranked")
    assert event.objectives == {0: 5.0, 1: None, 2: 3.0, 3: None}
    assert population.members[1].next_turn == START + PERIOD


def test_policies_that_do_not_learn_are_no_members(tmp_path: Path) -> None:
    population = begun(tmp_path, config(train_policies=(1, 3), pbt_replace_fraction=0.5))

    event = population.turn(3, START, {0: 1000.0, 1: 10.0, 2: 900.0, 3: 1.0})

    assert sorted(population.members) == [1, 3]
    assert (event.kind, event.parent, sorted(event.objectives)) == (Kind.REPLACE, 1, [1, 3])
    assert not population.due(0, 10 * START)
    assert population.config_for(0) == config(train_policies=(1, 3), pbt_replace_fraction=0.5)


def test_skipped_event_leaves_the_member_unchanged(tmp_path: Path) -> None:
    population = begun(tmp_path)
    before = population.members[3]

    event = population.turn(3, START, {0: 100.0, 1: 10.0, 2: 90.0, 3: 5.0})
    population.record(event.skipped("checkpoint_p0 cannot be read"))

    after = population.members[3]
    assert (after.hyperparameters, after.reward_shaping, after.parent) == (
        before.hyperparameters,
        before.reward_shaping,
        None,
    )
    assert after.next_turn == START + PERIOD
    last = read_events(tmp_path)[-1]
    assert (last.kind, last.parent, last.reason) == (Kind.SKIP, event.parent, "checkpoint_p0 cannot be read")
    assert last.hyperparameters == before.hyperparameters


def test_member_without_weights_copies_one_of_the_best_with_weights(tmp_path: Path) -> None:
    population = begun(tmp_path)

    event = population.reseed(0, 1234, {0: 1000.0, 1: 10.0, 2: 90.0, 3: 500.0}, {0, 3}, "its weights are lost")
    assert event is not None
    population.record(event)

    assert (event.kind, event.parent, event.reason) == (Kind.REPLACE, 2, "its weights are lost")
    assert population.members[0].parent == 2
    assert population.members[0].next_turn == START  # no turn is before the first one


def test_member_without_weights_waits_at_most_a_period_for_a_ranking(tmp_path: Path) -> None:
    begun(tmp_path)
    again = restored(tmp_path, env_steps={0: 0, 1: 5000, 2: 5000, 3: 5000})
    some: dict[int, float | None] = {0: None, 1: 2.0, 2: None, 3: 4.0}

    early = again.reseed(0, PERIOD - 1, some, {0}, "lost")
    ranked = again.reseed(0, PERIOD - 1, {**some, 2: 3.0}, {0}, "lost")
    late = again.reseed(0, PERIOD, {}, {0}, "lost")

    assert early is None
    assert ranked is not None
    assert ranked.parent in (2, 3)
    assert late is not None
    assert late.parent in (1, 2, 3)


def test_without_any_weights_there_is_no_parent(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no member other than policy 0"):
        begun(tmp_path).reseed(0, 0, {}, {0, 1, 2, 3}, "lost")


def test_config_of_a_member_has_its_values_and_is_valid(tmp_path: Path) -> None:
    settings = config(pbt_optimize_batch_size=True, pbt_optimize_gamma=True, pbt_mutation_rate=1.0, batch_size=1056)
    population = begun(tmp_path, settings)
    events = play(population, range(START, START + 20 * PERIOD, PERIOD))

    for policy, member in population.members.items():
        own = population.config_for(policy)
        assert own.optim.learning_rate == member.hyperparameters["learning_rate"]
        assert own.learner.batch_size == member.hyperparameters["batch_size"]
        assert own.learner.batch_size % settings.sampling.rollout == 0
        assert own.run == settings.run
        assert check(own) == []
    # 33 rollouts can be doubled, and halved again; half of them are no whole rollouts.
    assert {event.hyperparameters["batch_size"] for event in events} == {1056, 2112, 4224}


def test_restored_population_equals_the_saved_one(tmp_path: Path) -> None:
    population = begun(tmp_path)
    events = play(population, range(0, 10 * PERIOD, 300))

    again = restored(tmp_path, env_steps=dict.fromkeys(range(4), 10 * PERIOD))

    assert again.members == population.members
    assert (again.state.seed, again.state.reward_shaping) == (5, SHAPING)
    assert load_state(tmp_path) == again.state
    kinds = [event.kind for event in read_events(tmp_path)]
    assert kinds == [Kind.BEGIN] * 4 + [event.kind for event in events] + [Kind.RESTORE] * 4
    assert {Kind.REPLACE, Kind.MUTATE, Kind.KEEP} <= {*kinds}


@pytest.mark.parametrize("pause", [START + 100, START + 1300, START + 5200])
def test_interrupted_population_has_the_same_turns(tmp_path: Path, pause: int) -> None:
    whole = begun(tmp_path / "whole")
    expected = play(whole, range(0, START + 12 * PERIOD, 100))

    begun_part = begun(tmp_path / "parts")
    events = play(begun_part, range(0, pause, 100))
    again = restored(tmp_path / "parts", env_steps=dict.fromkeys(range(4), pause))
    events += play(again, range(pause, START + 12 * PERIOD, 100))

    assert events == expected
    assert again.members == whole.members


def test_after_a_resume_turns_wait_at_most_a_period_for_a_ranking(tmp_path: Path) -> None:
    begun(tmp_path)
    pause = START + 100
    again = restored(tmp_path, env_steps=dict.fromkeys(range(4), pause))
    some: dict[int, float | None] = {0: 1.0, 1: 2.0, 2: None, 3: 4.0}

    again.look_at(some)

    assert not again.due(0, pause)
    assert not again.due(0, pause + PERIOD - 1)
    assert again.due(0, pause + PERIOD)
    again.look_at({**some, 2: 3.0})
    assert again.due(0, pause + 1)
    again.look_at({**some, 2: None})  # policy 2 was replaced, and its episodes are forgotten
    assert again.due(0, pause + 1)


def test_new_population_does_not_wait_for_a_ranking(tmp_path: Path) -> None:
    population = begun(tmp_path)

    population.look_at({0: 1.0, 1: None, 2: None, 3: None})

    assert population.due(0, START)


def test_new_population_of_a_trained_run_waits_for_a_ranking(tmp_path: Path) -> None:
    population = Population.begin(tmp_path, config(), 5, dict.fromkeys(range(4), 3 * START), None)

    assert not population.due(0, 3 * START)
    population.look_at({0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0})
    assert population.due(0, 3 * START)


def test_member_restored_from_before_its_last_turn_waits_a_period(tmp_path: Path) -> None:
    play(begun(tmp_path), range(START, START + 10 * PERIOD, PERIOD))

    again = restored(tmp_path, env_steps={0: 20, 1: START + 1, 2: START + 9 * PERIOD, 3: 30 * PERIOD})

    next_turns = [member.next_turn for member in again.members.values()]
    assert next_turns == [START, START + 1 + PERIOD, START + 10 * PERIOD, START + 10 * PERIOD]


def test_turn_that_was_not_recorded_is_repeated_after_a_kill(tmp_path: Path) -> None:
    lost = begun(tmp_path).turn(3, START, objectives(3, START))

    again = restored(tmp_path)

    assert again.due(3, START)
    assert again.turn(3, START, objectives(3, START)) == lost


def test_kill_between_log_and_state_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    population = begun(tmp_path)
    event = population.turn(3, START, objectives(3, START))

    def killed(path: Path, value: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            population.record(event)
    torn = read_events(tmp_path)
    again = restored(tmp_path)
    second = again.turn(3, START, objectives(3, START))
    again.record(second)

    assert torn[-1] == event == second
    assert [each for each in read_events(tmp_path) if each.kind is not Kind.RESTORE] == torn


def test_full_disk_is_a_warning_and_the_next_turn_saves_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    population = begun(tmp_path)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        population.record(population.turn(1, START, objectives(1, START)))
    assert "cannot be saved" in caplog.text
    assert len(read_events(tmp_path)) == 4
    population.record(population.turn(2, START, objectives(2, START)))

    assert load_state(tmp_path) == population.state
    assert [event.policy for event in read_events(tmp_path)] == [0, 1, 2, 3, 2]


def test_mutable_flags_may_change_between_sessions(tmp_path: Path) -> None:
    population = begun(tmp_path)

    flags = {"pbt_optimize_gamma": True, "gamma": 0.95, "pbt_hyperparameters": {"learning_rate": None}}
    again = restored(tmp_path, config(**flags))

    assert [member.hyperparameters["gamma"] for member in again.members.values()] == [0.95] * 4
    assert all("learning_rate" not in member.hyperparameters for member in again.members.values())
    assert [member.hyperparameters["ppo_clip_ratio"] for member in again.members.values()] == [
        member.hyperparameters["ppo_clip_ratio"] for member in population.members.values()
    ]


def test_values_that_are_not_valid_any_more_are_replaced_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flags = {"pbt_optimize_batch_size": True, "batch_size": 1024, "pbt_mutation_rate": 1.0}
    population = begun(tmp_path, config(**flags))
    was = population.members[1].hyperparameters["batch_size"]
    assert was in (512, 2048)
    rates = [member.hyperparameters["learning_rate"] for member in population.members.values()]

    narrow = {"learning_rate": {"min": 0.9 * rates[0], "max": 1.1 * rates[0]}}
    settings = config(**{**flags, "batch_size": 1056, "rollout": 33, "pbt_hyperparameters": narrow})
    again = restored(tmp_path, settings)

    assert [member.hyperparameters["batch_size"] for member in again.members.values()] == [1056] * 4
    bounded = [min(max(rate, 0.9 * rates[0]), 1.1 * rates[0]) for rate in rates]
    assert [member.hyperparameters["learning_rate"] for member in again.members.values()] == pytest.approx(bounded)
    assert bounded != rates
    assert check(again.config_for(1)) == []
    assert f"batch_size={was:g} is not valid" in caplog.text


def test_policy_that_starts_to_learn_becomes_a_member(tmp_path: Path) -> None:
    begun(tmp_path, config(train_policies=(0, 1)))

    again = restored(tmp_path, env_steps={0: 50, 1: 60, 2: 0, 3: 0})

    assert sorted(again.members) == [0, 1, 2, 3]
    assert again.members[2].hyperparameters != again.members[3].hyperparameters
    assert [(event.kind, event.policy) for event in read_events(tmp_path)[2:]] == [
        (Kind.RESTORE, 0),
        (Kind.RESTORE, 1),
        (Kind.BEGIN, 2),
        (Kind.BEGIN, 3),
    ]


def test_missing_population_is_none_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    assert Population.restore(tmp_path, config(), NO_STEPS) is None
    begun(tmp_path)
    (tmp_path / STATE_NAME).write_text("{")

    with pytest.raises(RunDirError, match="restore a copy"):
        Population.restore(tmp_path, config(), NO_STEPS)


def test_new_population_keeps_the_event_log(tmp_path: Path) -> None:
    play(begun(tmp_path), range(START, START + PERIOD, 100))
    before = read_events(tmp_path)
    (tmp_path / STATE_NAME).rename(tmp_path / "old.json")

    again = begun(tmp_path, seed=6)

    assert read_events(tmp_path)[: len(before)] == before
    assert [event.kind for event in read_events(tmp_path)[len(before) :]] == [Kind.BEGIN] * 4
    assert load_state(tmp_path) == again.state
    assert [member.turns for member in again.members.values()] == [1] * 4


def test_invalid_reward_shaping_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="holds nan at win"):
        Population.begin(tmp_path, config(), 5, NO_STEPS, {"win": float("nan")})
    assert not (tmp_path / EVENT_LOG_NAME).exists()


def test_reward_shaping_is_mutated_and_copied_with_the_weights(tmp_path: Path) -> None:
    population = begun(tmp_path, config(pbt_mutation_rate=1.0))
    population.record(population.turn(3, START, {0: 100.0, 1: 10.0, 2: 90.0, 3: 5.0}))

    shapings = [member.reward_shaping for member in population.members.values()]

    assert shapings[0] == SHAPING
    assert all(shaping is not None and shaping != SHAPING for shaping in shapings[1:])
    assert all(shaping is not None and shaping["delta"]["on"] is True for shaping in shapings)
    assert all(shaping is not None and shaping["delta"]["health"] < 0 for shaping in shapings)


def test_tuples_in_reward_shaping_become_lists(tmp_path: Path) -> None:
    population = Population.begin(tmp_path, config(), 5, NO_STEPS, {"speeds": (1.0, 2.0)})

    assert population.state.reward_shaping == {"speeds": [1.0, 2.0]}
    assert load_state(tmp_path) == population.state


def test_seed_determines_the_population(tmp_path: Path) -> None:
    assert begun(tmp_path / "a", seed=1).members == begun(tmp_path / "b", seed=1).members
    assert begun(tmp_path / "c", seed=1).members != begun(tmp_path / "d", seed=2).members
