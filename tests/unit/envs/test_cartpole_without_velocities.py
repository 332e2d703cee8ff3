"""CartPole without velocities shows two of the four numbers of CartPole."""

from __future__ import annotations

import warnings

from gymnasium.utils.env_checker import check_env

from sfactory.config.resolve import read_command_line
from sfactory.env.factory import make_env

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


def test_it_follows_gymnasium_with_and_without_a_limit_of_its_own() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version")
        check_env(make_env(NAME, {}), skip_render_check=True)
    assert make_env(NAME, {}).spec.max_episode_steps == 500  # type: ignore[union-attr]
    env = make_env(NAME, {"max_episode_steps": 3}, "rgb_array")
    env.reset(seed=1)
    assert [bool(env.step(action)[3]) for action in (0, 1, 0)] == [False, False, True]
    assert env.render_mode == "rgb_array"


def test_defaults_of_its_family_use_an_rnn() -> None:
    config = read_command_line([f"--env={NAME}"]).config

    assert (config.model.use_rnn, config.model.rnn_type, config.model.rnn_size) == (True, "gru", 64)
