"""CartPole without velocities is CartPole, of which two numbers of four are seen."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from sfactory.config.flags import all_flags, coerce, config_of
from sfactory.config.validation import check, check_env_name
from sfactory.env.factory import find_family, make_env

NAME = "cartpole_without_velocities"


def test_only_position_and_angle_are_seen() -> None:
    whole, part = make_env("CartPole-v1", {}), make_env(NAME, {})
    all_four, first = whole.reset(seed=5)[0], part.reset(seed=5)[0]
    assert first.tolist() == [all_four[0], all_four[2]]

    for action in [0, 1] * 20:
        full, *rest = whole.step(action)
        seen, *same = part.step(action)

        assert seen.tolist() == [full[0], full[2]]
        assert rest == same
        if rest[1]:
            assert whole.reset()[0][[0, 2]].tolist() == part.reset()[0].tolist()


def test_it_keeps_to_gymnasium_and_its_space() -> None:
    env = make_env(NAME, {})

    assert isinstance(env.observation_space, gymnasium.spaces.Box)
    assert env.observation_space.shape == (2,)
    assert env.observation_space.dtype == np.float32
    assert env.observation_space.high.tolist() == pytest.approx([4.8, 0.41887903])
    assert env.action_space == gymnasium.spaces.Discrete(2)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version")
        check_env(env, skip_render_check=True)


def test_episodes_are_truncated_at_500_steps_or_where_the_kwargs_say() -> None:
    assert make_env(NAME, {}).spec.max_episode_steps == 500  # type: ignore[union-attr]
    env = make_env(NAME, {"max_episode_steps": 3}, "rgb_array")
    env.reset(seed=1)

    assert [bool(env.step(action)[3]) for action in (0, 1, 0)] == [False, False, True]
    assert env.render_mode == "rgb_array"


def test_its_family_gives_it_a_memory() -> None:
    family = find_family(NAME)

    assert family is not None
    assert family.name == "classic_control"
    assert NAME in family.names()
    defaults = {flag: coerce(all_flags()[flag], value) for flag, value in family.defaults(NAME).items()}
    config = config_of({"env": NAME, **defaults})
    assert check(config) == []
    assert NAME in check_env_name("cartpole_without_velocity")[0]
    assert (config.model.use_rnn, config.model.rnn_type, config.model.rnn_size) == (True, "gru", 64)
