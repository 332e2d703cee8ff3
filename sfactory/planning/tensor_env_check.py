"""Checks that a ``TensorEnv`` keeps to its interface, before training starts."""

from __future__ import annotations

from typing import Any

import gymnasium.spaces as spaces
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from sfactory.env.conversion import NO_LEGAL_ACTION, BadObservation, first_choices, has_legal_action
from sfactory.env.legal_actions import legal_rows
from sfactory.env.tensor_actions import tensor_reader
from sfactory.env.tensor_env import TensorEnv, TensorStep, TensorWriter, require_autoreset, require_tensor
from sfactory.errors import EnvError
from sfactory.model.precision import torch_dtype
from sfactory.planning.env_checker import naming
from sfactory.spec import EnvSpec

_STEPS = 4


def check_tensor_env(env: TensorEnv, name: str, obs_layout: tuple[str, ...] = ()) -> EnvSpec:
    """Reset ``env``, step it a few times, and reset it again; returns the spec of one env.

    obs_layout: the flag, which may name masks. Raises EnvError, which begins with ``name``.
    """
    with naming(name), torch.no_grad():
        for attribute in ("single_observation_space", "single_action_space"):
            space = getattr(env, attribute, None)
            if not isinstance(space, spaces.Space):
                raise EnvError(f"its {attribute} is {space!r}; it must be the Gymnasium space of one of its envs")
        spec = EnvSpec.of_spaces(env.single_observation_space, env.single_action_space).masked_by(obs_layout)
        resets_next_step = require_autoreset(env) is AutoresetMode.NEXT_STEP
        writer, size = TensorWriter(spec, env.single_observation_space), env.num_envs
        read = tensor_reader(env.single_action_space, spec.actions, env.device)
        first = {
            key: torch.zeros((size, *leaf.shape), dtype=torch_dtype(leaf.dtype), device=env.device)
            for key, leaf in spec.obs
        }
        writer.write(env.reset(seed=0), first)
        _require_finite("reset()", first)
        acting = torch.ones(size, dtype=torch.bool, device=env.device)
        _require_legal("reset()", spec, first, acting)
        rows = {key: row.clone() for key, row in first.items()}
        for _ in range(_STEPS):
            legal = legal_rows(spec, {key: row.cpu().numpy() for key, row in rows.items()})
            step: Any = env.step(read({key: torch.from_numpy(row).to(env.device) for key, row in legal.items()}))
            if not isinstance(step, TensorStep):
                raise EnvError(f"step() returned a {type(step).__name__}; it must return a TensorStep")
            _check_ends(step, size, env.device)
            writer.write(step.obs, rows)
            valued = ~step.terminated if resets_next_step else acting
            _require_finite("step()", {key: row[valued] for key, row in rows.items()} | {"rewards": step.rewards})
            ended = step.terminated | step.truncated
            _require_legal("step()", spec, rows, ~ended if resets_next_step else acting)
            if step.final_obs is not None:
                final = {key: row.clone() for key, row in rows.items()}
                writer.write(step.final_obs, final)
                truncated = step.truncated & ~step.terminated
                _require_finite("final_obs of step()", {key: row[truncated] for key, row in final.items()})
        writer.write(env.reset(seed=0), rows)
        if unlike := [key for key in first if not torch.equal(first[key], rows[key])]:
            raise EnvError(f"two calls of reset(seed=0) returned different observations {unlike[0]!r}")
    return spec


def _check_ends(step: TensorStep, size: int, device: torch.device) -> None:
    reward, flag = torch.zeros(size, dtype=torch.float64, device=device), torch.zeros(size, dtype=torch.bool)
    try:
        require_tensor("the reward of step()", step.rewards, reward)
        for what in ("terminated", "truncated"):
            require_tensor(f"{what} of step()", getattr(step, what), flag.to(device))
        for name, values in step.stats.items():
            require_tensor(f"stats[{name!r}] of step()", values, reward)
    except BadObservation as error:
        raise EnvError(str(error)) from None


def _require_legal(where: str, spec: EnvSpec, rows: dict[str, Tensor], acting: Tensor) -> None:
    """acting: [N] bool - envs that take an action next."""
    for key, mask in spec.masks:
        legal = has_legal_action(rows[key].cpu().numpy(), first_choices(mask)) | ~acting.cpu().numpy()
        if mask.heads and not legal.all():
            raise EnvError(f"{where}, env {legal.argmin()}: observation {key!r} {NO_LEGAL_ACTION}")


def _require_finite(where: str, tensors: dict[str, Tensor]) -> None:
    for key, values in tensors.items():
        if not bool(torch.isfinite(values.to(torch.float32)).all()):  # as networks read it
            raise EnvError(f"{where}: {key!r} holds NaN or infinity, or numbers beyond float32")
