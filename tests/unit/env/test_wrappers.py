"""Flags that wrap envs: what they change, what they leave as it is, and where they are refused."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import (
    FlattenObservation,
    FrameStackObservation,
    GrayscaleObservation,
    ResizeObservation,
    TimeLimit,
    TransformObservation,
)

from sfactory.actor.multi_agent_batch import AgentActivity
from sfactory.config.flags import config_of
from sfactory.config.schema import WrapperConfig
from sfactory.env.factory import SPANS_FRAMES, EnvFactory
from sfactory.env.legal_actions import LegalActions
from sfactory.env.wrappers import own_arguments, wrapped
from sfactory.errors import EnvError
from sfactory.packages import install_command
from sfactory.planning.env_inspection import inspect_env
from sfactory.planning.env_probe import examine
from sfactory.spec import EnvSpec
from sfactory_envs.synthetic.masked_arms import MaskedArms
from tests.support.wrapped_envs import Sights, pictured_cart_pole

HERE = "tests.support.wrapped_envs"
SIGHTS = f"{HERE}:Sights"
ARMS = "sfactory_envs.synthetic.masked_arms:MaskedArms"
PARALLEL = "sfactory_envs.synthetic.counting_agents:CountingParallel"
UNEQUAL = "tests.support.random_env:random_env"
KINDS = {"obs": "several", "actions": "discrete", "masked": True, "agents": "unequal"}
Env = gymnasium.Env[Any, Any]


def made(name: str, render_mode: str | None = None, /, env_kwargs: dict[str, Any] | None = None, **flags: Any) -> Env:
    """The env in its wrappers."""
    return EnvFactory.of(config_of({"env": name, "env_kwargs": env_kwargs or {}, **flags}))(render_mode)


def played(env: Env, actions: list[Any], seed: int = 1) -> list[Any]:
    """All that the steps return, with a new episode where an episode ends."""
    found: list[Any] = [env.reset(seed=seed)]
    for action in actions:
        found.append(env.step(action))
        if found[-1][2] or found[-1][3]:
            found.append(env.reset())
    return found


def assert_same(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_equal(mine[0], theirs[0])
        assert mine[0].dtype == theirs[0].dtype
        assert mine[1:4] == theirs[1:4] if len(mine) > 2 else mine[1] == theirs[1]


def test_without_such_flags_there_is_no_wrapper() -> None:
    env = made("CartPole-v1")

    assert type(env) is TimeLimit
    assert env.env is env.unwrapped
    assert type(made(SIGHTS)) is Sights


def test_stacks_are_those_of_gymnasium() -> None:
    pushes = [np.array([torque], np.float32) for torque in np.linspace(-2, 2, 450)]
    for name, actions in (("Pendulum-v1", pushes), (f"{HERE}:pictured_cart_pole", [1] * 5)):
        env = made(name, env_framestack=3)
        expected = FrameStackObservation(made(name), 3)

        assert env.observation_space == expected.observation_space
        assert env.metadata[SPANS_FRAMES]
        assert_same(played(env, actions), played(expected, actions))


def test_leaves_of_a_dict_are_stacked_and_memory_that_the_env_uses_again_is_not_shared() -> None:
    env = made(SIGHTS, env_kwargs={"masks": True}, env_framestack=3)
    first, *steps = played(env, [0, 1, 2])

    observed: Any = env.observation_space
    shapes = {name: space.shape for name, space in observed.items()}
    assert shapes == {
        "front": (3, 24, 20, 3),
        "depth": (3, 24, 20),
        "seen": (3, 2),
        "back": None,
        "level": (),
        "action_mask": (3,),
    }
    assert all(env.observation_space.contains(shown[0]) for shown in (first, *steps))
    assert first[0]["seen"].tolist() == [[-1, 0]] * 3
    assert [shown[0]["seen"][:, 1].tolist() for shown in steps] == [[0, 0, 1], [0, 1, 2], [1, 2, 3]]
    assert [shown[0]["seen"][-1, 0] for shown in steps] == [0, 1, 2]
    assert np.array_equal(steps[1][0]["back"]["planes"][0], steps[0][0]["back"]["planes"][1])
    assert steps[0][0]["action_mask"].shape == (3,)


def test_leaves_of_a_tuple_are_wrapped_as_those_of_a_dict() -> None:
    class Paired(gymnasium.ObservationWrapper[Any, Any, Any]):
        def __init__(self, env: Env) -> None:
            super().__init__(env)
            seen: Any = env.observation_space
            self.observation_space = gymnasium.spaces.Tuple([seen["level"], seen["front"]])

        def observation(self, obs: Any) -> Any:
            return obs["level"], obs["front"]

    flags = WrapperConfig(obs_grey=True, obs_resize=(12, 10), env_framestack=3)
    single, paired = wrapped(made(SIGHTS), flags), wrapped(Paired(made(SIGHTS)), flags)

    for mine, theirs in zip(played(paired, [0, 1, 2]), played(single, [0, 1, 2]), strict=True):
        assert paired.observation_space.contains(mine[0])
        np.testing.assert_equal(mine[0], (theirs[0]["level"], theirs[0]["front"]))


def test_sticky_actions_are_drawn_by_the_seed_of_the_env_even_if_it_ignores_that() -> None:
    chosen = [step % 3 for step in range(3000)]

    def taken(seed: int) -> list[int]:
        found = played(made(SIGHTS, sticky_actions=0.25), chosen, seed)
        return [shown[4]["action"] for shown in found if len(shown) == 5]

    one = taken(1)
    assert one == taken(1) != taken(2)
    assert one[::10] == chosen[::10]  # the first of an episode is always the chosen one
    stuck = [mine != right for mine, right in zip(one, chosen, strict=True)]
    assert 0.2 < np.mean(stuck) / 0.9 < 0.3
    assert all(one[at] == one[at - 1] for at, is_stuck in enumerate(stuck) if is_stuck)


def test_a_sticky_action_is_kept_where_its_memory_is_used_again() -> None:
    env, action = made("Pendulum-v1", sticky_actions=0.5), np.zeros(1, np.float32)
    base: Any = env.unwrapped
    env.reset(seed=3)
    pairs = []
    for torque in np.linspace(-1, 1, 50, dtype=np.float32):
        action[:] = torque
        before = base.last_u if base.last_u is not None else None
        env.step(action)
        pairs.append((torque, before, base.last_u))

    kept = [before == after for torque, before, after in pairs if after != torque]
    assert 10 < len(kept) < 40
    assert all(kept)


def test_an_action_is_repeated_until_the_episode_ends() -> None:
    steps = played(made(SIGHTS, action_repeat=4), [2] * 3)[1:]

    assert [shown[1] for shown in steps[:3]] == [1 + 2 + 3 + 4, 5 + 6 + 7 + 8, 9 + 10]
    assert [shown[4]["step"] for shown in steps[:3]] == [4, 8, 10]
    assert [shown[2] for shown in steps[:3]] == [False, False, True]
    assert made(SIGHTS, "rgb_array", action_repeat=4).metadata["render_fps"] == 15
    picture: Any = made(SIGHTS, "rgb_array", action_repeat=4, obs_grey=True).render()
    assert picture.shape == (24, 20, 3)
    assert config_of({"env_frameskip": 2, "action_repeat": 4}).frames_per_step == 8


@pytest.mark.parametrize(
    ("name", "flags", "length"),
    [
        ("Pendulum-v1", {"max_episode_steps": 7}, 7),
        ("Pendulum-v1", {"max_episode_steps": 300}, 300),
        ("Pendulum-v1", {"max_episode_steps": 90, "action_repeat": 3}, 90),
        ("Pendulum-v1", {"wrapper": (f"{HERE}:HalfReward",), "max_episode_steps": 210}, 210),
        ("Pendulum-v1", {"action_repeat": 3}, 67),
        (SIGHTS, {"max_episode_steps": 4}, 4),
    ],
)
def test_the_time_limit_counts_env_steps_and_replaces_the_registered_one(
    name: str, flags: dict[str, Any], length: int
) -> None:
    env = made(name, **flags)
    env.reset(seed=1)
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(length)]

    assert ends == [(False, False)] * (length - 1) + [(False, True)]


def test_images_are_resized_as_by_gymnasium_and_grey_as_seen() -> None:
    plain = pictured_cart_pole()
    small = made(f"{HERE}:pictured_cart_pole", obs_resize=(40, 60))
    grey = made(f"{HERE}:pictured_cart_pole", obs_grey=True)
    both = made(f"{HERE}:pictured_cart_pole", obs_resize=(42, 84), obs_grey=True, env_framestack=4)

    expected = ResizeObservation(plain, (40, 60))
    assert small.observation_space == expected.observation_space
    assert_same(played(small, [1] * 3), played(expected, [1] * 3))
    other = GrayscaleObservation(pictured_cart_pole())
    assert grey.observation_space == other.observation_space
    for (mine, *_), (colors, *_) in zip(played(grey, [1] * 3), played(pictured_cart_pole(), [1] * 3), strict=True):
        weighted = colors @ [0.299, 0.587, 0.114]
        assert np.abs(mine - weighted).max() < 1
    ((_, stack),) = EnvSpec.of_spaces(both.observation_space, both.action_space).obs
    assert (stack.shape, stack.layout) == ((4, 42, 84), "chw")
    spec = examine(EnvFactory.of(config_of({"env": SIGHTS, "obs_resize": (40, 50)}))).spec
    assert {path: leaf.image_shape for path, leaf in spec.obs if leaf.is_image} == {
        "back/planes": (3, 40, 50),
        "depth": (1, 40, 50),
        "front": (3, 40, 50),
    }


def test_every_layout_of_images_is_converted_and_all_else_stays() -> None:
    plain, env = Sights(masks=True), made(SIGHTS, env_kwargs={"masks": True}, obs_grey=True, obs_resize=(12, 16))
    colors = made(SIGHTS, obs_resize=(12, 16))

    for before, after, resized in zip(
        *(played(each, [1, 2]) for each in (plain, env, colors)),
        strict=True,
    ):
        old, new, small = before[0], after[0], resized[0]
        assert env.observation_space.contains(new)
        assert {name: np.shape(new[name]) for name in ("front", "depth")} == {"front": (12, 16), "depth": (12, 16)}
        assert np.array_equal(new["front"], new["back"]["planes"])
        assert np.array_equal(np.moveaxis(small["front"], -1, 0), small["back"]["planes"])
        assert np.array_equal(small["front"][..., 0], small["depth"])
        for kept in ("seen", "level", "action_mask"):
            assert new[kept] is old[kept] or np.array_equal(new[kept], old[kept])


STACKS = [(4, 20, 24, 3), (4, 3, 20, 24), (4, 20, 24, 6), (4, 6, 20, 24)]


@pytest.mark.parametrize("shape", [(20, 24, 9), (20, 24, 1), (9, 20, 24), *STACKS])
def test_images_of_many_channels_and_stacks_are_resized(shape: tuple[int, ...], monkeypatch: Any) -> None:
    monkeypatch.setattr("sfactory.env.factory.find_callable", lambda _: lambda: Pictures(shape))
    env = made(f"{HERE}:any", obs_resize=(10, 12))

    seen = env.reset()[0]
    assert seen.shape == tuple({20: 10, 24: 12}.get(size, size) for size in shape) == env.observation_space.shape
    axes = (shape.index(20), shape.index(24))
    means = Pictures(shape).reset()[0].astype(float)
    for axis in axes:
        means = 0.5 * sum(np.take(means, range(first, means.shape[axis], 2), axis) for first in (0, 1))
    assert np.abs(seen - means).max() <= 1


class Pictures(gymnasium.Env[Any, Any]):
    """Always the same random picture."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        shape = self.observation_space.shape
        return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8), {}


