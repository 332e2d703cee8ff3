"""Defines envs that live on the device of the network: ``TensorEnv``, which resets and steps many envs as tensors.

A run with such an env collects and learns in turn in one process, and nothing of a rollout passes through host memory
(docs/tensor_envs.md). Envs of JAX convert arrays by DLPack, which copies nothing: ``torch.from_dlpack(array)`` and
``jax.dlpack.from_dlpack(tensor)``.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from functools import reduce
from operator import getitem
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium.spaces as spaces
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from sfactory.env.conversion import BadObservation
from sfactory.errors import EnvError
from sfactory.spec import OBS_KEY, EnvSpec, key_of, leaves

_NO_STATS: Mapping[str, Tensor] = MappingProxyType({})


class TensorStep(NamedTuple):
    """What one step of N envs returns; all tensors are on the device of the env.

    obs: in the structure of the observation space, leaves [N, *shape] - after the step
    rewards: [N] of any real dtype - raw
    terminated, truncated: [N] bool - the episode ended with this step, at a limit of time if truncated; with both, it
        counts as terminated
    final_obs: as obs, in SAME_STEP mode: where an episode ended its last observation, elsewhere anything. None: not
        known, and truncated steps are then not learned from
    stats: {name: [N]} - extra statistics of episodes, read where one ended; the same names in every step
    """

    obs: Any
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    final_obs: Any = None
    stats: Mapping[str, Tensor] = _NO_STATS


class TensorEnv(abc.ABC):
    """N envs of one agent each that are reset and stepped together, as tensors on one device.

    On a GPU nothing here may wait for the device: no ``item()``, ``tolist()``, ``cpu()``, ``numpy()`` or ``bool()`` of
    a tensor, and no indexing with a mask. What is returned is copied before the next call, so an env may return the
    same memory each time. Steps are made under ``torch.no_grad()``.

    num_envs: N. device: of all tensors.
    single_observation_space, single_action_space: the Gymnasium spaces of one env.
    autoreset_mode: NEXT_STEP - the step after the end of an episode resets the env, ignores its action, and returns the
        first observation, no reward and no end; SAME_STEP - the step that ends an episode returns the first observation
        of the next. NEXT_STEP costs a row for each episode and no more; SAME_STEP with ``final_obs`` costs a second
        forward pass in every step.
    """

    num_envs: int
    device: torch.device
    single_observation_space: spaces.Space[Any]
    single_action_space: spaces.Space[Any]
    autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP

    @abc.abstractmethod
    def reset(self, seed: int) -> Any:
        """Begin an episode in every env; returns the observations. Training calls it once, before the first step.

        Called again, it begins as the first time: equal seeds give equal episodes. The device may be waited for here.
        """

    @abc.abstractmethod
    def step(self, actions: Any) -> TensorStep:
        """Step every env. actions: in the structure of the action space, new tensors [N, *shape] of its dtypes."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Give back what the env holds; called once, after the last step."""


def require_autoreset(env: TensorEnv) -> AutoresetMode:
    """The mode of ``env``. Raises EnvError unless it is NEXT_STEP or SAME_STEP."""
    mode = env.autoreset_mode
    if mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        raise EnvError(
            f"its autoreset_mode is {mode!r}: a TensorEnv resets its envs itself, gymnasium.vector.AutoresetMode."
            "NEXT_STEP or SAME_STEP says when"
        )
    return mode


class TensorWriter:
    """Copies observations of N envs, in the structure of their space, into rows on the same device."""

    def __init__(self, spec: EnvSpec, space: spaces.Space[Any]) -> None:
        """``space``: observation space of one env."""
        read = dict(spec.obs)
        paths = ((key_of(path, OBS_KEY), path) for path, _ in leaves(space))
        self._leaves = [(key, path) for key, path in paths if key in read]
        self._whole = {key for key, leaf in spec.obs if np.dtype(leaf.dtype).kind in "iu" and not leaf.heads}

    def write(self, obs: Any, rows: Mapping[str, Tensor]) -> None:
        """Copy ``obs`` into ``rows`` {key: [N, *shape]}.

        Raises BadObservation for one of another shape or device, or of a dtype that the row cannot hold, of integers
        one with numbers that the row does not have. Looks at no values, and so waits for no device.
        """
        for key, path in self._leaves:
            row = rows[key]
            try:
                leaf = reduce(getitem, path, obs)
            except (LookupError, TypeError) as error:
                raise BadObservation(f"observation {key!r} is missing: {error!r}") from None
            require_tensor(f"observation {key!r}", leaf, row)
            if key in self._whole and not _holds_all(row.dtype, leaf.dtype):
                raise BadObservation(
                    f"observation {key!r} has dtype {leaf.dtype}, of which {row.dtype} does not hold all numbers: "
                    f"return .to({row.dtype}), or correct the space"
                )
            row.copy_(leaf)


def _holds_all(row: torch.dtype, given: torch.dtype) -> bool:
    """Whether all integers of ``given`` are in ``row``; torch itself promotes no uint16 and wider."""
    narrow, wide = (np.dtype(str(dtype).removeprefix("torch.")) for dtype in (given, row))
    return np.can_cast(narrow, wide, "safe")


def require_tensor(what: str, given: object, like: Tensor) -> None:
    """Raise BadObservation unless ``given`` is a tensor that ``like`` can hold."""
    if not isinstance(given, Tensor):
        raise BadObservation(f"{what} is a {type(given).__name__}, not a torch.Tensor")
    if given.shape != like.shape or given.device != like.device or not torch.can_cast(given.dtype, like.dtype):
        raise BadObservation(
            f"{what} has shape {tuple(given.shape)} and dtype {given.dtype} on {given.device}; due are shape "
            f"{tuple(like.shape)} and dtype {like.dtype} on {like.device}: correct the env or its spaces"
        )
