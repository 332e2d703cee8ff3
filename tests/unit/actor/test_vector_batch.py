"""A vector batch records what a step did to each env, in both autoreset modes, and handles faults as a whole."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from sfactory.actor.split import Split
from sfactory.actor.vector_batch import VectorEnvBatch
from sfactory.env.vector import info_of, with_lists
from sfactory.errors import EnvError
from sfactory.messages import EpisodeExtras, ExtrasRefused
from sfactory.shared.trajectories import Slot, TrajectoryBuffer
from sfactory.spec import EnvSpec
from tests.support.episodes import finished_episodes
from tests.support.parts import SCALAR, small_layout
from tests.support.scripted_env import Episode, FaultRecord, Faults, ScriptedEnv, no_faults
from tests.unit.actor.test_env_faults import waits
from tests.unit.actor.test_split import Rows, T, assert_rows, play, steps_from, used_slots

__all__ = ["waits"]

Mode = Literal["NextStep", "SameStep"]
One = tuple[Sequence[Episode], Faults]
GOOD: One = ([], Faults())
NAN_SHOWN = np.array([math.nan], np.float32)
in_both_modes = pytest.mark.parametrize("mode", ["NextStep", "SameStep"])


class StepsAsExtra(ScriptedEnv):
    """Reports the length of each episode at its end."""

    def step(self, action: int) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        info = {"episode_extra_stats": {"steps": float(self._step)}} if terminated or truncated else {}
        return obs, reward, terminated, truncated, info


def batch_of(mode: Mode, *scripts: list[Episode]) -> VectorEnvBatch:
    makers = [functools.partial(StepsAsExtra, script) for script in scripts]
    batch = VectorEnvBatch(SyncVectorEnv(makers, autoreset_mode=AutoresetMode(mode)))
    batch.reset([5])
    return batch


def stepped(batch: VectorEnvBatch) -> dict[str, Any]:
    batch.step(np.zeros(batch.size, np.int64))
    lists = {name: getattr(batch, name) for name in ("terminated", "truncated", "resumed", "lost", "first")}
    return {name: envs for name, envs in lists.items() if envs} | {"shown": batch.observations[:, 0].tolist()}


ENDS: list[list[Episode]] = [[(1, "terminated")], [(2, "truncated")], [(2, "both")], []]
STEPS: dict[Mode, list[dict[str, list[int]]]] = {
    "NextStep": [
        {"terminated": [0], "shown": [1, 1, 1, 1]},
        {"terminated": [2], "truncated": [1], "resumed": [0], "first": [0], "shown": [100, 2, 2, 2]},
        {"resumed": [2, 1], "first": [2, 1], "shown": [101, 100, 100, 3]},
        {"shown": [102, 101, 101, 4]},
    ],
    "SameStep": [
        {"terminated": [0], "first": [0], "shown": [100, 1, 1, 1]},
        {"terminated": [2], "truncated": [1], "lost": [1], "first": [2, 1], "shown": [101, 100, 100, 2]},
        {"shown": [102, 101, 101, 3]},
    ],
}


@in_both_modes
def test_next_step_resets_in_a_row_of_its_own_and_same_step_loses_the_truncated_step(mode: Mode) -> None:
    batch = batch_of(mode, *ENDS)

    assert [stepped(batch) for _ in STEPS[mode]] == STEPS[mode]


@in_both_modes
def test_extra_statistics_at_the_end_of_an_episode_are_passed_on(mode: Mode) -> None:
    batch = batch_of(mode, [(2, "truncated")], [(3, "terminated")])
    sent: list[tuple[str, list[float]]] = []

    for _ in range(4):
        batch.step(np.zeros(2, np.int64))
        batch.extras.keep()

    batch.extras.send(0, lambda message: sent.append((message.name, message.values.tolist())) or True)  # type: ignore
    assert sent == [("steps", [2.0, 3.0])]


class ReadAtOnce(torch.Tensor):
    """A tensor that cannot be read one entry at a time, for which one on a GPU would be waited for again and again."""

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("an entry is read alone")


def read_at_once(*values: float) -> torch.Tensor:
    return torch.tensor(values).as_subclass(ReadAtOnce)


def sent_of(infos: Any, mode: Mode = "NextStep") -> dict[str, list[float]] | str:
    """What main is sent of two episodes with these ``infos`` in their last steps: numbers by name, or a refusal."""

    class Plain(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            return (*super().step(actions)[:-1], infos if mode == "NextStep" else {"final_info": infos})

    scripts: list[list[Episode]] = [[(1, "truncated")], [(2, "terminated")]]
    makers = [functools.partial(ScriptedEnv, script) for script in scripts]
    batch = VectorEnvBatch(Plain(makers, autoreset_mode=AutoresetMode(mode)))
    batch.reset([5])
    sent: list[EpisodeExtras | ExtrasRefused] = []

    for _ in range(2):
        batch.step(np.zeros(2, np.int64))
        batch.extras.keep()

    batch.extras.send(0, lambda message: sent.append(message) or True)  # type: ignore[func-returns-value]
    refused = [message.reason for message in sent if isinstance(message, ExtrasRefused)]
    numbers = {message.name: message.values.tolist() for message in sent if isinstance(message, EpisodeExtras)}
    return refused[0] if refused else numbers


@in_both_modes
@pytest.mark.parametrize(
    "infos",
    [
        {"true_objective": np.array([3.0, 4.0]), "episode_extra_stats": {"wins": np.array([1.0, 0.0])}},
        {"true_objective": [3.0, 4.0], "episode_extra_stats": {"wins": (1.0, 0.0)}},
        {"true_objective": torch.tensor([3.0, 4.0]), "episode_extra_stats": {"wins": torch.tensor([1, 0])}},
        {
            "true_objective": read_at_once(3, 4),
            "_true_objective": read_at_once(True, True),
            "episode_extra_stats": {"wins": read_at_once(1, 0).reshape(2, 1)},
        },
        {"true_objective": [3.0, 4.0], "episode_extra_stats": [{"wins": 1.0}, {"wins": 0.0}]},
        {"true_objective": [3.0, 4.0], "_true_objective": [True, True], "episode_extra_stats": {"wins": [True, False]}},
    ],
    ids=("arrays", "lists", "tensors", "tensors of a device", "dicts", "masked lists"),
)
def test_statistics_may_be_whatever_has_an_entry_for_each_env(mode: Mode, infos: dict[str, Any]) -> None:
    assert sent_of(infos, mode) == {"true_objective": [3.0, 4.0], "wins": [1.0, 0.0]}


def test_tensors_of_a_number_for_each_env_become_lists_and_all_else_stays() -> None:
    others = {"frames": torch.zeros(2, 3), "of another length": torch.zeros(3), "one number": torch.tensor(5.0)}
    infos = {"reached": read_at_once(3, 4), "half": torch.ones(2, dtype=torch.bfloat16), **others}

    assert with_lists(infos, 2) == {"reached": [3, 4], "half": [1.0, 1.0], **others}


def test_final_infos_may_be_those_of_each_env() -> None:
    infos = [{"true_objective": 3.0}, {"true_objective": 4.0}]

    assert sent_of(infos, "SameStep") == {"true_objective": [3.0, 4.0]}
    assert sent_of(None, "SameStep") == {}
    assert sent_of([None, {"true_objective": 4.0}], "SameStep") == {"true_objective": [4.0]}


@pytest.mark.parametrize(
    ("infos", "reason"),
    [
        ({"true_objective": 3.0}, "'true_objective' is of type float"),
        ({"true_objective": 3.0, "_true_objective": np.array([True, True])}, "'true_objective' is of type float"),
        ({"true_objective": [3.0, 4.0, 5.0]}, "'true_objective' is of type list"),
        ({"true_objective": np.array(3.0)}, "'true_objective' is of type ndarray"),
        ({"episode_extra_stats": {"wins": 1}}, "'wins' is of type int"),
        ({"episode_extra_stats": [{"wins": 1}]}, "'episode_extra_stats' is of type list"),
        (7, "the infos are of type int"),
    ],
)
def test_statistics_without_an_entry_for_each_env_are_refused(infos: Any, reason: str) -> None:
    assert sent_of(infos) == f"{reason}; there must be an entry for each of 2 envs"


def test_an_array_in_infos_is_that_of_all_envs_unless_a_mask_says_of_which() -> None:
    infos = {
        "plain": np.array([1, 2]),
        "masked": np.array([1, 2]),
        "_masked": np.array([True, False]),
        "of another length": np.array([1, 2, 3]),
        "one number": np.array(5.0),
        "list": [1, 2],
        "text": "ab",
        "nested": {"plain": np.array([3, 4]), "masked": np.array([1, 2]), "_masked": np.array([False, True])},
    }

    assert info_of(infos, 0, 2) == {"plain": 1, "masked": 1, "list": 1, "nested": {"plain": 3}}
    assert info_of(infos, 1, 2) == {"plain": 2, "list": 2, "nested": {"plain": 4, "masked": 2}}


def test_a_vector_env_without_autoreset_is_refused() -> None:
    env = SyncVectorEnv([lambda: ScriptedEnv([])], autoreset_mode=AutoresetMode.DISABLED)

    with pytest.raises(EnvError, match=r"does not reset its envs .*NEXT_STEP"):
        VectorEnvBatch(env)


class VectorStock:
    """Makes vector envs: first one of ``ones``, then good ones with a base of 1000 k, or raises those of ``stock``."""

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
        makers = [functools.partial(ScriptedEnv, script, faults, base) for script, faults in ones]
        self.made.append(SyncVectorEnv(makers, autoreset_mode=self._mode))
        return self.made[-1]

    def split(self, **limits: Any) -> tuple[Split, FaultRecord, list[Slot]]:
        record = FaultRecord(self.make, **limits)
        split = Split.of_envs(0, self.make(0), SCALAR, T, record.handling)
        split.reset([0] * len(self._ones), "actor 0")
        return split, record, used_slots(len(self._ones))


@in_both_modes
def test_one_step_of_all_envs_is_masked_and_all_start_again(mode: Mode, waits: list[float]) -> None:
    ones: list[One] = [GOOD, ([(1, "terminated")], Faults()), ([], Faults(steps=[3]))]
    stock = VectorStock(mode, *ones, stock=[RuntimeError("no licence")])
    split, record, slots = stock.split()

    valid = play(split, slots[:2])

    for env in (0, 2):
        assert_rows(slots[0], env, Rows([0, 1, 2, 1000, 1001], (), (), (2,), (0, 3)))
    assert slots[0].valid[2:, 1].tolist() == [False, True]
    assert slots[0].obs["obs"][3:, 1, 0].tolist() == [1000, 1001]
    assert_rows(slots[1], 0, steps_from(1001))
    # With resets in the next step the row behind the terminated one is invalid, too.
    assert valid == 24 - 3 - (mode == "NextStep")
    assert finished_episodes(split.episodes) == [(0.5, 1)]
    assert record.counts() == (2, 0)
    assert waits == [0.1, 0.2]
    assert stock.seeds == [0, 7001, 7002]
    assert stock.made[0].closed


@in_both_modes
@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_an_episode_that_ended_before_the_failure_is_reported(mode: Mode, ending: Any, waits: list[float]) -> None:
    # The first episode ends with step 2; in the one mode step 3 would reset it.
    at = 3 if mode == "NextStep" else 4
    split, _, slots = VectorStock(mode, ([(2, ending)], Faults()), ([], Faults(steps=[at]))).split()

    play(split, slots[:2])

    assert slots[0].is_first[at].tolist() == [True, True]
    assert slots[0].valid[at - 1].tolist() == [False, False]
    assert slots[0].valid[at:].all()
    assert slots[1].valid.all()
    assert [length for _, length in finished_episodes(split.episodes)] == [2]


@in_both_modes
def test_after_a_failure_in_the_last_step_the_next_slot_starts_with_first_rows(mode: Mode, waits: list[float]) -> None:
    split, _, slots = VectorStock(mode, ([], Faults(steps=[4])), GOOD).split()

    play(split, slots[:2])

    for env in (0, 1):
        assert_rows(slots[0], env, Rows([0, 1, 2, 3, 1000], invalid=(3,), is_first=(0, 4)))
        assert_rows(slots[1], env, steps_from(1000, starts=True))


@in_both_modes
@pytest.mark.parametrize(
    "faults",
    [
        Faults(rewards={2: math.nan}),
        Faults(rewards={2: math.inf}),
        Faults(shown={2: NAN_SHOWN}),
        Faults(shown={2: -np.full(1, np.inf, np.float32)}),
    ],
)
def test_invalid_data_of_one_env_resets_all_and_counts_once(mode: Mode, faults: Faults) -> None:
    split, record, slots = VectorStock(mode, GOOD, ([], faults), GOOD).split()

    valid = play(split, slots[:1])

    for env in range(3):
        assert_rows(slots[0], env, Rows([0, 1, 100, 101, 102], invalid=(1,), is_first=(0, 2)))
    assert valid == 9
    assert record.counts() == (0, 1)


@pytest.mark.parametrize("length", [2, 4])
def test_next_step_takes_any_numbers_in_the_final_observation_of_a_terminated_episode(length: int) -> None:
    one: One = ([(length, "terminated")], Faults(shown={length: NAN_SHOWN}))
    split, record, slots = VectorStock("NextStep", GOOD, one).split()

    play(split, slots[:2])

    first, second = slots[:2]
    shown = np.concatenate([first.obs["obs"][:, 1, 0], second.obs["obs"][1:, 1, 0]]).tolist()
    assert shown == [*range(length), 0, *range(100, 108 - length)]
    assert second.obs["obs"][0, 1, 0] == first.obs["obs"][T, 1, 0]
    assert np.flatnonzero(np.concatenate([first.terminated, second.terminated])[:, 1]).tolist() == [length - 1]
    assert np.flatnonzero(~np.concatenate([first.valid, second.valid])[:, 1]).tolist() == [length]
    assert_rows(first, 0, steps_from(0, starts=True))
    assert_rows(second, 0, steps_from(T))
    assert [steps for _, steps in finished_episodes(split.episodes)] == [length]
    assert record.counts() == (0, 0)


def test_next_step_resets_all_where_another_env_shows_invalid_data_beside_such_an_observation() -> None:
    one: One = ([(2, "terminated")], Faults(shown={2: NAN_SHOWN}))
    split, record, slots = VectorStock("NextStep", ([], Faults(shown={2: NAN_SHOWN})), one).split()

    play(split, slots[:1])

    for env in range(2):
        assert_rows(slots[0], env, Rows([0, 1, 100, 101, 102], invalid=(1,), is_first=(0, 2)))
    assert record.counts() == (0, 1)


def test_a_choice_that_is_none_in_such_an_observation_becomes_the_first_choice() -> None:
    class Chooses(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            obs, *rest = super().step(actions)
            return (obs[:, 0].astype(np.int64), *rest)

        def reset(self, **how: Any) -> Any:
            return super().reset(**how)[0][:, 0].astype(np.int64), {}

    env = Chooses([lambda: ScriptedEnv([(T, "terminated")], base=3.0)] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    env.single_observation_space = gymnasium.spaces.Discrete(T, start=3)
    spec = EnvSpec.of_spaces(env.single_observation_space, env.single_action_space)
    split = Split.of_envs(0, env, spec, T, no_faults())
    split.reset([0, 0], "actor 0")
    slot = TrajectoryBuffer(spec, small_layout(rows=2)).slot(0)

    play(split, [slot])

    assert slot.obs["obs"][:, 0].tolist() == [3, 4, 5, 6, 3]
    assert slot.terminated[:, 0].tolist() == [False, False, False, True]


@in_both_modes
def test_the_first_reset_is_checked_too(mode: Mode) -> None:
    split, record, slots = VectorStock(mode, GOOD, ([], Faults(reset_shown={1: NAN_SHOWN}))).split()

    assert play(split, slots[:1]) == 8
    assert_rows(slots[0], 1, steps_from(100, starts=True))
    assert record.counts() == (0, 1)


def test_a_batch_of_another_shape_counts_for_all_envs_and_its_rewards_may_be_read_only(waits: list[float]) -> None:
    class Shrinking(SyncVectorEnv):
        steps = 0

        def step(self, actions: Any) -> Any:
            self.steps += 1
            obs, rewards, *rest = super().step(actions)
            rewards = rewards.copy()
            rewards.setflags(write=False)
            return (obs[:-1] if self.steps == 3 else obs, rewards, *rest)

    env = Shrinking([ScriptedEnv, ScriptedEnv], autoreset_mode=AutoresetMode.NEXT_STEP)
    record = FaultRecord(lambda seed: env)
    split = Split.of_envs(0, env, SCALAR, T, record.handling)
    split.reset([0, 0], "actor 0")
    slots = used_slots(2)

    play(split, slots[:1])

    assert slots[0].valid.tolist() == [[True] * 2, [True] * 2, [False] * 2, [True] * 2]
    assert record.counts() == (0, 2)


@pytest.mark.parametrize(
    ("place", "given", "what"),
    [
        (1, np.ones(3), "rewards"),
        (1, np.ones(1), "rewards"),
        (2, np.ones(3, bool), "terminated"),
        (3, True, "truncated"),
    ],
)
def test_a_vector_env_that_answers_for_more_or_fewer_envs_is_recreated(
    place: int, given: Any, what: str, waits: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(SyncVectorEnv):
        steps = 0

        def step(self, actions: Any) -> Any:
            self.steps += 1
            answer = list(super().step(actions))
            answer[place] = given if self.steps == 2 else answer[place]
            return tuple(answer)

    stock = VectorStock("NextStep", GOOD, GOOD)
    stock.made.append(Odd([ScriptedEnv, ScriptedEnv], autoreset_mode=AutoresetMode.NEXT_STEP))
    record = FaultRecord(stock.make)
    split = Split.of_envs(0, stock.made[0], SCALAR, T, record.handling)
    split.reset([0, 0], "actor 0")
    slots = used_slots(2)

    play(split, slots[:1])

    assert_rows(slots[0], 1, Rows([0, 1, 1000, 1001, 1002], (), (), (1,), (0, 2)))
    assert record.counts() == (1, 0)
    assert f"step() gave {what} of shape {np.shape(given)} for 2 envs" in caplog.text