def test_observations_are_flattened_as_by_gymnasium_beside_the_mask() -> None:
    env, expected = made(SIGHTS, flatten_obs=True, env_framestack=2), FlattenObservation(made(SIGHTS, env_framestack=2))
    assert env.observation_space == expected.observation_space
    assert_same(played(env, [0, 1]), played(expected, [0, 1]))

    masked = made(ARMS, flatten_obs=True)
    shown, plain = masked.reset(seed=4)[0], MaskedArms().reset(seed=4)[0]
    assert shown.keys() == {"obs", "action_mask"}
    assert np.argmax(shown["obs"]) == plain["context"]
    assert np.array_equal(shown["action_mask"], plain["action_mask"])


def test_empty_parts_of_observations_are_left_out_of_the_vector() -> None:
    box, nothing = Pictures((2,)).observation_space, gymnasium.spaces.Dict({})
    for space, read in (
        (gymnasium.spaces.Dict(seen=box, none=nothing), lambda obs: {"seen": obs, "none": {}}),
        (gymnasium.spaces.Tuple((nothing, box)), lambda obs: ({}, obs)),
    ):
        env = wrapped(TransformObservation(Pictures((2,)), read, space), WrapperConfig(flatten_obs=True))
        assert env.observation_space == box
        assert np.array_equal(env.reset()[0], Pictures((2,)).reset()[0])


