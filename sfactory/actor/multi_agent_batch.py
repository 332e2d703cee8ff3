"""Steps multi-agent envs; each agent is a row of the split.

Rows lie as NOTE [Rows of agents] says. An env is stepped once for all of its agents, and the loop in ``step`` does
nothing for a single agent: lists of A are stored as wholes. Only envs with an inactive agent, or with a change of the
acting agents, cost more. An env that fails is discarded as a whole: all of its rows are ``broken``, and it is recreated
or reset once.

NOTE [Agent life]: an agent that is active in step t has the valid row t. If it is not active in step t+1 while
others of its env are, then
- terminated: terminated[t], and it is idle from row t+1 on until the env's episode is over;
- truncated: truncated[t]; row t+1 shows its final observation, is acted on for its value alone, and is invalid, as in
  NOTE [Truncation row]. It is idle from row t+2 on. If row t+1 would be the first of the next slot, the final
  observation is obs[T] alone, and it is idle at once;
- waiting, in an env whose agents act in turn: row t is its last turn, see NOTE [Turns];
- asleep, in other envs: recorded as truncated. But its episode and return continue, no row is marked as the first of
  an episode when it wakes up, and its RNN state keeps all that it has seen, its last observation before the sleep
  included. So that observation is also shown in the first row of the next slot, if row t+1 falls there.
If such a step returns no observation for the agent, its row t is invalid, because the value after it cannot be
computed. The row before it bootstraps from row t.

An idle row shows zeros, is invalid, and no policy acts for it. A reward paid to an agent in it counts in returns alone:
up to the agent's own end in that of its episode, and in those of the env's episode (``team_stats``) to the end of that.
An agent that was active in no step of an episode of its env had none itself: its end is not counted or reported.

The env's episode is over once those of all its agents are. If the last step truncated one, row t+1 is a truncation row
for the whole env, which is reset in it. Otherwise the env is reset at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sfactory.actor.env_batch import BaseBatch, BeforeEach
from sfactory.env.multi_agent import AgentsEnv, AgentsStep, BadAgents, Change, blank, require_agents
from sfactory.errors import EnvFaults, Passing


@dataclass
class Stops:
    """The agents of an env that a step stopped, as agent indices.

    terminated, truncated: active agents that ended their episode
    paused: agents that fell asleep
    lost: truncated or paused agents without an observation
    ended: agents that ended their episode while they slept or waited, but for those that never acted in it
    died: those of them that were terminated while they waited for a turn
    over: whether the env's episode is over
    """

    terminated: list[int] = field(default_factory=list)
    truncated: list[int] = field(default_factory=list)
    paused: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    died: list[int] = field(default_factory=list)
    over: bool = False


class AgentActivity:
    """Which of the A agents of an env are active in the next step; see NOTE [Agent life].

    acting: [A] bool
    acted: [A] bool - those that were active, or are in the next step, at any time of the episode
    showing: agents that are not active and show their last observation
    """

    def __init__(self, size: int, in_turns: bool = False) -> None:
        self._in_turns = in_turns
        self.begin(range(size))  # all awake

    def begin(self, observations: Sequence[Any]) -> None:
        """A new episode; None stands for an agent that begins it asleep."""
        self.acting = [obs is not None for obs in observations]
        self.acted = list(self.acting)
        self.showing: list[int] = []
        self._over = [False] * len(observations)

    def end_showing(self, of_sleeping: bool) -> bool:
        """Stop showing final observations, those of sleeping agents only with ``of_sleeping``; whether any was."""
        before = self.showing
        self.showing = [agent for agent in before if not (of_sleeping or self._over[agent])]
        return self.showing != before

    @property
    def inactive(self) -> list[int]:
        """Agents that are not active in the next step."""
        return [agent for agent, acts in enumerate(self.acting) if not acts]

    @property
    def absent(self) -> list[int]:
        """Agents that are not active in the next step and show zeros."""
        return [agent for agent in self.inactive if agent not in self.showing]

    def change(self, change: Change, observations: Sequence[Any]) -> Stops:
        """Apply what a step changed; ``observations``: one per agent, or None."""
        stops, waiting = Stops(), list[int]()  # waiting: truncated while they waited for a turn
        for agent, was_over in enumerate(self._over):
            if was_over:
                continue
            over = change.terminated[agent] or change.truncated[agent]
            stays = change.active[agent] and not over
            if over and not self.acted[agent]:
                pass
            elif over and not self.acting[agent]:
                stops.ended.append(agent)
                if self._in_turns:
                    (stops.died if change.terminated[agent] else waiting).append(agent)
            elif over:
                (stops.terminated if change.terminated[agent] else stops.truncated).append(agent)
            elif self.acting[agent] and not (stays or self._in_turns):
                stops.paused.append(agent)
            self.acting[agent], self._over[agent] = stays, over
            self.acted[agent] |= stays
        stopped = stops.truncated + stops.paused + waiting
        stops.lost = [agent for agent in stopped if observations[agent] is None]
        self.showing = [agent for agent in stopped if observations[agent] is not None]
        stops.over = all(self._over)
        return stops


class MultiAgentBatch(BaseBatch):
    """E envs of A agents each; observations and rewards are lists of N = E x A.

    agents: A
    over: envs (not rows) with an episode that ended with the last step
    never_acted: rows of agents that were active in no step of it
    died: rows of agents that were terminated while they waited for a turn
    activities: of the agents of each env
    """

    _resets_with_info = False

    def __init__(self, envs: Sequence[AgentsEnv]) -> None:
        self._names, self.agents = envs[0].agents, len(envs[0].agents)
        super().__init__(envs, len(envs) * self.agents)
        self.observations: list[Any] = [None] * self.size
        self.rewards: list[Any] = [0.0] * self.size
        self.over: list[int] = []
        self.never_acted: list[int] = []
        self.died: list[int] = []
        self._blank = blank(envs[0].observation_space)
        self.activities = [AgentActivity(self.agents, envs[0].in_turns) for _ in envs]
        self._slices = [slice(first, first + self.agents) for first in range(0, self.size, self.agents)]
        self._fresh: list[int] = []  # envs that show the first observations of an episode
        self._resting: list[int] = []  # envs that the next step resets
        self._partial: set[int] = set()  # envs with an agent that is not active in the next step
        self._next_idle: list[int] = []  # rows that will be idle in the next step
        self._moved = False  # ``absent`` and ``_next_idle`` are out of date

    @property
    def first(self) -> list[int]:
        """Rows that show the first observation of an episode: all of an env, those that begin it asleep, too."""
        return self._rows_of(self._fresh)

    @property
    def unplayed(self) -> list[int]:
        """See BaseBatch."""
        return [self._rows(env)[agent] for env in self._partial for agent in self.activities[env].inactive]

    def reset(self, seeds: Sequence[int], before_each: BeforeEach | None = None) -> None:
        """See BaseBatch."""
        super().reset(seeds, before_each)
        self._fresh = []
        self._settle()

    def step(self, actions: Sequence[Any]) -> None:
        """Step every env (those that were over with a truncation are reset instead)."""
        if len(actions) != self.size:
            raise ValueError(f"{len(actions)} actions for {self.size} agents")
        observations, rewards = self.observations, self.rewards
        self._clear()
        index, stepping = 0, enumerate(zip(self._steps, self._slices, strict=True))
        while True:
            try:
                for index, (step, rows) in stepping:
                    shown, earned, change = step(actions[rows])
                    if not len(shown) == len(earned) == self.agents:  # else the rows of all later envs would move
                        gave = f"{len(shown)} observations and {len(earned)} rewards"
                        raise BadAgents(f"step() gave {gave} for {self.agents} agents")
                    observations[rows], rewards[rows] = shown, earned
                    if change is not None:
                        self._change(index, change)
                break
            except (EnvFaults, Passing):
                raise
            except BaseException as error:  # foreign code may raise anything; the loop resumes behind this env
                self._recreate(index, error)
                self._discard(index)
        if self._partial or self._moved:
            self._settle()
        if self._unproven:
            self._prove()

    def reset_truncated(self) -> list[int]:
        """See BaseBatch. Agents that end before their env are idle at once."""
        late, self.truncated = list(self._resting), []
        for env in late:
            self._reset(env)
        self._end_showing(of_sleeping=False)
        self._settle()
        return self._rows_of(late)

    def place(self, env: int, observations: Sequence[Any]) -> None:
        """Replace the current observations of ``env``, which was stepped from outside before the first slot."""
        self.activities[env].showing = []
        self.observations[self._slices[env]] = observations
        self._partial.add(env)
        self._moved = True
        self._settle()

    def _clear(self) -> None:
        """Forget the last step; agents that are not active in the one that comes are idle in it."""
        stopped = self.terminated, self.truncated, self.paused, self.ended, self.died, self.over, self.never_acted
        for rows in (*stopped, self.resumed, self.lost, self.broken, self._fresh):
            rows.clear()
        self.idle = list(self._next_idle)
        self._end_showing()

    def _end_showing(self, of_sleeping: bool = True) -> None:
        for env in self._partial:
            if self.activities[env].end_showing(of_sleeping):
                self._moved = True

    def _change(self, env: int, change: Change) -> None:
        """Agents of ``env`` were stopped or woken up by a step."""
        rows = self._rows(env)
        stops = self.activities[env].change(change, self.observations[self._slices[env]])
        self._partial.add(env)
        self._moved = True
        self.terminated += [rows[agent] for agent in stops.terminated]
        self.truncated += [rows[agent] for agent in stops.truncated]
        self.paused += [rows[agent] for agent in stops.paused]
        self.lost += [rows[agent] for agent in stops.lost]
        self.ended += [rows[agent] for agent in stops.ended]
        self.died += [rows[agent] for agent in stops.died]
        for agent in sorted(stops.terminated + stops.truncated + stops.ended):
            self.extras.note(change.infos[agent], rows[agent])
        if stops.over:
            self.over.append(env)
            self.never_acted += [row for row, acted in zip(rows, self.activities[env].acted, strict=True) if not acted]
            if self.activities[env].showing:  # the next step resets the env instead
                self._resting.append(env)
                self._steps[env] = partial(self._reset_late, env)
            else:
                self._reset(env)

    def _settle(self) -> None:
        """Bring ``absent`` and ``_next_idle`` up to date, and let absent rows show zeros."""
        if self._moved:
            self._moved = False
            self.absent, self._next_idle = [], []
            self._partial = {env for env in self._partial if self.activities[env].inactive}
            for env in sorted(self._partial):
                activity, rows = self.activities[env], self._rows(env)
                self.absent += [rows[agent] for agent in activity.absent]
                if env not in self._resting:  # all rows of a resting env will be in ``resumed``
                    self._next_idle += [rows[agent] for agent in activity.inactive]
        for row in self.absent:
            self.observations[row] = self._blank

    def _reset_late(self, env: int, _actions: Sequence[Any]) -> AgentsStep:
        """Takes the place of the step of an env that is reset instead."""
        self._reset(env)
        self.resumed += self._rows(env)
        return self.observations[self._slices[env]], [0.0] * self.agents, None

    def _begin(self, env: int, shown: Sequence[Any]) -> None:
        if len(shown) != self.agents:
            raise BadAgents(f"reset() gave {len(shown)} observations for {self.agents} agents")
        self.activities[env].begin(shown)
        self.observations[self._slices[env]] = [self._blank if obs is None else obs for obs in shown]
        self._partial.add(env)
        self._moved = True
        if env in self._resting:
            self._resting.remove(env)
        if env not in self._fresh:
            self._fresh.append(env)

    def _inactive(self, env: int) -> Sequence[int]:
        return self.activities[env].inactive

    def _install(self, env: int, made: Any) -> None:
        super()._install(env, made)
        require_agents(made, self._names)

    def _discard(self, env: int) -> None:
        super()._discard(env)
        if env in self.over:
            self.over.remove(env)
