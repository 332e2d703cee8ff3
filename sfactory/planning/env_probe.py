"""Room: looking at an env before training. In: a factory. Out: its spec, or a teaching EnvError.

The env is made, reset and stepped once in a throw-away process: an env that crashes, hangs or starts threads
does so there, and before anything else was started.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import traceback
from collections.abc import Sequence
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from sfactory.clock import Deadline
from sfactory.env.conversion import ObsWriter, action_reader
from sfactory.env.factory import EnvFactory
from sfactory.env.lifecycle import close_env, see_gpu_of
from sfactory.env.multi_agent import AgentsEnv
from sfactory.env.reward_shaping import Scheme, default_scheme
from sfactory.errors import EnvError, SFactoryError
from sfactory.planning.env_checker import examine_agents, examine_vector, require_finite
from sfactory.planning.step_cost import agents_step_us, env_step_us
from sfactory.process.spawn import Spawner, leave, prepare_process
from sfactory.process.stack_dump import StackFile
from sfactory.spec import EnvSpec

log = logging.getLogger(__name__)

_STACK_S = 0.5  # for the answer of a process that hangs


class Probed(NamedTuple):
    """What is known of an env. step_us: microseconds of a step per agent; None if that was not asked for, and of vector
    envs, where it depends on how many there are."""

    spec: EnvSpec
    step_us: float | None = None
    reward_shaping: Scheme | None = None


def probe_env(
    spawner: Spawner, factory: EnvFactory, timeout_s: float, gpus: Sequence[int] = (), timed: bool = False
) -> Probed:
    """Look at the env that ``factory`` makes; raises EnvError naming what is wrong with it.

    gpus: as ``--actor_worker_gpus``; the env sees what those of the first actor will see. timed: measure its steps.
    """
    for worker in range(len(gpus)):
        see_gpu_of(worker, gpus, dict(os.environ))  # refuses those that are not there
    receiver, sender = spawner.pipe()
    stack = StackFile()
    process = spawner.start_plain(_probe_child, factory, tuple(gpus), timed, stack, sender)
    sender.close()
    deadline = Deadline(timeout_s)
    try:
        connection.wait([receiver, process.sentinel], deadline.left)
        if receiver.poll():
            answer = receiver.recv()
        elif process.is_alive():
            _show_stack(process, stack)
            raise EnvError(
                f"--env={factory.name}: not made, reset and stepped within --reset_timeout_seconds={timeout_s:g}"
            )
        else:
            process.join(deadline.left)
            raise EnvError(_died(factory, process.exitcode))
    except EOFError:
        process.join(deadline.left)
        raise EnvError(_died(factory, process.exitcode)) from None
    finally:
        process.kill()
        process.join(5.0)
        receiver.close()
    if isinstance(answer, str):
        raise EnvError(answer)
    assert isinstance(answer, Probed)
    return answer


def _show_stack(process: ForkServerProcess, stack: StackFile) -> None:
    stack.ask(process)
    connection.wait([process.sentinel], _STACK_S)
    log.warning("sf-probe hung here:\n%s", stack.read().rstrip())


def _died(factory: EnvFactory, exit_code: int | None) -> str:
    return f"--env={factory.name}: its process died while the env was made, reset or stepped (exit code {exit_code})"


def _probe_child(factory: EnvFactory, gpus: tuple[int, ...], timed: bool, stack: StackFile, sender: Any) -> None:
    prepare_process("sf-probe", stack)
    try:
        see_gpu_of(0, gpus)
        answer: Probed | str = examine(factory, timed)
    except SFactoryError as error:
        answer = str(error)
    except BaseException as error:
        answer = f"--env={factory.name}: {_last_words(error)}"
    with contextlib.suppress(BrokenPipeError):  # main was interrupted, and asks no more
        sender.send(answer)
    sender.close()
    leave(0)


def examine(factory: EnvFactory, timed: bool = False) -> Probed:
    """Make, reset and step an env once, holding it to the interface; ``timed``: then step it for a moment."""
    if factory.makes_vectors:
        return Probed(examine_vector(factory))
    name = f"--env={factory.name}"
    env = factory.either()
    if isinstance(env, AgentsEnv):
        spec = examine_agents(env, name)
        step_us, scheme = agents_step_us(env) if timed else None, default_scheme(env)
        close_env(env, name)
        return Probed(spec, step_us, scheme)
    if not isinstance(env, gymnasium.Env):
        raise EnvError(f"{name}: the factory returned a {type(env).__name__}; it must return a gymnasium.Env")
    return _examine_single(env, name, timed)


def _examine_single(env: gymnasium.Env[Any, Any], name: str, timed: bool) -> Probed:
    try:
        spec = EnvSpec.of_spaces(env.observation_space, env.action_space)
    except EnvError as error:
        raise EnvError(f"{name}: {error}") from None
    writer = ObsWriter(spec, env.observation_space)
    reset = env.reset(seed=0)
    if not (isinstance(reset, tuple) and len(reset) == 2 and isinstance(reset[1], dict)):
        raise EnvError(f"{name}: reset() must return (observation, info dict), as Gymnasium's interface has it")
    writer.check(reset[0], f"{name}, reset()")
    step = env.step(_some_action(spec, env))
    if not (isinstance(step, tuple) and len(step) == 5):
        raise EnvError(f"{name}: step() must return (observation, reward, terminated, truncated, info)")
    writer.check(step[0], f"{name}, step()")
    for where, obs in (("reset()", reset[0]), ("step()", step[0])):
        require_finite(writer, spec, [obs], 1, f"{name}, {where}")
    try:
        reward = float(step[1])
    except (TypeError, ValueError):
        raise EnvError(f"{name}: step() returned the reward {step[1]!r}, which is no number") from None
    if not math.isfinite(reward):
        raise EnvError(f"{name}: step() returned the reward {reward}; rewards must be finite")
    step_us, scheme = env_step_us(env) if timed else None, default_scheme(env)
    env.close()
    return Probed(spec, step_us, scheme)


def _some_action(spec: EnvSpec, env: gymnasium.Env[Any, Any]) -> Any:
    """A legal action, through the same translation that training uses."""
    rows = {head.key: np.zeros((1, *head.tensor.shape), head.tensor.dtype) for head in spec.actions}
    return action_reader(env.action_space)(rows)[0]


def _last_words(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (at {os.path.relpath(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