def test_masks_of_infos_stand_beside_wrapped_observations() -> None:
    factory = EnvFactory(ARMS, {"mask": "info"}, 1, "auto", WrapperConfig(flatten_obs=True, max_episode_steps=5))

    probed = examine(factory)

    assert probed.info_action_mask
    assert [(path, leaf.shape) for path, leaf in probed.spec.obs] == [("action_mask", (50,)), ("obs", (10,))]


def test_own_wrappers_get_the_env_as_it_was_made_the_innermost_first() -> None:
    names = (f"{HERE}:Noting", f"{HERE}:NotingToo")
    env = made(SIGHTS, wrapper=names, env_framestack=2)
    env.reset()
    assert env.step(0)[4]["wrappers"] == ["Noting", "NotingToo"]

    vector = EnvFactory("vector:CartPole-v1", wrappers=WrapperConfig(wrapper=(f"{HERE}:half_of_all",)))
    envs = vector.vector(num_envs=2, seed=1)
    envs.reset(seed=1)
    assert envs.step(np.zeros(2, int))[1].tolist() == [0.5, 0.5]
    agents = EnvFactory(PARALLEL, wrappers=WrapperConfig(wrapper=(f"{HERE}:renamed_agents",))).agents()
    assert agents.env.was_wrapped  # type: ignore[attr-defined]


