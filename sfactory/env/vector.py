"""Reads spaces, autoreset mode and infos of ``gymnasium.vector.VectorEnv``, and wraps a vector env of size 1."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import gymnasium
import gymnasium.spaces as spaces
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from sfactory.config.env_families import find_family, versions_of
from sfactory.config.schema import WrapperConfig
from sfactory.errors import EnvError

_MODE = "autoreset_mode"
_END_S = 1.0  # for a process of an env, after SIGTERM
UNSAID_RESETS = (
    'its metadata has no "autoreset_mode", so NEXT_STEP is assumed: the step after the end of an episode counts as its '
    "reset, and is not learned from"
)
SAY_RESETS = (
    'give its class metadata = {"autoreset_mode": AutoresetMode.SAME_STEP} (of gymnasium.vector) if the step that ends '
    "an episode resets the env, or NEXT_STEP if the step after it does"
)

VectorEnv = gymnasium.vector.VectorEnv[Any, Any, Any]
if TYPE_CHECKING:
    VectorWrapper = gymnasium.vector.VectorWrapper[Any, Any, Any]
else:  # has no parameters before Gymnasium 1.4
    VectorWrapper = gymnasium.vector.VectorWrapper


def defaults_of_form(env_id: str) -> Mapping[str, object]:
    """Defaults of flags for a vector form of ``env_id``: those of its family, or of one that has a later version of it.

    There are none where flags would wrap each env, since the form has other observations; nor is env_frameskip one.
    """
    for name in (env_id, *_later_versions(env_id)):
        if (family := find_family(name)) is not None:
            flags = family.defaults(name)
            wraps = flags.keys() & {flag.name for flag in fields(WrapperConfig)}
            return {} if wraps else {flag: value for flag, value in flags.items() if flag != "env_frameskip"}
    return {}


def _later_versions(env_id: str) -> list[str]:
    task, _, version = env_id.rpartition("-v")
    versions = versions_of(task)
    return [versions[number] for number in sorted(versions) if version.isdigit() and number > int(version)]


def single_spaces(env: VectorEnv) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Observation and action space of one env. EnvPool provides only these, under the plain names."""
    observations = getattr(env, "single_observation_space", None) or env.observation_space
    actions = getattr(env, "single_action_space", None) or env.action_space
    return observations, actions


def autoreset_mode(env: VectorEnv) -> AutoresetMode:
    """When ``env`` resets envs after the end of an episode; NEXT_STEP if its metadata does not say.

    Raises EnvError for DISABLED (the caller must reset) and for an unknown mode.
    """
    value = env.metadata.get(_MODE, AutoresetMode.NEXT_STEP)
    try:
        mode = AutoresetMode(value)
    except ValueError:
        raise EnvError(
            f'its metadata["autoreset_mode"] is {value!r}, which is not a gymnasium.vector.AutoresetMode'
        ) from None
    if mode is AutoresetMode.DISABLED:
        raise EnvError("it does not reset its envs (AutoresetMode.DISABLED); use another mode, preferably NEXT_STEP")
    return mode


def says_when_it_resets(env: VectorEnv) -> bool:
    """Whether the metadata of ``env`` have an autoreset mode."""
    return _MODE in env.metadata


def close_vector_env(env: VectorEnv) -> None:
    """Close ``env``. Processes of an AsyncVectorEnv of which one has died in a step are terminated.

    Its own close() would wait for answers of the others that were read in that step.
    """
    inner = env.unwrapped
    if not isinstance(inner, AsyncVectorEnv):
        env.close()
        return
    try:
        env.close(timeout=0)  # for a step that is not over
    finally:
        for process in inner.processes:
            process.terminate()
        for process in inner.processes:
            process.join(_END_S)
        inner.closed = True  # else it is closed again when it is freed


