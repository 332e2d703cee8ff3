"""An env is created, reset and stepped in a process of its own before anything else starts."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import gymnasium
import gymnasium.spaces as spaces
import pytest

from sfactory.clock import now
from sfactory.env.factory import EnvFactory
from sfactory.errors import ConfigError, EnvError, ResourceError
from sfactory.planning import env_probe
from sfactory.planning.env_probe import examine, probe_env, probing
from sfactory.process.orphans import children_of
from sfactory.process.spawn import Spawner
from sfactory.process.stack_dump import is_stopped
from sfactory_envs.synthetic.masked_arms import MaskedArms
from tests.support.processes import eventually
from tests.support.scripted_env import ScriptedEnv

HERE = "tests.unit.planning.test_env_probe"
BOUND_S = 60.0


def chatty() -> gymnasium.Env[Any, Any]:
    print("hello from the simulator")
    env = ScriptedEnv([(1, "terminated")])
    env.action_space = spaces.Discrete(3, start=2)
    return env


def seeing(expected: str) -> gymnasium.Env[Any, Any]:
    seen = [os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "EGL_DEVICE_ID", "MUJOCO_EGL_DEVICE_ID")]
    assert str(seen) == expected, f"the env sees {seen}"
    return chatty()


def suicidal() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


class Unreadable:
    """Ends the process that reads it, as a script that is imported may do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (1,)


class Stopping(NamedTuple):
    """Work that writes its pid into a file and stops its process."""

    pid: Path

    def __call__(self, tell: object, at_end: object) -> None:
        self.pid.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)


def sleepy() -> None:
    time.sleep(20)  # longer than its time; it ends even if the probe waits for it


def killing_the_server() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(20)


class Unclosable(ScriptedEnv):
    """Starts a program, and writes its pid into the file ``started``; its close() does not return, or is the end.

    Then the file "closing" is beside that one.
    """

    def __init__(self, started: str, hangs: bool) -> None:
        super().__init__([(1, "terminated")])
        program = subprocess.Popen(["sleep", "9999"], start_new_session=True)
        Path(started).write_text(str(program.pid))
        self._closing, self._hangs = Path(started).with_name("closing"), hangs

    def close(self) -> None:
        self._closing.touch()
        if self._hangs:
            time.sleep(20)
        os._exit(7)


class Serving(MaskedArms):  # type: ignore[misc]
    """Holds a port of its number, and gives masks in its infos. broken: its steps raise."""

    held: ClassVar[set[int]] = set()

    def __init__(self, env_index: int, broken: bool) -> None:
        super().__init__(mask="info")
        assert env_index not in self.held, "Address already in use"
        self.held.add(env_index)
        self._index, self._broken = env_index, broken

    def step(self, action: Any) -> Any:
        if self._broken:
            raise RuntimeError("it does not step")
        return super().step(action)

    def close(self) -> None:
        self.held.discard(self._index)


class UnclosableMasked(MaskedArms):  # type: ignore[misc]
    """Gives masks in its infos; its close() ends the process."""

    def __init__(self) -> None:
        super().__init__(mask="info")

    def close(self) -> None:
        os._exit(7)


def unmakeable() -> None:
    raise FileNotFoundError("levels/maze_9.txt is missing")


@pytest.fixture(scope="module")
def spawner() -> Spawner:
    spawner = Spawner()
    spawner.open()
    return spawner


def factory_of(name: str, **kwargs: object) -> EnvFactory:
    return EnvFactory(f"{HERE}:{name}", kwargs)


def test_a_good_env_is_described(spawner: Spawner, capfd: pytest.CaptureFixture[str]) -> None:
    spec, step_us, *_ = probe_env(spawner, factory_of("chatty"), BOUND_S)

    assert capfd.readouterr().out == ""  # stdout carries the result of a run alone
    assert step_us is None  # measuring takes a moment
    agents = EnvFactory("sfactory_envs.synthetic.counting_agents:CountingParallel")
    assert probe_env(spawner, agents, BOUND_S).spec.num_agents == 3
    assert [key for key, _ in spec.obs] == ["obs"]
    assert [(head.key, getattr(head, "start", None)) for head in spec.actions] == [("action", 2)]


