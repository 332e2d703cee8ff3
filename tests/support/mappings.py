"""Functions for --policy_mapping."""

from __future__ import annotations


def mostly_the_first(agent: str, episode: int, env: int) -> int:
    """Policy 1 in every 20th episode of one env, policy 0 otherwise."""
    return int(env == 0 and episode % 20 == 19)


def unknown(agent: str, episode: int, env: int) -> int:
    """A policy that is not there."""
    return 7


def soon_without_the_third(agent: str, episode: int, env: int) -> int:
    """Policy 2 plays the first episodes of every env, and never again."""
    return env % 3 if episode < 5 else env % 2
