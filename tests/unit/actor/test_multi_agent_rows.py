"""Rows, counts and returns of multi-agent envs follow their script, in which agents end, sleep and wake up."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any, Literal

import gymnasium
import numpy as np
import pytest
import torch

from sfactory.actor.local_actor import SlotActing
from sfactory.actor.multi_agent_split import MultiAgentSplit
from sfactory.actor.policy_assignment import AssignmentRule, PolicyAssignment, custom_assignment, random_assignment
from sfactory.config.schema import ModelConfig
from sfactory.env.multi_agent import AgentsEnv
from sfactory.env.multi_agent_adapters import agents_env_of
from sfactory.inference.acting_policy import ActingPolicy
from sfactory.learner.staging import HELD, Columns
from sfactory.shared.slots import SlotTable
from sfactory.shared.trajectories import NOBODY, Slot, TrajectoryBuffer
from sfactory_envs.synthetic.costfree_agents import CostFreeLists
from sfactory_envs.synthetic.counting_agents import AgentsRules, CountingLists, CountingParallel
from tests.support.agents_check import AgentCounts, check_rows
from tests.support.counting_check import NAMES, Column
from tests.support.episodes import extra_stats, finished_episodes
from tests.support.long import long
from tests.support.parts import small_layout
from tests.support.scripted_env import no_faults

Form = Literal["parallel", "lists"]
FORMS: list[Form] = ["parallel", "lists"]
ENVS = 3


def adapted(env: object) -> AgentsEnv:
    found = agents_env_of(env)
    assert found is not None
    return found


def make_env(form: Form, rules: AgentsRules) -> AgentsEnv:
    return adapted((CountingParallel if form == "parallel" else CountingLists)(rules.agents, rules.max_length))


class Sleeper:
    """One agent, which sleeps in two of three steps."""

    is_multiagent, num_agents = True, 1
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2)

    def reset(self, seed: int | None = None) -> Any:
        self._steps = 0
        return [np.ones(2, np.float32)], [{}]

    def step(self, _actions: Any) -> Any:
        self._steps += 1
        return [np.ones(2, np.float32)], [1.0], [False], [False], [{"is_active": self._steps % 3 == 0}]


def test_no_policy_acts_for_the_only_agent_of_an_env_while_it_sleeps() -> None:
    config = ModelConfig(use_rnn=True, rnn_size=8)
    envs = [adapted(Sleeper())]
    spec = envs[0].spec.for_model(config)
    policy = ActingPolicy(spec, config, None, torch.device("cpu"))
    layout = small_layout(num_actors=1, rows=1, rollout=4, agents=1, slots_per_split=1, state_size=policy.state_size)
    slot = TrajectoryBuffer(spec, layout).slot(0)
    split = MultiAgentSplit(0, envs, spec, 4, no_faults(), PolicyAssignment(1, 1, 0))
    split.reset([1], "actor 0")
    split.begin(slot)
    acting, states = SlotActing([policy], layout.recurrence), [policy.fresh_state(1)]

    for _ in range(4):
        states.append(acting.act(slot, split.t, states[-1], split.policies))
        split.step()

    # It falls asleep with the first step; the second row shows its last observation, which it remembers.
    assert slot.policy_id is not None
    assert slot.policy_id[:, 0].tolist() == [0, 0, NOBODY, 0]
    assert slot.valid[:, 0].tolist() == [True, False, False, True]
    assert [not torch.equal(one, other) for one, other in pairwise(states)] == [True, True, False, True]
    assert HELD in Columns(spec, layout, torch.device("cpu"), pin=False, replay=False).scalars


def make_slot(env: AgentsEnv, rows: int, rollout: int, policies: int = 1) -> Slot:
    layout = small_layout(
        num_actors=1,
        rows=rows,
        rollout=rollout,
        agents=len(env.agents),
        slots_per_split=1,
        num_policies=policies,
    )
    return TrajectoryBuffer(env.spec, layout).slot(0)


class Played:
    """What ``slots`` slots of one split of ENVS envs hold, and what was reported of them."""

    def __init__(self, form: Form, rules: AgentsRules, rollout: int, slots: int, seed: int = 0) -> None:
        envs = [make_env(form, rules) for _ in range(ENVS)]
        self.rules, self.rollout = rules, rollout
        self.split = MultiAgentSplit(0, envs, envs[0].spec, rollout, no_faults())
        self.split.reset([1000 * seed + env for env in range(ENVS)], "actor 0")
        slot = make_slot(envs[0], ENVS * rules.agents, rollout)
        self._rng = np.random.default_rng(seed)
        self.env_steps = self.agent_steps = 0
        self.absent: set[tuple[int, int]] = set()
        self._kept: list[dict[str, Any]] = []
        for _ in range(slots):
            self._fill(slot)
            self._kept.append(copied(slot))

    def _fill(self, slot: Slot) -> None:
        leave_traces(slot)
        self.split.begin(slot)
        for t in range(self.rollout):
            self.absent |= {(len(self._kept) * self.rollout + t, row) for row in self.split.batch.absent}
            slot.actions["action"][t] = self._rng.integers(0, self.rules.num_actions, slot.valid.shape[1])
            self.env_steps += self.split.step()
            self.agent_steps += self.split.agent_steps
        self.split.finish()

    def rows_of(self, env: int) -> Column:
        """The rows of one env."""
        places = slice(env * self.rules.agents, (env + 1) * self.rules.agents)
        slots = [{name: f if f is None else f[:, places] for name, f in slot.items()} for slot in self._kept]
        return Column.of_slots(slots, self.rollout)

    def check(self) -> list[AgentCounts]:
        """Check rows, counts, episodes and extra statistics; returns what each env's rows held."""
        counted = [check_rows(self.rows_of(env), self.rules) for env in range(ENVS)]
        assert self.env_steps == sum(each.env_steps for each in counted)
        assert self.agent_steps == sum(each.agent_steps for each in counted)
        due = Counter(episode for each in counted for episode in each.episodes)
        assert Counter(finished_episodes(self.split.episodes)) == due
        sent = extra_stats(self.split.batch.extras)
        teams = [team for each in counted for team in each.teams]
        assert Counter(sent.get("team_return", [])) == Counter(sum(team) for team, _ in teams)
        for place, agent in enumerate(self.split.batch.envs[0].agents):
            due_of_agent = Counter(team[place] for team, acted in teams if place in acted)
            assert Counter(sent.get(f"return/{agent}", [])) == due_of_agent
        obs = np.concatenate([slot["obs"][: self.rollout] for slot in self._kept])
        assert self.absent == {(int(row), int(column)) for row, column in np.argwhere(~obs.any(axis=2))}
        return counted


