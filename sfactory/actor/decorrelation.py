"""Puts envs and actors out of step with each other at the start.

If all envs begin an episode at once and all workers complete their slots at once, the learner gets batches of similar
steps. ``warm_up`` puts the envs of one worker at different moments of their episodes, ``FirstWait`` puts workers at
different moments of their rollouts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from sfactory.actor.env_batch import EnvBatch
from sfactory.actor.multi_agent_batch import MultiAgentBatch
from sfactory.actor.split import Split
from sfactory.clock import BLOCK_S, Deadline
from sfactory.shared.control import Control
from sfactory.shared.status import StatusRow, Stopwatch


def warm_up(split: Split, env: int, steps: int, seed: int, control: Control, row: StatusRow) -> None:
    """Take ``steps`` random actions in env ``env`` of a freshly reset split; ends early if a stop is ordered.

    An episode that ends meanwhile is followed by a reset and is not reported. The episode that runs in the end keeps
    what it has gathered: its return and length will be those of the whole episode.
    """
    batch = split.batch

    def may_step() -> bool:
        row.begin_work()
        return not control.stopping

    batch.envs[env].action_space.seed(seed)
    if isinstance(batch, MultiAgentBatch):
        observation, returns, length = _random_agent_steps(batch, env, steps, may_step)
        batch.place(env, observation)
    else:
        assert isinstance(batch, EnvBatch), "envs of a vector env cannot be stepped one by one"
        observation, returns, length = _random_steps(batch, env, steps, may_step)
        batch.observations[env] = observation
    if length:
        split.check_observations(f"split {split.index}, after {steps} random steps")
        split.resume_episodes(range(env * len(returns), (env + 1) * len(returns)), returns, length)


def _random_steps(batch: EnvBatch, env: int, steps: int, may_step: Callable[[], bool]) -> tuple[Any, list[float], int]:
    """Observation, return (a list of one) and length so far of the episode that runs after the steps."""
    game = batch.envs[env]
    obs, episode_return, length = batch.observations[env], 0.0, 0
    for _ in range(steps):
        if not may_step():
            break
        obs, reward, terminated, truncated, _ = game.step(game.action_space.sample())
        episode_return, length = episode_return + float(reward), length + 1
        if terminated or truncated:
            obs, episode_return, length = game.reset()[0], 0.0, 0
    return obs, [episode_return], length


def _random_agent_steps(
    batch: MultiAgentBatch, env: int, steps: int, may_step: Callable[[], bool]
) -> tuple[Sequence[Any], list[float], int]:
    """Observations and returns of the A agents, and length so far, of the episode that runs after the steps."""
    game, size, activity = batch.envs[env], batch.agents, batch.activities[env]
    observations: Sequence[Any] = batch.observations[env * size : (env + 1) * size]
    returns, length = [0.0] * size, 0
    for _ in range(steps):
        if not may_step():
            break
        observations, rewards, change = game.step([game.action_space.sample() for _ in range(size)])
        returns = [earned + float(reward) for earned, reward in zip(returns, rewards, strict=True)]
        length += 1
        if change is not None and activity.change(change, observations).over:
            observations, returns, length = game.reset(), [0.0] * size, 0
            activity.begin(observations)
    return observations, returns, length


class FirstWait:
    """Makes an actor wait once, when each of its splits has completed its first trajectory."""

    def __init__(self, splits: int, seconds: float, control: Control, watch: Stopwatch) -> None:
        self._missing = set(range(splits)) if seconds > 0 else set()
        self._seconds, self._control, self._watch = seconds, control, watch

    def completed(self, split: int) -> None:
        """``split`` has completed a trajectory. Blocks, if it was the last to do so, until time is up or a stop."""
        if split not in self._missing:
            return
        self._missing.remove(split)
        if self._missing:
            return
        self._watch.before_wait()
        deadline = Deadline(self._seconds)
        while not deadline.passed and not self._control.stopping:
            time.sleep(min(BLOCK_S, deadline.left))
            self._watch.after_wait()
            self._watch.before_wait()
        self._watch.after_wait()
