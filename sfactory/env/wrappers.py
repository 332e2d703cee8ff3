"""Wraps envs as the flags of WrapperConfig say. Action masks are never touched.

NOTE [Order of wrappers]: from the inside those of ``--wrapper`` (EnvFactory puts them around the raw env), sticky
actions, action repeat, time limit, grey, resize, frame stack, flatten. So actions stick step by step within a repeat,
as in ALE; the time limit counts env steps; and images are only converted for steps that are seen.

Gymnasium's own wrappers serve where they fit. Its images must be the only observation and have channels last, its frame
stack holds memory that an env may reuse and stacks masks, and its sticky actions draw from a generator that only envs
with ``super().reset(seed=seed)`` seed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any

import gymnasium
import gymnasium.spaces as spaces
import numpy as np
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import TimeLimit, TransformObservation

from sfactory.config.env_families import install_advice
from sfactory.config.flags import assigned
from sfactory.config.schema import ModelConfig, WrapperConfig
from sfactory.env.factory import SPANS_FRAMES
from sfactory.env.multi_agent import AgentsEnv, AgentsStep, AgentsWrapper
from sfactory.errors import EnvError
from sfactory.seeds import Branch, seed_at
from sfactory.spec import OBS_KEY, EnvSpec, key_of, leaves
from sfactory.tensor_spec import TensorSpec, is_mask, with_layouts

Env = gymnasium.Env[Any, Any]
Wrapper = gymnasium.Wrapper[Any, Any, Any, Any]
Read = Callable[[Any], Any]  # an observation, or a leaf of it, from that of the inner env
Changed = tuple[spaces.Space[Any], Read]

_SMALL_IMAGES = ModelConfig(encoder_conv_architecture="resnet_impala")  # which asks for no least size
_MOST_CHANNELS = 4  # that OpenCV resizes at a time


def wrapped(env: Env, flags: WrapperConfig, obs_layout: tuple[str, ...] = ()) -> Env:
    """``env`` in the wrappers of ``flags`` except ``--wrapper``. Raises EnvError where one does not fit the env.

    obs_layout: the flag, which may name masks.
    """
    if flags.sticky_actions:
        env = StickyActions(env, flags.sticky_actions)
    if flags.action_repeat > 1:
        env = ActionRepeat(env, flags.action_repeat)
    if flags.max_episode_steps:
        env = TimeLimit(_without_time_limit(env), flags.max_episode_steps)
    if flags.obs_grey:
        env = _with_images(env, "--obs_grey=True", "of three colors", obs_layout, _grey)
    if flags.obs_resize:
        height, width = flags.obs_resize
        flag = f"--obs_resize {height} {width}"
        env = _with_images(env, flag, "at all", obs_layout, lambda leaf, cv2: _resized(leaf, height, width, cv2))
    if flags.env_framestack > 1:
        env = FrameStack(env, flags.env_framestack, obs_layout)
    return _flattened(env, obs_layout) if flags.flatten_obs else env


def own_arguments(
    env: str, used: Mapping[str, object], own: Mapping[str, str], kwargs: Mapping[str, object]
) -> dict[str, object]:
    """What a maker gets for flags in ``used`` whose work its env does itself.

    own: by flag, the name of the argument. kwargs: of ``--env_kwargs``. A limit of time is one of the env's own steps,
    of which ``--action_repeat`` makes several. Raises EnvError where kwargs say another value, and for images that are
    not square, of which such an env has the height alone.
    """
    arguments: dict[str, object] = {}
    for flag in used.keys() & own.keys():
        value: Any = used[flag]
        name, typed = own[flag], f"--env={env}: {assigned(flag, value)}"
        if flag == "max_episode_steps":
            value *= used.get("action_repeat", 1)
        if isinstance(value, tuple):
            if len(set(value)) > 1:
                raise EnvError(f"{typed}: images of this env are square; give the same number twice")
            value = value[0]
        if kwargs.get(name, value) != value:
            raise EnvError(f"{typed}, but --env_kwargs say {name}={kwargs[name]!r}; leave one of the two out")
        arguments[name] = value
    return arguments


class StickyActions(Wrapper):
    """With a probability the last action that was taken is taken again instead of the chosen one.

    Source: Machado et al. 2018, section 5.2. The first step of an episode takes the chosen action.
    """

    def __init__(self, env: Env, probability: float) -> None:
        super().__init__(env)
        self._probability = probability
        self._last: Any = None
        self._random = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        if seed is not None:
            self._random = np.random.default_rng(seed_at(seed, Branch.STICKY_ACTIONS))
        self._last = None
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env."""
        if self._last is None or self._random.random() >= self._probability:
            self._last = copy.deepcopy(action)  # its memory may be that of the next one
        return self.env.step(self._last)


