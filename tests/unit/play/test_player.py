"""A policy plays in the unit in which it was trained."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from torch import Tensor

from sfactory.config.flags import config_of
from sfactory.env.conversion import BadObservation
from sfactory.model.actor_critic import Acted, ActorCritic
from sfactory.play.evaluation import Evaluation
from sfactory.play.player import EnvFailed, Episode, Player
from sfactory.play.rendering import show_nothing
from sfactory.spec import LAST_ACTION, LAST_REWARD, EnvSpec
from tests.support.scripted_env import Faults, ScriptedEnv


@pytest.mark.parametrize(
    ("flags", "action"),
    [({}, 500.0), ({"continuous_distribution": "squashed"}, 500.0), ({"normalize_actions": False}, 0.0)],
    ids=str,
)
def test_actions_of_a_wide_box_are_played_as_they_were_learned(flags: dict[str, object], action: float) -> None:
    env = ScriptedEnv([(2, "terminated")])
    env.action_space = spaces.Box(0, 1000, (1,), np.float32)
    config = config_of({"encoder_mlp_layers": (8,), **flags}).model
    spec = EnvSpec.of_spaces(env.observation_space, env.action_space).for_model(config)
    model = ActorCritic(spec, config)
    with torch.no_grad():
        model.policy_head.linear.weight.zero_()
        model.policy_head.linear.bias.zero_()

    list(Player(env, spec, model, show_nothing, name="scripted", deterministic=True).episodes(1, 9, seed=1))

    assert [taken.tolist() for taken in env.taken] == [[action], [action]]  # type: ignore[attr-defined]


def test_the_core_sees_last_actions_and_rewards_as_in_training() -> None:
    env = ScriptedEnv([(3, "terminated"), (2, "truncated")])
    config = config_of({"encoder_mlp_layers": (8,), "use_rnn": True, "core_inputs": ("action", "reward")}).model
    spec = EnvSpec.of_spaces(env.observation_space, env.action_space).for_model(config)
    shown: list[tuple[int, float]] = []

    class Watched(ActorCritic):
        def act(self, obs: dict[str, Tensor], *more: Any, **named: Any) -> Acted:
            hot = obs[LAST_ACTION][0]
            shown.append((int(hot.argmax()) if hot.any() else -1, float(obs[LAST_REWARD][0, 0])))
            return super().act(obs, *more, **named)

    list(Player(env, spec, Watched(spec, config), show_nothing, name="scripted").episodes(2, 9, seed=1))

    taken = [int(action) for action in env.taken]
    assert [action for action, _ in shown] == [-1, *taken[:2], -1, taken[3]]
    assert [reward for _, reward in shown] == [0.0, 0.5, 1.5, 0.0, 100.5]


def test_episodes_with_invalid_data_are_discarded_and_others_played(caplog: pytest.LogCaptureFixture) -> None:
    nan = np.array([np.nan], np.float32)
    shown = {2: nan, 7: nan, 9: nan}  # 9: after the end, where no action is chosen
    faults = Faults(shown=shown, reset_shown={4: nan}, rewards={10: np.inf, 12: -np.inf})
    env = ScriptedEnv([(4, "both"), (3, "both"), (3, "both"), (4, "both"), (2, "both"), (3, "both")] * 2, faults)
    config = config_of({"encoder_mlp_layers": (8,), "use_rnn": True, "core_inputs": ("reward",)}).model
    spec = EnvSpec.of_spaces(env.observation_space, env.action_space).for_model(config)
    player = Player(env, spec, ActorCritic(spec, config), show_nothing, name="scripted")

    with caplog.at_level(logging.WARNING):
        played = list(player.episodes(3, 20, seed=1))

    assert [(episode.length, episode.episode_return) for episode in played] == [
        (3, 100.5 + 101.5 + 102.5),
        (2, 400.5 + 401.5),
        (3, 700.5 + 701.5 + 702.5),
    ]
    assert len(env.taken) == 15
    effect = "; episodes in which this happens are discarded, and others are played in their place"
    assert caplog.messages == [
        f"scripted, before step 3 of episode 1: observation 'obs' holds NaN or infinity{effect}",
        f"scripted, step 1 of episode 3: reward is inf{effect}",
        f"scripted, step 2 of episode 3: reward is -inf{effect}",
    ]
    assert list(player.episodes(1, 2, seed=1)) == []


def test_an_env_of_invalid_data_only_is_an_error() -> None:
    env = ScriptedEnv([(1, "both")] * 100, Faults(rewards=dict.fromkeys(range(100), np.nan)))
    config = config_of({"encoder_mlp_layers": (8,)}).model
    spec = EnvSpec.of_spaces(env.observation_space, env.action_space).for_model(config)
    player = Player(env, spec, ActorCritic(spec, config), show_nothing, name="scripted")

    with pytest.raises(
        EnvFailed, match="step 1 of episode 1: reward is nan, and 20 episodes in a row had invalid data"
    ):
        list(player.episodes(1, 100, seed=1))

    assert len(env.taken) == 20


def test_an_observation_of_another_shape_is_named_by_its_step() -> None:
    env = ScriptedEnv([(4, "both")], Faults(shown={2: np.zeros(3, np.float32)}))
    config = config_of({"encoder_mlp_layers": (8,)}).model
    spec = EnvSpec.of_spaces(env.observation_space, env.action_space).for_model(config)
    player = Player(env, spec, ActorCritic(spec, config), show_nothing, name="scripted")

    with pytest.raises(
        BadObservation, match=r"^scripted, before step 3 of episode 1: observation 'obs' has shape \(3,\)"
    ):
        list(player.episodes(1, 100, seed=1))


class Lives(ScriptedEnv):
    """Games of three lives, of 2, 3 and 4 steps; each is an episode. The last one reports a score.

    A reset with a seed begins a new game.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self._episode += -(self._episode + 1) % 3
        return super().reset(seed=seed)

    def step(self, action: int) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if terminated:
            score = {"true_objective": 7.0, "episode_extra_stats": {"score": 7.0}}
            info = score if self._episode % 3 == 2 else {"game_continues": True}
        return obs, reward, terminated, truncated, info


