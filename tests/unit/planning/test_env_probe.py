"""An env is checked in a process of its own before anything starts, and what is wrong with it is named."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import gymnasium
import gymnasium.spaces as spaces
import numpy as np
import pytest

from sfactory.env.factory import EnvFactory
from sfactory.errors import EnvError, SFactoryError
from sfactory.planning.env_probe import examine, probe_env
from sfactory.process.spawn import Spawner
from tests.support.scripted_env import ScriptedEnv

HERE = "tests.unit.planning.test_env_probe"
BOUND_S = 60.0


def well_behaved() -> gymnasium.Env[Any, Any]:
    env = ScriptedEnv([(1, "terminated")])
    env.action_space = spaces.Discrete(3, start=2)
    return env


def seeing(expected: str) -> gymnasium.Env[Any, Any]:
    seen = [os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "EGL_DEVICE_ID", "MUJOCO_EGL_DEVICE_ID")]
    assert str(seen) == expected, f"the env sees {seen}"
    return well_behaved()


def suicidal() -> gymnasium.Env[Any, Any]:
    os.kill(os.getpid(), signal.SIGSEGV)
    return well_behaved()


def sleepy() -> gymnasium.Env[Any, Any]:
    time.sleep(20)
    return well_behaved()


def raising() -> gymnasium.Env[Any, Any]:
    raise LookupError("no simulator at port 7")


def unmakeable() -> gymnasium.Env[Any, Any]:
    raise FileNotFoundError("levels/maze_9.txt is missing")


def chatty() -> gymnasium.Env[Any, Any]:
    print("hello from the simulator")
    return well_behaved()


class Odd(ScriptedEnv):
    """Breaks one promise: ``what`` names it."""

    def __init__(self, what: str) -> None:
        super().__init__([])
        self.what = what
        if what == "text space":
            self.observation_space = spaces.Text(3)  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """As ScriptedEnv, but for what is odd."""
        obs, info = super().reset(seed=seed)
        return {"reset gives no info": obs, "reset shape": (np.zeros(3, np.float32), {})}.get(self.what, (obs, info))

    def step(self, action: int) -> Any:
        """As ScriptedEnv, but for what is odd."""
        obs, reward, terminated, truncated, info = super().step(action)
        return {
            "four results": (obs, reward, terminated, info),
            "step dtype": (obs.astype(complex), reward, terminated, truncated, info),
            "reward": (obs, "much", terminated, truncated, info),
        }.get(self.what, (obs, reward, terminated, truncated, info))


def odd(what: str) -> gymnasium.Env[Any, Any]:
    return Odd(what)


@pytest.fixture(scope="module")
def spawner() -> Spawner:
    spawner = Spawner()
    spawner.open()
    return spawner


def factory_of(name: str, **kwargs: object) -> EnvFactory:
    return EnvFactory(f"{HERE}:{name}", kwargs)


def test_a_good_env_is_described(spawner: Spawner, capfd: pytest.CaptureFixture[str]) -> None:
    spec, step_us, _ = probe_env(spawner, factory_of("chatty"), BOUND_S)

    assert capfd.readouterr().out == ""  # stdout carries the result of a run alone
    assert step_us is None  # measuring takes a moment, and is not asked for
    agents = EnvFactory("sfactory_envs.synthetic.counting_agents:CountingParallel")
    assert probe_env(spawner, agents, BOUND_S).spec.num_agents == 3
    assert [key for key, _ in spec.obs] == ["obs"]
    assert [(head.key, getattr(head, "start", None)) for head in spec.actions] == [("action", 2)]


def test_the_steps_of_an_env_are_timed_if_that_is_asked_for(spawner: Spawner) -> None:
    step_us = probe_env(spawner, EnvFactory("CartPole-v1"), BOUND_S, timed=True).step_us

    assert step_us is not None
    assert 0.1 < step_us < 10_000
    # The cost of a vector env depends on the number of its envs, which is not known yet.
    assert examine(EnvFactory("vector:CartPole-v1"), timed=True).step_us is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("suicidal", r"its process died while the env was made, reset or stepped \(.*-11\)"),
        ("raising", r"LookupError: no simulator at port 7"),
        ("absent", r"has no 'absent'"),
        ("unmakeable", r"raised \w+: .* \(at .*test_env_probe\.py:\d+ in \w+\)"),
    ],
)
def test_an_env_that_cannot_be_made_is_refused_with_its_cause(spawner: Spawner, name: str, words: str) -> None:
    with pytest.raises(EnvError, match=f"^--env={HERE}:{name}: .*{words}"):
        probe_env(spawner, factory_of(name), BOUND_S)


def test_an_env_that_hangs_is_refused_when_its_time_is_up_and_the_place_is_shown(
    spawner: Spawner, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(EnvError, match=r"not made, reset and stepped within --reset_timeout_seconds=2$"):
        probe_env(spawner, factory_of("sleepy"), 2)

    assert re.search(r"sf-probe hung here:\n.*test_env_probe\.py\", line \d+ in sleepy", caplog.text, re.DOTALL)


@pytest.mark.parametrize(
    ("gpus", "seen"), [((), "['', None, None]"), ((3, 1), "['3', '3', '3']"), ((0,), "['0', '0', '0']")]
)
def test_the_probed_env_sees_the_gpu_of_the_first_actor(spawner: Spawner, gpus: tuple[int, ...], seen: str) -> None:
    assert probe_env(spawner, factory_of("seeing", expected=seen), BOUND_S, gpus).spec.actions


def test_gpus_beyond_those_that_are_visible_are_refused_before_anything_starts(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")

    with pytest.raises(EnvError, match=r"--actor_worker_gpus: there is no GPU 2 within CUDA_VISIBLE_DEVICES='4,5'"):
        probe_env(spawner, factory_of("well_behaved"), BOUND_S, (0, 2))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("text space", "observation space 'obs' is a Text"),
        ("reset gives no info", r"reset\(\) must return \(observation, info dict\)"),
        ("reset shape", r"reset\(\): observation 'obs' has shape \(3,\)"),
        ("four results", r"step\(\) must return \(observation, reward, terminated, truncated, info\)"),
        ("step dtype", r"step\(\): observation 'obs' has shape \(1,\) and dtype complex"),
        ("reward", "the reward 'much', which is no number"),
    ],
)
def test_what_is_wrong_with_a_plain_env_is_named(what: str, words: str) -> None:
    with pytest.raises(SFactoryError, match=words) as refused:
        examine(factory_of("odd", what=what))

    assert f"--env={HERE}:odd" in str(refused.value)
