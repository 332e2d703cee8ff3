"""Finds envs with configurable reward shaping, and sends them the reward shaping of their policies.

Reward shaping is a nested mapping from names to numbers. An env that has it has two methods, directly or on an env that
it wraps; their names are those of Sample Factory:

- ``get_default_reward_shaping()`` returns the env's default; None if it has no reward shaping.
- ``set_reward_shaping(reward_shaping, agent_idx)``: agent ``agent_idx`` (0 if there is one) uses it from now on.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium

from sfactory.actor.split import Split
from sfactory.actor.vector_batch import VectorEnvBatch
from sfactory.env.training_info import inner_env
from sfactory.shared.control import SharedRewardShaping

_GET, _SET = "get_default_reward_shaping", "set_reward_shaping"

RewardShaping = Mapping[str, Any]


def shaped_env(env: Any) -> Any:
    """Return ``env`` or an inner env that has reward shaping; None if there is none."""
    while True:
        if hasattr(env, _GET) and hasattr(env, _SET) and not isinstance(env, gymnasium.Wrapper):
            return env
        own = vars(type(env)) if isinstance(env, gymnasium.Wrapper) else {}
        if _GET in own and _SET in own:
            return env
        if (env := inner_env(env)) is None:
            return None


def default_reward_shaping(env: object) -> RewardShaping | None:
    """The default reward shaping of ``env``; None if it has none."""
    found = shaped_env(env)
    default: RewardShaping | None = None if found is None else found.get_default_reward_shaping()
    return default


def shape_rewards(shared: SharedRewardShaping, splits: list[Split], agents: int) -> None:
    """Let each of ``splits``, with ``agents`` in each env, look for new reward shaping of its policies.

    They look when a slot begins, so that an env gets it at most one rollout later, and when policies were assigned.
    Vector envs have no reward shaping.
    """
    for split in splits:
        if not isinstance(split.batch, VectorEnvBatch):
            # Of each row: the env that was updated, the policy, and the version of its reward shaping.
            sent: list[tuple[object, int, int]] = [(None, 0, 0)] * split.batch.size
            look = partial(_send_newer, shared, split, agents, sent)
            split.before_slot.append(look)
            if split.assignment is not None:
                split.assignment.after_draw = look


def _send_newer(shared: SharedRewardShaping, split: Split, agents: int, sent: list[tuple[object, int, int]]) -> None:
    """Send what is newer, or of another policy, than what the envs have; ``sent`` is updated."""
    ids = [0] * len(sent) if split.assignment is None else split.assignment.ids.tolist()
    versions = [shared.version(policy) for policy in range(max(ids) + 1)]
    if not all(versions):
        return  # there is no reward shaping, or main has not set all of it yet
    for row, policy in enumerate(ids):
        env = split.batch.envs[row // agents]  # looked up again: an env may have been recreated
        state = (env, policy, versions[policy])
        if sent[row] == state or (values := shared.read(policy)) is None:
            continue
        if (target := shaped_env(env)) is not None:
            target.set_reward_shaping(values, row % agents)
        sent[row] = state
