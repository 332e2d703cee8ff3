"""Envs are made from their names, and errors explain what a factory did wrong."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from sfactory import envs, packages
from sfactory.config.env_families import find_family, load_families, search_families
from sfactory.config.flags import config_of
from sfactory.config.resolve import read_command_line
from sfactory.config.validation import check_env_name
from sfactory.env.factory import EnvFactory, find_maker, make_env, takes_frameskip
from sfactory.errors import EnvError
from sfactory.packages import install_command
from tests.support.source import ROOT

FACTORIES = """
import gymnasium

class Plain(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, size=1):
        self.size = size
    def reset(self, *, seed=None, options=None):
        return 0, {}
    def step(self, action):
        return 0, 0.0, False, False, {}

def rendered(size=1, render_mode="unset"):
    env = Plain(size)
    env.render_mode = render_mode
    return env

def demanding(render_mode):
    return rendered(1, render_mode)

def skipping(size=1, env_frameskip=9):
    return Plain((size, env_frameskip))

class Skipping(Plain):
    def __init__(self, env_frameskip=9):
        super().__init__(env_frameskip)

def by_place(env_frameskip=9, /):
    return Plain(env_frameskip)

def anything(**kwargs):
    return Plain(sorted(kwargs.items()))

def numbered(env_index, **kwargs):
    return Plain(env_index)

def refusing(**kwargs):
    return Plain(**kwargs)

def drawing(**kwargs):
    return rendered(**kwargs)

def vectors(size=1):
    return gymnasium.make_vec("CartPole-v1")

def in_pixels(size=(1, 1), where=None):
    return Plain(size + (3,) if where is None else where.exists())

def nothing():
    return None

def raising():
    raise ValueError("the simulator is not installed")

def leaving():
    raise SystemExit("no licence")

constant = 3
gymnasium.register("Homemade-v0", entry_point=Plain, max_episode_steps=7)
"""

FAMILIES = """
class Family:
    def __init__(self, name, prefix):
        self.name, self.prefix = name, prefix
    def names(self):
        return (self.prefix + "one",)
    def matches(self, env_name):
        return env_name.startswith(self.prefix)
    def make(self, env_name, **kwargs):
        import homemade
        return homemade.Plain(**kwargs)
    def defaults(self, env_name):
        return {"gamma": 0.5, "experiment": "mine", "no_such_flag": 1, "rollout": "many"}

class Skips(Family):
    def make(self, env_name, *, env_frameskip=9, **kwargs):
        import homemade
        return homemade.Plain((env_frameskip, kwargs))

class Raising(Family):
    def matches(self, env_name):
        raise RuntimeError("out of order")

SKIPS = Skips("skips", "skipping_")
GOOD = Family("good", "homemade_")
RIVAL = Family("rival", "homemade_two")
RAISING = Raising("raising", "x")
NO_FAMILY = 3
"""


@pytest.fixture(autouse=True)
def _homemade_envs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "homemade.py").write_text(FACTORIES)
    (tmp_path / "needs_more.py").write_text("import no_such_module_here\n")
    (tmp_path / "broken_envs.py").write_text("raise RuntimeError('bad day')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("homemade", "homemade_families", "needs_more", "broken_envs"):
        sys.modules.pop(name, None)
    gymnasium.registry.pop("Homemade-v0", None)


@pytest.fixture
def _families(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that looks installed to importlib.metadata, with good and bad families."""
    (tmp_path / "homemade_families.py").write_text(FAMILIES)
    info = tmp_path / "homemade_families-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: homemade-families\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[sfactory.envs]\nagood = homemade_families:GOOD\nrival = homemade_families:RIVAL\n"
        "skips = homemade_families:SKIPS\n"
        "raising = homemade_families:RAISING\nnothing = homemade_families:NO_FAMILY\nbroken = broken_envs:FAMILY\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    load_families.cache_clear()
    yield
    load_families.cache_clear()


def size_of(env: gymnasium.Env[Any, Any]) -> object:
    """The argument that a homemade env was made with."""
    size: object = env.unwrapped.size  # type: ignore[attr-defined]
    return size


def test_a_function_or_class_in_the_current_directory_gets_the_kwargs() -> None:
    assert size_of(make_env("homemade:Plain", {"size": 4})) == 4
    assert size_of(make_env("homemade:rendered", {"size": 5})) == 5


