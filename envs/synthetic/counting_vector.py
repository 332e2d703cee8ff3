"""Counting envs as one vector env, which resets itself in either mode."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import AutoresetMode, SyncVectorEnv

from .counting import Counting


def counting_vector(num_envs: int, autoreset_mode: str = "NextStep", **kwargs: Any) -> SyncVectorEnv:
    """``num_envs`` Counting envs, made with ``kwargs``; ``autoreset_mode`` is "NextStep" or "SameStep"."""
    return SyncVectorEnv([lambda: Counting(**kwargs)] * num_envs, autoreset_mode=AutoresetMode(autoreset_mode))
