"""Acts for the agents of an env by several policies, each for agents of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sfactory.model.actor_critic import Acted
from sfactory.play.action_chooser import ActingModel


class JointPolicy:
    """Several policies as one for the A rows of an env. own: the rows of the policy that is looked at."""

    def __init__(self, models: Mapping[int, ActingModel], plays: Sequence[int], policy: int) -> None:
        """``models``: by policy. plays: by agent, the policy that acts for it. policy: whose agents' returns count."""
        rows = {number: [row for row, plays_it in enumerate(plays) if plays_it == number] for number in models}
        self.own = rows[policy]
        self._parts = [
            (model, torch.tensor(rows[number]), model.fresh_state(1).shape[1])
            for number, model in models.items()
            if rows[number]
        ]
        self._state_size = max(size for _, _, size in self._parts)

    def fresh_state(self, rows: int) -> Tensor:
        """See ActingModel."""
        return torch.zeros(rows, self._state_size)

    def draw_privately(self) -> None:
        """See ActingModel."""
        for model, _, _ in self._parts:
            model.draw_privately()

    def act(self, obs: dict[str, Tensor], state: Tensor, deterministic: bool = False) -> Acted:
        """See ActingModel. Actions that an agent's policy does not choose, see NOTE [Unequal agents], are 0."""
        actions: dict[str, Tensor] = {}
        log_prob, value, after = torch.zeros(len(state)), torch.zeros(len(state)), state.clone()
        for model, rows, size in self._parts:
            own = {path: leaf[rows] for path, leaf in obs.items()}
            acted = model.act(own, state[rows, :size], deterministic)
            for key, action in acted.actions.items():
                actions.setdefault(key, action.new_zeros(len(state), *action.shape[1:]))[rows] = action
            log_prob[rows], value[rows], after[rows, :size] = acted.log_prob, acted.value, acted.state
        return Acted(actions, log_prob, value, after)