class ActionRepeat(Wrapper):
    """Takes each action ``times`` times, or until the episode ends; adds rewards up, and shows the last observation."""

    def __init__(self, env: Env, times: int) -> None:
        super().__init__(env)
        self._times, fps = times, env.metadata.get("render_fps")
        if isinstance(fps, int | float) and env.render_mode != "human":  # an env with a window draws each of its steps
            self.metadata = {**env.metadata, "render_fps": fps / times}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the env up to ``times`` times."""
        total = 0.0
        for _ in range(self._times):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class FrameStack(Wrapper):
    """Each leaf that is a Box becomes a stack [size, ...] of its last ``size`` values, the oldest first.

    An episode begins with ``size`` times its first observation. Each observation has memory of its own.
    """

    def __init__(self, env: Env, size: int, obs_layout: tuple[str, ...]) -> None:
        super().__init__(env)
        self._size, self._begins = size, True
        self.observation_space, read = _by_leaf(env.observation_space, self._stack, obs_layout)
        if read is None:
            raise EnvError(f"--env_framestack={size}: stacks Box observations, and {env.observation_space} has none")
        self._read = read
        self.metadata = {**env.metadata, SPANS_FRAMES: True}

    def _stack(self, path: str, space: spaces.Space[Any]) -> Changed | None:
        if not isinstance(space, spaces.Box):
            return None
        frames: Any = None

        def push(frame: Any) -> Any:
            nonlocal frames
            newest = np.asarray(frame)[np.newaxis]
            older = np.repeat(newest, self._size - 1, axis=0) if self._begins else frames[1:]
            frames = np.concatenate((older, newest))
            return frames

        return batch_space(space, self._size), push

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._begins = True
        obs = self._read(obs)
        self._begins = False
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env."""
        obs, *others = self.env.step(action)
        return self._read(obs), *others


class _Shown(gymnasium.Env[Any, Any]):
    """Stands for one agent: shows what ``obs`` was set to, None before its episode, and takes any action."""

    def __init__(self, agents: AgentsEnv) -> None:
        self.observation_space, self.action_space = agents.observation_space, agents.action_space
        self.metadata = {**agents.metadata}
        self.obs: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Show ``obs``."""
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Show ``obs``."""
        return self.obs, 0.0, False, False, {}


