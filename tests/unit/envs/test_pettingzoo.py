"""Envs of PettingZoo's family are found by the names of their modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium.spaces as spaces
import numpy as np
import pytest

from sfactory.env.factory import EnvFactory
from sfactory.env.multi_agent import AgentsEnv
from sfactory.errors import EnvError
from sfactory.planning.env_probe import examine
from sfactory_envs.pettingzoo import FAMILY
from sfactory_envs.synthetic.counting_agents import CountingParallel

MAKER = """
from sfactory_envs.synthetic.counting_agents import CountingParallel
def parallel_env(**kwargs):
    return CountingParallel(**kwargs)
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of importable modules, and a package called pettingzoo."""
    garden = tmp_path / "pettingzoo" / "garden"
    garden.mkdir(parents=True)
    for folder in (garden.parent, garden):
        (folder / "__init__.py").write_text("")
    (garden / "snail_v1.py").write_text(MAKER)
    (garden / "turns_v0.py").write_text("def env(): ...")
    (tmp_path / "arenas.py").write_text(MAKER)
    before = set(sys.modules)
    for name in before:
        if name.partition(".")[0] == "pettingzoo":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("pettingzoo", "arenas"):
            del sys.modules[name]


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("name", ["garden.snail_v1", "garden/snail_v1", "pettingzoo.garden.snail_v1", "arenas"])
def test_a_module_is_looked_for_in_pettingzoo_and_elsewhere(name: str) -> None:
    env = FAMILY.make(f"pettingzoo:{name}", agents=2)

    assert type(env).__name__ == CountingParallel.__name__
    assert len(env.possible_agents) == 2


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pettingzoo:not-a-module", "'not-a-module' is no name of a module"),
        ("pettingzoo:garden.absent_v1", r"cannot be imported.*pip install 'pettingzoo\[garden\]'"),
        ("pettingzoo:arenas.absent", "is the package arenas installed"),
        ("pettingzoo:garden.turn_v0", r"did you mean pettingzoo:pettingzoo\.garden\.turns_v0\?"),
        ("pettingzoo:garden.turns_v0", r"act in turn .*turn_based_aec_to_parallel\(env\(\)\).*--env=my_envs:make"),
        ("pettingzoo:os", "os is a module of Python.s standard library"),
    ],
)
def test_an_env_that_cannot_be_made_is_refused(name: str, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        FAMILY.make(name)


def game(in_turn: bool) -> Any:
    """Two players fill a board of bool in turn, as in chess and Go; in PettingZoo's form for that, or converted."""
    utils = importlib.import_module("pettingzoo.utils")

    class Game(utils.AECEnv):  # type: ignore[misc, name-defined]
        metadata: ClassVar[dict[str, Any]] = {"name": "game_v0"}
        possible_agents: ClassVar[list[str]] = ["black", "white"]
        render_mode = None

        def reset(self, seed: int | None = None, options: object = None) -> None:
            self.agents, self.board, self.agent_selection = [*self.possible_agents], np.zeros(9, bool), "black"
            for values, value in (("rewards", 0.0), ("_cumulative_rewards", 0.0), ("infos", {})):
                setattr(self, values, dict.fromkeys(self.agents, value))
            self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))

        def step(self, action: int) -> None:
            if self.terminations[self.agent_selection]:
                self._was_dead_step(action)
                return
            self.rewards[self.agent_selection] = float(not self.board[action])
            self.board[action] = True
            self.terminations = dict.fromkeys(self.agents, bool(self.board.sum() == 3))
            self._accumulate_rewards()
            self.agent_selection = "white" if self.agent_selection == "black" else "black"

        def observe(self, agent: str) -> Any:
            return self.board.copy()

        def observation_space(self, agent: str) -> spaces.Space[Any]:
            return spaces.Box(0, 1, (9,), bool)

        def action_space(self, agent: str) -> spaces.Space[Any]:
            return spaces.Discrete(9)

    return Game() if in_turn else utils.turn_based_aec_to_parallel(Game())


def test_an_env_whose_agents_act_in_turn_is_played_by_the_converter_that_its_refusal_names() -> None:
    pytest.importorskip("pettingzoo")
    name = "tests.unit.envs.test_pettingzoo:game"
    with pytest.raises(
        EnvError, match=r"act in turn \(AEC\); return pettingzoo\.utils\.turn_based_aec_to_parallel\(env\)"
    ):
        examine(EnvFactory(name, {"in_turn": True}))

    assert examine(EnvFactory(name, {"in_turn": False})).spec.agents == ("black", "white")

    env = EnvFactory(name, {"in_turn": False}).agents()
    env.reset(seed=0)
    # The action of the agent whose turn it is not is ignored.
    observations, *_, change = [env.step(actions) for actions in ([0, 8], [8, 1], [2, 8])][-1]
    assert change is not None
    assert list(change.terminated) == [True, True]
    assert [list(np.flatnonzero(board)) for board in observations] == [[0, 1, 2]] * 2


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
