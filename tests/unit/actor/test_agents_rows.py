"""Envs of many agents, who die, sleep and wake up: every row, count and return is as their script says."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfactory.actor.multi_agent_batch import MultiAgentBatch
from sfactory.actor.multi_agent_split import MultiAgentSplit
from sfactory.actor.policy_assignment import CustomAssignment, PolicyAssignment
from sfactory.env.multi_agent import AgentsEnv
from sfactory.env.multi_agent_adapters import agents_env_of
from sfactory.messages import EpisodeExtras, ExtrasRefused
from sfactory.shared.trajectories import Slot, TrajectoryBuffer
from sfactory_envs.synthetic.costfree_agents import CostFreeLists
from sfactory_envs.synthetic.counting_agents import AgentsRules, CountingLists, CountingParallel
from tests.support.agents_check import AgentRows, AgentsTally, check_rows
from tests.support.episodes import finished_episodes
from tests.support.parts import small_layout

Form = Literal["parallel", "lists"]
FORMS: list[Form] = ["parallel", "lists"]
ENVS = 3
FIELDS = ("obs", "action", "reward", "terminated", "truncated", "valid", "is_first", "counts")


def make_env(form: Form, rules: AgentsRules) -> AgentsEnv:
    made = (CountingParallel if form == "parallel" else CountingLists)(rules.agents, rules.max_length)
    env = agents_env_of(made)
    assert env is not None
    return env


class Played:
    """What ``slots`` slots of one split of ENVS envs hold, and what was told of them."""

    def __init__(self, form: Form, rules: AgentsRules, rollout: int, slots: int, seed: int = 0) -> None:
        envs = [make_env(form, rules) for _ in range(ENVS)]
        self.rules, self.rollout = rules, rollout
        self.split = MultiAgentSplit(0, envs, envs[0].spec, rollout)
        self.split.reset([1000 * seed + env for env in range(ENVS)], "actor 0")
        rows = ENVS * rules.agents
        layout = small_layout(num_actors=1, rows=rows, rollout=rollout, agents=rules.agents, slots_per_split=1)
        slot = TrajectoryBuffer(envs[0].spec, layout).slot(0)
        self._rng = np.random.default_rng(seed)
        self.env_steps = self.agent_steps = 0
        self.absent: list[tuple[int, int]] = []
        self._kept: list[dict[str, Any]] = []
        for _ in range(slots):
            self._fill(slot)
            self._kept.append(kept(slot))

    def _fill(self, slot: Slot) -> None:
        soil(slot)
        self.split.begin(slot)
        for t in range(self.rollout):
            self.absent += [(len(self._kept) * self.rollout + t, row) for row in self.split.batch.absent]
            slot.actions["action"][t] = self._rng.integers(0, self.rules.num_actions, slot.valid.shape[1])
            self.env_steps += self.split.step()
            self.agent_steps += self.split.agent_steps
        self.split.finish()

    def rows_of(self, env: int) -> AgentRows:
        """The rows of one env."""
        size, steps = self.rules.agents, self.rollout
        places = slice(env * size, (env + 1) * size)
        joined: dict[str, Any] = {
            name: None
            if self._kept[0][name] is None
            else np.concatenate([slot[name][:steps, places] for slot in self._kept])
            for name in FIELDS
        }
        return AgentRows(
            rollout=steps,
            end_obs=np.stack([slot["obs"][steps, places] for slot in self._kept]),
            end_is_first=np.stack([slot["is_first"][steps, places] for slot in self._kept]),
            **joined,
        )

    def check(self) -> list[AgentsTally]:
        """Check all there is to check; returns what each env's rows held."""
        tallies = [check_rows(self.rows_of(env), self.rules) for env in range(ENVS)]
        assert self.env_steps == sum(tally.env_steps for tally in tallies)
        assert self.agent_steps == sum(tally.agent_steps for tally in tallies)
        due = Counter(episode for tally in tallies for episode in tally.episodes)
        assert Counter(finished_episodes(self.split.episodes)) == due
        told = self.extras()
        teams = [team for tally in tallies for team in tally.teams]
        assert Counter(told.get("team_return", [])) == Counter(sum(team) for team in teams)
        for place, agent in enumerate(self.split.batch.envs[0].agents):
            assert Counter(told.get(f"return/{agent}", [])) == Counter(team[place] for team in teams)
        blank = {(row, column) for row, column in self.absent}
        obs = np.concatenate([slot["obs"][: self.rollout] for slot in self._kept])
        assert blank == {(int(row), int(column)) for row, column in np.argwhere(~obs.any(axis=2))}
        return tallies

    def extras(self) -> dict[str, list[float]]:
        """Extra statistics by name."""
        told: dict[str, list[float]] = {}

        def take(message: EpisodeExtras | ExtrasRefused) -> bool:
            assert isinstance(message, EpisodeExtras)
            told[message.name] = message.values.tolist()
            return True

        self.split.batch.extras.send(0, take)
        return told