def test_the_steps_of_an_env_are_timed_on_request(spawner: Spawner) -> None:
    step_us = probe_env(spawner, EnvFactory("CartPole-v1"), BOUND_S, timed=True).step_us

    assert step_us is not None
    assert 0.1 < step_us < 10_000
    # The cost of a vector env depends on the number of its envs, which is not known yet.
    assert examine(EnvFactory("vector:CartPole-v1"), timed=True).step_us is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("suicidal", r"its process died while the env was made, reset, stepped or closed \(.*-11\)"),
        ("absent", r"has no 'absent'"),
        ("unmakeable", r"raised FileNotFoundError: levels/.* \(at .*test_env_probe\.py:\d+ in unmakeable\)"),
    ],
)
def test_an_env_that_cannot_be_made_is_refused_with_its_cause(spawner: Spawner, name: str, words: str) -> None:
    with pytest.raises(EnvError, match=f"^--env={HERE}:{name}: .*{words}"):
        probe_env(spawner, factory_of(name), BOUND_S)


def test_an_env_that_hangs_is_refused_when_its_time_is_up_and_the_place_is_shown(
    spawner: Spawner, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(EnvError, match=r"not made, reset, stepped, drawn or closed within --reset_timeout_seconds=2$"):
        probe_env(spawner, factory_of("sleepy"), 2, drawn=True)

    assert re.search(r"sf-probe hung here:\n.*test_env_probe\.py\", line \d+ in sleepy", caplog.text, re.DOTALL)


def answer_once_stopped(spawner: Spawner, pid: Path) -> None:
    """Ask for an answer only when the process is stopped, however long its start takes."""
    with probing(spawner, "any", Stopping(pid), 0.1) as received:
        until = now() + BOUND_S
        while not (pid.exists() and is_stopped(int(pid.read_text() or 0))) and now() < until:
            time.sleep(0.01)
        received()


def test_a_stopped_process_is_not_said_to_hang_in_its_env(
    spawner: Spawner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(EnvError, match=r"=0.1: its process is stopped \(by SIGSTOP or a debugger\)$"):
        answer_once_stopped(spawner, tmp_path / "pid")

    assert "hung" not in caplog.text


def test_the_end_of_the_fork_server_is_not_blamed_on_the_env(spawner: Spawner) -> None:
    with pytest.raises(ResourceError, match=r"^the fork server has ended; "):
        probe_env(spawner, factory_of("killing_the_server"), BOUND_S)

    assert not children_of(Spawner._watcher or 0)


def test_what_ends_a_process_before_it_comes_to_the_env_is_not_blamed_on_the_env(spawner: Spawner) -> None:
    with pytest.raises(
        ConfigError, match=r'^a process of the run did not .*; put .* under if __name__ == "__main__":$'
    ):
        probe_env(spawner, factory_of("chatty", unused=Unreadable()), BOUND_S)


@pytest.mark.parametrize(
    ("hangs", "warning"),
    [
        (
            True,
            r"close\(\) does not return; nothing is lost; it hangs here:\n.*test_env_probe\.py\", line \d+ in close",
        ),
        (False, r"close\(\) ended its process: exit code 7; nothing is lost$"),
    ],
    ids=("hangs", "dies"),
)
def test_an_env_that_cannot_be_closed_is_used_all_the_same(
    spawner: Spawner,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    hangs: bool,
    warning: str,
) -> None:
    started, received = tmp_path / "started", env_probe._received

    def received_once_it_closes(*given: Any) -> Any:
        answer = received(*given)
        assert not isinstance(answer, env_probe.Probed) or eventually((tmp_path / "closing").exists, BOUND_S)
        return answer

    monkeypatch.setattr(env_probe, "_received", received_once_it_closes)
    monkeypatch.setattr(env_probe, "_CLOSE_S", 0.2 if hangs else BOUND_S)
    assert probe_env(spawner, factory_of("Unclosable", started=str(started), hangs=hangs), BOUND_S).spec.actions

    assert re.search(rf"--env={HERE}:Unclosable: {warning}", caplog.text.rstrip(), re.DOTALL)
    assert not Path(f"/proc/{started.read_text()}").exists()  # what it has started is gone before actors start


@pytest.mark.parametrize(
    ("gpus", "seen"), [((), "['', None, None]"), ((3, 1), "['3', '3', '3']"), ((0,), "['0', '0', '0']")]
)
def test_the_probed_env_sees_the_gpu_of_the_first_actor(spawner: Spawner, gpus: tuple[int, ...], seen: str) -> None:
    assert probe_env(spawner, factory_of("seeing", expected=seen), BOUND_S, gpus).spec.actions


def test_gpus_beyond_those_that_are_visible_are_refused(spawner: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")

    with pytest.raises(EnvError, match=r"--actor_worker_gpus: there is no GPU 2 within CUDA_VISIBLE_DEVICES='4,5'"):
        probe_env(spawner, factory_of("chatty"), BOUND_S, (0, 2))


def test_an_env_with_masks_in_its_infos_is_closed_before_it_is_made_again() -> None:
    factory = dataclasses.replace(factory_of("Serving", broken=False), info_action_mask="auto")

    with contextlib.ExitStack() as at_end:
        probed = examine(factory, at_end=at_end)
        held = set(Serving.held)

    assert probed.info_action_mask
    assert held == {-1}
    assert not Serving.held


def test_an_env_with_masks_in_its_infos_that_cannot_be_closed_is_refused_for_that(
    spawner: Spawner, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    factory = dataclasses.replace(factory_of("UnclosableMasked"), info_action_mask="auto")

    with pytest.raises(EnvError, match=r"died while the env was made, reset, stepped or closed \(exit code 7\)$"):
        probe_env(spawner, factory, BOUND_S)

    assert "its infos have action masks: it is made again with them once its close() returns" in caplog.text


def test_an_env_that_is_refused_is_closed() -> None:
    with pytest.raises(RuntimeError, match="it does not step"):
        examine(factory_of("Serving", broken=True))

    assert not Serving.held


def undrawable(render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    if render_mode is not None:
        raise ValueError("it has no pictures")
    return chatty()


def made_by_gymnasium(render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """Neither a render() nor a render mode, in the wrappers of gymnasium.make."""

    def maker(**kwargs: Any) -> gymnasium.Env[Any, Any]:
        env = ScriptedEnv([(1, "terminated")])
        env.render_mode = kwargs["render_mode"]
        return env

    return gymnasium.make(gymnasium.envs.registration.EnvSpec("Plain-v0", maker), render_mode=render_mode)


NO_RENDER = (
    'it has no render() for "rgb_array": add one, render_mode and metadata (docs/tutorials/own_env.md), or leave out '
    "--eval_video"
)


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ("vector:CartPole-v1", ""),
        ("tests.support.drawn_env:Drawn", ""),
        (f"{HERE}:chatty", NO_RENDER),
        (f"{HERE}:made_by_gymnasium", NO_RENDER),
        ("tests.support.drawn_env:BadPainter", "render() raised RuntimeError: out of paint"),
        (f"{HERE}:undrawable", 'with --eval_video it is made with render_mode="rgb_array"'),
    ],
)
def test_an_env_of_which_no_video_can_be_made_is_refused(env: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SDL_VIDEODRIVER", "MUJOCO_GL"):
        monkeypatch.setenv(name, os.environ.get(name, "dummy"))
    examining = env_probe._Examining(EnvFactory(env), False, None, True)

    with contextlib.ExitStack() as at_end:
        if not text:
            assert isinstance(examining(lambda answer: None, at_end), env_probe.Probed)
            return
        with pytest.raises(EnvError) as caught:
            examining(lambda answer: None, at_end)

    assert text in str(caught.value)
    assert str(caught.value).startswith(f"--env={env}: ")


def test_a_missing_package_is_named_before_an_env_is_made(spawner: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)

    with pytest.raises(ConfigError, match=r"^--eval_video: the package imageio_ffmpeg cannot be imported"):
        probe_env(spawner, factory_of("absent"), BOUND_S, drawn=True)
