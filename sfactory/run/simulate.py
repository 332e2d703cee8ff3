"""Room: pure simulation, the ceiling of any sampler. In: a factory, worker counts. Out: env steps per second.

The same envs in the same number of processes, random actions drawn beforehand, no policy, no shared memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from sfactory.actor.gpus import see_gpu_of
from sfactory.clock import Deadline, now
from sfactory.env.api import EnvFactory
from sfactory.env.vector import VectorEnv, autoreset_mode, single_spaces
from sfactory.errors import WorkerDied
from sfactory.run.child import leave, prepare_process
from sfactory.run.nursery import Nursery
from sfactory.run.signals import signals_held_back
from sfactory.shared.gate import Gate

_ACTIONS = 1024
_SWEEPS = 64  # actions between two looks at the clock
_BOOT_S = 120.0


def pure_simulation(
    nursery: Nursery,
    factory: EnvFactory,
    workers: int,
    envs: int,
    cores: list[int | None],
    seconds: float,
    gpus: Sequence[int] = (),
) -> float:
    """Env steps per second of ``workers`` processes with ``envs`` environments each, over ``seconds``."""
    start_gate = Gate()
    started: list[tuple[ForkServerProcess, Any]] = []

    def start(worker: int) -> None:
        # A signal here would leave a process behind that nobody knows of.
        with signals_held_back():
            receiver, sender = nursery.pipe()
            process = nursery.start_plain(
                _simulate, factory, worker, envs, cores[worker], seconds, tuple(gpus), start_gate, sender
            )
            sender.close()
            started.append((process, receiver))

    deadline = Deadline(seconds + _BOOT_S)

    def answers() -> list[float]:
        for process, receiver in started:
            connection.wait([receiver, process.sentinel], deadline.left)
            if not receiver.poll():
                raise WorkerDied(f"a process of the pure simulation ended or hung (exit code {process.exitcode})")
        return [receiver.recv() for _, receiver in started]

    try:
        for worker in range(workers):
            start(worker)
        answers()  # every process is ready: none may start while another still makes its envs
        start_gate.open()
        return sum(answers())
    except EOFError as error:
        raise WorkerDied("a process of the pure simulation ended before it could report") from error
    finally:
        for process, receiver in started:
            process.kill()
            process.join(5.0)
            receiver.close()


def _simulate(
    factory: EnvFactory,
    worker: int,
    count: int,
    core: int | None,
    seconds: float,
    gpus: tuple[int, ...],
    start_gate: Gate,
    sender: Any,
) -> None:
    prepare_process(f"sf-sim-{worker}")
    see_gpu_of(worker, gpus)
    if core is not None:
        os.sched_setaffinity(0, {core})
    measure = (_vector_env if factory.makes_vectors else _plain_envs)(factory, worker, count)
    sender.send(0.0)
    if start_gate.wait(_BOOT_S):
        sender.send(measure(seconds))
    sender.close()
    leave(0)


def _plain_envs(factory: EnvFactory, worker: int, count: int) -> Callable[[float], float]:
    """Make and reset ``count`` envs; returns what measures them."""
    envs = [factory() for _ in range(count)]
    for index, env in enumerate(envs):
        env.reset(seed=1000 * worker + index)
    envs[0].action_space.seed(worker)
    return lambda seconds: steps_per_second(envs, seconds)


def _vector_env(factory: EnvFactory, worker: int, count: int) -> Callable[[float], float]:
    """Make and reset one vector env of ``count``; returns what measures it."""
    env = factory.vector(count, seed=1000 * worker)
    env.reset(seed=1000 * worker)
    return lambda seconds: vector_steps_per_second(env, worker, seconds)


def random_actions(env: Any, count: int) -> list[Any]:
    """So many random actions of ``env``; indices as Python's integers, which envs take faster than numpy's."""
    actions = [env.action_space.sample() for _ in range(count)]
    if actions and getattr(actions[0], "shape", None) == ():
        actions = [action.item() for action in actions]
    return actions


def steps_per_second(envs: list[Any], seconds: float) -> float:
    """Step ``envs`` with random actions for ``seconds``, resetting those that end."""
    actions = random_actions(envs[0], _ACTIONS)
    steps, start = 0, now()
    position = 0
    while now() - start < seconds:
        for action in actions[position : position + _SWEEPS]:
            for env in envs:
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
        steps += _SWEEPS * len(envs)
        position = (position + _SWEEPS) % _ACTIONS
    return steps / (now() - start)


def vector_steps_per_second(env: VectorEnv, seed: int, seconds: float) -> float:
    """Step a vector env with random actions for ``seconds``; it resets what ends by itself.

    Counted are env steps: an env that is reset by the step after its episode's end (NEXT_STEP) makes none in it.
    """
    actions = batch_space(single_spaces(env)[1], env.num_envs)
    actions.seed(seed)
    batches = [actions.sample() for _ in range(_SWEEPS)]
    resets_next_step = autoreset_mode(env) is AutoresetMode.NEXT_STEP
    steps, ended, start = 0, 0, now()
    while now() - start < seconds:
        for batch in batches:
            _, _, terminated, truncated, _ = env.step(batch)
            steps += env.num_envs - ended
            if resets_next_step:
                ended = int(np.count_nonzero(np.logical_or(terminated, truncated)))
    return steps / (now() - start)
