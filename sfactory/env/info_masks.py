"""Makes action masks that envs give in ``info["action_mask"]`` part of their observations.

Beside a plain observation, of the key "obs", stands the mask, of the key "action_mask". Where an info has no mask, as
after the end of an episode, or of an agent that waits while another has one, no action is legal; an info that lacks one
where an action is taken is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import gymnasium
import gymnasium.spaces as spaces
import numpy as np
import numpy.typing as npt

from sfactory.action_heads import DiscreteHead, heads_of
from sfactory.env.conversion import BadObservation
from sfactory.env.vector import VectorEnv, VectorWrapper, single_spaces
from sfactory.errors import EnvError, named
from sfactory.spec import ACTION_KEY, OBS_KEY, EnvSpec, key_of, leaves
from sfactory.tensor_spec import MASK_KEY, is_mask

Masks = npt.NDArray[np.int8]
Ends = Sequence[Mapping[Any, Any]]  # by agent, whether its episode is over: terminated and truncated
_ADVICE = ": correct the env, or ignore its masks: --info_action_mask=off"
_LACK = (
    f"the info of agent {{!r}} has no {MASK_KEY!r}, as an earlier one had; one that waits has a mask of zeros{_ADVICE}"
)
LATE_MASKS = f"the info of step() has {MASK_KEY!r}, and that of reset() has none{_ADVICE}"
NOT_OF_LISTS = (
    "of envs with many agents only those of PettingZoo have action masks in infos; make the mask the entry "
    f"{MASK_KEY!r} of a Dict observation, or ignore it: --info_action_mask=off"
)


def has_info_mask(observation_space: spaces.Space[Any], info: Any, obs_layout: tuple[str, ...] = ()) -> bool:
    """Whether ``info`` has an action mask, which the observations have not."""
    has_one = isinstance(info, Mapping) and MASK_KEY in info
    return has_one and not (has_mask_key(observation_space) or shows_mask(observation_space, obs_layout))


def require_none(
    observation_space: spaces.Space[Any], info: Any, obs_layout: tuple[str, ...] = (), problem: str = LATE_MASKS
) -> None:
    """Raise EnvError with the text ``problem`` if ``info`` has an action mask, which would not be read."""
    if has_info_mask(observation_space, info, obs_layout):
        raise EnvError(problem)


def shows_mask(observation_space: spaces.Space[Any], obs_layout: tuple[str, ...]) -> bool:
    """Whether the observations have an action mask."""
    return any(is_mask(key_of(path, OBS_KEY), obs_layout) for path, _ in leaves(observation_space))


def has_mask_key(observation_space: spaces.Space[Any]) -> TypeGuard[spaces.Dict]:
    """Whether an observation is called as an action mask is."""
    return isinstance(observation_space, spaces.Dict) and MASK_KEY in observation_space.spaces


def _can_be_masked(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> bool:
    """Whether there are discrete actions, and no mask of them is among the observations."""
    return has_choices(EnvSpec.of_spaces(observation_space, action_space)) and not has_mask_key(observation_space)


def has_choices(spec: EnvSpec) -> bool:
    """Whether there are discrete actions: a mask in the infos of others is none, and is ignored."""
    return any(isinstance(head, DiscreteHead) for head in spec.actions)


class MaskJoiner:
    """Joins observations of one env or agent, or of ``size`` envs, with the masks in infos. space: of both."""

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], size: int | None = None
    ) -> None:
        """observation_space: of one env. Raises EnvError if there are no discrete actions to mask."""
        EnvSpec.of_spaces(observation_space, action_space)  # raises EnvError for spaces that are not supported
        choices = _choices(action_space)
        if not choices:
            raise EnvError(f"info[{MASK_KEY!r}] masks discrete actions, and {action_space} has none{_ADVICE}")
        self._actions, self._size = action_space, size
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
            given = info[MASK_KEY]
            is_flat = isinstance(given, np.ndarray) and given.dtype != object and given.size == mask.size
            mask[:] = (given if is_flat else _flat(given, self._actions, self._size)).reshape(self._shape)
        return {**(obs if self._is_dict else {OBS_KEY: obs}), MASK_KEY: mask}


def _choices(action_space: spaces.Space[Any]) -> int:
    """How many elements a mask of these actions has."""
    heads = (head for path, leaf in leaves(action_space) for head in heads_of(key_of(path, ACTION_KEY), leaf))
    return sum(head.n for head in heads if isinstance(head, DiscreteHead))


def _flat(mask: Any, space: spaces.Space[Any], size: int | None, where: str = f"info[{MASK_KEY!r}]") -> Masks:
    """[N, M] - of a flat mask, or of a tree of masks like ``space``, in the order of its heads.

    size: N of a vector env; None: of one env, N is 1. where: the mask in errors. Raises BadObservation for a misfit.
    """
    width, parts = _choices(space), _parts(space)
    if mask is None and not width:  # as Gymnasium has it for a Box
        return np.empty((size or 1, 0), np.int8)
    if size is not None and isinstance(mask, np.ndarray) and mask.dtype == object:  # a tree, or None, for each env
        none_legal = np.zeros((1, width), np.int8)
        return np.concatenate([none_legal if each is None else _flat(each, space, None, where) for each in mask])
    if isinstance(mask, Mapping) or (parts and _is_tree(mask, size)):
        given = dict(mask) if isinstance(mask, Mapping) else dict(enumerate(mask))
        if size is not None:  # beside each key of an info, a vector env has "_key": which envs have it
            given = {name: part for name, part in given.items() if name in parts or str(name)[1:] not in parts}
        masked = {name for name, part in parts.items() if _choices(part)}
        if isinstance(mask, Mapping) != isinstance(space, spaces.Dict) or not masked <= given.keys() <= parts.keys():
            has = f"is a {type(mask).__name__} of {', '.join(map(repr, given)) or 'nothing'}"
            raise BadObservation(f"{where} {has}, and the action space is {space}{_ADVICE}")
        of_parts = [_flat(given.get(name), part, size, f"{where}[{name!r}]") for name, part in parts.items()]
        return np.concatenate(of_parts, axis=1)
    try:
        flat = _array(mask, size)
    except (TypeError, ValueError) as error:
        raise BadObservation(f"{where} cannot be read as an action mask: {named(error)}{_ADVICE}") from None
    if flat.shape[1] != width:
        wanted = f"{flat.size} elements, and the actions have {width * (size or 1)} choices"
        raise BadObservation(f"{where} has {wanted}{_ADVICE}")
    return flat


def _array(mask: Any, size: int | None) -> Masks:
    """[N, M] - of an array, or of a tree of arrays for the components of one action."""
    if _is_tree(mask, size):
        return np.concatenate([_array(part, size) for part in mask], axis=1)
    return np.asarray(mask, np.int8).reshape(size or 1, -1)


def _is_tree(mask: Any, size: int | None) -> bool:
    """Whether ``mask`` is a sequence of masks, not an array or a list of numbers. A list of a vector env is a batch."""
    is_sequence = isinstance(mask, list | tuple if size is None else tuple)
    return is_sequence and any(part is None or isinstance(part, Mapping) or np.ndim(part) for part in mask)


def _parts(space: spaces.Space[Any]) -> dict[Any, spaces.Space[Any]]:
    """The spaces in a Dict or Tuple by name or place, in their order; {} of other spaces."""
    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else {}


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
        if MASK_KEY not in info and not (terminated or truncated):
            raise BadObservation(f"the info of step() has no {MASK_KEY!r}, as that of reset() has{_ADVICE}")
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
        self.env = env
        # Some agents may have nothing to mask, or their masks in the observations.
        spaces_of = {agent: (env.observation_space(agent), env.action_space(agent)) for agent in env.possible_agents}
        masked = [agent for agent in env.possible_agents if _can_be_masked(*spaces_of[agent])] or env.possible_agents
        self._masks = {agent: MaskJoiner(*spaces_of[agent]) for agent in masked}
        self._have_given: set[Any] = set()  # agents that have had a mask; to others all is legal

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def observation_space(self, agent: Any) -> spaces.Space[Any]:
        """Of one agent."""
        return self._masks[agent].space if agent in self._masks else self.env.observation_space(agent)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any] | None:
        """Begin an episode."""
        if (shown := self.env.reset(seed=seed, options=options)) is None:  # ``last`` shows the observations of turns
            return None
        observations, infos = shown
        return self._joined(observations, infos), infos

    def step(self, actions: Any) -> tuple[Any, ...] | None:
        """Step the env."""
        if (result := self.env.step(actions)) is None:
            return None
        observations, rewards, *ends, infos = result
        return self._joined(observations, infos, ends), rewards, *ends, infos

    def last(self) -> tuple[Any, ...]:
        """What the agent that has a turn sees, has earned and ended with."""
        obs, reward, terminated, truncated, info = self.env.last()
        agent = self.env.agent_selection
        if self._lacks(agent, info) and not (terminated or truncated):
            raise BadObservation(_LACK.format(str(agent)))
        return self._join(agent, obs, info), reward, terminated, truncated, info

    def _joined(self, observations: Mapping[Any, Any], infos: Mapping[Any, Any], ends: Ends = ()) -> dict[Any, Any]:
        """Raises BadObservation if all agents that act next have had masks before, and none has one now.

        If one has a mask, or needs none, those without one wait, as where PettingZoo makes turns parallel.
        """
        lacking = {agent for agent in observations if self._lacks(agent, infos.get(agent, {}))}
        if lacking:
            over = {agent for flags in ends for agent, is_over in flags.items() if is_over}
            acting = [agent for agent in observations if agent in self.env.agents and agent not in over]
            if acting and lacking.issuperset(acting):
                raise BadObservation(_LACK.format(str(acting[0])))
        return {agent: self._join(agent, obs, infos.get(agent, {})) for agent, obs in observations.items()}

    def _lacks(self, agent: Any, info: Any) -> bool:
        return agent in self._have_given and MASK_KEY not in info

    def _join(self, agent: Any, obs: Any, info: Any) -> Any:
        """The observation with the mask of ``info``: zeros without one if the agent has had one before, else ones."""
        if agent not in self._masks:
            return obs
        if MASK_KEY in info:
            self._have_given.add(agent)
        return self._masks[agent].join(obs, info, otherwise=int(agent not in self._have_given))
