"""An env of many agents that follows a script and records its actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium.spaces as spaces
import numpy as np

from sfactory.env.multi_agent import AgentsEnv, AgentsStep, Change

NAMES = ("ann", "bob")


class Changes(NamedTuple):
    """What one step changes, for two agents; by place."""

    terminated: Sequence[int] = ()
    truncated: Sequence[int] = ()
    asleep: Sequence[int] = ()


class ScriptedAgents(AgentsEnv):
    """Two agents, ann and bob. Agent a shows 100 x episode + 10 x step + a + ``base``, and earns that number plus 0.5.

    script: by number of the step in the life of the env, from 1, what it changes; who is over is asleep, too. fails:
    the numbers of steps that raise; failing_resets: those of resets. odd: by number of the step, what agent 1 shows or,
    with odd_rewards, earns instead. taken: the actions it was given.
    """

    agents: tuple[str, ...] = NAMES
    metadata: Mapping[str, Any] = {"render_modes": []}
    render_mode = None

    def __init__(
        self,
        script: Mapping[int, Changes] | None = None,
        *,
        fails: Sequence[int] = (),
        failing_resets: Sequence[int] = (),
        odd: Mapping[int, Any] | None = None,
        odd_rewards: Mapping[int, Any] | None = None,
        base: float = 0.0,
    ) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(10)
        self._script, self._fails, self._failing_resets = script or {}, fails, failing_resets
        self._odd, self._odd_rewards, self._base = odd or {}, odd_rewards or {}, base
        self._episode, self._step, self._number = -1, 0, 0
        self._over: set[int] = set()
        self._active = [True, True]
        self.taken: list[list[Any]] = []
        self.seeds: list[int | None] = []
        self.closed = 0

    def reset(self, *, seed: int | None = None) -> list[Any]:
        self.seeds.append(seed)
        self._episode, self._step, self._over, self._active = self._episode + 1, 0, set(), [True, True]
        if len(self.seeds) in self._failing_resets:
            raise RuntimeError(f"reset {len(self.seeds)} fails")
        return [self._obs(0), self._obs(1)]

    def step(self, actions: Sequence[Any]) -> AgentsStep:
        self._number += 1
        self.taken.append(list(actions))
        if self._number in self._fails:
            raise RuntimeError(f"step {self._number} fails")
        rewards = [float(self._obs(agent)[0]) + 0.5 for agent in range(2)]
        rewards[1] = self._odd_rewards.get(self._number, rewards[1])
        self._step += 1
        shown = [self._obs(0), self._odd.get(self._number, self._obs(1))]
        changes = self._script.get(self._number, Changes())
        self._over |= {*changes.terminated, *changes.truncated}
        active = [agent not in self._over and agent not in changes.asleep for agent in range(2)]
        ends = [[agent in ended for agent in range(2)] for ended in (changes.terminated, changes.truncated)]
        changed = active != self._active or any(map(any, ends))
        self._active = active
        return shown, rewards, Change(ends[0], ends[1], active, [{}, {}]) if changed else None

    def render(self) -> None:
        """There is nothing to be seen."""

    def close(self) -> None:
        self.closed += 1

    def _obs(self, agent: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.array([100 * self._episode + 10 * self._step + agent + self._base], np.float32)
