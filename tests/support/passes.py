"""Forward passes over memory of their own, on devices without graphs."""

from __future__ import annotations

from torch import Tensor

from sfactory.inference.cuda_graphs import Act
from sfactory.model.actor_critic import Acted


class PlainPass:
    """A pass that is computed again each time; for devices without graphs."""

    def __init__(self, act: Act, obs: dict[str, Tensor], state: Tensor) -> None:
        self.obs, self.state, self._act = obs, state, act

    def run(self) -> Acted:
        """As Pass."""
        return self._act(self.obs, self.state)
