"""Plays whole episodes of one env with a trained policy, and sums up how it did."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

from sfactory.actor.episode_stats import ExtraStatsTracker
from sfactory.actor.multi_agent_batch import AgentActivity
from sfactory.actor.multi_agent_split import team_stats
from sfactory.actor.previous_steps import PreviousSteps
from sfactory.env.conversion import REWARD, BadObservation, Flaw
from sfactory.env.factory import GAME_CONTINUES
from sfactory.env.multi_agent import AgentsEnv, AgentsStep, Change, blank
from sfactory.env.training_info import set_training_info
from sfactory.errors import Passing, SFactoryError, named
from sfactory.experiment.summary import finite
from sfactory.messages import TRUE_OBJECTIVE, EpisodeExtras, ExtrasRefused
from sfactory.model.torch_state import OwnTorchState
from sfactory.play.action_chooser import ActingModel, ActionChooser
from sfactory.play.joint_policy import JointPolicy
from sfactory.play.rendering import AnyEnv, Show
from sfactory.seeds import ENV_SEED_BITS, Branch, seed_at, seed_libraries
from sfactory.spec import EnvSpec

_log = logging.getLogger(__name__)

_NO_LIMIT = 2**62
_MOST_DISCARDED = 20  # episodes in a row


class EnvFailed(SFactoryError):
    """The environment raised while it was played, and its own exception is the cause, or gave invalid data only."""


class _InvalidData(Exception):
    """The env gave a reward that is not finite, or an observation that no action can be chosen for."""

    def __init__(self, place: str, flaw: Flaw) -> None:
        """``place``: in which step of which episode."""
        super().__init__(f"{place}: {flaw}")
        self.flaw = str(flaw)


class Episode(NamedTuple):
    """One whole episode: its raw return (with several agents the mean over those of the policy that acted, of each up
    to its own end, as in training), and its length in env steps.

    stats: the numbers of ``info["episode_extra_stats"]``, ``true_objective`` if ``info`` has it, and with several
    agents the returns of the team and of each agent.
    """

    episode_return: float
    length: int
    stats: Mapping[str, float]


def result_line(played: Mapping[str, object], episodes: Sequence[Episode], video: Path | None) -> str:
    """One line of JSON: what was ``played``, how it did, and the video. Numbers that are not finite become null."""
    result = {**result_of(played, episodes), "video": None if video is None else str(video)}
    return json.dumps(finite(result), allow_nan=False)


def returns_of(episodes: Sequence[Episode]) -> list[float]:
    """Raw returns; an episode in which none of the policy's agents acted has none."""
    return [episode.episode_return for episode in episodes if not math.isnan(episode.episode_return)]


def result_of(played: Mapping[str, object], episodes: Sequence[Episode]) -> dict[str, object]:
    """What was ``played``, and how it did.

    Statistics are averaged over the episodes that report them; without a true objective it is the mean return.
    """
    returns = returns_of(episodes)
    stats: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.stats.items():
            stats.setdefault(name, []).append(value)
    return {
        **played,
        "episodes": len(episodes),
        "episode_return_mean": _mean(returns),
        "episode_return_min": min(returns, default=None),
        "episode_return_max": max(returns, default=None),
        "episode_length_mean": _mean([episode.length for episode in episodes]),
        "true_objective_mean": _mean(stats.pop(TRUE_OBJECTIVE, returns)),
        "episode_extra_stats": {name: _mean(values) for name, values in sorted(stats.items())},
    }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


