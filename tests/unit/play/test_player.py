"""A policy plays in the unit in which it was trained."""

from __future__ import annotations

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch

from sfactory.config.flags import config_of
from sfactory.model.actor_critic import ActorCritic
from sfactory.play.player import Player
from sfactory.play.rendering import show_nothing
from sfactory.spec import EnvSpec
from tests.support.scripted_env import ScriptedEnv


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
