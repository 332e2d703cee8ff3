"""Vector envs are made, checked and played like any other env."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from sfactory import envs
from sfactory.config.env_families import find_family, search_families
from sfactory.env.drawing import picture_of
from sfactory.env.factory import EnvFactory, make_env
from sfactory.env.vector import SoleEnv
from sfactory.errors import EnvError
from sfactory.planning.env_probe import examine
from sfactory.spec import EnvSpec
from sfactory_envs import vector_envs
from tests.support.scripted_env import ScriptedEnv

HERE = "tests.unit.envs.test_vector_envs"


def scripted(num_envs: int, autoreset_mode: str = "NextStep") -> SyncVectorEnv:
    makers = [lambda: ScriptedEnv([(2, "truncated"), (3, "terminated")])] * num_envs
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode(autoreset_mode))


def plain(num_envs: int) -> ScriptedEnv:
    return ScriptedEnv([])


def one_more(num_envs: int) -> SyncVectorEnv:
    return scripted(num_envs + 1)


class Odd(SyncVectorEnv):
    """Breaks one rule in its steps: changes one of their results."""

    def __init__(self, change: Callable[..., tuple[Any, ...]]) -> None:
        super().__init__([lambda: ScriptedEnv([])] * 2)
        self._change = change

    def step(self, actions: Any) -> Any:
        return self._change(*super().step(actions))


def odd(num_envs: int, change: Callable[..., tuple[Any, ...]]) -> Odd:
    return Odd(change)


def test_factories_that_take_num_envs_make_vectors() -> None:
    names = (f"{HERE}:scripted", "vector:CartPole-v1", f"{HERE}:Odd")

    assert [EnvFactory(name).makes_vectors for name in names] == [True, True, False]


def test_the_vector_form_of_an_id_has_the_defaults_of_the_id() -> None:
    env = EnvFactory("vector:CartPole-v1").vector(num_envs=3, seed=1)

    assert (env.num_envs, type(env).__name__) == (3, "CartPoleVectorEnv")
    for form, name in (
        ("vector:CartPole-v1", "CartPole-v1"),
        ("envpool:Breakout-v5", "atari_breakout"),
        ("envpool:Ant-v3", "Ant-v4"),  # an older version than Gymnasium has
        ("envpool:MiniGrid-DoorKey-5x5-v0", "MiniGrid-DoorKey-5x5-v0"),
        ("envpool:BabyAI-GoToLocal-v0", "BabyAI-GoToLocal-v0"),
        ("envpool:FetchReachDense-v1", "FetchReachDense-v1"),
        ("envpool:Blackjack-v5", "atari_breakout"),  # a game of the Atari 2600, not of cards
    ):
        assert defaults_of(form) == defaults_of(name) != {}
    assert defaults_of("envpool:CarRacing-v3") == {}  # its images are larger
    assert "env_frameskip" in defaults_of("VizdoomCustom-v1")
    assert "env_frameskip" not in defaults_of("envpool:VizdoomCustom-v1")  # which EnvPool does not take


def defaults_of(name: str) -> Mapping[str, object]:
    family = find_family(name)
    assert family is not None
    return family.defaults(name)


def test_procgen_is_a_family_of_all_its_games_that_envpool_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert envs.main(["procgen"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]

    assert "envpool:CoinrunEasy-v0" in names
    assert search_families(names[0]).family is search_families(names[-1]).family
    assert search_families(names[0]).warnings == []
    envpool = pytest.importorskip("envpool")
    games = {name.removeprefix("envpool:").removesuffix("Easy-v0") for name in names if name.endswith("Easy-v0")}
    modes = re.compile(rf"({'|'.join(games)})(Easy|Hard|Memory|Exploration|Extreme)-v0")
    assert {f"envpool:{name}" for name in envpool.list_all_envs() if modes.fullmatch(name)} == set(names)
    assert len(games) == 16


def test_vector_games_have_raw_rewards_and_the_frameskip_of_the_flag() -> None:
    env = EnvFactory("vector:ALE/MsPacman-v5", env_frameskip=2).vector(num_envs=2, seed=1)
    assert env.single_observation_space.shape == (4, 84, 84)
    env.reset(seed=1)
    env.action_space.seed(1)

    steps = [env.step(env.action_space.sample()) for _ in range(300)]

    assert max(rewards.max() for _, rewards, *_ in steps) == 10  # a dot; clipped it would be 1
    frames = steps[-1][4]["episode_frame_number"] - steps[-2][4]["episode_frame_number"]
    assert frames.tolist() == [2, 2]


def test_games_of_ale_py_are_those_of_the_atari_family() -> None:
    kwargs, random = {"noop_max": 0}, np.random.default_rng(0)
    games = EnvFactory("vector:ALE/Breakout-v5", kwargs, env_frameskip=4).vector(num_envs=1, seed=1)
    env = make_env("atari_breakout", kwargs, env_frameskip=4)

    frames, (shown, _) = games.reset(seed=1)[0], env.reset(seed=1)
    for action in (1, *random.integers(4, size=60)):
        np.testing.assert_array_equal(frames[0, -1], shown[-1])  # the stack of an episode's begin is black in ale-py
        frames, rewards, *_ = games.step(np.array([action]))
        shown, reward, *_ = env.step(action)
        assert rewards[0] == reward


def test_a_game_of_ale_py_beyond_the_57_is_made_like_them() -> None:
    name = "vector:ALE/AirRaid-v5"
    env = EnvFactory(name, env_frameskip=3).vector(num_envs=1, seed=1)
    assert env.spec is not None

    given = {"frameskip": 3, "use_fire_reset": False, "reward_clipping": False, "num_threads": 1}
    assert given.items() <= env.spec.kwargs.items()
    assert env.spec.kwargs["repeat_action_probability"] == 0
    assert defaults_of(name) == defaults_of("atari_breakout")


def test_a_video_of_ale_pys_vector_form_is_refused_with_the_form_that_has_one() -> None:
    with pytest.raises(EnvError, match="ale-py's vector form cannot be drawn: add --env=ALE/Breakout-v5"):
        EnvFactory("vector:ALE/Breakout-v5").either("rgb_array")
    assert EnvFactory("vector:ALE/Breakout-v5", {"render_mode": None}).either().render_mode is None


@pytest.mark.parametrize("name", ["envpool:CartPole-v1", "envpool:Breakout-v5"])
def test_envpool_draws_its_envs(name: str) -> None:
    pytest.importorskip("envpool")
    env = EnvFactory(name).either("rgb_array", seed=1)
    env.reset(seed=1)

    assert picture_of(env, name, "--save_video").std() > 1


def test_a_game_of_envpool_beyond_the_57_takes_the_frameskip_of_the_flag() -> None:
    pytest.importorskip("envpool")
    pool: Any = EnvFactory("envpool:AirRaid-v5", env_frameskip=3).vector(num_envs=1, seed=1)

    assert pool.spec.config.frame_skip == 3
    assert not pool.spec.config.use_fire_reset
    assert defaults_of("envpool:AirRaid-v5") == defaults_of("envpool:Breakout-v5")


def test_a_scenario_of_vizdoom_in_envpool_says_that_its_frames_are_not_counted() -> None:
    (warning,) = search_families("envpool:D3Battle-v1").warnings

    assert "frame_skip frames" in warning
    assert search_families("envpool:HalfCheetah-v5").warnings == []
    assert search_families("envpool:Breakout-v5").warnings == []


def test_the_scenarios_of_vizdoom_are_those_that_envpool_has() -> None:
    envpool = pytest.importorskip("envpool")

    registered = envpool.registration.registry.specs
    assert {name for name, (module, *_) in registered.items() if module == "envpool.vizdoom"} == vector_envs._DOOM
    assert envpool.make_spec("D3Battle-v1").config.frame_skip == 4


def test_games_of_envpool_are_those_of_the_atari_family() -> None:
    pytest.importorskip("envpool")
    kwargs, random, ends = {"noop_max": 1}, np.random.default_rng(0), 0
    pool = EnvFactory("envpool:Breakout-v5", kwargs, env_frameskip=4).vector(num_envs=1, seed=1)
    env = make_env("atari_breakout", kwargs, env_frameskip=4)

    frames, (shown, _) = pool.reset()[0], env.reset()
    for _ in range(600):
        np.testing.assert_array_equal(frames[0], shown)
        action = int(random.integers(4))
        frames, rewards, terminated, _, _ = pool.step(np.array([action]))
        shown, reward, over, _, _ = env.step(action)
        assert (rewards[0], terminated[0]) == (reward, over)
        if over:  # the next step of a pool resets
            frames, (shown, _), ends = pool.step(np.array([0]))[0], env.reset(), ends + 1
    assert ends >= 2


def test_a_seed_repeats_the_episodes_of_a_pool_which_training_makes_once() -> None:
    envpool = pytest.importorskip("envpool")
    made, make = [], envpool.make

    def counting(*args: Any, **kwargs: Any) -> Any:
        made.append(kwargs["seed"])
        return make(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envpool, "make", counting)
        pool = EnvFactory("envpool:CartPole-v1").vector(num_envs=3, seed=1)
        step, shown = pool.step, []
        for seed in (1, None, 2, 1):
            rows = [pool.reset(seed=seed)[0], *(step(np.ones(3, np.int32))[0] for _ in range(20))]
            shown.append(np.stack(rows))

    assert made == [1, 2, 1]
    first, unseeded, other, again = shown
    np.testing.assert_array_equal(first, again)
    assert not (first == unseeded).all()
    assert not (first == other).all()


@pytest.mark.parametrize(
    ("name", "frameskip", "words"),
    [
        ("vector:MountainCarContinuous-v0", 1, "no vectorized form"),
        ("vector:CartPole-v1", 4, "--env_frameskip=4"),
        (f"{HERE}:plain", 1, "ScriptedEnv"),
        (f"{HERE}:one_more", 1, "num_envs=2"),
    ],
)
def test_vector_env_that_cannot_be_made_is_refused(name: str, frameskip: int, words: str) -> None:
    with pytest.raises(EnvError, match=f"--env={name}.*{words}"):
        EnvFactory(name, env_frameskip=frameskip).vector(num_envs=2, seed=1)


def test_the_number_of_envs_is_not_that_among_their_arguments() -> None:
    factory = EnvFactory("vector:CartPole-v1", {"num_envs": 4})

    assert factory.vector(num_envs=2, seed=1).num_envs == 2
    assert isinstance(factory(), SoleEnv)


@pytest.mark.parametrize(
    ("name", "module", "argument"),
    [
        ("atari_breakout", "ale_py", "frameskip"),
        ("vector:ALE/Breakout-v5", "ale_py", "frameskip"),
        ("envpool:Breakout-v5", "envpool", "frame_skip"),
        ("doom_basic", "vizdoom", "frame_skip"),
    ],
)
def test_a_frameskip_of_the_kwargs_that_is_not_that_of_the_flag_is_refused(
    name: str, module: str, argument: str
) -> None:
    pytest.importorskip(module)
    with pytest.raises(EnvError, match=f"--env={name}: --env_frameskip=4, but --env_kwargs say {argument}=2"):
        EnvFactory(name, {argument: 2}, env_frameskip=4).either()


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [("envpool:CartPole-v1", "envpool", "envpool"), ("vector:ALE/Breakout-v5", "ale_py", "atari")],
)
def test_a_missing_package_is_named(name: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(EnvError, match=rf"--env={name}: needs {module}, .*pip install .*\[{extra}\]"):
        EnvFactory(name).vector(num_envs=2, seed=1)


def test_the_spec_of_a_vector_env_is_that_of_one_env() -> None:
    env = ScriptedEnv([])

    assert examine(EnvFactory(f"{HERE}:scripted")).spec == EnvSpec.of_spaces(env.observation_space, env.action_space)


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("odd", {"change": lambda obs, rewards, *rest: (obs, 1.0, *rest)}, "rewards of shape"),
        ("odd", {"change": lambda obs, rewards, *rest: (obs, rewards * np.nan, *rest)}, "rewards must be finite"),
        ("odd", {"change": lambda obs, *rest: (obs * np.nan, *rest)}, "'obs' holds NaN"),
        ("odd", {"change": lambda *results: results[:4]}, "must return"),
        ("scripted", {"autoreset_mode": "Disabled"}, "does not reset its envs"),
    ],
)
def test_vector_env_that_breaks_the_interface_is_refused(name: str, kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(EnvError, match=words):
        examine(EnvFactory(f"{HERE}:{name}", kwargs))


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_one_of_many_is_played_as_a_plain_env(mode: str) -> None:
    env = make_env(f"{HERE}:scripted", {"autoreset_mode": mode})
    assert isinstance(env, gymnasium.Env)
    env.reset(seed=3)

    steps = [env.step(1) for _ in range(2)]

    assert [step[1:4] for step in steps] == [(0.5, False, False), (1.5, False, True)]
    assert steps[0][0].shape == env.reset()[0].shape == (1,)
    env.close()
