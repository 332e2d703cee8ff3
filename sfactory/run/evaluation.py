"""Room: whole episodes of one env, played by a trained policy. In: an env, a model. Out: returns and lengths."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

from sfactory.env.adapt import ObsWriter, action_reader
from sfactory.errors import SFactoryError
from sfactory.model.actor_critic import ActorCritic
from sfactory.spec import EnvSpec

_log = logging.getLogger(__name__)


class EnvFailed(SFactoryError):
    """The environment raised while it was played; its own exception is the cause."""


class Episode(NamedTuple):
    """One whole episode: its raw return, and its length in env steps."""

    episode_return: float
    length: int


@dataclass(frozen=True)
class Evaluation:
    """How a policy did; field names are the keys of the JSON line. None where no episode was finished."""

    env: str
    checkpoint: str
    checkpoint_env_steps: int
    deterministic: bool
    seed: int
    episodes: int
    episode_return_mean: float | None
    episode_return_min: float | None
    episode_return_max: float | None
    episode_length_mean: float | None

    @staticmethod
    def of(
        episodes: Sequence[Episode], *, env: str, checkpoint: str, env_steps: int, deterministic: bool, seed: int
    ) -> Evaluation:
        """Sum up ``episodes`` played with a checkpoint that was trained on ``env_steps`` env steps."""
        returns = [episode.episode_return for episode in episodes]
        lengths = [episode.length for episode in episodes]
        return Evaluation(
            env=env,
            checkpoint=checkpoint,
            checkpoint_env_steps=env_steps,
            deterministic=deterministic,
            seed=seed,
            episodes=len(episodes),
            episode_return_mean=_mean(returns),
            episode_return_min=min(returns, default=None),
            episode_return_max=max(returns, default=None),
            episode_length_mean=_mean(lengths),
        )

    def to_json(self) -> str:
        """One line of JSON; numbers that are not finite become null, as JSON has no others."""
        values = dataclasses.asdict(self)
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
        return json.dumps(finite, allow_nan=False)


class Player:
    """One env and the policy that acts in it, one step after the other, on the CPU."""

    def __init__(
        self, env: gymnasium.Env[Any, Any], spec: EnvSpec, model: ActorCritic, deterministic: bool, name: str
    ) -> None:
        """``name``: what errors call the env."""
        self._env, self._model, self._deterministic, self._name = env, model, deterministic, name
        self._writer = ObsWriter(spec, env.observation_space)
        self._read_actions = action_reader(env.action_space)
        self._rows = {key: np.zeros((1, *tensor.shape), tensor.dtype) for key, tensor in spec.obs}
        self._obs = {key: torch.from_numpy(row) for key, row in self._rows.items()}

    def episodes(self, count: int, max_steps: int, seed: int) -> Iterator[Episode]:
        """Up to ``count`` whole episodes, fewer if ``max_steps`` env steps are over before.

        ``seed`` decides on everything: it seeds torch's global generator, and the env at its first reset.
        Raises BadObservation, or EnvFailed with what the env raised as its cause.
        """
        torch.manual_seed(seed)
        env_seed: int | None = _env_seed(seed)
        left = max_steps
        for number in range(1, count + 1):
            episode = self._episode(number, env_seed, left)
            if episode is None:
                return
            yield episode
            left -= episode.length
            env_seed = None

    def close(self) -> None:
        """Close the env. What it raises is only logged: the episodes are played."""
        try:
            self._env.close()
        # Foreign code may raise anything.
        except Exception as error:
            _log.warning("%s: close() raised %s: %s", self._name, type(error).__name__, error)

    def _episode(self, number: int, seed: int | None, max_steps: int) -> Episode | None:
        """One episode, or None if it was not over after ``max_steps``."""
        obs = self._reset(number, seed)
        total = 0.0
        for step in range(1, max_steps + 1):
            obs, reward, over = self._step(self._action(obs), number, step)
            total += reward
            if over:
                return Episode(total, step)
        return None

    def _action(self, obs: Any) -> Any:
        self._writer.write([obs], self._rows)
        with torch.inference_mode():
            acted = self._model.act(self._obs, self._deterministic)
        return self._read_actions({key: action.numpy() for key, action in acted.actions.items()})[0]

    def _reset(self, number: int, seed: int | None) -> Any:
        try:
            obs, _ = self._env.reset(seed=seed)
        # Foreign code may raise anything.
        except Exception as error:
            raise EnvFailed(f"{self._name}: reset() of episode {number} raised {_named(error)}") from error
        self._writer.check(obs, f"{self._name}, reset() of episode {number}")
        return obs

    def _step(self, action: Any, number: int, step: int) -> tuple[Any, float, bool]:
        try:
            obs, reward, terminated, truncated, _ = self._env.step(action)
            return obs, float(reward), bool(terminated or truncated)
        # Same reason as above.
        except Exception as error:
            raise EnvFailed(f"{self._name}: step {step} of episode {number} raised {_named(error)}") from error


def _env_seed(seed: int) -> int:
    """A 31-bit seed, as every env accepts, that shares no stream with the policy's."""
    return int(np.random.SeedSequence(seed).generate_state(1)[0] >> 1)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
