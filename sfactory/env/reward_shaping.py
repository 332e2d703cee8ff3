"""Room: envs whose reward can be shaped from outside. In: an env. Out: its own scheme, and a way to give it another.

A scheme is a nested mapping of names to numbers. An env that has one offers the two methods of ``ShapedEnv``, on itself
or on what it wraps; they are the ancestor's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

import gymnasium

_GET, _SET = "get_default_reward_shaping", "set_reward_shaping"

Scheme = Mapping[str, Any]


class ShapedEnv(Protocol):
    """What shapes its rewards by a scheme, which may differ from agent to agent."""

    def get_default_reward_shaping(self) -> Scheme | None:
        """The scheme that it has by itself; None if there is nothing to shape."""

    def set_reward_shaping(self, reward_shaping: Scheme, agent_idx: int) -> None:
        """From now on agent ``agent_idx`` (0 where there is one) is rewarded by this scheme."""


def shaped(env: object) -> ShapedEnv | None:
    """``env``, or what it wraps, as one whose reward can be shaped; None if it cannot."""
    while True:
        if hasattr(env, _GET) and hasattr(env, _SET) and not isinstance(env, gymnasium.Wrapper):
            return cast(ShapedEnv, env)
        own = vars(type(env)) if isinstance(env, gymnasium.Wrapper) else {}
        if _GET in own and _SET in own:
            return cast(ShapedEnv, env)
        inner = getattr(env, "env", None)
        if inner is None or inner is env:
            return None
        env = inner


def default_scheme(env: object) -> Scheme | None:
    """The scheme that ``env`` has by itself; None without one."""
    found = shaped(env)
    return None if found is None else found.get_default_reward_shaping()
