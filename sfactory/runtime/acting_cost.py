"""Room: what a step costs an actor's core: the env's own, and choosing its action. In: an env, a model. Out: us.

Measured only where it decides something, for a fraction of a second each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import torch

from sfactory.clock import now
from sfactory.config.schema import ModelConfig
from sfactory.env.agents import AgentsEnv
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.precision import ActingTwin, compute_dtype
from sfactory.runtime.random_steps import Agents, random_actions, random_actions_of_agents
from sfactory.spec import EnvSpec

MEASURED_S = 0.25
_ACTIONS = 64


def env_step_us(env: gymnasium.Env[Any, Any], seconds: float = MEASURED_S) -> float:
    """Microseconds of one ``env.step`` with random actions, the mean over ``seconds``; resets are not counted."""
    actions = random_actions(env, _ACTIONS)
    env.reset()
    steps, spent, end = 0, 0.0, now() + seconds
    while not steps or now() < end:
        before = now()
        _, _, terminated, truncated, _ = env.step(actions[steps % _ACTIONS])
        spent += now() - before
        steps += 1
        if terminated or truncated:
            env.reset()
    return 1e6 * spent / steps


def agents_step_us(env: AgentsEnv, seconds: float = MEASURED_S) -> float:
    """As ``env_step_us``, per agent."""
    actions, game = random_actions_of_agents(env, _ACTIONS), Agents(env)
    steps, spent, end = 0, 0.0, now() + seconds
    while not steps or now() < end:
        before = now()
        observations, _, change = env.step(actions[steps % _ACTIONS])
        spent += now() - before
        steps += 1
        if change is not None:
            game.change(change, observations)
    return 1e6 * spent / (steps * len(env.agents))


def forward_us(spec: EnvSpec, config: ModelConfig, rows: int, seconds: float = MEASURED_S) -> float:
    """Microseconds per row of acting on ``rows`` rows at once on one core, the mean over ``seconds``."""
    with torch.random.fork_rng(devices=[]), _one_thread(), torch.inference_mode():
        dtype = compute_dtype(config.amp, torch.device("cpu"))
        model = ActingTwin(ActorCritic(spec, config, dtype).eval()).model
        obs = {key: torch.from_numpy(np.zeros((rows, *tensor.shape), tensor.dtype)) for key, tensor in spec.obs}
        state = model.fresh_state(rows)
        model.act(obs, state)  # the first pass allocates what later ones use again
        passes, start = 0, now()
        while not passes or now() < start + seconds:
            model.act(obs, state)
            passes += 1
        return 1e6 * (now() - start) / (passes * rows)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