def copied(slot: Slot) -> dict[str, Any]:
    counts = None if slot.counts_env_step is None else slot.counts_env_step.copy()
    fields = {name: getattr(slot, name).copy() for name in NAMES if name not in ("obs", "action")}
    return {"obs": slot.obs["obs"].copy(), "action": slot.actions["action"].copy(), "counts": counts, **fields}


def leave_traces(slot: Slot) -> None:
    """Leave traces of an earlier rollout, which must not show through."""
    slot.obs["obs"].fill(7.0)
    slot.reward.fill(7.0)
    for flags in (slot.terminated, slot.truncated, slot.valid, slot.is_first, slot.counts_env_step):
        if flags is not None:
            flags.fill(True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rollout", [1, long(2), 5, long(13)])
def test_every_kind_of_row_of_every_agent_follows_the_script(form: Form, rollout: int) -> None:
    rules = AgentsRules(agents=4, max_length=9, all_may_sleep=form == "lists")

    counted = Played(form, rules, rollout, slots=300 // rollout).check()

    kinds = sum((each.kinds for each in counted), Counter[str]())
    for kind in ("ordinary", "idle", "terminated", "truncated", "asleep", "lost"):
        assert kinds[kind] > 10, kinds
    # A slot of one row has no truncation rows.
    assert (kinds["resting"] > 10) == (rollout > 1), kinds


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", [*range(4), *map(long, range(4, 16))])
def test_rows_follow_random_scripts(form: Form, seed: int) -> None:
    agents, max_length, rollout = (int(number) for number in np.random.default_rng(seed).integers(1, (7, 13, 8)))
    rules = AgentsRules(agents, max_length=max_length, all_may_sleep=form == "lists")

    played = Played(form, rules, rollout, slots=25, seed=seed)

    played.check()
    assert (played.rows_of(0).counts is None) == (agents == 1)
    assert played.env_steps == played.agent_steps or agents > 1


@pytest.mark.parametrize("agents", [32, 33])
def test_with_more_than_32_agents_only_the_return_of_the_team_is_sent(agents: int) -> None:
    env = adapted(CostFreeLists(agents, length=2))
    split = MultiAgentSplit(0, [env], env.spec, 3, no_faults())
    split.reset([1], "actor 0")
    split.begin(make_slot(env, agents, 3))

    steps = [split.step() for _ in range(3)]

    sent = extra_stats(split.batch.extras)
    assert steps == [1, 1, 0]
    assert sent["team_return"] == [2.0 * agents]
    assert len(sent) == (33 if agents == 32 else 1)


@pytest.mark.parametrize("frozen", [(), (0,), (1,), (0, 1)])
def test_an_env_step_counts_once_and_for_a_policy_that_learns_from_it(frozen: tuple[int, ...]) -> None:
    rules = AgentsRules(agents=4, max_length=9, all_may_sleep=True)
    env = make_env("lists", rules)
    rule = custom_assignment("here:by_half", lambda agent, episode, env: int(agent[-1]) // 2, env.agents, 0, 2)
    assignment = PolicyAssignment(rules.agents, rules.agents, 0, rule, 2, frozen)
    split = MultiAgentSplit(0, [env], env.spec, 6, no_faults(), assignment)
    split.reset([3], "actor 0")
    slot = make_slot(env, rules.agents, 6, policies=2)
    rng, partly = np.random.default_rng(0), 0

    for _ in range(60):
        leave_traces(slot)
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


@pytest.mark.parametrize("is_drawn", [False, True])
def test_the_slot_table_counts_valid_steps_of_agents_by_policy(is_drawn: bool) -> None:
    rules, policies, rollout = AgentsRules(all_may_sleep=True), 3, 16
    envs, rows = [make_env("lists", rules) for _ in range(ENVS)], ENVS * rules.agents
    rule: AssignmentRule | None = random_assignment(policies, 1, True, seed=1) if is_drawn else None
    assignment = PolicyAssignment(rows, rules.agents, 1, rule, policies)
    split = MultiAgentSplit(0, envs, envs[0].spec, rollout, no_faults(), assignment)
    split.reset(list(range(ENVS)), "actor 0")
    table, slot = SlotTable(1, 1, 1, policies), make_slot(envs[0], rows, rollout, policies)
    invalid = absent = 0

    for _ in range(40):
        table.begin(0)
        split.begin(slot)
        for t in range(rollout):
            slot.actions["action"][t] = 0
            split.step()
            split.count_steps(table)
            assert slot.policy_id is not None
            valid, ids = slot.valid[: t + 1], slot.policy_id[: t + 1]
            counted = [table.steps(0, policy) for policy in range(policies)]
            assert counted == [int(np.count_nonzero(valid & (ids == policy))) for policy in range(policies)]
            assert sum(counted) == np.count_nonzero(valid)
        invalid += int(np.count_nonzero(~slot.valid))
        absent += int(np.count_nonzero(slot.policy_id == NOBODY))
        split.finish()
        table.publish(0, *range(policies))
        for policy in range(policies):
            table.release(0, policy)

    assert invalid > absent > 0, "the script has agents that sleep and episodes that end"
