"""Measures pure simulation, the upper bound of any sampler: the processes and envs of a run under random actions."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from typing import Any

from sfactory.clock import BLOCK_S, now
from sfactory.config.schema import SamplingConfig
from sfactory.env.factory import EnvFactory
from sfactory.env.lifecycle import see_gpu_of
from sfactory.env.multi_agent import AgentsEnv
from sfactory.errors import ResourceError, WorkerDied, traceback_of
from sfactory.planning.step_cost import (
    Agents,
    Begin,
    agents_steps_per_second,
    env_step_us,
    steps_per_second,
    vector_steps_per_second,
)
from sfactory.process.signals import signals_held_back
from sfactory.process.spawn import Spawner, leave, prepare_process
from sfactory.process.stack_dump import StackDump
from sfactory.shared.memory import SharedEvent
from sfactory.shared.status import StatusBoard, StatusRow
from sfactory.spec import EnvSpec
from sfactory.system.cores import Cores

_JOIN_S = 1.0
_SETUP_S = 120.0  # time limit of a process before it starts to create its first env


@dataclass(frozen=True)
class _Simulator:
    """A process that steps envs. ``row`` holds the start time of its current work."""

    name: str
    process: ForkServerProcess
    receiver: Any
    row: StatusRow
    stack: StackDump
    started_at: float


class _Simulators(contextlib.AbstractContextManager["_Simulators"]):
    """All processes of one pure simulation. A context manager that kills them at exit."""

    def __init__(self, spawner: Spawner, env: str, limit_s: float) -> None:
        """``limit_s``: time limit for creating one env, for its reset, and for one sweep of steps."""
        self._spawner, self._env, self._limit_s = spawner, env, limit_s
        self._all: list[_Simulator] = []

    def __exit__(self, *_: object) -> None:
        for simulator in self._all:
            self._spawner.kill(simulator.process)
        for simulator in self._all:
            simulator.process.join(5.0)
            simulator.receiver.close()
        self._spawner.end_orphans(5.0)

    def start(self, name: str, row: StatusRow, *given: Any) -> None:
        """Start a process that runs ``_simulate(*given, ...)``."""
        # A signal between start and append would leave an untracked process behind.
        with signals_held_back():
            receiver, sender = self._spawner.pipe()
            stack = StackDump()
            try:
                process = self._spawner.start(name, _simulate, *given, stack, sender)
            except ResourceError as error:
                raise WorkerDied(str(error)) from None  # a refusal would say that nothing was started
            sender.close()
            self._all.append(_Simulator(name, process, receiver, row, stack, now()))

    def answers(self) -> list[float]:
        """Receive one number from each process; raises WorkerDied if one ends or hangs first."""
        answers: dict[str, float] = {}
        while len(answers) < len(self._all):
            missing = [simulator for simulator in self._all if simulator.name not in answers]
            connection.wait([end for one in missing for end in (one.receiver, one.process.sentinel)], BLOCK_S)
            for simulator in missing:
                alive = simulator.process.is_alive()  # read before poll(): a dead process sends nothing more
                if simulator.receiver.poll() or not alive:
                    answers[simulator.name] = self._answer(simulator)
                else:
                    self._require_headway(simulator)
        return list(answers.values())

    def _answer(self, simulator: _Simulator) -> float:
        try:
            if not simulator.receiver.poll():
                raise EOFError  # recv() would wait if a process that the env started still holds the pipe
            answer = simulator.receiver.recv()
        except EOFError:
            simulator.process.join(_JOIN_S)
            raise WorkerDied(
                self._spawner.loss(simulator.process)
                or f"{simulator.name}, a process of the pure simulation ended before it could report "
                f"(--env={self._env}, exit code {simulator.process.exitcode})"
            ) from None
        if isinstance(answer, str):
            cause = answer.rstrip().splitlines()[-1]
            raise WorkerDied(f"{answer}\n{simulator.name}, a process of the pure simulation, failed: {cause}")
        assert isinstance(answer, float)
        return answer

    def _require_headway(self, simulator: _Simulator) -> None:
        since = simulator.row.get("busy_since")
        limit_s = self._limit_s if since else max(self._limit_s, _SETUP_S)
        if now() - (since or simulator.started_at) <= limit_s:
            return
        raise WorkerDied(
            f"{simulator.name} hung here:\n{simulator.stack.request(simulator.process).wait()}\n"
            f"--env={self._env} hangs: a process of the pure simulation was busy with making one environment, with "
            f"its reset, or with a few steps for longer than --reset_timeout_seconds={self._limit_s:g}"
        )


def pure_simulation(
    spawner: Spawner, factory: EnvFactory, sampling: SamplingConfig, cores: Cores, seconds: float
) -> float:
    """Env steps per second of the processes and envs of ``sampling``; raises WorkerDied if one fails or hangs."""
    names = [f"sf-sim-{worker}" for worker in range(sampling.num_workers)]
    status, start_gate = StatusBoard(names), SharedEvent()
    with _Simulators(spawner, factory.name, sampling.reset_timeout_seconds) as simulators:
        for worker, name in enumerate(names):
            given = factory, worker, sampling, cores, seconds, start_gate, status
            simulators.start(name, status.row(name), *given)
        simulators.answers()  # wait until all processes have created their envs, then start together
        start_gate.open()
        return sum(simulators.answers())


def _simulate(
    factory: EnvFactory,
    worker: int,
    sampling: SamplingConfig,
    cores: Cores,
    seconds: float,
    start_gate: SharedEvent,
    status: StatusBoard,
    stack: StackDump,
    sender: Any,
) -> None:
    name = f"sf-sim-{worker}"
    prepare_process(name, stack)
    row = status.row(name)
    answer: float | str
    try:
        see_gpu_of(worker, sampling.actor_worker_gpus)
        own_cores = cores.cores_of_actor(worker, sampling.num_workers)
        if own_cores is not None and sampling.set_workers_cpu_affinity:
            os.sched_setaffinity(0, own_cores)
        create = _vector_env if factory.makes_vectors else _plain_envs
        measure = create(factory, worker, sampling.num_envs_per_worker, row.begin_work)
        sender.send(0.0)
        while not start_gate.wait(BLOCK_S):  # main limits this wait and kills remaining processes
            row.begin_work()
        answer = measure(seconds)
    except BaseException as error:  # foreign code may raise anything
        answer = traceback_of(error)
    with contextlib.suppress(BrokenPipeError):  # main was interrupted and no longer reads
        sender.send(answer)
    sender.close()
    leave(0)


def _plain_envs(factory: EnvFactory, worker: int, count: int, begin: Begin) -> Callable[[float], float]:
    """Create and reset ``count`` envs; returns a function that measures their speed."""
    envs = []
    for index in range(count):
        begin()
        envs.append(replace(factory, env_index=worker * count + index).either())
    envs[0].action_space.seed(worker)
    first = envs[0]
    spec = (
        first.spec if isinstance(first, AgentsEnv) else EnvSpec.of_spaces(first.observation_space, first.action_space)
    )
    spec = spec.masked_by(factory.obs_layout)
    if spec.masks:  # most random actions are illegal, and to choose legal ones takes time that is not to count
        return lambda seconds: 1e6 / (env_step_us(first, spec, seconds, begin) * spec.num_agents)
    games: list[Agents] = []
    for seed, env in enumerate(envs, 1000 * worker):
        begin()
        if isinstance(env, AgentsEnv):
            games.append(Agents(env, seed))
        else:
            env.reset(seed=seed)
    if games:
        return lambda seconds: agents_steps_per_second(games, seconds, begin)
    return lambda seconds: steps_per_second(envs, seconds, begin)


def _vector_env(factory: EnvFactory, worker: int, count: int, begin: Begin) -> Callable[[float], float]:
    """Create and reset one vector env of ``count`` envs; returns a function that measures its speed."""
    begin()
    env = replace(factory, env_index=worker * count).vector(count, seed=1000 * worker)
    begin()
    env.reset(seed=1000 * worker)
    return lambda seconds: vector_steps_per_second(env, worker, seconds, begin)
