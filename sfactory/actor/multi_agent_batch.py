"""Room: envs of many agents as the rows of one split. In: one action per row. Out: as a ``Group``, row by row.

Rows lie as NOTE [Rows of agents] has them, and live as NOTE [Agent life] has it. An env is stepped once for all of its
agents, and the loop in ``step`` does nothing for a single agent: lists of A are put in place as wholes. Only envs in
which somebody takes no part, or in which that has just changed, are looked at more closely.

An env that fails is lost as a whole: all of its rows are ``broken``, and it is made anew or reset once.

Room: who of one env's agents takes part. In: what each step changed. Out: what that makes of their rows.

NOTE [Agent life]: an agent that takes part in step t has the valid row t. If it does not go on to step t+1 while
others of its env do, then
- terminated: terminated[t], and it stands idle from row t+1 on until the env's episode is over;
- truncated: truncated[t]; row t+1 shows its final observation, is acted on for its value alone, and is invalid, as in
  NOTE [Truncation row]. It stands idle from row t+2 on. If row t+1 would be the first of the next slot, the final
  observation is obs[T] alone, and it stands idle at once;
- fallen asleep: as truncated, for what is learned. But its episode goes on: its return does, no row is marked as the
  first of an episode when it wakes up, and it remembers all that it has seen, its last look before the sleep included.
  So it shows that in the first row of the next slot, too, if that is where row t+1 falls.
Who has no observation to show after such a step has the invalid row t: what the value after it depends on was not
given. The row before it looks ahead to row t.

An idle row shows zeros, is invalid, and nobody acts for it. What is paid to an agent in it counts in returns alone.

The env's episode is over once those of all its agents are. If the last step truncated one, row t+1 is a truncation row
for the whole env, which is reset in it. Otherwise the env is reset at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from sfactory.actor.env_batch import BeforeEach
from sfactory.actor.env_restarts import EnvFaults, RestartPlan, StopOrdered, no_env
from sfactory.actor.episode_stats import ExtraStatsTracker
from sfactory.env.conversion import BadObservation
from sfactory.env.lifecycle import close_env
from sfactory.env.multi_agent import NO_AGENTS, AgentsEnv, AgentsStep, Change, blank, require_agents


class Stops(NamedTuple):
    """What a step made of the agents of an env, by place.

    terminated, truncated: whose episode ended with it, and who had taken part
    paused: who fell asleep
    lost: of those truncated or paused, who has nothing to show
    ended: whose episode ended while they slept
    over: whether the env's episode is over
    rests: whether the env is reset in the next step instead of now
    """

    terminated: list[int]
    truncated: list[int]
    paused: list[int]
    lost: list[int]
    ended: list[int]
    over: bool
    rests: bool


class AgentActivity:
    """Who of A agents takes part in the next step; see NOTE [Agent life].

    acting: [A] who does
    showing: who does not, and shows what it has seen last
    """

    def __init__(self, size: int) -> None:
        self.acting = [True] * size
        self.showing: list[int] = []
        self._over = [False] * size

    def begin(self, observations: Sequence[Any]) -> None:
        """A new episode; None stands for an agent that begins it asleep."""
        self.acting = [obs is not None for obs in observations]
        self.showing = []
        self._over = [False] * len(observations)

    def end_showing(self, of_the_asleep: bool) -> bool:
        """No final observation is shown in the next row, but of those who only sleep if not ``of_the_asleep``.

        Returns whether anything has changed.
        """
        before = self.showing
        self.showing = [agent for agent in before if not (of_the_asleep or self._over[agent])]
        return self.showing != before

    @property
    def aside(self) -> list[int]:
        """Who takes no part in the next step."""
        return [agent for agent, acts in enumerate(self.acting) if not acts]

    @property
    def absent(self) -> list[int]:
        """Who takes no part in the next step, and shows nothing."""
        return [agent for agent in self.aside if agent not in self.showing]

    def change(self, change: Change, observations: Sequence[Any]) -> Stops:
        """Take in what a step changed; ``observations``: what it has shown of each, or None."""
        terminated: list[int] = []
        truncated: list[int] = []
        paused: list[int] = []
        ended: list[int] = []
        for agent, was_over in enumerate(self._over):
            if was_over:
                continue
            over = change.terminated[agent] or change.truncated[agent]
            goes_on = change.active[agent] and not over
            if self.acting[agent] and not goes_on:
                (terminated if change.terminated[agent] else truncated if over else paused).append(agent)
            elif over:
                ended.append(agent)
            self.acting[agent], self._over[agent] = goes_on, over
        stopped = truncated + paused
        lost = [agent for agent in stopped if observations[agent] is None]
        self.showing = [agent for agent in stopped if observations[agent] is not None]
        over = all(self._over)
        return Stops(terminated, truncated, paused, lost, ended, over, rests=over and bool(self.showing))


Step = Callable[[Sequence[Any]], AgentsStep]


class MultiAgentBatch:
    """E envs of A agents each. Attributes as in ``Group``, of rows where it speaks of envs; lists of N = E x A.

    agents: A
    ended: rows whose agent's episode ended while it slept
    over: envs (not rows) whose episode ended with the last step
    """

    def __init__(self, envs: Sequence[AgentsEnv], restart_plan: RestartPlan | None = None) -> None:
        """``restart_plan``: how an env that raises is made anew; without one, what it raises is passed on."""
        self.envs: list[AgentsEnv] = list(envs)
        self._restart_plan = restart_plan
        self._names, self.agents = envs[0].agents, len(envs[0].agents)
        self.size = len(envs) * self.agents
        self.observations: list[Any] = [None] * self.size
        self.rewards: list[Any] = [0.0] * self.size
        self.terminated: list[int] = []
        self.truncated: list[int] = []
        self.paused: list[int] = []
        self.resumed: list[int] = []
        self.lost: list[int] = []
        self.broken: list[int] = []
        self.idle: list[int] = []
        self.absent: list[int] = []
        self.ended: list[int] = []
        self.over: list[int] = []
        self.extras = ExtraStatsTracker()
        self._blank = blank(envs[0].observation_space)
        self._activities = [AgentActivity(self.agents) for _ in envs]
        self._places = [slice(first, first + self.agents) for first in range(0, self.size, self.agents)]
        self._steps: list[Step] = [env.step for env in envs]
        self._fresh: list[int] = []  # envs whose current observations are the first of an episode
        self._resting: list[int] = []  # envs that the next step resets
        self._partial: set[int] = set()  # envs in which somebody takes no part in the next step
        self._aside: list[int] = []  # rows that will be idle in the next step
        self._moved = False  # who takes part is not what ``absent`` and ``_aside`` say

    @property
    def first(self) -> list[int]:
        """Rows whose current observation is the first of an episode: all of an env, those that begin it asleep, too."""
        return [row for env in self._fresh for row in self._rows(env)]

    def reset(self, seeds: Sequence[int], before_each: BeforeEach | None = None) -> None:
        """Reset every env for the first time, each with its own seed; ``before_each`` is called before each of them."""
        for env, seed in enumerate(seeds):
            if before_each is not None:
                before_each()
            self._begin(env, self.envs[env].reset(seed=seed))
        self._fresh = []
        self._settle()

    def step(self, actions: Sequence[Any]) -> None:
        """Step every env (those that were over with a truncation are reset instead)."""
        if len(actions) != self.size:
            raise ValueError(f"{len(actions)} actions for {self.size} agents")
        observations, rewards = self.observations, self.rewards
        self._clear()
        index, stepping = 0, enumerate(zip(self._steps, self._places, strict=True))
        while True:
            try:
                for index, (step, place) in stepping:
                    observations[place], rewards[place], change = step(actions[place])
                    if change is not None:
                        self._change(index, change)
                break
            except (EnvFaults, StopOrdered):
                raise
            except Exception as error:  # foreign code may raise anything; the loop goes on behind it
                self._mend(index, error)
                self._lose(index)
        if self._partial or self._moved:
            self._settle()

    def lose(self, envs: Sequence[int]) -> None:
        """See Group. What is lost of one row is lost of its env."""
        for env in self._envs_of(envs):
            if env not in self._fresh:
                self._show_reset(env)
            self._lose(env)
        self._settle()

    def show_reset(self, envs: Sequence[int]) -> Sequence[int]:
        """See Group. The envs of these rows are reset as wholes."""
        again = self._envs_of(envs)
        for env in again:
            self._show_reset(env)
        self._settle()
        return [row for env in again for row in self._rows(env)]

    def reset_truncated(self) -> list[int]:
        """Reset the envs that were over with a truncation, at once and without a truncation row; returns their rows.

        Others whose episode is over stand idle at once, instead of showing their last observation in the next row.
        """
        late, self.truncated = list(self._resting), []
        for env in late:
            self._reset(env)
        self._end_showing(of_the_asleep=False)
        self._settle()
        return [row for env in late for row in self._rows(env)]

    def activity(self, env: int) -> AgentActivity:
        """Who of ``env`` takes part in the next step."""
        return self._activities[env]

    def place(self, env: int, observations: Sequence[Any]) -> None:
        """Set the first observations of ``env``, which decorrelation has stepped before the first slot."""
        self._activities[env].showing = []
        self.observations[self._places[env]] = observations
        self._partial.add(env)
        self._moved = True
        self._settle()

    def close(self, name: str) -> None:
        """Close every env; one whose close() raises keeps no other from being closed."""
        for index, env in enumerate(self.envs):
            close_env(env, f"env {index} of {name}")

    def _clear(self) -> None:
        """Forget the last step; who was to stand aside is idle in the one that comes."""
        stopped = self.terminated, self.truncated, self.paused, self.ended, self.over
        for told in (*stopped, self.resumed, self.lost, self.broken, self._fresh):
            told.clear()
        self.idle = list(self._aside)
        self._end_showing()

    def _end_showing(self, of_the_asleep: bool = True) -> None:
        for env in self._partial:
            if self._activities[env].end_showing(of_the_asleep):
                self._moved = True

    def _change(self, env: int, change: Change) -> None:
        """What a step of ``env`` changed in who takes part."""
        place, rows = self._places[env], self._rows(env)
        stops = self._activities[env].change(change, self.observations[place])
        self._partial.add(env)
        self._moved = True
        self.terminated += [rows[agent] for agent in stops.terminated]
        self.truncated += [rows[agent] for agent in stops.truncated]
        self.paused += [rows[agent] for agent in stops.paused]
        self.lost += [rows[agent] for agent in stops.lost]
        self.ended += [rows[agent] for agent in stops.ended]
        for agent in sorted(stops.terminated + stops.truncated + stops.ended):
            self.extras.add(change.infos[agent], rows[agent])
        if stops.over:
            self.over.append(env)
            if stops.rests:
                self._resting.append(env)
                self._steps[env] = partial(self._reset_late, env)
            else:
                self._reset(env)

    def _settle(self) -> None:
        """Who is absent shows zeros; and if that has changed, find out who is."""
        if self._moved:
            self._moved = False
            self.absent, self._aside = [], []
            self._partial = {env for env in self._partial if self._activities[env].aside}
            for env in sorted(self._partial):
                activity, rows = self._activities[env], self._rows(env)
                self.absent += [rows[agent] for agent in activity.absent]
                if env not in self._resting:  # there nobody takes part, which is told by ``resumed``
                    self._aside += [rows[agent] for agent in activity.aside]
        for row in self.absent:
            self.observations[row] = self._blank

    def _reset_late(self, env: int, _actions: Sequence[Any]) -> AgentsStep:
        """Stands for the step of an env that is reset instead."""
        self._reset(env)
        self.resumed += self._rows(env)
        return self.observations[self._places[env]], [0.0] * self.agents, None

    def _reset(self, env: int, seed: int | None = None) -> None:
        """Begin the next episode of ``env``, with a fresh env if this one raises."""
        restart_plan, game = self._restart_plan, self.envs[env]
        self._steps[env] = game.step
        if restart_plan is not None:
            restart_plan.restarter.resetting(True)
        try:
            observations = game.reset() if seed is None else game.reset(seed=seed)
            self._begin(env, observations)
        except Exception as error:  # as in ``step``
            self._mend(env, error)
        else:
            if restart_plan is not None:
                restart_plan.restarter.resetting(False)

    def _begin(self, env: int, observations: Sequence[Any]) -> None:
        """``env`` is at the start of an episode."""
        self._activities[env].begin(observations)
        self.observations[self._places[env]] = [self._blank if obs is None else obs for obs in observations]
        self._partial.add(env)
        self._moved = True
        if env in self._resting:
            self._resting.remove(env)
        if env not in self._fresh:
            self._fresh.append(env)

    def _show_reset(self, env: int) -> None:
        """Reset ``env`` with another seed; one that shows no data then, too, is made anew."""
        restart_plan = self._restart_plan
        assert restart_plan is not None, "what is no data is an error where nobody makes it good"
        self._reset(env, restart_plan.restarter.fresh_seed(restart_plan.first + env))
        try:
            restart_plan.check(self.observations[self._places[env]])
        except BadObservation as error:
            self._mend(env, error)

    def _lose(self, env: int) -> None:
        """The last step of ``env`` and its episode are lost; it is at the start of another."""
        rows = self._rows(env)
        for told in (self.terminated, self.truncated, self.paused, self.resumed, self.lost, self.idle, self.ended):
            told[:] = [row for row in told if row not in rows]
        if env in self.over:
            self.over.remove(env)
        self.rewards[self._places[env]] = [0.0] * self.agents
        self.broken += rows

    def _mend(self, env: int, error: Exception) -> None:
        """Make ``env`` anew, because it raised ``error``; afterwards it is at the start of an episode."""
        restart_plan = self._restart_plan
        if restart_plan is None:
            raise error

        def recreate(seed: int) -> None:
            old, self.envs[env] = self.envs[env], NO_AGENTS
            close_env(old, f"env {restart_plan.first + env}, which is made anew")
            self.envs[env] = restart_plan.make(seed)
            require_agents(self.envs[env], self._names)
            restart_plan.restarter.begin_work()
            self._begin(env, self.envs[env].reset(seed=seed))
            restart_plan.check(self.observations[self._places[env]])

        def first_step(actions: Sequence[Any]) -> AgentsStep:
            self._steps[env] = self.envs[env].step
            told = self.envs[env].step(actions)
            restart_plan.restarter.proved(restart_plan.first + env)
            return told

        self._steps[env] = no_env
        restart_plan.restarter.mend(restart_plan.first + env, error, recreate)
        self._steps[env] = first_step

    def _rows(self, env: int) -> range:
        return range(env * self.agents, (env + 1) * self.agents)

    def _envs_of(self, rows: Iterable[int]) -> list[int]:
        return sorted({row // self.agents for row in rows})
