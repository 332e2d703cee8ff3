"""What is done with envs of many agents beside training: sizes, rules, random steps, plays, and PettingZoo's envs."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from sfactory.actor.decorrelation import warm_up
from sfactory.actor.multi_agent_split import MultiAgentSplit
from sfactory.actor.split import Split
from sfactory.benchmark.pure_simulation import pure_simulation
from sfactory.config.schema import AlgoConfig, Config, LearnerConfig, RunConfig, SamplingConfig
from sfactory.env.factory import EnvFactory
from sfactory.env.multi_agent import AgentsEnv
from sfactory.errors import ConfigError, EnvError
from sfactory.layout import Layout
from sfactory.model.actor_critic import Acted, ActorCritic
from sfactory.planning.plan import plan_sizes
from sfactory.planning.step_cost import Agents, agents_steps_per_second
from sfactory.play.player import Episode, Player
from sfactory.play.rendering import NoScreen
from sfactory.process.spawn import Spawner
from sfactory.shared.control import Control, Stop
from sfactory.shared.status import StatusBoard
from sfactory.shared.trajectories import TrajectoryBuffer
from sfactory_envs.pettingzoo import FAMILY
from sfactory_envs.synthetic.counting_agents import CountingParallel
from tests.support.episodes import finished_episodes
from tests.support.parts import TINY, small_layout
from tests.support.scripted_agents import Changes, ScriptedAgents

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
    config = synchronous(120)

    layout = Layout.plan(config.sampling, config.learner, "local", agents=3)

    assert (layout.envs, layout.rows, layout.agents, layout.dataset_rows) == (4, 12, 3, 24)
    assert layout.slots_per_split == 1


def test_a_synchronous_dataset_is_whole_rounds_of_all_agents() -> None:
    spec = COUNTING.agents().spec

    assert plan_sizes(synchronous(240), spec).layout.slots_per_split == 2
    with pytest.raises(
        ConfigError, match=r"--async_rl=False: .* 160 steps .* round of 120 .*x 3 agents x rollout"
    ) as e:
        plan_sizes(synchronous(160), spec)
    assert "nearest is batch_size 120 or 240" in str(e.value)


def test_without_many_agents_slots_hold_no_counts_of_env_steps() -> None:
    spec = dataclasses.replace(COUNTING.agents().spec, agents=())

    assert TrajectoryBuffer(spec, small_layout()).slot(0).counts_env_step is None


def warmed(env: ScriptedAgents, steps: int, control: Control | None = None) -> Split:
    split = MultiAgentSplit(0, [ScriptedAgents(base=5.0), env], env.spec, 4)
    split.reset([1, 2], "actor 0")
    row = StatusBoard(["sf-actor-0"]).row("sf-actor-0")
    warm_up(split, 1, steps, 7, control or Control(1), row)
    return split


def fill(split: Split) -> Any:
    slot = TrajectoryBuffer(ScriptedAgents().spec, small_layout(rows=4, agents=2)).slot(0)
    split.begin(slot)
    for t in range(4):
        slot.actions["action"][t] = 0
        split.step()
    split.finish()
    return slot


def test_random_steps_leave_an_env_where_they_end_with_whoever_takes_part_there() -> None:
    split = warmed(ScriptedAgents({2: Changes(terminated=[1]), 5: Changes(terminated=[0])}), 3)

    slot = fill(split)

    assert slot.obs["obs"][:, 2, 0].tolist() == [30, 40, 100, 110, 120]
    assert slot.obs["obs"][:, 3, 0].tolist() == [0, 0, 101, 111, 121]
    assert slot.is_first[:, 2].tolist() == [False, False, True, False, False]
    assert slot.valid[:, 3].tolist() == [False, False, True, True]
    assert finished_episodes(split.episodes) == [(0.5 + 10.5 + 20.5 + 30.5 + 40.5, 5)]


def test_random_steps_over_the_end_of_an_episode_begin_another() -> None:
    split = warmed(ScriptedAgents({2: Changes(terminated=[0], truncated=[1])}), 2)

    slot = fill(split)

    assert slot.obs["obs"][0, 2:, 0].tolist() == [100, 101]
    assert slot.is_first[0].all()


def test_random_steps_end_with_a_stop() -> None:
    control = Control(1)
    control.order_stop(Stop.NOW)
    env = ScriptedAgents()

    warmed(env, 9, control)

    assert env.taken == []


def test_random_steps_are_counted_by_env_and_go_on_over_ends() -> None:
    envs = [COUNTING.agents() for _ in range(2)]
    began: list[None] = []

    rate = agents_steps_per_second(
        [Agents(env, seed) for seed, env in enumerate(envs)], 0.05, lambda: began.append(None)
    )

    assert rate > 0
    assert began


def test_pure_simulation_takes_envs_of_many_agents() -> None:
    spawner = Spawner()
    spawner.open()

    assert pure_simulation(spawner, COUNTING, 1, 2, [None], 0.2) > 0


class Diary(ActorCritic):
    """A policy that notes what it is shown, and remembers how often it was asked."""

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


def played(env: ScriptedAgents, episodes: int, steps: int = 100) -> tuple[list[Episode], Diary]:
    model = Diary(env.spec)
    player = Player(env, env.spec, model, NoScreen(), name="diary")
    return list(player.episodes(episodes, steps, seed=3)), model


def test_a_play_is_over_once_all_agents_are_and_tells_of_each() -> None:
    script = {1: Changes(asleep=[1]), 2: Changes(asleep=[1], truncated=[0]), 4: Changes(terminated=[1])}
    episodes, diary = played(ScriptedAgents(script), 1)

    ann, bob = 0.5 + 10.5 + 20.5 + 30.5, 1.5 + 11.5 + 21.5 + 31.5
    assert [(e.episode_return, e.length) for e in episodes] == [((ann + bob) / 2, 4)]
    assert dict(episodes[0].stats) == {"team_return": ann + bob, "return/ann": ann, "return/bob": bob}
    assert diary.shown == [[0, 1], [10, 11], [20, 0], [0, 31]]
    # Whoever shows nothing remembers what it has seen before, its last look included.
    assert diary.states == [[0, 0], [1, 1], [2, 2], [3, 2]]


def test_a_play_that_is_not_over_in_time_tells_nothing() -> None:
    assert played(ScriptedAgents(), 2, steps=7)[0] == []


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of importable modules, and a package called pettingzoo."""
    package = tmp_path / "pettingzoo"
    (package / "garden").mkdir(parents=True)
    for folder in (package, package / "garden"):
        (folder / "__init__.py").write_text("")
    before = set(sys.modules)
    kept = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "pettingzoo"}
    for name in kept:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("pettingzoo", "arenas"):
            del sys.modules[name]


