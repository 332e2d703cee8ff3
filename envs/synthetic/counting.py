"""An env with observations that name the env, episode and step, and rewards that name the action.

Observations are whole numbers that float32 holds exactly (each below 2**24), so that a checker of recorded
trajectories can prove that no transition was lost, repeated, reordered, torn or combined with another action.
Everything is a pure function of (identity, episode, step, action), which the checker recomputes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

FIELD_BITS = 20
FIELD_LIMIT = 1 << FIELD_BITS
IDENTITY_LIMIT = 1 << (3 * FIELD_BITS)
HEADER = 5  # identity in three fields, episode, step
SEALS = 3  # the least number of checksum fields
_WORD = (1 << 64) - 1

Obs = npt.NDArray[np.float32]
Ending = Literal["terminated", "truncated", "both"]


class Position(NamedTuple):
    """Where an observation stands: the env it is of, its episode (from 0) and the steps done in it."""

    identity: int
    episode: int
    step: int


def mix(*numbers: int) -> int:
    """A 64-bit word that depends on every bit of ``numbers`` and on their order (finaliser of splitmix64)."""
    word = 0
    for number in numbers:
        word = (word + 0x9E3779B97F4A7C15 + number) & _WORD
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
        word ^= word >> 31
    return word


def encode(position: Position, size: int) -> Obs:
    """The observation at ``position``: obs: [size] float32 - identity (3 fields of 20 bits), episode, step, checksums.

    Each checksum depends on the whole position and on its own place, so two observations cannot be mixed unnoticed.
    """
    identity, episode, step = position
    obs = np.empty(size, np.float32)
    obs[0] = identity >> (2 * FIELD_BITS)
    obs[1] = (identity >> FIELD_BITS) % FIELD_LIMIT
    obs[2] = identity % FIELD_LIMIT
    obs[3] = episode
    obs[4] = step
    word = mix(identity, episode, step)
    for place in range(HEADER, size):
        obs[place] = ((word >> 8) + place * (word | 1)) % FIELD_LIMIT
    return obs


def decode(obs: npt.NDArray[Any]) -> Position:
    """The position that ``obs`` [size] states; raises ValueError where its fields do not belong together."""
    fields = [int(value) for value in obs[:HEADER]]
    if any(not 0 <= field < FIELD_LIMIT for field in fields):
        raise ValueError(f"torn observation: fields {fields} are not all in [0, {FIELD_LIMIT})")
    high, middle, low, episode, step = fields
    position = Position((high << (2 * FIELD_BITS)) | (middle << FIELD_BITS) | low, episode, step)
    if not np.array_equal(obs, encode(position, len(obs))):
        raise ValueError(f"torn observation: the checksums do not belong to {position}: {obs.tolist()}")
    return position


@dataclass(frozen=True)
class CountingRules:
    """What a Counting env does, as pure functions: episode lengths, endings and rewards.

    Lengths are spread over [min_length, max_length] by a hash, so episode ends fall on every place of a rollout.
    ``ends``: how episodes end; "mixed" takes terminated and truncated about equally often.
    """

    num_actions: int = 7
    min_length: int = 1
    max_length: int = 13
    ends: Literal["mixed", "terminated", "truncated", "both"] = "mixed"

    def __post_init__(self) -> None:
        """Refuse rules under which a number would not fit float32, or an episode would never end."""
        if not 2 <= self.num_actions <= 1024:
            raise ValueError(f"num_actions is {self.num_actions}; it must be in [2, 1024]")
        if not 1 <= self.min_length <= self.max_length < FIELD_LIMIT:
            raise ValueError(f"lengths must be 1 <= {self.min_length} <= {self.max_length} < {FIELD_LIMIT}")
        if self.ends not in ("mixed", "terminated", "truncated", "both"):
            raise ValueError(f"ends is {self.ends!r}; it must be mixed, terminated, truncated or both")

    def length(self, identity: int, episode: int) -> int:
        """Steps of that episode."""
        return self.min_length + mix(identity, episode, 1) % (self.max_length - self.min_length + 1)

    def ending(self, identity: int, episode: int) -> Ending:
        """How that episode ends."""
        if self.ends != "mixed":
            return self.ends
        return "terminated" if mix(identity, episode, 2) & 1 else "truncated"

    def reward(self, position: Position, action: int) -> float:
        """The reward for ``action`` at ``position``: a hash of the position in [0, 100) x num_actions, plus action."""
        return float(mix(*position, 3) % 100 * self.num_actions + action)


class Counting(gymnasium.Env[Obs, np.int64]):
    """A gymnasium env that counts; see the module's text.

    ``env_id`` names the env; left out, the seed of the first ``reset`` does, so give every env a seed of its own.
    ``obs_size``: length of the observation, at least 8. The other arguments are those of ``CountingRules``.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - the attribute of gymnasium.Env

    def __init__(
        self,
        env_id: int | None = None,
        obs_size: int = HEADER + SEALS,
        num_actions: int = 7,
        min_length: int = 1,
        max_length: int = 13,
        ends: Literal["mixed", "terminated", "truncated", "both"] = "mixed",
    ) -> None:
        if obs_size < HEADER + SEALS:
            raise ValueError(f"obs_size is {obs_size}; it must be at least {HEADER + SEALS}")
        self.rules = CountingRules(num_actions, min_length, max_length, ends)
        self.observation_space = gymnasium.spaces.Box(0, FIELD_LIMIT, (obs_size,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(num_actions)
        self._identity = None if env_id is None else env_id % IDENTITY_LIMIT
        self._obs_size = obs_size
        self._episode = -1
        self._step = 0
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin the next episode. The first seed becomes the identity; an env that is never seeded draws one."""
        super().reset(seed=seed)
        if self._identity is None:
            self._identity = seed % IDENTITY_LIMIT if seed is not None else int(self.np_random.integers(IDENTITY_LIMIT))
        self._episode += 1
        self._step = 0
        self._over = False
        return encode(self._position(), self._obs_size), {}

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """One step; raises ValueError for an action outside [0, num_actions), RuntimeError if no episode is running."""
        if self._over:
            raise RuntimeError("step() after the end of an episode, or before the first reset()")
        if not 0 <= int(action) < self.rules.num_actions:
            raise ValueError(f"action {action!r} is not in [0, {self.rules.num_actions})")
        before = self._position()
        self._step += 1
        self._over = self._step == self.rules.length(before.identity, before.episode)
        ending = self.rules.ending(before.identity, before.episode)
        terminated = self._over and ending != "truncated"
        truncated = self._over and ending != "terminated"
        obs = encode(self._position(), self._obs_size)
        return obs, self.rules.reward(before, int(action)), terminated, truncated, {}

    def _position(self) -> Position:
        assert self._identity is not None
        return Position(self._identity, self._episode, self._step)
