"""A game of MinAtar that is repeatable from a seed, and draws itself as a picture of bytes."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt


class _Colors(ModuleType):
    """Stands for seaborn, which only pictures need, and which takes longer to import than all the rest."""

    @staticmethod
    def color_palette(*chosen: Any) -> Any:
        """That of seaborn."""
        import seaborn

        return seaborn.color_palette(*chosen)


if "seaborn" in sys.modules:
    import minatar.gym
else:
    sys.modules["seaborn"] = _Colors("seaborn")
    try:
        import minatar.gym  # noqa: F401
    finally:
        del sys.modules["seaborn"]

Obs = npt.NDArray[np.bool_]

_PIXELS = 16  # height and width of a place in the picture


class MinAtarGame(gymnasium.Wrapper[Obs, Any, Obs, Any], gymnasium.utils.RecordConstructorArgs):
    """MinAtar's own environment, with two differences.

    Its sticky actions repeat the last action, also that of the episode before: a reset with a seed forgets it. Its
    pictures are [10, 10, 3] of numbers from 0 to 1.
    """

    def __init__(self, env: gymnasium.Env[Obs, Any]) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin an episode."""
        if seed is not None:
            self.get_wrapper_attr("game").last_action = 0
        return self.env.reset(seed=seed, options=options)

    def render(self) -> Any:
        """[160, 160, 3] uint8; None without render_mode="rgb_array"."""
        colors = self.env.render()
        if colors is None:
            return None
        places = (np.asarray(colors) * 255).astype(np.uint8)
        return places.repeat(_PIXELS, axis=0).repeat(_PIXELS, axis=1)
