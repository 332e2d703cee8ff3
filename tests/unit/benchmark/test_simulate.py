"""Pure simulation steps real envs in processes and counts their steps."""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
from typing import Any, NoReturn

import gymnasium.spaces as spaces
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from sfactory.action_heads import heads_of
from sfactory.benchmark.pure_simulation import _plain_envs, _Simulators, pure_simulation
from sfactory.config.schema import SamplingConfig
from sfactory.env.actions import action_reader
from sfactory.env.factory import EnvFactory
from sfactory.errors import ResourceError, WorkerDied
from sfactory.planning import step_cost as random_steps
from sfactory.planning.step_cost import steps_per_second, vector_steps_per_second
from sfactory.process.spawn import Spawner
from sfactory.spec import ACTION_KEY
from sfactory.system.cores import Cores
from tests.support.long import long
from tests.support.scripted_env import ScriptedEnv

TWO = SamplingConfig(num_workers=2, num_envs_per_worker=2)
CORES = Cores.available()


class CountedEnv(ScriptedEnv):
    """Episodes of 3 steps, and the actions that came."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__([(3, "truncated")] * 1_000_000)
        self.action_space = space
        self.reset()


@pytest.fixture(scope="module")
def spawner() -> Spawner:
    spawner = Spawner()
    spawner.open()
    return spawner


def test_rates_of_all_processes_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([[], [100.0, 30.0]])
    monkeypatch.setattr(_Simulators, "start", lambda *_: None)
    monkeypatch.setattr(_Simulators, "answers", lambda _: next(answers))

    assert pure_simulation(Spawner(), EnvFactory("CartPole-v1"), TWO, CORES, 1.0) == 130.0


@pytest.mark.parametrize("space", [spaces.Discrete(4, start=2), spaces.Box(-1, 1, ()), spaces.Box(-1, 1, (2,))])
def test_envs_are_stepped_with_legal_actions_and_reset_when_they_end(space: spaces.Space[Any]) -> None:
    envs = [CountedEnv(space) for _ in range(3)]

    rate = steps_per_second(list(envs), 0.02)

    assert rate > 0
    (steps,) = {len(env.taken) for env in envs}
    assert steps >= 64
    assert all(len(env.seeds) == 1 + len(env.taken) // 3 for env in envs)
    heads = list(heads_of(ACTION_KEY, space))
    rows = {head.key: np.zeros((1, *head.tensor.shape), head.tensor.dtype) for head in heads}
    (as_in_training,) = action_reader(space, heads)(rows)
    assert {type(action) for action in envs[0].taken} == {type(as_in_training)}


@pytest.mark.parametrize(("mode", "steps_each"), [(AutoresetMode.NEXT_STEP, 96), (AutoresetMode.SAME_STEP, 127)])
def test_steps_in_which_a_vector_env_resets_are_not_counted(
    mode: AutoresetMode, steps_each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Episodes of 3 steps: with NEXT_STEP, every fourth call of ``step`` resets.
    env = SyncVectorEnv([lambda: CountedEnv(spaces.Discrete(2))] * 5, autoreset_mode=mode)
    env.reset()
    times = iter([0.0, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 1.0])  # sweeps of 1, 2, 4, ... 64: 127 calls
    monkeypatch.setattr(random_steps, "now", lambda: next(times))

    assert vector_steps_per_second(env, seed=0, seconds=0.5) == 5 * steps_each


def test_slow_envs_are_stepped_for_the_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    env, looks = CountedEnv(spaces.Discrete(2)), []

    def now() -> float:
        looks.append(10.0 * len(env.taken))  # a step takes 10 s
        return looks[-1]

    monkeypatch.setattr(random_steps, "now", now)

    assert steps_per_second([env], 35.0) == pytest.approx(0.1)

    assert looks == [0.0, 10.0, 20.0, 30.0, 40.0]


def test_each_step_of_an_env_with_masks_has_the_whole_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    seconds = itertools.count()
    monkeypatch.setattr(random_steps, "now", lambda: float(next(seconds)))
    factory = EnvFactory("sfactory_envs.synthetic.masked_arms:MaskedArms")
    measure = _plain_envs(factory, 0, 1, lambda: begun.append(len(begun)))
    begun.clear()

    measure(30.0)  # the clock is read three times a step

    assert len(begun) == 1 + 10  # the first reset, too


def test_real_processes_are_measured_and_none_is_left(spawner: Spawner) -> None:
    before = set(multiprocessing.active_children())

    rate = pure_simulation(spawner, EnvFactory("CartPole-v1"), TWO, CORES, seconds=0.2)

    assert rate > 100  # on a busy machine it may be a hundredth of the usual one
    assert set(multiprocessing.active_children()) <= before


HANGS = r"sf-sim-[01] hung here:(.|\n)*faulty\.py(.|\n)*\n--env=\S*faulty:Faulty hangs: .*--reset_timeout_seconds=3$"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        long({"hang_in_constructor": True}, HANGS),
        long({"hang_at": 5}, HANGS),
        ({"gil_hang_at": 5}, HANGS),
        ({"raise_at": 5}, r"Traceback(.|\n)*EnvFault: step 5 raises, as ordered$"),
        ({"signal_at": 5, "signal_name": "SIGKILL"}, "process of the pure simulation ended"),
    ],
)
def test_a_process_that_fails_or_hangs_is_an_error(spawner: Spawner, fault: dict[str, Any], words: str) -> None:
    factory = EnvFactory("sfactory_envs.synthetic.faulty:Faulty", fault)
    sampling = dataclasses.replace(TWO, reset_timeout_seconds=3.0) if words is HANGS else TWO

    with pytest.raises(WorkerDied, match=words):
        pure_simulation(spawner, factory, sampling, CORES, seconds=0.5)


def test_a_process_that_cannot_be_started_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: object) -> NoReturn:
        raise ResourceError("sf-sim-0 cannot be started")

    monkeypatch.setattr(Spawner, "start", cannot)

    with pytest.raises(WorkerDied, match="sf-sim-0 cannot be started"):
        pure_simulation(Spawner(), EnvFactory("CartPole-v1"), TWO, CORES, seconds=0.5)