MAKER = """
from sfactory_envs.synthetic.counting_agents import CountingParallel
def parallel_env(**kwargs):
    return CountingParallel(**kwargs)
"""


@pytest.mark.parametrize("name", ["garden.snail_v1", "garden/snail_v1", "pettingzoo.garden.snail_v1", "arenas"])
def test_a_module_is_looked_for_in_pettingzoo_and_elsewhere(name: str, modules: Path) -> None:
    (modules / "pettingzoo" / "garden" / "snail_v1.py").write_text(MAKER)
    (modules / "arenas.py").write_text(MAKER)

    env = FAMILY.make(f"pettingzoo:{name}", agents=2)

    assert type(env).__name__ == CountingParallel.__name__
    assert len(env.possible_agents) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pettingzoo:not-a-module", "'not-a-module' is no name of a module"),
        ("pettingzoo:garden.nobody_v1", r"cannot be imported.*pip install 'pettingzoo\[garden\]'"),
        ("pettingzoo:arenas.nobody", "is the package arenas installed"),
        ("pettingzoo:garden.turn_v0", r"did you mean pettingzoo:pettingzoo\.garden\.turns_v0\?"),
        ("pettingzoo:garden.turns_v0", r"has no parallel_env\(\)"),
    ],
)
def test_what_cannot_be_made_is_refused(name: str, message: str, modules: Path) -> None:
    (modules / "pettingzoo" / "garden" / "turns_v0.py").write_text("def env(): ...")

    with pytest.raises(EnvError, match=message):
        FAMILY.make(name)


def test_a_particle_world_is_an_env_of_many_agents() -> None:
    pytest.importorskip("mpe2")
    env = EnvFactory("pettingzoo:mpe2.simple_spread_v3", {"max_cycles": 4}).agents()
    assert isinstance(env, AgentsEnv)
    shown = env.reset(seed=1)

    changes = [env.step([0, 0, 0])[2] for _ in range(4)]

    assert env.agents == ("agent_0", "agent_1", "agent_2")
    assert [np.shape(obs) for obs in shown] == [env.observation_space.shape] * 3
    assert changes[:3] == [None] * 3
    assert changes[3] is not None
    assert list(changes[3].truncated) == [True] * 3


def test_the_family_knows_its_names() -> None:
    assert all(FAMILY.matches(name) for name in FAMILY.names())
    assert not FAMILY.matches("CartPole-v1")
    assert isinstance(sys.modules["sfactory_envs.pettingzoo"], ModuleType)
