"""Room: holding a vector env to its interface. In: a factory. Out: EnvSpec of one env, or a teaching EnvError."""

from __future__ import annotations

from typing import Any

import numpy as np

from sfactory.env.adapt import Writer
from sfactory.env.api import EnvFactory
from sfactory.env.blocks import BlockWriter, block_reader
from sfactory.env.close import close_env
from sfactory.env.vector import VectorEnv, autoreset_mode, single_spaces
from sfactory.errors import EnvError
from sfactory.spec import EnvSpec

_ENVS = 2  # the fewest that tell one env from many


def examine_vector(factory: EnvFactory) -> EnvSpec:
    """Make a vector env of two, reset and step it once; returns the spec of one env."""
    name = f"--env={factory.name}"
    env = factory.vector(_ENVS, seed=0)
    try:
        spec = EnvSpec.of_spaces(*single_spaces(env))
        autoreset_mode(env)
    except EnvError as error:
        raise EnvError(f"{name}: {error}") from None
    writer = BlockWriter(spec, single_spaces(env)[0])
    reset = env.reset(seed=0)
    if not (isinstance(reset, tuple) and len(reset) == 2 and isinstance(reset[1], dict)):
        raise EnvError(f"{name}: reset() must return (observations, infos dict), as Gymnasium's interface has it")
    _check(writer, spec, reset[0], f"{name}, reset()")
    step = env.step(_some_actions(spec, env))
    if not (isinstance(step, tuple) and len(step) == 5):
        raise EnvError(f"{name}: step() must return (observations, rewards, terminated, truncated, infos)")
    _check(writer, spec, step[0], f"{name}, step()")
    for what, values in zip(("rewards", "terminated", "truncated"), step[1:4], strict=True):
        if np.shape(values) != (_ENVS,):
            raise EnvError(f"{name}: step() returned {what} of shape {np.shape(values)} for {_ENVS} envs")
    if not np.isfinite(np.asarray(step[1], np.float64)).all():
        raise EnvError(f"{name}: step() returned the rewards {step[1]}; rewards must be finite")
    close_env(env, name)
    return spec


def require_finite(writer: Writer, spec: EnvSpec, observations: Any, size: int, where: str) -> None:
    """Raise EnvError if one of the ``size`` observations, in the form that ``writer`` takes, is not finite."""
    rows = {key: np.zeros((size, *tensor.shape), tensor.dtype) for key, tensor in spec.obs}
    writer.write(observations, rows)
    for key, row in rows.items():
        if row.dtype.kind == "f" and not np.isfinite(row).all():
            raise EnvError(f"{where}: observation {key!r} holds NaN or infinity; observations must be finite")


def _check(writer: BlockWriter, spec: EnvSpec, observations: Any, where: str) -> None:
    writer.check_all(observations, _ENVS, where)
    require_finite(writer, spec, observations, _ENVS, where)


def _some_actions(spec: EnvSpec, env: VectorEnv) -> Any:
    """Legal actions, through the same translation that training uses."""
    rows = {head.key: np.zeros((_ENVS, *head.tensor.shape), head.tensor.dtype) for head in spec.actions}
    return block_reader(single_spaces(env)[1])(rows)
