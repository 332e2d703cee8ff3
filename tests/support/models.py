"""Small actor-critics with policies that differ from state to state."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from sfactory.config.schema import ModelConfig
from sfactory.inference.cuda_graphs import Act, GraphPass
from sfactory.model.actor_critic import Acted, ActorCritic
from sfactory.spec import EnvSpec
from tests.support.parts import TINY, VECTOR


def tiny_config(**fields: Any) -> ModelConfig:
    """TINY (8 features, nothing normalized; 6 recurrent units if wanted) with these fields."""
    return dataclasses.replace(TINY, **{"rnn_size": 6, **fields})


def model_of(spec: EnvSpec = VECTOR, seed: int = 0, dtype: torch.dtype = torch.float32, **fields: Any) -> ActorCritic:
    """A model of ``tiny_config(**fields)``; its policy differs from state to state. ``dtype``: of all it computes."""
    torch.manual_seed(seed)
    model = ActorCritic(spec, tiny_config(**fields), dtype)
    if dtype is torch.float64:
        model.double()
    with torch.no_grad():
        model.policy_head.linear.weight.mul_(100.0)
    return model


class PlainPass(GraphPass):
    """A forward pass over memory of its own that is computed again each time; for devices without graphs."""

    def __init__(self, act: Act, obs: dict[str, Tensor], state: Tensor) -> None:
        self.obs, self.state, self._act = obs, state, act

    def run(self) -> Acted:
        """As GraphPass.run."""
        return self._act(self.obs, self.state)
