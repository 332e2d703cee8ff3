"""A policy with a memory is played from a fresh one in each episode, and keeps it from step to step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch

from sfactory.config.schema import ModelConfig
from sfactory.model.actor_critic import ActorCritic
from sfactory.play.player import Player
from sfactory.play.rendering import NoScreen
from sfactory.spec import EnvSpec

CHOICES, LENGTH, EPISODES = 5, 8, 3

Obs = npt.NDArray[np.float32]


class Diary(gymnasium.Env[Obs, np.int64]):
    """Always shows the same, and writes down what was done."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(CHOICES)
        self.actions: list[int] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        return np.ones(1, np.float32), {}

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        self.actions.append(int(action))
        return np.ones(1, np.float32), 0.0, len(self.actions) % LENGTH == 0, False, {}


def forgetful_model(spec: EnvSpec) -> ActorCritic:
    """With a GRU whose state decides on the action."""
    torch.manual_seed(3)
    config = ModelConfig(encoder_mlp_layers=(8,), use_rnn=True, rnn_size=16, normalize_input=False)
    model = ActorCritic(spec, config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Strong feedback makes the state wander instead of settling.
            parameter.normal_(std=0.0 if "bias" in name else 2.0)
    return model


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
    env = Diary()
    spec = EnvSpec.of_spaces(env.observation_space, env.action_space)
    model = forgetful_model(spec)
    player = Player(env, spec, model, NoScreen(), name="diary", deterministic=True)

    episodes = list(player.episodes(EPISODES, max_steps=1000, seed=1))

    one = actions_in_one_go(model, LENGTH)
    assert len(episodes) == EPISODES
    assert len(set(one)) > 1  # the observation is always the same: only the memory can make a difference
    assert env.actions == one * EPISODES
    assert actions_in_one_go(model, LENGTH * EPISODES) != one * EPISODES
