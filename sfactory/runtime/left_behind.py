"""Room: a policy that a run waits for and that nobody plays. In: beats. Out: one warning about it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from sfactory.clock import now

_log = logging.getLogger(__name__)

PATIENCE_S = 30.0


class LeftBehind:
    """Looked at in every beat, once some policies have learned enough and others have not."""

    def __init__(
        self, policies: Sequence[int], env_steps_of: Callable[[int], int], is_done: Callable[[int], bool]
    ) -> None:
        """``policies``: those that learn. ``env_steps_of``: how many each has learned from."""
        self._policies, self._env_steps_of, self._is_done = policies, env_steps_of, is_done
        self._seen: dict[int, tuple[int, float]] = {}  # steps, and since when there were as many
        self._told: set[int] = set()

    def look(self) -> None:
        """Warn of each policy, once, that has learned nothing for PATIENCE_S while others are done."""
        waiting = [policy for policy in self._policies if not self._is_done(policy)]
        if len(waiting) in (0, len(self._policies)):
            return
        for policy in waiting:
            steps, moment = self._env_steps_of(policy), now()
            known, since = self._seen.get(policy, (-1, moment))
            if steps != known:
                self._seen[policy] = steps, moment
            elif moment - since > PATIENCE_S and policy not in self._told:
                self._told.add(policy)
                _log.warning(
                    "the run waits for policy %d, which has learned from %d env steps and from none for %.0f s, while "
                    "others have reached their limit: who plays is up to --policy_mapping; --train_policies without it "
                    "would end the run now",
                    policy,
                    steps,
                    PATIENCE_S,
                )