def test_an_episode_that_is_played_is_a_whole_game_of_all_its_lives() -> None:
    script: list[Any] = [(2, "terminated"), (3, "terminated"), (4, "terminated")] * 2
    config = config_of({"encoder_mlp_layers": (8,), "use_rnn": True}).model
    env = Lives(script)
    spec = EnvSpec.of_spaces(env.observation_space, env.action_space).for_model(config)
    player = Player(env, spec, ActorCritic(spec, config), show_nothing, name="lives")

    first, second = player.episodes(2, 100, seed=1)

    lives = [0.5 + 1.5, 100.5 + 101.5 + 102.5, 200.5 + 201.5 + 202.5 + 203.5]
    assert first == Episode(sum(lives), 9, {"score": 7.0, "true_objective": 7.0})
    assert second.length == 9
    assert [seed is None for seed in env.seeds] == [False, True, True, True, True, True]
    env.script *= 2
    assert list(player.episodes(1, 8, seed=1)) == [], "its game is not over after 8 steps"


@pytest.mark.parametrize("broken", [4, 5])
def test_the_rest_of_a_game_with_invalid_data_is_no_whole_game(broken: int) -> None:
    """The data of the last steps of the second life; in step 5 the env says that its game goes on."""
    env = Lives([(2, "terminated"), (3, "terminated"), (4, "terminated")] * 2, Faults(rewards={broken: np.nan}))
    config = config_of({"encoder_mlp_layers": (8,)}).model
    spec = EnvSpec.of_spaces(env.observation_space, env.action_space).for_model(config)

    played = list(Player(env, spec, ActorCritic(spec, config), show_nothing, name="lives").episodes(1, 100, seed=1))

    assert [episode.length for episode in played] == [9]
    assert [seed is None for seed in env.seeds] == [False, True, False, True, True]
    assert env.seeds[0] != env.seeds[2]


def test_an_episode_in_which_no_agent_acted_has_no_part_in_returns() -> None:
    returns = (1.0, math.nan, 3.0)

    found = Evaluation({}, tuple(Episode(each, 5, {}) for each in returns)).summary()

    assert found["episodes"] == 3
    assert (found["episode_return_mean"], found["true_objective_mean"], found["episode_return_iqm"]) == (2.0, 2.0, 2.0)
    assert (found["episode_return_min"], found["episode_return_max"]) == (1.0, 3.0)
    assert Evaluation({}, (Episode(math.nan, 5, {}),)).summary()["episode_return_mean"] is None


def test_columns_of_a_csv_have_different_names_where_an_env_reports_the_same(tmp_path: Path) -> None:
    stats = {"length": 2.0, "return": 3.0, "episode": 4.0, "stats/length": 8.0, "won": 6.0}

    Evaluation({}, (Episode(1.0, 5, stats), Episode(2.0, 6, {"won": 7.0}))).write_csv(tmp_path / "episodes.csv")

    rows = [line.split(",") for line in (tmp_path / "episodes.csv").read_text().splitlines()]
    assert rows[0][:3] == ["episode", "return", "length"]
    assert rows[0][3:] == ["stats/episode", "stats/length", "stats/return", "stats/stats/length", "won"]
    assert rows[1:] == [["0", "1.0", "5", "4.0", "2.0", "3.0", "8.0", "6.0"], ["1", "2.0", "6", "", "", "", "", "7.0"]]


@pytest.mark.parametrize(
    ("returns", "of_agents", "words"),
    [
        ([0.0] * 10, (1.0, -1.0), "sfactory.match"),
        ([0.0] * 9, (1.0, -1.0), None),  # too few
        ([0.0] * 10, (0.0, 0.0), None),  # nothing was earned
        ([0.5] * 10, (0.5, -0.5), None),  # another policy plays the second agent
        ([0.0] * 10, (1.0, -0.5), None),
    ],
)
def test_returns_of_a_policy_that_plays_both_sides_of_a_zero_sum_game_get_a_warning(
    returns: list[float], of_agents: tuple[float, float], words: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    red, blue = of_agents
    stats = {"team_return": red + blue, "return/red": red, "return/blue": blue}

    Evaluation({}, tuple(Episode(each, 5, stats) for each in returns)).warn()
    Evaluation({}, tuple(Episode(each, 5, {}) for each in returns)).warn()  # of one agent

    assert len(caplog.messages) == (words is not None)
    assert all(words in message for message in caplog.messages if words)