def test_render_mode_is_passed_only_to_factories_that_take_it() -> None:
    assert make_env("homemade:rendered", {}, "rgb_array").render_mode == "rgb_array"
    assert make_env("homemade:rendered", {}).render_mode == "unset"
    assert make_env("homemade:demanding", {}).render_mode is None
    assert size_of(make_env("homemade:Plain", {}, "rgb_array")) == 1


def test_a_factory_of_any_keywords_gets_a_render_mode_unless_it_refuses_it() -> None:
    assert make_env("homemade:drawing", {"size": 2}, "rgb_array").render_mode == "rgb_array"
    assert make_env("homemade:drawing", {}).render_mode == "unset"
    assert size_of(make_env("homemade:refusing", {"size": 2}, "rgb_array")) == 2
    with pytest.raises(EnvError, match="unexpected keyword argument 'render_mode'"):
        make_env("homemade:refusing", {"render_mode": "human"}, "rgb_array")


def test_a_factory_is_given_the_number_of_the_env_if_it_names_it() -> None:
    assert size_of(EnvFactory("homemade:numbered", env_index=7)()) == 7
    assert size_of(EnvFactory("homemade:numbered", {"env_index": 3}, env_index=7)()) == 3
    assert size_of(EnvFactory("homemade:numbered")()) == -1
    assert size_of(EnvFactory("homemade:anything", env_index=7)()) == []


@pytest.mark.parametrize(
    ("name", "made_with", "takes"),
    [
        ("homemade:skipping", (1, 4), True),
        ("homemade:Skipping", 4, True),
        ("homemade:by_place", 9, False),
        ("homemade:anything", [], False),
        ("homemade:Plain", 1, False),
        ("homemade:Homemade-v0", 1, False),
        ("skipping_one", (4, {}), True),
        ("homemade_one", 1, False),
    ],
)
@pytest.mark.usefixtures("_families")
def test_env_frameskip_is_passed_only_to_factories_that_name_it(name: str, made_with: object, takes: bool) -> None:
    assert size_of(EnvFactory(name, env_frameskip=4)()) == made_with
    assert takes_frameskip(name) is takes


@pytest.mark.parametrize("name", ["homemade:skipping", "skipping_one"])
@pytest.mark.usefixtures("_families")
def test_env_frameskip_in_the_kwargs_must_equal_the_flag(name: str) -> None:
    make_env(name, {"env_frameskip": 4}, env_frameskip=4)

    with pytest.raises(EnvError, match="--env_frameskip=4, but --env_kwargs say env_frameskip=2"):
        make_env(name, {"env_frameskip": 2}, env_frameskip=4)


def test_the_factory_of_a_run_is_picklable_and_takes_name_kwargs_and_frameskip_from_the_flags() -> None:
    config = config_of({"env": "homemade:skipping", "env_kwargs": {"size": 3}, "env_frameskip": 2})

    factory = pickle.loads(pickle.dumps(EnvFactory.of(config)))

    assert factory == EnvFactory("homemade:skipping", {"size": 3}, 2, "auto")
    assert size_of(factory()) == (3, 2)


@pytest.mark.parametrize(
    ("name", "kwargs", "expected"),
    [
        ("homemade:raising", {}, "ValueError: the simulator is not installed"),
        ("homemade:leaving", {}, "SystemExit: no licence"),
        ("homemade:nothing", {}, "returned None; it must return an instance of gymnasium.Env"),
        ("homemade:vectors", {}, "give it a parameter num_envs"),
        ("homemade:constant", {}, "it must be a function or class"),
        ("homemade:plain", {}, "did you mean homemade:Plain?"),
        ("homemade:Plain", {"sise": 3}, "do --env_kwargs fit"),
        ("homemade:in_pixels", {"size": [2, 2]}, "tuples and arrays in env_kwargs arrive as lists, and Paths as text"),
        ("homemade:in_pixels", {"where": "/a"}, "tuples and arrays in env_kwargs arrive as lists, and Paths as text"),
        ("no_such_module_here:make", {}, "run the command in the folder that holds it"),
        ("needs_more:make", {}, "install 'no_such_module_here'"),
        ("broken_envs:make", {}, "RuntimeError: bad day"),
        ("CartPol-v1", {}, "Did you mean: `CartPole`"),
        ("no_such_module_here:Thing-v0", {}, "no_such_module_here"),
        ("CartPole-v1", {"sise": 3}, "do --env_kwargs fit"),
    ],
)
def test_errors_explain_what_a_factory_did_wrong(name: str, kwargs: dict[str, object], expected: str) -> None:
    with pytest.raises(EnvError) as caught:
        make_env(name, kwargs)

    assert str(caught.value).startswith(f"--env={name}: ")
    assert expected in str(caught.value)
    assert name != "homemade:raising" or isinstance(caught.value.__cause__, ValueError)