def test_a_limit_of_an_env_of_a_family_is_one_of_its_own_steps() -> None:
    used, own = {"max_episode_steps": 3, "action_repeat": 2}, {"max_episode_steps": "length"}

    assert own_arguments("x", used, own, {"length": 6}) == {"length": 6}
    with pytest.raises(EnvError, match="--env=x: --max_episode_steps=3, but --env_kwargs say length=3;"):
        own_arguments("x", used, own, {"length": 3})


def test_flags_set_what_an_env_of_a_family_does_itself() -> None:
    pytest.importorskip("ale_py")
    flags: dict[str, Any] = {"sticky_actions": 0.25, "obs_grey": True, "obs_resize": (64, 64), "env_framestack": 2}
    by_flags = made("atari_breakout", **flags, max_episode_steps=30)
    kwargs = {"repeat_action_probability": 0.25, "size": 64, "framestack": 2, "max_episode_frames": 30}
    by_kwargs = EnvFactory("atari_breakout", kwargs)()

    assert by_flags.observation_space.shape == (2, 64, 64)
    np.testing.assert_array_equal(by_flags.reset(seed=1)[0], by_kwargs.reset(seed=1)[0])
    for action in [1, 2, 3] * 10:
        step = by_flags.step(action)
        assert_same([step], [by_kwargs.step(action)])
    assert step[3]
    assert step[4]["episode_extra_stats"]["game_length"] == 30  # which a wrapper would not know
    agreeing = EnvFactory("atari_breakout", {"size": 64}, wrappers=WrapperConfig(obs_resize=(64, 64)))
    assert agreeing().observation_space.shape == (4, 64, 64)