class WrappedAgents(AgentsWrapper):
    """An env of many agents, each of which sees what an env of one agent shows in the wrappers of ``flags``.

    Only observations that MultiAgentBatch shows are read: those of agents that act next, and the last ones of agents
    that were truncated or fell asleep. So the stack of an agent gets no frames while it sleeps or waits for its turn.
    """

    def __init__(self, env: AgentsEnv, flags: WrapperConfig, obs_layout: tuple[str, ...]) -> None:
        super().__init__(env)
        if env.kinds and flags.flatten_obs:
            raise EnvError(
                "--flatten_obs=True: observations of agents of different spaces would be mixed; leave it out"
            )
        self.flags = flags
        self.agents, self.kinds, self.in_turns = env.agents, env.kinds, env.in_turns
        self._shown = [_Shown(env) for _ in env.agents]
        self._wrapped = [wrapped(shown, flags, obs_layout) for shown in self._shown]
        self.observation_space, self.action_space = self._wrapped[0].observation_space, env.action_space
        self.metadata = self._wrapped[0].metadata
        self._active = [True] * len(env.agents)

    def reset(self, *, seed: int | None = None) -> list[Any]:
        """See AgentsEnv."""
        observations = self.env.reset(seed=seed)
        self._active = [obs is not None for obs in observations]
        for shown in self._shown:
            shown.obs = None
        return [self._read(agent, obs) for agent, obs in enumerate(observations)]

    def step(self, actions: Sequence[Any]) -> AgentsStep:
        """See AgentsEnv."""
        observations, rewards, change = self.env.step(actions)
        seeing: Sequence[Any] = self._active
        if change is not None:
            ending = change.truncated if self.in_turns else self._active
            states = zip(change.active, ending, change.terminated, strict=True)
            seeing = [acts or (ends and not died) for acts, ends, died in states]
            self._active = list(change.active)
        shown = [self._read(agent, obs) if seeing[agent] else None for agent, obs in enumerate(observations)]
        return shown, rewards, change

    def _read(self, agent: int, obs: Any) -> Any:
        if obs is None:
            return None
        shown, env = self._shown[agent], self._wrapped[agent]
        begins, shown.obs = shown.obs is None, obs
        return env.reset()[0] if begins else env.step(None)[0]


def _without_time_limit(env: Env) -> Env:
    """``env`` without the limit that Gymnasium has put around it, or around an env in it."""
    if type(env) is TimeLimit:
        return _without_time_limit(env.env)
    if isinstance(env, gymnasium.Wrapper):
        env.env = _without_time_limit(env.env)
    return env


def _by_leaf(
    space: spaces.Space[Any],
    change: Callable[[str, spaces.Space[Any]], Changed | None],
    obs_layout: tuple[str, ...],
    path: tuple[object, ...] = (),
) -> tuple[spaces.Space[Any], Read | None]:
    """``space`` with other leaves, where ``change`` gives them, and how its observations are made; None: as they are.

    Action masks stay. Leaves and their paths are those of EnvSpec.
    """
    if isinstance(space, spaces.Dict):
        parts = {key: _by_leaf(child, change, obs_layout, (*path, key)) for key, child in space.spaces.items()}
        reads = {key: read for key, (_, read) in parts.items() if read is not None}
        if not reads:
            return space, None
        new = spaces.Dict({key: child for key, (child, _) in parts.items()})
        return new, lambda obs: {**obs, **{key: read(obs[key]) for key, read in reads.items()}}
    if isinstance(space, spaces.Tuple):
        entries = [_by_leaf(child, change, obs_layout, (*path, index)) for index, child in enumerate(space.spaces)]
        if all(read is None for _, read in entries):
            return space, None
        new_reads = [read or _as_it_is for _, read in entries]
        return spaces.Tuple([child for child, _ in entries]), lambda obs: tuple(
            read(entry) for read, entry in zip(new_reads, obs, strict=True)
        )
    key = key_of(path, OBS_KEY)
    return (None if is_mask(key, obs_layout) else change(key, space)) or (space, None)


def _as_it_is(obs: Any) -> Any:
    return obs


def _with_images(
    env: Env,
    flag: str,
    which: str,
    obs_layout: tuple[str, ...],
    change: Callable[[TensorSpec, Any], Changed | None],
) -> TransformObservation[Any, Any, Any]:
    """``env`` with other images. which: images that ``flag`` is for. change: is given an image and OpenCV."""
    cv2, spec = _opencv(flag), EnvSpec.of_spaces(env.observation_space, env.action_space)
    images = {path: leaf for path, leaf in with_layouts(spec.obs, _SMALL_IMAGES) if leaf.is_image}
    space, read = _by_leaf(
        env.observation_space, lambda path, _: change(images[path], cv2) if path in images else None, obs_layout
    )
    if read is None:
        there = ", ".join(f"{path!r} ({leaf.dtype}, shape {leaf.shape})" for path, leaf in spec.obs)
        raise EnvError(f"{flag}: there are no images {which} (uint8, 16x16 or larger) among the observations: {there}")
    return TransformObservation(env, read, space)


