"""Checks that recorded rows of an env of many agents are what its script (``AgentsRules``) says.

The rules are those of NOTE [Agent life], and no recording code is used. Errors name env, agent and row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sfactory_envs.synthetic.counting import Position, decode, encode
from sfactory_envs.synthetic.counting_agents import AGENT_BITS, AgentsRules, place_of
from tests.support.counting_check import Array, Column


@dataclass
class AgentCounts:
    """What checked rows held.

    kinds: rows by what they were. env_steps, agent_steps: valid ones. episodes: (return, length) of each agent's, in
    the order of their ends, but for agents that acted in no step of it. teams: what the agents of each episode of the
    env earned, agent by agent, and which of them acted in it.
    """

    identity: int
    kinds: Counter[str] = field(default_factory=Counter)
    env_steps: int = 0
    agent_steps: int = 0
    episodes: list[tuple[float, int]] = field(default_factory=list)
    teams: list[tuple[list[float], set[int]]] = field(default_factory=list)


class _Check:
    """Where the env is: ``episode``, ``step``, which agents show their last observation, and whether the env rests."""

    def __init__(self, rows: Column, rules: AgentsRules) -> None:
        self.rows, self.rules, self.agents = rows, rules, range(rules.agents)
        shown = next(obs for obs in rows.obs[0] if obs.any())
        self.identity = place_of(decode(shown).identity)[0]
        self.episode, self.step, self.rests = 0, 0, False
        self.showing: set[int] = set()
        self.asleep: set[int] = set()  # those of them that are still in their episode
        self.returns, self.acted = [0.0] * rules.agents, set[int]()
        self.counts = AgentCounts(self.identity)

    def position(self, agent: int) -> Position:
        return Position((self.identity << AGENT_BITS) | agent, self.episode, self.step)

    def acts(self, agent: int, step: int) -> bool:
        return bool(self.rules.acts(self.identity, self.episode, agent, step))

    def check_shown(self, shown: Array, is_first: Array, where: str) -> None:
        """The observations [A, D] and flags [A] of a row, or of the end of a slot."""
        for agent in self.agents:
            seen = agent in self.showing or (not self.rests and self.acts(agent, self.step))
            due = encode(self.position(agent), shown.shape[1]) if seen else np.zeros(shown.shape[1])
            assert np.array_equal(shown[agent], due), f"{where}, agent {agent}: {shown[agent]}, {due} was due"
            due_first = self.step == 0 and not self.rests
            assert bool(is_first[agent]) == due_first, f"{where}, agent {agent}: is_first is {not due_first}"

    def check_row(self, row: int) -> None:
        """One row, and what follows from it."""
        rows, where = self.rows, f"env {self.identity}, row {row} at {self.episode}:{self.step}"
        self.check_shown(rows.obs[row], rows.is_first[row], where)
        if self.rests:
            for agent in self.agents:
                self._check_flags(row, agent, where, "resting")
            self._check_counts(row, [], where)
            self.begin_episode()
            return
        kinds, after = [self._kind(agent) for agent in self.agents], self.step + 1
        stopped = {agent for agent in self.agents if kinds[agent] in ("truncated", "asleep")}
        hidden = {agent for agent in stopped if not self.rules.shows(self.identity, self.episode, agent, after)}
        for agent in self.agents:
            self._check_flags(row, agent, where, "lost" if agent in hidden else kinds[agent], kinds[agent])
        self._check_counts(row, [a for a in self.agents if kinds[a] != "idle" and a not in hidden], where)
        self._earn(row, kinds)
        self.step, self.showing = after, stopped - hidden
        self.asleep = {agent for agent in self.showing if kinds[agent] == "asleep"}
        if self.step == self.rules.length(self.identity, self.episode):
            self.counts.teams.append((self.returns, self.acted))
            self.returns, self.acted = [0.0] * self.rules.agents, set()
            self.rests = bool(self.showing)
            if not self.rests:
                self.begin_episode()

    def end_slot(self, slot: int) -> None:
        """The end of a slot: agents in the episode, and the last look of those that fell asleep, are carried over."""
        where = f"env {self.identity}, end of slot {slot} at {self.episode}:{self.step}"
        self.check_shown(self.rows.slot_end_obs[slot], self.rows.slot_end_is_first[slot], where)
        if self.rests:
            self.begin_episode()
        self.showing &= self.asleep

    def begin_episode(self) -> None:
        self.episode, self.step, self.showing, self.rests = self.episode + 1, 0, set(), False

    def _kind(self, agent: int) -> str:
        """What the step is to ``agent``: "idle", "ordinary", or how it stops."""
        if not self.acts(agent, self.step):
            return "idle"
        if self.step + 1 == self.rules.until(self.identity, self.episode, agent):
            return str(self.rules.end(self.identity, self.episode, agent))
        return "ordinary" if self.acts(agent, self.step + 1) else "asleep"

    def _check_flags(self, row: int, agent: int, where: str, label: str, kind: str = "idle") -> None:
        self.counts.kinds[label] += 1
        acted = kind != "idle"
        truncated = kind in ("truncated", "asleep")
        due = {"valid": acted and label != "lost", "terminated": kind == "terminated", "truncated": truncated}
        flags = {name: bool(getattr(self.rows, name)[row, agent]) for name in due}
        assert flags == due, f"{where}, agent {agent} ({label}): {flags}, {due} was due"
        paid = self.rules.reward(self.position(agent), int(self.rows.action[row, agent])) if acted else 0.0
        reward = float(self.rows.reward[row, agent])
        assert reward == paid, f"{where}, agent {agent} ({label}): reward {reward}, {paid} was due"

    def _check_counts(self, row: int, valid: Sequence[int], where: str) -> None:
        self.counts.agent_steps += len(valid)
        self.counts.env_steps += bool(valid)
        if self.rows.counts is not None:
            due = [agent in valid[:1] for agent in self.agents]
            counts = self.rows.counts[row].tolist()
            assert counts == due, f"{where}: counts_env_step is {counts}, {due} was due"

    def _earn(self, row: int, kinds: Sequence[str]) -> None:
        for agent, kind in enumerate(kinds):
            place, action = self.position(agent), int(self.rows.action[row, agent])
            self.returns[agent] += self.rules.idle_reward(place) if kind == "idle" else self.rules.reward(place, action)
            self.acted |= set() if kind == "idle" else {agent}
            if agent in self.acted and self.step + 1 == self.rules.until(self.identity, self.episode, agent):
                self.counts.episodes.append((self.returns[agent], self.step + 1))


def check_rows(rows: Column, rules: AgentsRules) -> AgentCounts:
    """Assert that ``rows`` are those of an env that keeps to ``rules``, from its first episode on."""
    checked = _Check(rows, rules)
    for row in range(len(rows.obs)):
        checked.check_row(row)
        if (row + 1) % rows.rollout == 0:
            checked.end_slot(row // rows.rollout)
    return checked.counts
