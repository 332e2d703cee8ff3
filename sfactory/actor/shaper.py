"""Room: envs of a split rewarded as their policies are trained. In: schemes, who plays what. Out: envs told of them.

Looked at when a slot begins, so that a rollout later at most an env rewards by a new scheme, and whenever it was drawn
who plays next.
"""

from __future__ import annotations

from typing import Any

from sfactory.actor.split import Split
from sfactory.env.shaping import shaped
from sfactory.shared.schemes import Schemes


class Shaper:
    """Of one split, whose envs all have a scheme."""

    def __init__(self, split: Split, envs: list[Any], agents: int, schemes: Schemes) -> None:
        """``envs``: the split's, as a list that changes when one is made anew. ``agents``: of each."""
        self._split, self._envs, self._agents, self._schemes = split, envs, agents, schemes
        # Of each row: the env that was told, the policy, and the version of its scheme.
        self._told: list[tuple[object, int, int]] = [(None, 0, 0)] * (len(envs) * agents)

    def look(self) -> None:
        """Tell envs of schemes that they have not been told of."""
        casting = self._split.casting
        ids = [0] * len(self._told) if casting is None else casting.ids.tolist()
        versions = [self._schemes.version(policy) for policy in range(max(ids) + 1)]
        if not all(versions):
            return  # nobody is shaped, or main has not set all of them yet
        for row, policy in enumerate(ids):
            env = self._envs[row // self._agents]
            told = (env, policy, versions[policy])
            if self._told[row] != told and self._tell(env, row % self._agents, policy):
                self._told[row] = told

    def _tell(self, env: object, agent: int, policy: int) -> bool:
        """Tell ``env``; False if the scheme cannot be read now."""
        target, scheme = shaped(env), self._schemes.read(policy)
        if target is not None and scheme is not None:
            target.set_reward_shaping(scheme, agent)
        return scheme is not None