def test_gymnasium_envs_have_the_latest_version_and_a_time_limit_but_no_checking_wrappers() -> None:
    env, limited = make_env("CartPole", {}), make_env("homemade:Homemade-v0", {"max_episode_steps": 3})

    assert env.spec is not None
    assert env.spec.id == "CartPole-v1"
    assert isinstance(env, gymnasium.wrappers.TimeLimit)
    assert env.env is env.unwrapped
    limited.reset(seed=1)
    assert [bool(limited.step(0)[3]) for _ in range(3)] == [False, False, True]


@pytest.mark.usefixtures("_families")
def test_a_family_makes_its_own_names_and_bad_families_only_cause_warnings() -> None:
    search = search_families("homemade_one")

    assert search.family is not None
    assert search.family.name == "good"
    assert size_of(make_env("homemade_one", {"size": 6})) == 6
    assert len(search.warnings) == 3
    assert "package homemade-families" in search.warnings[0]
    assert "RuntimeError: bad day" in search.warnings[0]
    assert "without the members of an EnvFamily" in search.warnings[1]
    assert "out of order" in search.warnings[2]


@pytest.mark.usefixtures("_families")
def test_two_families_that_claim_one_name_are_named() -> None:
    search = search_families("homemade_two")

    assert search.family is not None
    assert search.family.name == "good"
    assert "'good', 'rival' all claim 'homemade_two'" in search.warnings[-1]


@pytest.mark.usefixtures("_families")
def test_a_family_sets_defaults_of_flags_and_invalid_ones_are_ignored_with_a_warning() -> None:
    resolved = read_command_line(["--env=homemade_one"])

    assert resolved.config.algo.gamma == 0.5
    assert resolved.sources["gamma"] == "env family good"
    assert resolved.config.run.experiment == "homemade_one"
    text = "\n".join(resolved.warnings)
    assert "'experiment', which it may not" in text
    assert "'no_such_flag', which it may not" in text
    assert "--rollout=many: must be a whole number" in text


def test_a_name_of_no_installed_family_has_no_family() -> None:
    assert find_family("homemade_one") is None


# A package that registers envs when it is imported, one of them also as a vector env.
REGISTERING = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

class Pole(CartPoleEnv):
    pass

