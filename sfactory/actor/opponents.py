"""Chooses opponents for a policy among its past versions, and records how the episodes against them end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sfactory.config.schema import PopulationConfig
from sfactory.shared.opponents import EPISODES, POINTS, OpponentPool


class Opponents:
    """Who plays the agents of the envs of one split.

    In ``opponent_share`` of the episodes an opponent plays one of the two sides of the env, in the others the learning
    policy plays both. The split keeps an opponent for as many of these episodes as it has envs: rows of one version
    act in one forward pass, so that each step needs few of them.

    ids: policy ids of opponents, see NOTE [Opponent slots]
    """

    def __init__(
        self, pool: OpponentPool, config: PopulationConfig, agents: Sequence[str], envs: int, actor: int, seed: int
    ) -> None:
        self.ids = range(1, len(pool.weights) + 1)
        self._pool, self._config, self._sides = pool, config, sides_of(agents)
        self._agents, self._envs, self._actor = len(agents), envs, actor
        self._generator = np.random.default_rng(seed)
        self._slots: list[int] = []  # that may be drawn
        self._slot = self._left = 0  # the present opponent, and for how many episodes it plays
        self._met: dict[int, int] = {}  # by env, the env steps of the snapshot that its episode began against

    def refresh(self) -> None:
        """Before each rollout: see which snapshots there are. Later ones are not drawn in it."""
        self._slots = self._pool.newest()

    def draw(self, env: int, _episode: int, _before: npt.NDArray[np.int16]) -> list[int]:
        """An AssignmentRule: the policy ids of the agents of an env."""
        ids = [0] * self._agents
        if self._slots and self._generator.random() < self._config.opponent_share:
            if not self._left or self._slot not in self._slots:
                self._slot, self._left = self._drawn_slot(), self._envs
            self._left -= 1
            self._met[env] = self._pool.env_steps(self._slot)
            for agent in self._sides[int(self._generator.integers(2))]:
                ids[agent] = self._slot + 1
        return ids

    def record(self, env: int, ids: npt.NDArray[np.int16], returns: npt.NDArray[np.float64]) -> None:
        """The episode of an env is over; ids, returns: of its agents that acted. The side with the higher mean has won.

        An episode in which only one side acted, or a newer snapshot took the opponent's place, counts for neither.
        """
        own = ids == 0
        if own.all() or not own.any():
            return
        slot = int(ids[~own][0]) - 1
        if self._pool.env_steps(slot) == self._met[env]:
            ahead = returns[own].mean() - returns[~own].mean()
            self._pool.record(self._actor, slot, 0.5 + 0.5 * float(np.sign(ahead)))

    def _drawn_slot(self) -> int:
        slots, sampling = self._slots, self._config.opponent_sampling
        weights = np.ones(len(slots))
        if sampling == "recent":
            weights = np.arange(len(slots), 0.0, -1.0)
        elif sampling == "pfsp":
            weights = hardness(self._pool.results()[slots])
        return slots[int(self._generator.choice(len(slots), p=weights / weights.sum()))]


def hardness(results: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """[K] - weights of opponents in prioritized fictitious self-play: (1 - share of points won)^2, recently.

    results: [K, 5] as of OpponentPool. One drawn episode is added to each, so an unknown opponent counts as an equal.
    Source: Vinyals et al. 2019, "Grandmaster level in StarCraft II", f_hard.
    """
    weights: npt.NDArray[np.float64] = (1.0 - (results[:, POINTS] + 0.5) / (results[:, EPISODES] + 1.0)) ** 2
    return weights


def sides_of(agents: Sequence[str]) -> tuple[list[int], list[int]]:
    """The two sides of an env, as indices of its A agents, A >= 2.

    If names without a number at their end are of two kinds, as red_0 and blue_0, these are the sides; otherwise they
    are the first and the second half of the agents.
    """
    kinds = [name.rstrip("0123456789") for name in agents]
    if len(set(kinds)) != 2:
        kinds = [str(2 * agent < len(agents)) for agent in range(len(agents))]
    sides = {kind: [agent for agent, each in enumerate(kinds) if each == kind] for kind in kinds}
    first, second = sides.values()
    return first, second