@pytest.mark.parametrize("name", [PARALLEL, PARALLEL.replace("Parallel", "Lists"), "pettingzoo:classic.tictactoe_v3"])
def test_an_agent_of_many_has_a_stack_of_its_own_of_what_the_policy_is_shown(name: str) -> None:
    if name.startswith("pettingzoo"):
        pytest.importorskip("pettingzoo")
    plain, stacked = (EnvFactory(name, wrappers=WrapperConfig(env_framestack=size)).agents() for size in (1, 3))
    legal, activity = LegalActions(plain.spec, plain), AgentActivity(len(plain.agents), plain.in_turns)
    seen: list[list[Any]] = []
    shown: Sequence[Any] = ()
    wrapped: Sequence[Any] = ()
    compared, is_over = 0, True
    for step in range(300):
        if is_over:
            shown, wrapped = plain.reset(seed=step), stacked.reset(seed=step)
            activity.begin(shown)
            seen, is_over = [[] for _ in plain.agents], False
        else:
            actions = legal.of(shown)
            (shown, rewards, change), (wrapped, same, also) = plain.step(actions), stacked.step(actions)
            assert (list(rewards), also) == (list(same), change)
            activity.end_showing(of_sleeping=True)
            is_over = change is not None and activity.change(change, shown).over
        for agent, (obs, stack) in enumerate(zip(shown, wrapped, strict=True)):
            if obs is None or not (activity.acting[agent] or agent in activity.showing):
                assert stack is None
                continue
            assert stacked.observation_space.contains(stack)
            if isinstance(obs, dict):
                obs, stack = obs["observation"], stack["observation"]
            seen[agent].append(obs.copy())
            last = [seen[agent][max(0, len(seen[agent]) - back)] for back in (3, 2, 1)]
            np.testing.assert_array_equal(stack, last)
            compared += 1
    assert compared > 250


def test_images_of_many_agents_are_made_grey_and_small() -> None:
    flags = {"obs_grey": True, "obs_resize": (12, 10), "env_framestack": 2}
    factory = EnvFactory.of(config_of({"env": f"{HERE}:Lookouts", **flags}))

    assert [(path, leaf.shape) for path, leaf in examine(factory).spec.obs] == [("obs", (2, 12, 10))]
    env = factory.agents()
    env.reset()
    assert [obs[:, 0, 0].tolist() for obs in env.step([0, 0])[0]] == [[10, 11], [20, 21]]
    flat = EnvFactory.of(config_of({"env": f"{HERE}:Lookouts", "flatten_obs": True})).agents()
    assert flat.reset()[1].tolist() == [20] * 24 * 20 * 3


def test_an_env_of_many_agents_is_checked_in_its_own_form_inside_the_wrappers() -> None:
    config = config_of({"env": f"{HERE}:BriefLookouts", "obs_grey": True})

    with pytest.raises(EnvError, match=r"step\(\) must return dicts of observations, rewards, terminations"):
        examine(EnvFactory.of(config))
    report = inspect_env(EnvFactory(f"{HERE}:Lookouts", wrappers=config.wrappers), 30)
    assert [finding for finding in report.findings if finding.kind != "hint"] == []
    assert report.kind == "an env of 2 agents that act at the same time (PettingZoo's parallel interface)"


