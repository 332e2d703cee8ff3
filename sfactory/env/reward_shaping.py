"""Finds envs with configurable reward shaping, and reads their default scheme.

A scheme is a nested mapping from names to numbers. An env with reward shaping has the two methods of ``ShapedEnv``,
directly or on an env that it wraps; the method names are those of Sample Factory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

import gymnasium

_GET, _SET = "get_default_reward_shaping", "set_reward_shaping"

Scheme = Mapping[str, Any]


class ShapedEnv(Protocol):
    """An env that shapes rewards by a scheme, which may differ between agents."""

    def get_default_reward_shaping(self) -> Scheme | None:
        """The env's default scheme; None if it has no reward shaping."""

    def set_reward_shaping(self, reward_shaping: Scheme, agent_idx: int) -> None:
        """Use this scheme for agent ``agent_idx`` (0 in a single-agent env) from now on."""


def shaped(env: object) -> ShapedEnv | None:
    """Return ``env`` or an inner env that has reward shaping; None if there is none."""
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
    """The default scheme of ``env``; None if it has no reward shaping."""
    found = shaped(env)
    return None if found is None else found.get_default_reward_shaping()