gymnasium.register("PoleInABox-v0", Pole, vector_entry_point=CartPoleVectorEnv)
gymnasium.register("registering/Tilted-v1", "registering:Pole")
"""


@pytest.fixture
def registering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package ``registering`` and a package ``silent``, which registers nothing."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "registering.py").write_text(REGISTERING)
    (tmp_path / "silent.py").write_text("")
    before = set(gymnasium.registry)
    yield
    for module in ("registering", "silent"):
        sys.modules.pop(module, None)
    for added in set(gymnasium.registry) - before:
        del gymnasium.registry[added]


@pytest.mark.usefixtures("registering")
def test_a_package_registers_its_ids_also_those_of_vector_envs() -> None:
    assert EnvFactory("registering:PoleInABox-v0")().spec is not None
    assert EnvFactory("vector:registering:PoleInABox-v0").vector(num_envs=3, seed=1).num_envs == 3


@pytest.mark.usefixtures("registering")
@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("registering:PoleInABocks-v0", "did you mean registering:PoleInABox-v0?"),
        ("registering:Xyzzy-v0", "; it has registered PoleInABox-v0, registering/Tilted-v1"),
        ("silent:CartPol-v1", "did you mean silent:CartPole-v1?"),
        ("vector:silent:Xyzzy-v0", "importing silent has not registered Xyzzy-v0"),
    ],
)
def test_an_import_that_does_not_register_the_id_says_so(name: str, advice: str) -> None:
    bare = name.rpartition(":")[2]
    factory = EnvFactory(name)

    with pytest.raises(EnvError) as caught:
        factory.vector(2, seed=1) if name.startswith("vector:") else factory()

    assert f"has not registered {bare}" in str(caught.value)
    assert advice in str(caught.value)


def test_an_id_that_is_registered_in_main_alone_says_where_to_register_it() -> None:
    with pytest.raises(EnvError, match=r"`Own` doesn't exist.*; call gymnasium.register in a module.*my_envs:Own-v0"):
        make_env("Own-v0", {})


@pytest.mark.usefixtures("registering")
def test_a_package_registers_its_ids_by_an_entry_point_as_minatar_does(tmp_path: Path) -> None:
    (tmp_path / "plugging.py").write_text("def register(): import registering")
    info = tmp_path / "plugging-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: plugging\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gymnasium.envs]\nregistering = plugging:register\n")

    assert check_env_name("registering/Tilted-v1") == []
    assert EnvFactory("registering/Tilted-v1")().spec is not None
    with pytest.raises(EnvError, match="importing plugging has not registered registering/Tilted-v2"):
        EnvFactory("registering/Tilted-v2")()
    assert check_env_name("registered/Tilted-v1")


def test_a_package_that_an_env_of_gymnasium_needs_is_named_with_the_cause_and_what_to_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)

    with pytest.raises(EnvError) as caught:
        make_env("gymnasium:make", {"id": "Ant-v5"})

    assert "DependencyNotInstalled" in str(caught.value)
    assert str(caught.value).count("pip install") == 1  # Gymnasium names another one
    assert "import of mujoco halted" in str(caught.value)
    assert re.search(r"; run: .*pip install .*\[mujoco\]", str(caught.value))


NEEDY: list[Any] = [family for family in load_families()[0] if hasattr(family, "modules")]


def test_names_of_families_whose_packages_are_missing_say_what_to_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in chain.from_iterable(family.modules for family in NEEDY):
        monkeypatch.setitem(sys.modules, module, None)

    assert envs.main([]) == 0
    lines = capsys.readouterr().out.splitlines()

    for family in NEEDY:
        name = family.names()[0]
        if not family.modules:
            assert check_env_name(name) == []
            continue
        (problem,) = check_env_name(name)
        assert problem.startswith(f"--env={name}: needs {family.modules[0]}")
        assert len(problem.splitlines()) == 1
        if getattr(family, "extra", ""):
            assert problem.endswith(f"; run: {install_command(family.extra)}")
            assert family.extra in (metadata.metadata("sfactory").get_all("Provides-Extra") or ())
        else:
            assert problem.endswith(f"; to install it, see {family.page}")
        with pytest.raises(EnvError, match=re.escape(problem)):
            find_maker(name)
        (at,) = (number for number, line in enumerate(lines) if line.startswith(f"{family.name} "))
        assert "missing" in lines[at]
        assert lines[at + 1].strip() == problem.partition(": ")[2]


def test_the_list_of_families_has_all_names_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert envs.main(["atari"]) == 0
    lines = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert len(lines) == 57
    assert "atari_breakout row breakout and breakout_2m of docs/results.md" in lines
    assert "atari_freeway not measured in docs/results.md" in lines
    assert envs.main(["ataru"]) == envs.main(["--all"]) == 2
    assert "did you mean atari?" in capsys.readouterr().err


def test_a_version_that_an_extra_does_not_ask_for_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = ["packaging", 'packaging<2; extra == "atari"', 'pip>=1; extra == "atari"', 'none>=1; extra == "atari"']
    monkeypatch.setattr(metadata, "requires", lambda _: needed)
    version = metadata.version("packaging")

    (warning,) = read_command_line(["--env=atari_pong"]).warnings

    expected = f"packaging is installed in version {version}, and the extra 'atari' asks for <2; if it fails, run: "
    assert warning == expected + install_command("atari")
    assert envs.main([]) == 0
    assert warning in capsys.readouterr().out
    assert read_command_line(["--env=CartPole-v1"]).warnings == []


def test_what_to_type_fits_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: str(Path(sys.executable).with_name("pip")))
    assert install_command("atari") == f"pip install -e '{ROOT}[atari]' -c {ROOT}/constraints.txt"
    assert install_command("nethack") == f"pip install -e '{ROOT}[nethack]'"  # its packages are not pinned

    monkeypatch.setattr(packages, "__file__", str(tmp_path / "a b" / "sfactory" / "packages.py"))
    assert install_command("atari") == "pip install 'sfactory[atari]'"
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "pyproject.toml").touch()
    assert install_command("atari") == f"pip install -e '{tmp_path}/a b[atari]'"
    for found in ("/elsewhere/pip", None):  # a venv that is not activated, or has no pip
        monkeypatch.setattr("shutil.which", lambda _, found=found: found)
        assert install_command("atari") == f"{sys.executable} -m pip install -e '{tmp_path}/a b[atari]'"