class _OneAgent:
    """A plain env with the reset and step of an AgentsEnv that has one agent."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env

    def reset(self, *, seed: int | None = None) -> list[Any]:
        obs, _ = self._env.reset(seed=seed)
        return [obs]

    def step(self, actions: Sequence[Any]) -> AgentsStep:
        obs, reward, terminated, truncated, info = self._env.step(actions[0])
        over = bool(terminated or truncated)
        return [obs], [reward], Change([over], [False], [False], [info]) if over else None


def env_seed_of(seed: int, *place: int) -> int:
    """The seed of the env of a play. place: of a game that takes the place of others, see Branch."""
    return seed_at(seed, Branch.PLAY, *place, bits=ENV_SEED_BITS)


class Player:
    """One env and the policy of its A agents (1 in a plain env), one step after the other, on the CPU."""

    def __init__(
        self,
        env: AnyEnv,
        spec: EnvSpec,
        policy: ActingModel,
        show: Show,
        *,
        name: str,
        deterministic: bool = False,
        repeat: int = 1,
        before_reset: Callable[[], None] = lambda: None,
    ) -> None:
        """``name``: of the env, for errors. ``show`` is called after each of its resets and steps.

        repeat: how often an action is taken, for an env that skips fewer frames than in training; it counts as a step.
        """
        self._env, self._spec, self._policy, self._show = env, spec, policy, show
        self._name, self._deterministic, self._repeat, self._before_reset = name, deterministic, repeat, before_reset
        self._agents = env if isinstance(env, AgentsEnv) else _OneAgent(env)
        size = spec.num_agents
        self._own = policy.own if isinstance(policy, JointPolicy) else list(range(size))
        self._chooser = ActionChooser(policy, spec, env.observation_space, env.action_space, size)
        self._blank = blank(env.observation_space)
        self._activity = AgentActivity(size, spec.in_turns)
        self._state = policy.fresh_state(size)
        self._previous = PreviousSteps.of(spec, size)
        self._acted: dict[str, np.ndarray[Any, Any]] = {}
        self._extras = ExtraStatsTracker()
        self._game_continues = False
        self._steps = 0
        self._warned = set[str]()  # of which flaws

    def set_training_info(self, env_steps: int) -> None:
        """The env, if it wants to know, is shown that ``env_steps`` have been trained on. Raises EnvFailed."""
        with self._calling("set_training_info()"):
            set_training_info(self._env, env_steps)

    def episodes(self, count: int, max_steps: int = _NO_LIMIT, *, seed: int) -> Iterator[Episode]:
        """Up to ``count`` whole episodes, fewer if ``max_steps`` env steps are over before.

        ``seed`` determines them: it seeds the generators of libraries, and the env at its first reset. With several
        agents, an episode is over once those of all agents are. One of an env that ends an episode with each life is a
        whole game. One with NaN, infinity or an impossible choice is discarded, and another one played in its place.
        Raises BadObservation, EnvFailed, or the errors of ``show``.
        """
        seed_libraries(seed)
        self._policy.draw_privately()
        until = self._steps + max_steps
        for number in range(1, count + 1):
            episode = self._valid_game(number, seed, until)
            if episode is None:
                return
            yield episode

    def _valid_game(self, number: int, seed: int, until: int) -> Episode | None:
        """The next game without invalid data, or None if it was not over after ``until`` steps of this player.

        seed: of the play, see ``episodes``.
        """
        discarded, env_seed = 0, env_seed_of(seed) if number == 1 else None
        while True:
            try:
                return self._game(number, env_seed, until - self._steps)
            except _InvalidData as error:
                discarded += 1
                env_seed = env_seed_of(seed, number, discarded)  # without one a game of lives could go on
                if discarded == _MOST_DISCARDED:
                    lost = f"{self._name}, {error}, and {discarded} episodes in a row had invalid data"
                    raise EnvFailed(f"{lost}: sfactory check-env finds such data") from None
                if error.flaw not in self._warned:
                    self._warned.add(error.flaw)
                    text = "%s, %s; episodes in which this happens are discarded, and others are played in their place"
                    _log.warning(text, self._name, error)

    def _game(self, number: int, seed: int | None, max_steps: int) -> Episode | None:
        """The episodes of one game as one (``GAME_CONTINUES``), or None if it was not over after ``max_steps``."""
        game = self._episode(number, seed, max_steps)
        while game is not None and self._game_continues:
            life = self._episode(number, None, max_steps - game.length)
            if life is None:
                return None
            earned, length = game.episode_return + life.episode_return, game.length + life.length
            game = Episode(earned, length, {**game.stats, **life.stats})
        return game

    def _episode(self, number: int, seed: int | None, max_steps: int) -> Episode | None:
        """One episode, or None if it was not over after ``max_steps``."""
        if max_steps < 1:
            return None
        observations = self._reset(number, seed)
        self._state = self._policy.fresh_state(self._spec.num_agents)
        if self._previous is not None:
            self._previous.begin_episodes(range(self._spec.num_agents))
        self._show(self._env)
        returns, infos = [0.0] * self._spec.num_agents, list[Any]()
        at_end: dict[int, float] = {}  # see ``_ended``
        for step in range(1, max_steps + 1):
            actions, idle, before = self._act(observations, number, step), self._activity.inactive, returns
            self._steps += 1
            for _ in range(self._repeat):
                observations, rewards, change = self._step(actions, number, step)
                self._show(self._env)
                returns = [total + reward for total, reward in zip(returns, rewards, strict=True)]
                if change is None:
                    continue
                stops = self._activity.change(change, observations)
                ended = {*stops.terminated, *stops.truncated, *stops.ended}
                infos += [change.infos[agent] for agent in self._own if agent in ended]
                at_end |= {agent: returns[agent] for agent in ended}
                if stops.over:
                    return self._ended(returns, at_end, infos, step)
            if self._previous is not None:
                with np.errstate(all="ignore"):  # whatever an env has set
                    self._previous.record(self._acted, np.subtract(returns, before), idle, ())
        return None

    def _ended(self, returns: list[float], at_end: Mapping[int, float], infos: Sequence[Any], length: int) -> Episode:
        """The episode; notes whether its game continues. at_end: by agent, its return when its own episode ended."""
        agents, acted = self._spec.agents, self._activity.acted
        self._game_continues = not agents and isinstance(infos[0], Mapping) and bool(infos[0].get(GAME_CONTINUES))
        team = team_stats(agents, returns, acted) if agents else {}
        earned = [at_end[agent] for agent in self._own if acted[agent]]
        mean = sum(earned) / len(earned) if earned else math.nan
        return Episode(mean, length, {**team, **self._stats(infos)})

    def _act(self, observations: Sequence[Any], number: int, step: int) -> list[Any]:
        """One action per agent. An agent that shows nothing shows zeros to the policy, and keeps its state."""
        absent = self._activity.absent
        self._activity.end_showing(of_sleeping=True)
        shown = [self._blank if agent in absent else obs for agent, obs in enumerate(observations)]
        place = f"before step {step} of episode {number}"
        try:
            obs = self._chooser.read(shown, self._previous)
        except BadObservation:
            self._require_fit(shown, place)
            raise
        for agent, flaw in self._chooser.flaws(shown, self._activity.inactive).items():
            raise _InvalidData(place, flaw._replace(agent=self._of(agent)))
        actions, self._acted, state = self._chooser.act(obs, self._state, self._deterministic)
        if absent:
            with OwnTorchState(), torch.inference_mode():
                sees = torch.tensor([agent not in absent for agent in range(len(shown))]).unsqueeze(-1)
                state = torch.where(sees, state, self._state)
        self._state = state
        return list(actions)

    def _reset(self, number: int, seed: int | None) -> Sequence[Any]:
        self._before_reset()
        with self._calling("reset() of episode %d", number):
            observations = self._agents.reset(seed=seed)
        self._activity.begin(observations)
        self._require_fit(observations, f"reset() of episode {number}")
        return observations

    def _require_fit(self, observations: Sequence[Any], place: str) -> None:
        """Raise BadObservation, which says ``place``, for one of another shape or dtype than its space."""
        for agent, obs in enumerate(observations):
            if obs is not None or not self._spec.agents:
                self._chooser.writer.check(obs, f"{self._name}, {place}{self._of(agent)}")

    def _step(self, actions: Sequence[Any], number: int, step: int) -> tuple[Sequence[Any], list[float], Change | None]:
        with self._calling("step %d of episode %d", step, number):
            observations, given, change = self._agents.step(actions)
            rewards = [float(reward) for reward in given]
        for agent, reward in enumerate(rewards):
            if not math.isfinite(reward):
                raise _InvalidData(f"step {step} of episode {number}", Flaw(REWARD, f"is {reward}", self._of(agent)))
        return observations, rewards, change

    def _of(self, agent: int) -> str:
        """Addition to errors about an agent among several."""
        return f", agent {self._spec.agents[agent]!r}" if self._spec.agents else ""

    @contextlib.contextmanager
    def _calling(self, what: str, *numbers: int) -> Iterator[None]:
        """Raise EnvFailed, which names ``what % numbers``, for what the env raises in the block."""
        try:
            yield
        except Passing:
            raise
        # Foreign code may raise anything.
        except BaseException as error:
            raise EnvFailed(f"{self._name}: {what % numbers} raised {named(error)}") from error

    def _stats(self, infos: Sequence[Any]) -> dict[str, float]:
        """Numbers by name that the last infos of an episode report, by the rules of training; means over the infos."""
        stats: dict[str, float] = {}

        def take(message: EpisodeExtras | ExtrasRefused) -> bool:
            if isinstance(message, ExtrasRefused):
                _log.warning("%s: a statistic of an episode is left out: %s", self._name, message.reason)
            else:
                stats[message.name] = float(message.values.mean())
            return True

        for info in infos:
            self._extras.add(info)
        self._extras.send(0, take)
        return stats
