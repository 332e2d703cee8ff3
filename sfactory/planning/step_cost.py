"""Measures the cost of env steps and of choosing actions, and the speed of envs under random actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from sfactory.actor.multi_agent_batch import AgentActivity
from sfactory.clock import now
from sfactory.config.schema import ModelConfig
from sfactory.env.legal_actions import LegalActions
from sfactory.env.multi_agent import AgentsEnv, Change
from sfactory.env.vector import VectorEnv, autoreset_mode, single_spaces
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.precision import ActingTwin, compute_dtype
from sfactory.model.torch_state import OwnTorchState
from sfactory.spec import EnvSpec

if TYPE_CHECKING:
    from sfactory.env.factory import Env

Begin = Callable[[], None]  # called before calls that may hang

_PREPARED_ACTIONS = 1024
_MOST_SWEEPS = 64  # actions between two readings of the clock, where envs are fast
_SWEEP_S = 0.02  # the time between two readings, where envs are slow
MEASURED_S = 0.25
_ACTIONS = 64


def random_actions(env: Any, count: int) -> list[Any]:
    """``count`` random actions of ``env``, each a list if it has many agents; numpy's numbers, as in training."""
    agents = len(env.agents) if isinstance(env, AgentsEnv) else 1
    actions = [env.action_space.sample() for _ in range(count * agents)]
    if actions and getattr(actions[0], "shape", None) == ():
        actions = [action[()] for action in actions]  # of a Box they are arrays without a dimension
    if not isinstance(env, AgentsEnv):
        return actions
    return [actions[first : first + agents] for first in range(0, len(actions), agents)]


class _Sweeps:
    """Yields slices of a list of ``count`` actions for ``seconds``, longer ones for faster envs.

    Between two slices the clock is read and ``begin`` is called. elapsed: the real duration.
    """

    def __init__(self, count: int, seconds: float, begin: Begin) -> None:
        self._count, self._seconds, self._begin = count, seconds, begin
        self.elapsed = 0.0

    def __iter__(self) -> Iterator[slice]:
        position, size, start = 0, 1, now()
        while self.elapsed < self._seconds:
            if position + size > self._count:
                position = 0
            self._begin()
            yield slice(position, position + size)
            position += size
            before, self.elapsed = self.elapsed, now() - start
            if self.elapsed - before < _SWEEP_S / 2:
                size = min(2 * size, _MOST_SWEEPS)
            elif self.elapsed - before > 2 * _SWEEP_S:
                size = max(size // 2, 1)


def steps_per_second(envs: list[Any], seconds: float, begin: Begin = lambda: None) -> float:
    """Step ``envs`` with random actions for ``seconds``, with a reset at the end of an episode."""
    actions = random_actions(envs[0], _PREPARED_ACTIONS)
    steps, sweeps = 0, _Sweeps(_PREPARED_ACTIONS, seconds, begin)
    for sweep in sweeps:
        for action in actions[sweep]:
            for env in envs:
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
        steps += (sweep.stop - sweep.start) * len(envs)
    return steps / sweeps.elapsed


class Agents:
    """An env of many agents that is reset whenever its episode ends."""

    def __init__(self, env: AgentsEnv, seed: int | None = None) -> None:
        self.env, self._activity = env, AgentActivity(len(env.agents))
        self.shown: Sequence[Any] = env.reset(seed=seed)
        self._activity.begin(self.shown)

    def change(self, change: Change, observations: Sequence[Any]) -> Sequence[Any]:
        """Take in the ``change`` of a step: reset the env if it ended the env's episode. Returns what it shows then."""
        if self._activity.change(change, observations).over:
            observations = self.env.reset()
            self._activity.begin(observations)
        return observations


def agents_steps_per_second(games: list[Agents], seconds: float, begin: Begin = lambda: None) -> float:
    """As ``steps_per_second``, of envs with many agents; a step of an env counts once, for all agents together."""
    actions = random_actions(games[0].env, _PREPARED_ACTIONS)
    stepped = [(game.env.step, game) for game in games]
    steps, sweeps = 0, _Sweeps(_PREPARED_ACTIONS, seconds, begin)
    for sweep in sweeps:
        for action in actions[sweep]:
            for step, game in stepped:
                observations, _, change = step(action)
                if change is not None:
                    game.change(change, observations)
        steps += (sweep.stop - sweep.start) * len(games)
    return steps / sweeps.elapsed


def vector_steps_per_second(env: VectorEnv, seed: int, seconds: float, begin: Begin = lambda: None) -> float:
    """As ``steps_per_second``, of a vector env; in NEXT_STEP mode the step that only resets an env does not count."""
    actions = batch_space(single_spaces(env)[1], env.num_envs)
    actions.seed(seed)
    batches = [actions.sample() for _ in range(_MOST_SWEEPS)]
    resets_next_step = autoreset_mode(env) is AutoresetMode.NEXT_STEP
    steps, ended, sweeps = 0, 0, _Sweeps(_MOST_SWEEPS, seconds, begin)
    for sweep in sweeps:
        for batch in batches[sweep]:
            _, _, terminated, truncated, _ = env.step(batch)
            steps += env.num_envs - ended
            if resets_next_step:
                ended = int(np.count_nonzero(np.logical_or(terminated, truncated)))
    return steps / sweeps.elapsed


def env_step_us(env: Env | AgentsEnv, spec: EnvSpec, seconds: float = MEASURED_S, begin: Begin = lambda: None) -> float:
    """Microseconds of ``env.step`` per agent with random, legal actions, the mean over ``seconds``.

    Neither resets nor the choice of actions count.
    """
    begin()
    actions, game = random_actions(env, _ACTIONS), None
    legal = LegalActions(spec, env, np.random.default_rng(0)) if spec.masks else None
    if isinstance(env, AgentsEnv):
        game = Agents(env)
        shown = game.shown
    else:
        shown = [env.reset()[0]]
    steps, spent, end = 0, 0.0, now() + seconds
    while not steps or now() < end:
        begin()
        chosen: Any = actions[steps % _ACTIONS]
        if legal is not None:
            chosen = legal.of(shown) if game is not None else legal.of(shown)[0]
        before = now()
        step: Any = env.step(chosen)
        spent += now() - before
        steps += 1
        if game is not None:
            shown, _, change = step
            if change is not None:
                shown = game.change(change, shown)
        else:
            shown = [env.reset()[0] if step[2] or step[3] else step[0]]  # terminated or truncated
    return 1e6 * spent / (steps * spec.num_agents)


def forward_us(spec: EnvSpec, config: ModelConfig, rows: int, seconds: float = MEASURED_S) -> float:
    """Microseconds per row of acting on ``rows`` rows at once on one core, the mean over ``seconds``."""
    with torch.random.fork_rng(devices=[]), OwnTorchState(), torch.inference_mode():
        dtype = compute_dtype(config.amp, torch.device("cpu"))
        model = ActingTwin(ActorCritic(spec, config, dtype).eval()).model
        obs = {key: torch.from_numpy(np.zeros((rows, *tensor.shape), tensor.dtype)) for key, tensor in spec.obs}
        state = model.fresh_state(rows)
        model.act(obs, state)  # the first pass allocates memory that later ones reuse
        passes, start = 0, now()
        while not passes or now() < start + seconds:
            model.act(obs, state)
            passes += 1
        return 1e6 * (now() - start) / (passes * rows)
