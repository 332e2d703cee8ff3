"""A policy with a memory is played from a fresh one in each episode, and keeps it from step to step."""

from __future__ import annotations

import gymnasium
import numpy as np
import torch

from sfactory.config.schema import ModelConfig
from sfactory.model.actor_critic import ActorCritic
from sfactory.play.player import Player
from sfactory.play.rendering import show_nothing
from tests.support.parts import SCALAR
from tests.support.scripted_env import ScriptedEnv

LENGTH, EPISODES = 8, 3


@torch.inference_mode()
def actions_in_one_go(model: ActorCritic, steps: int) -> list[int]:
    """What the model does in ``steps`` steps of one episode."""
    state = model.fresh_state(1)
    actions = []
    for _ in range(steps):
        acted = model.act({"obs": torch.ones(1, 1)}, state, deterministic=True)
        state = acted.state
        actions.append(int(acted.actions["action"]))
    return actions


def test_memory_lasts_for_an_episode_and_no_longer() -> None:
    torch.manual_seed(19)
    config = ModelConfig(encoder_mlp_layers=(8,), use_rnn=True, rnn_size=16, normalize_input=False)
    model = ActorCritic(SCALAR, config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Strong feedback makes the state wander instead of settling.
            parameter.normal_(std=0.0 if "bias" in name else 2.0)
    env = ScriptedEnv([(LENGTH, "terminated")] * EPISODES)
    same = gymnasium.wrappers.TransformObservation(env, lambda obs: np.ones_like(obs), env.observation_space)
    player = Player(same, SCALAR, model, show_nothing, name="same", deterministic=True)

    episodes = list(player.episodes(EPISODES, max_steps=1000, seed=1))

    one = actions_in_one_go(model, LENGTH)
    assert len(episodes) == EPISODES
    assert len(set(one)) > 1  # the observation is always the same: only the memory can make a difference
    assert env.taken == one * EPISODES
    assert actions_in_one_go(model, LENGTH * EPISODES) != one * EPISODES
