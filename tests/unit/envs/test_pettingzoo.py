"""Envs of PettingZoo's family are found by the names of their modules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sfactory.config.flags import all_flags, coerce, config_of
from sfactory.config.validation import find_problems
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
        ("pettingzoo:garden", r"pettingzoo\.garden has no parallel_env\(\) and no env\(\), so it is no env"),
        ("pettingzoo:os", "os is a module of Python.s standard library"),
    ],
)
def test_an_env_that_cannot_be_made_is_refused(name: str, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        FAMILY.make(name)


def test_some_envs_have_valid_defaults_under_each_of_their_names() -> None:
    defaults = {name.removeprefix("pettingzoo:"): dict(FAMILY.defaults(name)) for name in FAMILY.names()}
    for name, flags in defaults.items():
        values = {flag: coerce(all_flags()[flag], value) for flag, value in flags.items()}
        assert find_problems(config_of({"env": f"pettingzoo:{name}", **values})) == []

    assert all(defaults.values())
    assert FAMILY.defaults("pettingzoo:butterfly.cooperative_pong_v5") == {}
    assert FAMILY.defaults("pettingzoo:pettingzoo.classic/tictactoe_v3") == defaults["classic.tictactoe_v3"]
    assert FAMILY.defaults("pettingzoo:my.classic.tictactoe_v3") == {}


def test_a_board_game_is_an_env_whose_agents_act_in_turn() -> None:
    pytest.importorskip("pettingzoo")
    probed = examine(EnvFactory("pettingzoo:classic.tictactoe_v3", info_action_mask="auto"), timed=True)
    assert probed.spec.in_turns
    assert probed.spec.agents == ("player_1", "player_2")
    assert [leaf.heads for _, leaf in probed.spec.masks] == [(9,)]

    env = EnvFactory("pettingzoo:classic.tictactoe_v3").agents()
    env.reset(seed=0)
    # The action of the agent whose turn it is not is ignored.
    *_, (observations, rewards, change) = [env.step([action, action]) for action in (0, 3, 1, 4, 2)]
    assert change is not None
    assert list(change.terminated) == [True, True]
    assert list(rewards) == [1.0, -1.0]
    assert observations[0]["observation"][..., 0].ravel().nonzero()[0].tolist() == [0, 1, 2]


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
