"""Names the parts of a policy, and freezes those that are not to be learned."""

from __future__ import annotations

import re
from collections.abc import Collection

from sfactory.model.actor_critic import ActorCritic

_OF_TOWERS = re.compile(r"(?:critic_)?tower\.(\w+)\.")
_HEADS = {"policy_head": "policy", "value_head": "value", "obs_normalizer": "normalizer"}


def part_of(name: str) -> str:
    """The one of PARTS that a weight belongs to, by its name in the model's state."""
    of_tower = _OF_TOWERS.match(name)
    return of_tower[1] if of_tower else _HEADS[name.partition(".")[0]]


class Freezer:
    """Keeps some parts of a model as they are, until env step ``until`` (0: for ever).

    Weights without gradients when this is made, as of a backbone that the user's own class freezes, never get any.
    """

    def __init__(self, model: ActorCritic, frozen: Collection[str], until: int) -> None:
        own = [weight for name, weight in model.named_parameters() if part_of(name) in frozen]
        self._parameters = [weight for weight in own if weight.requires_grad]
        self._has_normalizer, self._until = "normalizer" in frozen, until
        critic = set(model.critic_parameters())
        of_policy = [name for name, weight in model.named_parameters() if weight not in critic]
        self._has_policy = all(part_of(name) in frozen for name in of_policy)
        self.is_on = False

    def at(self, env_steps: int) -> None:
        """Freeze the parts, or no longer, as of ``env_steps``; called before each dataset."""
        self.is_on = not self._until or env_steps < self._until
        for parameter in self._parameters:
            parameter.requires_grad_(not self.is_on)

    @property
    def keeps_statistics(self) -> bool:
        """Whether the statistics of observations are frozen now."""
        return self._has_normalizer and self.is_on

    @property
    def keeps_policy(self) -> bool:
        """Whether all weights that actions depend on are frozen now."""
        return self._has_policy and self.is_on
