"""Functions for ``--policy_mapping``: which policy plays an agent in an episode of its env.

--env=pettingzoo:mpe2.simple_spread_v3 --num_policies=3 --policy_mapping=sfactory_envs.mappings:by_number
"""

from __future__ import annotations

import re

_NUMBER_AT_THE_END = re.compile(r"\d+$")


def by_number(agent: str, episode: int, env: int) -> int:
    """The policy whose number ends the agent's name, so that each agent of an env has its own policy.

    Raises ValueError for a name without a number.
    """
    number = _NUMBER_AT_THE_END.search(agent)
    if number is None:
        raise ValueError(f"the name of agent {agent!r} does not end with a number")
    return int(number[0])
