"""Envs with many agents are planned, stepped at random and played like all others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch

from sfactory.actor.decorrelation import warm_up
from sfactory.actor.env_restarts import FaultHandling
from sfactory.actor.multi_agent_split import MultiAgentSplit
from sfactory.actor.split import Split
from sfactory.benchmark.pure_simulation import pure_simulation
from sfactory.config.schema import AlgoConfig, Config, LearnerConfig, PopulationConfig, RunConfig, SamplingConfig
from sfactory.env.factory import EnvFactory
from sfactory.errors import ConfigError
from sfactory.layout import Layout
from sfactory.model.actor_critic import Acted, ActorCritic
from sfactory.planning.plan import plan_sizes
from sfactory.planning.step_cost import Agents, agents_steps_per_second
from sfactory.play.player import Episode, Player
from sfactory.play.rendering import show_nothing
from sfactory.process.spawn import Spawner
from sfactory.shared.control import Control
from sfactory.shared.status import StatusBoard
from sfactory.shared.trajectories import TrajectoryBuffer
from sfactory.spec import EnvSpec
from sfactory.system.cores import Cores
from tests.support.episodes import extra_stats, finished_episodes
from tests.support.parts import SCALAR, TINY, small_layout
from tests.support.scripted_agents import Changes, ScriptedAgents
from tests.support.scripted_env import FaultRecord, no_faults

COUNTING = EnvFactory("sfactory_envs.synthetic.counting_agents:CountingParallel", {"agents": 3})


def synchronous(batch_size: int) -> Config:
    return Config(
        run=RunConfig(env=COUNTING.name, device="cpu"),
        sampling=SamplingConfig(num_workers=2, num_envs_per_worker=4, rollout=5, async_rl=False),
        learner=LearnerConfig(batch_size=batch_size, num_batches_per_epoch=1),
        algo=AlgoConfig(),
        model=TINY,
    )


def test_a_layout_counts_rows_as_envs_times_agents() -> None:
    spec, config = COUNTING.agents().spec, synchronous(120)

    layout = Layout.plan(config.sampling, config.learner, "local", agents=3)

    assert (layout.envs, layout.rows, layout.agents, layout.dataset_rows) == (4, 12, 3, 24)
    assert layout.slots_per_split == 1
    assert plan_sizes(synchronous(240), spec).layout.slots_per_split == 2
    with pytest.raises(
        ConfigError, match=r"--async_rl=False: .* 160 steps .* round of 120 .*x 3 agents x rollout"
    ) as e:
        plan_sizes(synchronous(160), spec)
    assert "nearest is batch_size 120 or 240" in str(e.value)


def test_opponents_are_refused_where_there_is_one_agent() -> None:
    config = Config(run=RunConfig(device="cpu"), model=TINY, population=PopulationConfig(opponent_pool=2))

    assert plan_sizes(config, COUNTING.agents().spec).layout.opponents == 2
    with pytest.raises(ConfigError, match="--opponent_pool=2: the environment has one agent"):
        plan_sizes(config, SCALAR)


def test_policies_that_wait_for_their_learners_have_splits_of_their_own_unless_they_play_the_agents_of_an_env() -> None:
    one, waiting = synchronous(240), LearnerConfig(batch_size=240, num_batches_to_accumulate=0)
    sampling = replace(one.sampling, num_envs_per_worker=12, worker_num_splits=2, async_rl=True)

    def plan(policies: int, spec: EnvSpec = SCALAR, inference: Literal["auto", "central"] = "auto") -> Layout:
        population, how = PopulationConfig(num_policies=policies), replace(sampling, inference=inference)
        return plan_sizes(replace(one, population=population, sampling=how, learner=waiting), spec).layout

    assert [plan(policies).splits for policies in (2, 3, 4, 6, 8, 24)] == [1, 3, 2, 3, 4, 12]
    assert plan(3).mapping == plan(4, inference="central").mapping == "split"
    for lacking in (lambda: plan(5), lambda: plan(3, inference="central")):
        with pytest.raises(ConfigError, match=r"^--policy_mapping=auto: (24|4) splits .* equally among (5|3) policies"):
            lacking()
    with pytest.raises(ConfigError, match=r"^--policy_mapping=auto: where .* use --policy_mapping=split, or --async"):
        plan(3, COUNTING.agents().spec)


def warmed(env: ScriptedAgents, steps: int, faults: FaultHandling | None = None) -> Split:
    split = MultiAgentSplit(0, [ScriptedAgents(base=5.0), env], env.spec, 4, faults or no_faults())
    split.reset([1, 2], "actor 0")
    row = StatusBoard(["sf-actor-0"]).row("sf-actor-0")
    warm_up(split, 1, steps, 7, Control(1), row)
    return split


def fill(split: Split) -> Any:
    slot = TrajectoryBuffer(ScriptedAgents().spec, small_layout(rows=4, agents=2)).slot(0)
    split.begin(slot)
    for t in range(4):
        slot.actions["action"][t] = 0
        split.step()
    split.finish()
    return slot


def test_random_steps_leave_an_env_where_they_end_with_the_agents_that_act_there() -> None:
    split = warmed(ScriptedAgents({2: Changes(terminated=[1]), 5: Changes(terminated=[0])}), 3)

    slot = fill(split)

    assert slot.obs["obs"][:, 2, 0].tolist() == [30, 40, 100, 110, 120]
    assert slot.obs["obs"][:, 3, 0].tolist() == [0, 0, 101, 111, 121]
    assert slot.is_first[:, 2].tolist() == [False, False, True, False, False]
    assert slot.valid[:, 3].tolist() == [False, False, True, True]
    assert finished_episodes(split.episodes) == [(0.5 + 10.5 + 20.5 + 30.5 + 40.5, 5)]


def test_random_steps_over_the_end_of_an_episode_begin_another() -> None:
    slot = fill(warmed(ScriptedAgents({2: Changes(terminated=[0], truncated=[1])}), 2))

    assert slot.obs["obs"][0, 2:, 0].tolist() == [100, 101]
    assert slot.is_first[0].all()


def test_an_episode_that_ends_with_an_invalid_random_step_has_no_part_in_the_return_of_the_team() -> None:
    env = ScriptedAgents({4: Changes(terminated=[0, 1])}, odd={2: np.array([np.nan], np.float32)})
    split = warmed(env, 2, FaultRecord(lambda seed: None, most_bad_data=1.0).handling)

    fill(split)

    sent = extra_stats(split.batch.extras)
    assert sent["team_return"] == [100.5 + 110.5 + 101.5 + 111.5]
    assert sent["return/ann"] == [100.5 + 110.5]


def test_the_speed_of_random_steps_is_measured() -> None:
    games, began = [Agents(COUNTING.agents(), seed) for seed in range(2)], list[None]()
    spawner = Spawner()
    spawner.open()

    assert agents_steps_per_second(games, 0.05, lambda: began.append(None)) > 0
    assert began
    one = SamplingConfig(num_workers=1, num_envs_per_worker=2)
    assert pure_simulation(spawner, COUNTING, one, Cores.available(), 0.2) > 0


class Recorder(ActorCritic):
    """A policy that records its observations; its state is how often it has acted."""

    def __init__(self, spec: Any) -> None:
        super().__init__(spec, TINY)
        self.shown: list[list[float]] = []
        self.states: list[list[float]] = []

    def fresh_state(self, rows: int) -> torch.Tensor:
        return torch.zeros(rows, 1)

    def act(
        self, obs: dict[str, torch.Tensor], state: torch.Tensor | None = None, deterministic: bool = False
    ) -> Acted:
        assert state is not None
        self.shown.append(obs["obs"][:, 0].tolist())
        self.states.append(state[:, 0].tolist())
        acted = super().act(obs, torch.zeros(len(state), 0), deterministic)
        return acted._replace(state=state + 1)


def played(env: ScriptedAgents, episodes: int, steps: int = 100) -> tuple[list[Episode], Recorder]:
    model = Recorder(env.spec)
    player = Player(env, env.spec, model, show_nothing, name="recorder")
    return list(player.episodes(episodes, steps, seed=3)), model


def test_an_episode_ends_with_its_last_agent_and_has_the_returns_of_each() -> None:
    first = {1: Changes(asleep=[1]), 2: Changes(asleep=[1], truncated=[0]), 4: Changes(terminated=[1])}
    episodes, recorder = played(ScriptedAgents({**first, 6: Changes(terminated=[0, 1])}), 2)

    ann, late, bob = 0.5 + 10.5, 20.5 + 30.5, 1.5 + 11.5 + 21.5 + 31.5
    assert [(e.episode_return, e.length) for e in episodes] == [((ann + bob) / 2, 4), (212.0, 2)]
    assert dict(episodes[0].stats) == {"team_return": ann + late + bob, "return/ann": ann + late, "return/bob": bob}
    assert recorder.shown == [[0, 1], [10, 11], [20, 0], [0, 31], [100, 101], [110, 111]]
    # An agent that shows nothing keeps the state after its last observation. Each episode begins with a fresh one.
    assert recorder.states == [[0, 0], [1, 1], [2, 2], [3, 2], [0, 0], [1, 1]]
    assert played(ScriptedAgents(), 2, steps=7)[0] == []  # no episode ends in time


def test_an_episode_that_is_played_has_the_mean_of_the_returns_that_training_reports() -> None:
    script = {1: Changes(asleep=[0]), 2: Changes(terminated=[1]), 4: Changes(terminated=[0])}
    split = MultiAgentSplit(0, [ScriptedAgents(script), ScriptedAgents()], ScriptedAgents().spec, 4, no_faults())
    split.reset([1, 2], "actor 0")
    fill(split)

    (episode,), _ = played(ScriptedAgents(script), 1)

    bob, ann = finished_episodes(split.episodes)
    assert bob == (1.5 + 11.5, 2)
    assert ann == (0.5 + 10.5 + 20.5 + 30.5, 4)
    assert episode.episode_return == (bob[0] + ann[0]) / 2


def test_the_mean_of_an_episode_is_over_the_agents_that_acted() -> None:
    class BobSleeps(ScriptedAgents):
        """Bob takes part in no step, and yet learns that his episode is over."""

        def reset(self, *, seed: int | None = None) -> list[Any]:
            return [super().reset(seed=seed)[0], None]

    asleep = {1: Changes(asleep=[1]), 2: Changes(asleep=[1], terminated=[0]), 3: Changes(truncated=[1])}
    (episode,), _ = played(BobSleeps(asleep), 1)

    ann, late, bob = 0.5 + 10.5, 20.5, 1.5 + 11.5 + 21.5
    assert (episode.episode_return, episode.length) == (ann, 3)
    assert dict(episode.stats) == {"team_return": ann + late + bob, "return/ann": ann + late}