def _opencv(flag: str) -> Any:
    try:
        import cv2
    except ImportError as error:
        raise EnvError(f"{flag}: needs OpenCV, which cannot be imported ({error}){install_advice('cv2')}") from error
    cv2.setNumThreads(1)  # the processes around this one use the other cores
    return cv2


def _grey(leaf: TensorSpec, cv2: Any) -> Changed | None:
    """An image of three colors without its channels, weighted as in ITU-R BT.601."""
    sizes: Mapping[str, int] = dict(zip(leaf.layout, leaf.shape, strict=True))
    if sizes.get("c") != 3:
        return None
    channels, shape = leaf.layout.index("c"), tuple(size for name, size in sizes.items() if name != "c")

    def read(image: Any) -> Any:
        rows = np.moveaxis(image, channels, -1).reshape(-1, shape[-1], 3)
        return cv2.cvtColor(rows, cv2.COLOR_RGB2GRAY).reshape(shape)

    return spaces.Box(0, 255, shape, np.uint8), read


def _resized(leaf: TensorSpec, height: int, width: int, cv2: Any) -> Changed:
    """An image of this size; each pixel is the mean of those that it covers."""
    sizes = dict(zip(leaf.layout, leaf.shape, strict=True))
    shape = tuple((sizes | {"h": height, "w": width}).values())
    planes = (-1, *(sizes[name] for name in ("hwc" if leaf.layout.endswith("c") else "hw")))

    def small(images: Any) -> Any:
        return np.stack([cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA) for image in images])

    def read(image: Any) -> Any:
        if planes[3:] > (_MOST_CHANNELS,):
            channels = np.moveaxis(image, -1, 0)
            resized = small(channels.reshape(-1, *planes[1:3]))
            return np.moveaxis(resized.reshape(len(channels), *shape[:-1]), 0, -1)
        return small(image.reshape(planes)).reshape(shape)

    return spaces.Box(0, 255, shape, np.uint8), read


def _flattened(env: Env, obs_layout: tuple[str, ...]) -> Env:
    """``env`` with one vector as its observation, beside its action masks, which keep their paths."""
    space = env.observation_space
    if unread := EnvSpec.of_spaces(space, env.action_space).unread:
        raise EnvError(f"--flatten_obs=True: {unread[0][1]}: leave that out with a --wrapper of your own")
    parts = [(path, key_of(path, OBS_KEY), leaf) for path, leaf in leaves(space)]
    masks = {key: path for path, key, _ in parts if is_mask(key, obs_layout)}
    if OBS_KEY in masks:
        raise EnvError(f"--flatten_obs=True: an action mask has the key {OBS_KEY!r}, as all others would: rename it")
    seen = [(path, leaf) for path, key, leaf in parts if key not in masks]
    if not seen:
        raise EnvError("--flatten_obs=True: there is no observation beside action masks; leave it out")
    flat = spaces.Tuple([leaf for _, leaf in seen])  # Gymnasium's own wrapper fails at an empty Dict or Tuple

    def vector(obs: Any) -> Any:
        return spaces.flatten(flat, tuple(reduce(getitem, path, obs) for path, _ in seen))

    if not masks:
        return TransformObservation(env, vector, spaces.flatten_space(flat))
    new = spaces.Dict({OBS_KEY: spaces.flatten_space(flat), **{key: leaf for _, key, leaf in parts if key in masks}})

    def read(obs: Any) -> dict[str, Any]:
        return {OBS_KEY: vector(obs), **{key: reduce(getitem, path, obs) for key, path in masks.items()}}

    return TransformObservation(env, read, new)
