"""Checks an env in a process of its own, where it may crash, hang or start threads, before training starts."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Protocol, cast

import gymnasium

from sfactory.actor.reward_shaping import RewardShaping, default_reward_shaping
from sfactory.config.env_families import find_family
from sfactory.env.drawing import EVAL_VIDEO, draw_into_memory, picture_of
from sfactory.env.factory import IMAGES, EnvFactory
from sfactory.env.lifecycle import CUDA, close_env, see_gpu_of, see_gpus_of_main
from sfactory.env.multi_agent import AgentsEnv
from sfactory.env.vector import says_when_it_resets
from sfactory.errors import (
    UNDER_MAIN_GUARD,
    ConfigError,
    EnvError,
    Passing,
    ResourceError,
    SFactoryError,
    named,
    raised_at,
)
from sfactory.planning.env_checker import (
    NUM_VECTOR_ENVS,
    MasksInInfo,
    check_agents_env,
    check_env,
    check_vector_env,
    naming,
)
from sfactory.planning.step_cost import env_step_us
from sfactory.planning.tensor_env_check import check_tensor_env
from sfactory.process.signals import stdout_to_stderr
from sfactory.process.spawn import Spawner, leave, prepare_process
from sfactory.process.stack_dump import STOPPED, StackDump, is_stopped
from sfactory.spec import EnvSpec
from sfactory.system.operating_system import LINUX
from sfactory.system.optional_packages import find_ffmpeg

log = logging.getLogger(__name__)

_NOT_BEGUN = (
    "a process of the run did not get past the import of the script that starts the run, which all of them import; "
    + UNDER_MAIN_GUARD
)
_START_S = 120.0  # for what comes before the env: the fork server and the process import what they need
_CLOSES = None  # the answer before an env with masks in its infos is closed
_CLOSE_S = 5.0  # for an env's close(), which has answered by then


class Probed(NamedTuple):
    """Facts about an env.

    step_us: microseconds of a step per agent; None without a measurement and for vector envs. info_action_mask: whether
    its infos have action masks, where that was to be found out. makes_tensors: it is a TensorEnv. resets_unsaid: it is
    a vector env that no family makes, and does not say when it resets envs.
    """

    spec: EnvSpec
    step_us: float | None = None
    reward_shaping: RewardShaping | None = None
    info_action_mask: bool = False
    makes_tensors: bool = False
    resets_unsaid: bool = False


def probe_env(
    spawner: Spawner,
    factory: EnvFactory,
    timeout_s: float,
    gpus: Sequence[int] = (),
    timed: bool = False,
    drawn: bool = False,
) -> Probed:
    """Check the env of ``factory`` on the first of ``gpus``; ``timed``: and time steps; ``drawn``: and draw it once.

    Raises EnvError with a flaw, and before that what ``find_ffmpeg`` raises.
    """
    if drawn:
        find_ffmpeg(EVAL_VIDEO)
    for worker in range(len(gpus)):
        see_gpu_of(worker, gpus, dict(os.environ))  # refuses those that are not there
    work = _Examining(factory, timed, os.environ.get(CUDA), drawn)
    with probing(spawner, factory.name, work, timeout_s, gpus) as received:
        answer: Any = received()
        if answer is _CLOSES:
            again = "its infos have action masks: it is made again with them once its close() returns"
            log.info("--env=%s: %s", factory.name, again)
            answer = received()
    if isinstance(answer, str):
        raise EnvError(answer)
    return cast(Probed, answer)


class Work(Protocol):
    """What is done with an env in a process of its own. Picklable."""

    def __call__(self, tell: Callable[[Any], None], at_end: contextlib.ExitStack) -> Any:
        """Do it; returns the last answer. ``tell`` sends one before; ``at_end`` closes the env after the last."""


@contextlib.contextmanager
def probing(
    spawner: Spawner, env: str, work: Work, timeout_s: float, gpus: Sequence[int] = (), name: str = "sf-probe"
) -> Iterator[Callable[[], Any]]:
    """A process that does ``work`` with ``--env=env``; yields a function that waits for its next answer, or error text.

    The process ends with the block. Raises EnvError if it dies, or takes longer than ``timeout_s`` for an answer.
    Only Linux has such processes: elsewhere this one does the work, to its end and without a bound, before the first
    answer.
    """
    if not LINUX:
        with contextlib.ExitStack() as at_end:
            answers = deque[Any]()
            with stdout_to_stderr():
                answers.append(_last_answer(work, env, answers.append, at_end))
            yield answers.popleft
        return
    receiver, sender = spawner.pipe()
    stack = StackDump()
    process = spawner.start(name, _probe_child, name, work, env, tuple(gpus), stack, sender)
    sender.close()
    has_begun = False
    try:
        has_begun = _received(receiver, process, max(_START_S, timeout_s))
        yield functools.partial(_received, receiver, process, timeout_s)
        process.join(_CLOSE_S)
        if process.exitcode != 0:
            how = "does not return" if process.exitcode is None else f"ended its process: exit code {process.exitcode}"
            where = f"; it hangs here:\n{stack.request(process).wait()}" if process.exitcode is None else ""
            log.warning("--env=%s: close() %s; nothing is lost%s", env, how, where)
    except (EOFError, TimeoutError) as error:
        if lost := spawner.loss(process):
            raise ResourceError(lost) from None
        if not has_begun:
            raise ConfigError([_NOT_BEGUN]) from None
        if isinstance(error, EOFError):
            process.join(_CLOSE_S)
            raise EnvError(
                f"--env={env}: its process died while the env was made, reset, stepped or closed "
                f"(exit code {process.exitcode})"
            ) from None
        why = f": its process is {STOPPED}" if is_stopped(process.pid or 0) else ""
        if not why:
            log.warning("%s hung here:\n%s", name, stack.request(process).wait())
        drawn = ", drawn" if isinstance(work, _Examining) and work.drawn else ""
        raise EnvError(
            f"--env={env}: not made, reset, stepped{drawn} or closed within --reset_timeout_seconds={timeout_s:g}{why}"
        ) from None
    finally:
        spawner.kill(process)
        process.join(5.0)
        spawner.end_orphans(5.0)
        receiver.close()


def _received(receiver: Any, process: BaseProcess, within_s: float) -> Any:
    """What the process sends next. Raises EOFError if it has ended, TimeoutError if it is late."""
    connection.wait([receiver, process.sentinel], within_s)
    if receiver.poll():
        return receiver.recv()
    if process.is_alive():
        raise TimeoutError
    raise EOFError  # recv() would not, if a process that the env started still holds the pipe


def _probe_child(name: str, work: Work, env: str, gpus: tuple[int, ...], stack: StackDump, sender: Any) -> None:
    prepare_process(name, stack)
    with contextlib.ExitStack() as at_end:  # main is answered first: close() may hang, or end the process
        with contextlib.suppress(BrokenPipeError):  # main was interrupted and no longer listens
            sender.send(True)  # what happened before was no doing of the env
            sender.send(_last_answer(work, env, sender.send, at_end, gpus))
        sender.close()
    leave(0)


def _last_answer(
    work: Work,
    env: str,
    tell: Callable[[Any], None],
    at_end: contextlib.ExitStack,
    gpus: tuple[int, ...] | None = None,
) -> Any:
    """What ``work`` returns, or error text. gpus: what the env sees; None: what this process sees."""
    try:
        if gpus is not None:
            see_gpu_of(0, gpus)
        return work(tell, at_end)
    except Passing:
        raise
    except SFactoryError as error:
        return str(error)
    except BaseException as error:
        return f"--env={env}: {named(error)}{raised_at(error, everywhere=True)}"


class _Examining(NamedTuple):
    """Work of ``probe_env``."""

    factory: EnvFactory
    timed: bool
    visible_gpus: str | None  # CUDA_VISIBLE_DEVICES of main
    drawn: bool

    def __call__(self, tell: Callable[[Any], None], at_end: contextlib.ExitStack) -> Probed:
        if self.factory.device != "cpu" and self.factory.makes_tensors:
            see_gpus_of_main(self.visible_gpus)  # the env is on the device of the network
        if self.drawn and not self.factory.makes_tensors:  # such a run has no evaluations, and is refused for that
            self._draw()
        return examine(self.factory, self.timed, at_end, tell)

    def _draw(self) -> None:
        """Raise EnvError if evaluations cannot be recorded. The env is closed: some packages make one at a time."""
        name = f"--env={self.factory.name}"
        draw_into_memory()
        try:
            env = self.factory.either(IMAGES)
        except EnvError as error:
            raise EnvError(f'{error}; with {EVAL_VIDEO} it is made with render_mode="{IMAGES}"') from error
        try:
            env.reset(seed=0)
            picture_of(env, name, EVAL_VIDEO)
        finally:
            close_env(env, name)


def examine(
    factory: EnvFactory,
    timed: bool = False,
    at_end: contextlib.ExitStack | None = None,
    tell: Callable[[None], None] = lambda answer: None,
) -> Probed:
    """Make an env and hold it to its interface; ``timed``: then step it for a moment. Raises EnvError.

    The env is closed with ``at_end``, by default when this returns. tell: gets _CLOSES before one with masks in its
    infos is closed, which may hang.
    """
    if at_end is None:
        with contextlib.ExitStack() as here:
            return examine(factory, timed, here, tell)
    try:
        return _examine(factory, timed, at_end)
    except MasksInInfo:
        tell(_CLOSES)
        at_end.close()  # the next env may need what this one holds, such as a port
    with_masks = dataclasses.replace(factory, info_action_mask="on")
    return _examine(with_masks, timed, at_end)._replace(info_action_mask=True)


def _examine(factory: EnvFactory, timed: bool, at_end: contextlib.ExitStack) -> Probed:
    name = f"--env={factory.name}"
    masks = factory.info_action_mask == "auto", factory.obs_layout
    env: Any
    if factory.makes_tensors:
        env = factory.tensors(NUM_VECTOR_ENVS)
    else:
        env = factory.vector(NUM_VECTOR_ENVS, seed=0) if factory.makes_vectors else factory.either()
    at_end.callback(close_env, env, name)
    if factory.makes_tensors:
        return Probed(check_tensor_env(env, name, factory.obs_layout), makes_tensors=True)
    if factory.makes_vectors:
        unsaid = find_family(factory.name) is None and not says_when_it_resets(env)
        return Probed(check_vector_env(env, name, *masks), resets_unsaid=unsaid)
    if isinstance(env, AgentsEnv):
        spec = check_agents_env(env, name, *masks)
    elif isinstance(env, gymnasium.Env):
        spec = check_env(env, name, *masks)
    else:
        raise EnvError(f"{name}: the factory returned a {type(env).__name__}; it must return a gymnasium.Env")
    with naming(name):
        step_us = env_step_us(env, spec) if timed else None
    return Probed(spec, step_us, default_reward_shaping(env))
