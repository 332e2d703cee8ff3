"""Room: actors and envs that are out of step with each other from the start. In: seeds, a share of a time. Out: delays.

Envs that all begin an episode at once, in workers that all complete their slots at once, give the learner batches
whose steps are alike. ``warm_up`` puts the envs of one worker at different moments of their episodes, ``FirstWait``
puts workers at different moments of their rollouts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sfactory.actor.env_batch import EnvBatch
from sfactory.actor.multi_agent_batch import MultiAgentBatch
from sfactory.actor.recorder import AgentsRecorder
from sfactory.actor.split import Split
from sfactory.clock import BLOCK_S, Deadline
from sfactory.env.conversion import ObsWriter
from sfactory.shared.control import Control
from sfactory.shared.status import StatusRow, Stopwatch


def warm_up(split: Split, env: int, steps: int, seed: int, control: Control, row: StatusRow) -> None:
    """Take ``steps`` random actions in env ``env`` of a freshly reset split; ends early if a stop is ordered.

    An episode that ends meanwhile is followed by a reset and is not told. The episode that runs in the end keeps
    what it has gathered: its return and length will be those of the whole episode.
    """
    group = split.group
    # Envs of a vector env cannot be stepped one by one.
    assert isinstance(group, EnvBatch)
    assert isinstance(split.writer, ObsWriter)
    game = group.envs[env]
    game.action_space.seed(seed)
    obs, episode_return, length = group.observations[env], 0.0, 0
    for _ in range(steps):
        if control.stopping:
            break
        row.begin_work()
        obs, reward, terminated, truncated, _ = game.step(game.action_space.sample())
        episode_return, length = episode_return + float(reward), length + 1
        if terminated or truncated:
            obs, episode_return, length = game.reset()[0], 0.0, 0
    group.observations[env] = obs
    if length:
        split.writer.check(obs, f"env {env} of split {split.index}, after {steps} random steps")
        split.tally.resume_episode(env, episode_return, length)
        split.recorder.begin_within_episode([env])


def warm_up_agents(split: Split, env: int, steps: int, seed: int, control: Control, row: StatusRow) -> None:
    """As ``warm_up``, in env ``env`` of a split of envs with many agents: all of them take random actions."""
    group, recorder = split.group, split.recorder
    assert isinstance(group, MultiAgentBatch)
    assert isinstance(recorder, AgentsRecorder)
    game, size = group.envs[env], group.agents
    game.action_space.seed(seed)
    observations: Sequence[Any] = group.observations[env * size : (env + 1) * size]
    activity, returns, length = group.activity(env), [0.0] * size, 0
    for _ in range(steps):
        if control.stopping:
            break
        row.begin_work()
        observations, rewards, change = game.step([game.action_space.sample() for _ in range(size)])
        returns = [earned + float(reward) for earned, reward in zip(returns, rewards, strict=True)]
        length += 1
        if change is not None and activity.change(change, observations).over:
            observations, returns, length = game.reset(), [0.0] * size, 0
            activity.begin(observations)
    group.place(env, observations)
    if length:
        split.writer.check_all(group.observations, group.size, f"split {split.index}, after {steps} random steps")
        recorder.begin_within(env, returns, length)


class FirstWait:
    """Holds an actor up once, when each of its splits has completed its first trajectory."""

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
