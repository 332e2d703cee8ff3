"""Room: what a population is ranked by. In: the statistics that episodes give. Out: the name of one, or a complaint."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sfactory.messages import TRUE_OBJECTIVE

REWARD, LENGTH = "reward", "length"
# What is known of every episode, whatever the env says of it.
BUILT_IN = (REWARD, LENGTH)


@dataclass(frozen=True)
class Found:
    """What to rank by. name: None if episodes do not have what was asked for. text: what a user should know."""

    name: str | None
    text: str = ""


class TargetObjective:
    """The statistic that pbt_target_objective names, looked for in the first ``stats_avg`` episodes."""

    def __init__(self, metric: str, stats_avg: int) -> None:
        self._metric, self._stats_avg = metric, stats_avg

    def look(self, episodes: int, reported: Collection[str]) -> Found | None:
        """What to rank by, once it is known; None as long as ``episodes`` are too few to tell.

        episodes: how many have ended so far, of all policies. reported: names of the extra statistics that they gave,
        with the true objective's if there is one. A run without a statistic to rank by (``Found.name`` is None) should
        end with ``Found.text``.
        """
        if self._metric in BUILT_IN or self._metric in reported:
            return Found(self._metric)
        if episodes < self._stats_avg:
            return None
        missing = f"pbt_target_objective={self._metric}: none of the first {episodes} episodes reported it"
        known = f"the env reports {', '.join([*BUILT_IN, *sorted(reported)])}"
        if self._metric == TRUE_OBJECTIVE:
            return Found(REWARD, f"{missing} ({known}); policies are ranked by the reward")
        return Found(None, f"{missing}; {known}: name one of these with --pbt_target_objective")