def info_of(infos: Any, env: int, size: int) -> dict[str, Any]:
    """Extract the info of ``env`` from the infos of a vector env of ``size`` envs.

    The mask ``_key`` marks the envs that have ``key``; without one all have an array, list or tensor of ``size``.
    Instead of a dict of these there may be one info for each env. What is neither is left out; see ``unreadable``.
    """
    if not isinstance(infos, Mapping):
        own = infos[env] if _has_each(infos, size) else None
        return dict(own) if isinstance(own, Mapping) else {}
    info: dict[str, Any] = {}
    for key, values in infos.items():
        mask: Any = infos.get(f"_{key}")
        if _has_each(mask, size) and not mask[env]:
            continue
        if isinstance(values, Mapping):
            info[key] = info_of(values, env, size)
        elif _has_each(values, size) and not _is_mask(key, infos):
            info[key] = values[env]
    return info


def with_lists(infos: Any, size: int) -> Any:
    """``infos`` with lists for tensors of one number for each env: each is read once from its device, not env by env.

    Arrays of JAX are read in the same way. All else stays as it is.
    """
    if isinstance(infos, Mapping):
        return {key: with_lists(values, size) for key, values in infos.items()}
    if hasattr(infos, "tolist") and not isinstance(infos, np.ndarray) and _has_each(infos, size):
        with contextlib.suppress(Exception):  # what has other entries than numbers may raise anything
            return infos.reshape(size).tolist()
    return infos


def unreadable(infos: Any, size: int, names: Collection[str] | None = None) -> str:
    """Which value in ``infos``, of these names, ``info_of`` leaves out for each env, and why; "" if there is none."""
    if infos is None or _has_each(infos, size):
        return ""
    if not isinstance(infos, Mapping):
        return _lack("the infos are", infos, size)
    for name in infos if names is None else names:
        values = infos.get(name)
        if isinstance(values, Mapping):
            if problem := unreadable(values, size):
                return problem
        elif values is not None and not (_has_each(values, size) or _is_mask(name, infos)):
            return _lack(f"{name!r} is", values, size)
    return ""


def _lack(what: str, values: object, size: int) -> str:
    return f"{what} of type {type(values).__name__}; there must be an entry for each of {size} envs"


def _is_mask(key: object, infos: Mapping[str, Any]) -> bool:
    return isinstance(key, str) and key.startswith("_") and key[1:] in infos


def _has_each(values: Any, size: int) -> bool:
    """Whether ``values`` have one entry for each of ``size`` envs: they are an array, a list, or like one."""
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__getitem__"):
        return False
    try:
        return len(values) == size
    except TypeError:  # an array without a dimension
        return False


def infos_of_ends(infos: Any) -> Any:
    """Infos of the envs with an episode that ended in this step; in SAME_STEP mode under "final_info"."""
    return infos.get("final_info", infos) if isinstance(infos, Mapping) else infos


class SoleEnv(gymnasium.Env[Any, Any]):
    """A vector env of size 1 as a plain env. Call ``reset`` after each episode, before the next step.

    In SAME_STEP mode the last step of an episode returns the first observation of the next episode.
    """

    def __init__(self, env: VectorEnv) -> None:
        self.env = env
        self.observation_space, self.action_space = single_spaces(env)
        self.metadata = env.metadata
        self.render_mode = env.render_mode
        self._observations = batch_space(self.observation_space, 1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._only(observations), info_of(infos, 0, 1)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the one env."""
        actions: Any = create_empty_array(self.action_space, 1)
        actions = concatenate(self.action_space, [action], actions)
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        over = bool(terminated[0]), bool(truncated[0])
        info = info_of(infos_of_ends(infos) if any(over) else infos, 0, 1)
        return self._only(observations), float(rewards[0]), *over, info

    def render(self) -> Any:
        """Return a frame of the one env."""
        frames = self.env.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Close the vector env."""
        close_vector_env(self.env)

    def _only(self, observations: Any) -> Any:
        return next(iter(iterate(self._observations, observations)))