def test_observations_of_different_agents_are_stacked_beside_their_masks() -> None:
    config = config_of({"env": UNEQUAL, "env_kwargs": KINDS, "env_framestack": 2})
    plain, spec = EnvFactory(UNEQUAL, KINDS).agents().spec, examine(EnvFactory.of(config)).spec

    for kind in spec.kinds:
        assert spec.part(kind).masks == plain.part(kind).masks
        shapes = {path: leaf.shape for path, leaf in spec.part(kind).obs if not leaf.is_mask}
        boxes = {f"{kind}/{name}" for name in ("x", "camera", "units", "y")}
        before = {path: leaf.shape for path, leaf in plain.part(kind).obs if not leaf.is_mask}
        assert shapes == {path: (2, *shape) if path in boxes else shape for path, shape in before.items()}


@pytest.mark.parametrize(
    ("name", "flags", "words"),
    [
        ("CartPole-v1", {"obs_grey": True}, "no images of three colors.*'obs' .float32, shape .4,"),
        ("CartPole-v1", {"obs_resize": (84, 84)}, "--obs_resize 84 84: there are no images at all"),
        ("FrozenLake-v1", {"env_framestack": 4}, "stacks Box observations, and Discrete"),
        (
            "atari_breakout",
            {"obs_resize": (84, 64)},
            "--obs_resize 84 64: images of this env are square; give the same",
        ),
        (
            "atari_breakout",
            {"env_framestack": 2, "env_kwargs": {"framestack": 3}},
            "--env_framestack=2, but --env_kwargs say framestack=3; leave one of the two out",
        ),
        ("atari_breakout", {"action_repeat": 4}, "use --env_frameskip=4"),
        (ARMS, {"sticky_actions": 0.25}, "may be illegal by then"),
        (ARMS, {"action_repeat": 2, "env_kwargs": {"mask": "info"}, "info_action_mask": "on"}, "may be illegal"),
        (f"{HERE}:stacked", {"env_framestack": 2}, "several frames already"),
        (f"{HERE}:Worded", {"flatten_obs": True}, "'text' is a Text.*--wrapper of your own"),
        (f"{HERE}:Unseeing", {"flatten_obs": True}, "no observation beside action masks; leave it out"),
        ("vector:CartPole-v1", {"env_framestack": 4}, "which is a vector env; leave it out.*--wrapper=module"),
        (PARALLEL, {"sticky_actions": 0.5}, "--sticky_actions=0.5 cannot wrap this env, which has many agents"),
        (
            UNEQUAL,
            {"flatten_obs": True, "env_kwargs": KINDS},
            "agents of different spaces would be mixed",
        ),
        (SIGHTS, {"wrapper": (f"{HERE}:Notin",)}, "--wrapper=.*Notin: .*did you mean"),
        (
            SIGHTS,
            {"wrapper": ("no_such_module:Wrap",)},
            "--wrapper=no_such_module:Wrap: module 'no_such_module' cannot",
        ),
        (SIGHTS, {"wrapper": (f"{HERE}:forgets",)}, "--wrapper=.*:forgets returned None; it must return an env"),
        (SIGHTS, {"wrapper": (f"{HERE}:raises",)}, "--wrapper=.*:raises raised ValueError: no room"),
    ],
)
def test_what_cannot_work_is_refused(name: str, flags: dict[str, Any], words: str) -> None:
    with pytest.raises(EnvError, match=f"--env={name}: .*{words}"):
        EnvFactory.of(config_of({"env": name, **flags})).either()


def test_a_missing_opencv_is_answered_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)

    made(SIGHTS, env_framestack=2)
    with pytest.raises(EnvError, match="--obs_grey=True: needs OpenCV") as caught:
        made(SIGHTS, obs_grey=True)
    assert str(caught.value).endswith(f"; run: {install_command('atari')}")
