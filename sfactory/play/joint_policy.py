"""Acts for agents of different spaces, each by the policy of its kind."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sfactory.model.actor_critic import Acted, ActorCritic
from sfactory.spec import EnvSpec


class JointPolicy:
    """The policies of all kinds of agents, see NOTE [Unequal agents], as one for the A rows of an env."""

    def __init__(self, spec: EnvSpec, policies: Mapping[str, ActorCritic]) -> None:
        """``policies``: by kind."""
        kinds = torch.tensor([list(policies).index(kind) for kind in spec.kinds]).unsqueeze(-1)
        self._policies = [(policy, kinds == index) for index, policy in enumerate(policies.values())]

    def fresh_state(self, rows: int) -> Tensor:
        """[rows, S]: the state of rows that start an episode."""
        return self._policies[0][0].fresh_state(rows)

    def draw_privately(self) -> None:
        """See ActorCritic."""
        for policy, _ in self._policies:
            policy.draw_privately()

    def act(self, obs: dict[str, Tensor], state: Tensor, deterministic: bool = False) -> Acted:
        """As ``ActorCritic.act``. Each policy acts in all rows, and fills the actions that its kind of agents takes."""
        actions: dict[str, Tensor] = {}
        log_prob = value = torch.zeros(len(state))
        after = state
        for policy, own in self._policies:
            acted = policy.act(obs, state, deterministic)
            actions |= acted.actions
            after = torch.where(own, acted.state, after)
            log_prob = torch.where(own[:, 0], acted.log_prob, log_prob)
            value = torch.where(own[:, 0], acted.value, value)
        return Acted(actions=actions, log_prob=log_prob, value=value, state=after)