def kept(slot: Slot) -> dict[str, Any]:
    counts = None if slot.counts_env_step is None else slot.counts_env_step.copy()
    fields = {name: getattr(slot, name).copy() for name in FIELDS if name not in ("obs", "action", "counts")}
    return {"obs": slot.obs["obs"].copy(), "action": slot.actions["action"].copy(), "counts": counts, **fields}


def soil(slot: Slot) -> None:
    """What an earlier rollout may have left, and nobody may see."""
    slot.obs["obs"].fill(7.0)
    slot.reward.fill(7.0)
    for flags in (slot.terminated, slot.truncated, slot.valid, slot.is_first):
        flags.fill(True)
    if slot.counts_env_step is not None:
        slot.counts_env_step.fill(True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rollout", [1, 2, 3, 5, 8, 13])
def test_every_row_of_every_agent_is_as_the_script_says(form: Form, rollout: int) -> None:
    rules = AgentsRules(agents=4, max_length=9, all_may_sleep=form == "lists")

    tallies = Played(form, rules, rollout, slots=1200 // rollout).check()

    kinds = sum((tally.kinds for tally in tallies), Counter[str]())
    for kind in ("ordinary", "idle", "terminated", "truncated", "asleep", "lost"):
        assert kinds[kind] > 20, kinds
    # A slot of one row has no room for the row in which an env rests.
    assert (kinds["resting"] > 20) == (rollout > 1), kinds


@settings(max_examples=40, deadline=None)
@given(
    form=st.sampled_from(FORMS),
    agents=st.integers(1, 6),
    max_length=st.integers(1, 12),
    rollout=st.integers(1, 7),
    seed=st.integers(0, 10**6),
)
def test_so_it_is_for_any_script(form: Form, agents: int, max_length: int, rollout: int, seed: int) -> None:
    rules = AgentsRules(agents, max_length=max_length, all_may_sleep=form == "lists")

    Played(form, rules, rollout, slots=25, seed=seed).check()


@pytest.mark.parametrize("form", FORMS)
def test_of_one_agent_every_valid_row_is_an_env_step(form: Form) -> None:
    played = Played(form, AgentsRules(agents=1, all_may_sleep=form == "lists"), 5, slots=100)

    played.check()

    assert played.env_steps == played.agent_steps
    assert played.rows_of(0).counts is None


def test_no_list_of_the_last_step_is_left_when_nothing_happens() -> None:
    played = Played("parallel", AgentsRules(agents=2, max_length=3), 4, slots=50)

    group = played.split.batch
    assert isinstance(group, MultiAgentBatch)
    assert all(row < group.size for row in (*group.idle, *group.absent, *group.first))


@pytest.mark.parametrize("agents", [32, 33])
def test_a_crowd_is_told_of_by_its_team_alone(agents: int) -> None:
    env = agents_env_of(CostFreeLists(agents, length=2))
    assert env is not None
    split = MultiAgentSplit(0, [env], env.spec, 3)
    split.reset([1], "actor 0")
    layout = small_layout(num_actors=1, rows=agents, rollout=3, agents=agents)
    split.begin(TrajectoryBuffer(env.spec, layout).slot(0))

    steps = [split.step() for _ in range(3)]

    told: dict[str, list[float]] = {}
    split.batch.extras.send(0, lambda message: told.update({message.name: message.values.tolist()}) is None)  # type: ignore[union-attr]
    assert steps == [1, 1, 0]
    assert told["team_return"] == [2.0 * agents]
    assert len(told) == (33 if agents == 32 else 1)


@pytest.mark.parametrize("frozen", [(), (0,), (1,), (0, 1)])
def test_an_env_step_counts_once_and_with_a_policy_that_learns_from_it(frozen: tuple[int, ...]) -> None:
    rules = AgentsRules(agents=4, max_length=9, all_may_sleep=True)
    env = make_env("lists", rules)
    draw = CustomAssignment("here:by_half", lambda agent, episode, env: int(agent[-1]) // 2, env.agents, 0, 2)
    assignment = PolicyAssignment(rules.agents, rules.agents, 0, draw, 2, frozen)
    split = MultiAgentSplit(0, [env], env.spec, 6, assignment=assignment)
    split.reset([3], "actor 0")
    layout = small_layout(
        num_actors=1, rows=rules.agents, rollout=6, agents=rules.agents, slots_per_split=1, num_policies=2
    )
    slot = TrajectoryBuffer(env.spec, layout).slot(0)
    rng, partly = np.random.default_rng(0), 0

    for _ in range(60):
        soil(slot)
        split.begin(slot)
        for t in range(6):
            slot.actions["action"][t] = rng.integers(0, rules.num_actions, rules.agents)
            split.step()
        split.finish()
        assert slot.counts_env_step is not None
        assert slot.policy_id is not None
        learned = slot.valid & ~np.isin(slot.policy_id, frozen)
        assert (slot.counts_env_step.sum(axis=1) == learned.any(axis=1)).all()
        assert (slot.counts_env_step <= learned).all()
        partly += int((learned.any(axis=1) & (learned < slot.valid).any(axis=1)).sum())

    assert (partly > 20) == (len(frozen) == 1)
