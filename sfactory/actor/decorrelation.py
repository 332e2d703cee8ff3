"""Puts envs and actors out of step with each other at the start.

If all envs begin an episode at once and all workers complete their slots at once, the learner gets batches of similar
steps. ``warm_up`` puts the envs of one worker at different moments of their episodes, ``FirstWait`` puts workers at
different moments of their rollouts.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from sfactory.actor.env_restarts import StopOrdered
from sfactory.actor.multi_agent_batch import MultiAgentBatch
from sfactory.actor.split import Split
from sfactory.actor.vector_batch import VectorEnvBatch
from sfactory.clock import BLOCK_S, Deadline
from sfactory.env.legal_actions import LegalActions
from sfactory.errors import EnvFaults, Passing
from sfactory.shared.control import Control
from sfactory.shared.status import StatusRow, Stopwatch


def warm_up(split: Split, env: int, steps: int, seed: int, control: Control, row: StatusRow) -> None:
    """Take ``steps`` random actions in env ``env`` of a freshly reset split; ends early if a stop is ordered.

    An episode that ends meanwhile is followed by a reset and is not reported. The episode that runs in the end keeps
    what it has gathered: its return and length will be those of the whole episode. An env that fails is recreated, as
    in later steps, and begins with a new episode.
    """
    try:
        _take_steps(split, env, steps, seed, control, row)
    except (EnvFaults, Passing):
        raise
    except BaseException as error:  # foreign code may raise anything
        with contextlib.suppress(StopOrdered):  # the actor sees the stop itself
            split.batch.recreate(env, error)


def _take_steps(split: Split, env: int, steps: int, seed: int, control: Control, row: StatusRow) -> None:
    batch = split.batch
    assert not isinstance(batch, VectorEnvBatch), "envs of a vector env cannot be stepped one by one"
    game, activity = batch.envs[env], batch.activities[env] if isinstance(batch, MultiAgentBatch) else None
    agents = batch.size // len(batch.envs)
    rows = range(env * agents, (env + 1) * agents)
    observations: Sequence[Any] = batch.observations[rows.start : rows.stop]
    returns, length = [0.0] * agents, 0
    game.action_space.seed(seed)
    legal = LegalActions(split.spec, game, np.random.default_rng(seed)) if split.spec.masks else None
    for _ in range(steps):
        row.begin_work()
        if control.stopping:
            break
        actions = [game.action_space.sample() for _ in rows] if legal is None else legal.of(observations)
        if activity is None:
            obs, reward, terminated, truncated, _ = game.step(actions[0])
            observations, rewards, over = [obs], [reward], terminated or truncated
        else:
            observations, rewards, change = game.step(actions)
            over = change is not None and activity.change(change, observations).over
        returns = [earned + float(reward) for earned, reward in zip(returns, rewards, strict=True)]
        length += 1
        if over:
            returns, length = [0.0] * agents, 0
            observations = [game.reset()[0]] if activity is None else game.reset()
            if activity is not None:
                activity.begin(observations)
    if isinstance(batch, MultiAgentBatch):
        batch.place(env, observations)
    else:
        batch.observations[env] = observations[0]
    if length:
        split.check_observations(f"split {split.index}, after {steps} random steps")
        split.resume_episodes(rows, returns, length)


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
