"""Makes action masks that envs give in ``info["action_mask"]`` part of their observations.

Beside a plain observation, of the key "obs", stands the mask, of the key "action_mask". Where an info has no mask, as
after the end of an episode, no action is legal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import gymnasium
import gymnasium.spaces as spaces
import numpy as np
import numpy.typing as npt

from sfactory.action_heads import DiscreteHead
from sfactory.env.conversion import BadObservation
from sfactory.env.vector import VectorEnv, VectorWrapper, single_spaces
from sfactory.errors import EnvError, named
from sfactory.spec import OBS_KEY, EnvSpec
from sfactory.tensor_spec import MASK_KEY

Masks = npt.NDArray[np.int8]


def has_info_mask(observation_space: spaces.Space[Any], info: Any) -> bool:
    """Whether ``info`` has an action mask, which the observations have not."""
    return not shows_mask(observation_space) and isinstance(info, Mapping) and MASK_KEY in info


def shows_mask(observation_space: spaces.Space[Any]) -> TypeGuard[spaces.Dict]:
    """Whether the observations have an action mask."""
    return isinstance(observation_space, spaces.Dict) and MASK_KEY in observation_space.spaces


def _can_be_masked(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> bool:
    """Whether there are discrete actions, and no mask of them is among the observations."""
    heads = EnvSpec.of_spaces(observation_space, action_space).actions
    return any(isinstance(head, DiscreteHead) for head in heads) and not shows_mask(observation_space)


class MaskJoiner:
    """Joins observations of one env or agent, or of ``size`` envs, with the masks in infos. space: of both."""

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], size: int | None = None
    ) -> None:
        """observation_space: of one env. Raises EnvError if there are no discrete actions to mask."""
        heads = EnvSpec.of_spaces(observation_space, action_space).actions
        choices = sum(head.n for head in heads if isinstance(head, DiscreteHead))
        if not choices:
            raise EnvError(f"info[{MASK_KEY!r}] masks discrete actions, and {action_space} has none")
        self._shape = (choices,) if size is None else (size, choices)
        self._is_dict = isinstance(observation_space, spaces.Dict)
        parts = dict(observation_space) if isinstance(observation_space, spaces.Dict) else {OBS_KEY: observation_space}
        self.space = spaces.Dict({**parts, MASK_KEY: spaces.MultiBinary(choices)})

    def join(self, obs: Any, info: Any, otherwise: int = 0) -> dict[str, Any]:
        """The observation with the mask of ``info``; raises BadObservation if it does not fit the actions.

        otherwise: what each element is where the info has no mask.
        """
        mask = np.full(self._shape, otherwise, np.int8)
        if MASK_KEY in info:
            try:
                given = _flat(info[MASK_KEY])
            except (TypeError, ValueError) as error:
                raise BadObservation(f"info[{MASK_KEY!r}] cannot be read as an action mask: {named(error)}") from None
            if given.size != mask.size:
                problem = f"info[{MASK_KEY!r}] has {given.size} elements, and the actions have {mask.size} choices"
                raise BadObservation(f"{problem}: correct the env, or ignore its masks: --info_action_mask=off")
            mask[:] = given.reshape(self._shape)
        return {**(obs if self._is_dict else {OBS_KEY: obs}), MASK_KEY: mask}


def _flat(mask: Any) -> Masks:
    """[M] - of a mask, or of a tuple or dict of masks, in the order of the action space."""
    if isinstance(mask, Mapping):
        mask = [mask[key] for key in sorted(mask)]
    if isinstance(mask, list | tuple) and mask and np.ndim(mask[0]):
        return np.concatenate([_flat(part) for part in mask])
    return np.asarray(mask, np.int8).ravel()


class InfoMaskEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An env of one agent with the mask in its observations."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._masks = MaskJoiner(env.observation_space, env.action_space)
        self.observation_space = self._masks.space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._masks.join(obs, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._masks.join(obs, info), reward, terminated, truncated, info


class InfoMaskVectorEnv(VectorWrapper):
    """A vector env with the masks in its observations."""

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self._masks = MaskJoiner(*single_spaces(env), env.num_envs)
        self.single_observation_space = self._masks.space

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the first episodes."""
        obs, infos = self.env.reset(seed=seed, options=options)
        return self._masks.join(obs, infos), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all envs."""
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        return self._masks.join(obs, infos), rewards, terminated, truncated, infos


class InfoMaskAgentsEnv:
    """An env with PettingZoo's parallel interface, or that of turns (AEC), with the masks in the observations."""

    def __init__(self, env: Any) -> None:
        self._env = env
        # Some agents may have nothing to mask, or their masks in the observations.
        spaces_of = {agent: (env.observation_space(agent), env.action_space(agent)) for agent in env.possible_agents}
        masked = [agent for agent in env.possible_agents if _can_be_masked(*spaces_of[agent])] or env.possible_agents
        self._masks = {agent: MaskJoiner(*spaces_of[agent]) for agent in masked}
        self._have_given: set[Any] = set()  # agents that have had a mask; to others all is legal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def observation_space(self, agent: Any) -> spaces.Space[Any]:
        """Of one agent."""
        return self._masks[agent].space if agent in self._masks else self._env.observation_space(agent)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any] | None:
        """Begin an episode."""
        if (shown := self._env.reset(seed=seed, options=options)) is None:  # ``last`` shows the observations of turns
            return None
        observations, infos = shown
        return self._joined(observations, infos), infos

    def step(self, actions: Any) -> tuple[Any, ...] | None:
        """Step the env."""
        if (result := self._env.step(actions)) is None:
            return None
        observations, *others, infos = result
        return self._joined(observations, infos), *others, infos

    def last(self) -> tuple[Any, ...]:
        """What the agent that has a turn sees, has earned and ended with."""
        obs, *others, info = self._env.last()
        return self._join(self._env.agent_selection, obs, info), *others, info

    def _joined(self, observations: Mapping[Any, Any], infos: Mapping[Any, Any]) -> dict[Any, Any]:
        return {agent: self._join(agent, obs, infos.get(agent, {})) for agent, obs in observations.items()}

    def _join(self, agent: Any, obs: Any, info: Any) -> Any:
        if agent not in self._masks:
            return obs
        if MASK_KEY in info:
            self._have_given.add(agent)
        return self._masks[agent].join(obs, info, otherwise=int(agent not in self._have_given))
