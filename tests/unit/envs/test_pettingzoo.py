"""Envs of PettingZoo's family are found by the names of their modules."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfactory import envs
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


# What each needs beside the extra of sfactory, and arguments that make it fast.
KINDS: dict[str, tuple[str, dict[str, object]]] = {
    "butterfly.cooperative_pong_v6": ("pygame", {}),
    "butterfly.knights_archers_zombies_v11": ("pygame", {}),
    "butterfly.pistonball_v6": ("pymunk", {"n_pistons": 4}),
    "classic.chess_v6": ("chess", {}),
    "classic.connect_four_v3": ("pygame", {}),
    "classic.go_v5": ("pygame", {"board_size": 5}),
    "classic.hanabi_v5": ("pyspiel", {}),
    "classic.leduc_holdem_v4": ("rlcard", {}),
    "classic.rps_v2": ("pygame", {}),
    "classic.texas_holdem_v4": ("rlcard", {}),
    "classic.texas_holdem_no_limit_v6": ("rlcard", {}),
    "sisl.multiwalker_v9": ("Box2D", {}),
    "sisl.pursuit_v5": ("scipy", {}),
    "atari.pong_v3": ("multi_agent_ale_py", {}),
    "mpe2.simple_world_comm_v3": ("mpe2", {}),
    "magent2.environments.battle_v4": ("magent2", {"map_size": 16}),
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of importable modules, and a package called pettingzoo."""
    garden, mpe, information = (
        tmp_path / path for path in ("pettingzoo/garden", "pettingzoo/mpe", "pettingzoo.dist-info")
    )
    for folder, text in ((garden, ""), (mpe, "raise ImportError('gone')"), (garden.parent, "")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text(text)
    information.mkdir()
    (information / "METADATA").write_text("Name: pettingzoo\nVersion: 1.0\nProvides-Extra: garden\n")
    (garden / "shovel_v2.py").write_text("import absent_spade")
    (garden / "late_v3.py").write_text("def env(): import absent_spade")
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
        (
            "pettingzoo:garden.absent_v1",
            r"cannot be imported.*its envs of this kind: late_v3, shovel_v2, snail_v1, turns_v0",
        ),
        ("pettingzoo:garden.shovel_v2", r"cannot be imported.*pip install 'pettingzoo\[garden\]'"),
        ("pettingzoo:garden.late_v3", r"cannot be made.*pip install 'pettingzoo\[garden\]'"),
        ("pettingzoo:mpe.absent_v1", r"its name is pettingzoo:mpe2\.absent_v1 today"),
        ("pettingzoo:arenas.absent", "is the package arenas installed"),
        ("pettingzoo:garden.turn_v0", r"did you mean pettingzoo:pettingzoo\.garden\.turns_v0\?"),
        ("pettingzoo:garden", r"pettingzoo\.garden has no parallel_env\(\) and no env\(\), so it is no env"),
        ("pettingzoo:os", "os is a module of Python.s standard library"),
    ],
)
def test_an_env_that_cannot_be_made_is_refused(name: str, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        FAMILY.make(name)


def test_the_particle_worlds_have_another_name_today(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pettingzoo", minversion="1.27")
    pytest.importorskip("mpe2")
    with pytest.raises(EnvError, match=r"its name is pettingzoo:mpe2\.simple_spread_v3 today$"):
        FAMILY.make("pettingzoo:mpe.simple_spread_v2")

    monkeypatch.setattr("sfactory_envs.pettingzoo.missing", list)
    with pytest.raises(EnvError, match=r"today, which needs mpe2; run: .*pip install.*pettingzoo\]"):
        FAMILY.make("pettingzoo:mpe.simple_spread_v3")
    assert envs.main([]) == 0
    listed = capsys.readouterr().out.partition("\npettingzoo ")[2]
    assert re.findall(r"\n +pettingzoo:(\S+) needs (\w+)", listed) == [
        ("mpe2.*", "mpe2"),
        ("butterfly.pistonball_v6", "pymunk"),
    ]


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KINDS)
def test_each_kind_is_accepted_and_plays_episodes(name: str) -> None:
    needed, kwargs = KINDS[name]
    for package in ("pettingzoo", needed):
        pytest.importorskip(package)
    factory = EnvFactory(f"pettingzoo:{name}", kwargs)
    assert examine(factory).spec.agents
    env, random = factory.agents(), np.random.default_rng(1)
    env.action_space.seed(1)
    observations: Sequence[Any] = env.reset(seed=1)

    for _ in range(100):
        actions = [env.action_space.sample() for _ in observations]
        for agent, obs in enumerate(observations):
            if env.in_turns and obs is not None and obs["action_mask"].any():
                actions[agent] = random.choice(obs["action_mask"].nonzero()[0])
        observations, rewards, change = env.step(actions)
        assert np.isfinite(rewards).all()
        assert all(env.observation_space.contains(obs) for obs in observations if obs is not None)
        if change is not None and not any(change.active):
            observations = env.reset()
    env.close()
