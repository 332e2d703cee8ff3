"""Calls the method by which an env is shown how far training is.

An env that wants to know has a method ``set_training_info(info)``, directly or on an env that it wraps. Each env of a
vector env that has them in a list ``envs``, as a SyncVectorEnv, may have it; those of an AsyncVectorEnv all must. It is
called when the env has been made, before its first reset, with a mapping: ``env_steps``, the env steps that all
policies have been trained on, earlier sessions included. Actors call it again before rollouts, evaluators before
evaluations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_SET = "set_training_info"


@dataclass(frozen=True)
class _InProcesses:
    """The envs of an AsyncVectorEnv, which all have the method."""

    env: Any

    def set_training_info(self, info: object) -> None:
        self.env.call(_SET, info)


def inner_env(env: Any) -> Any:
    """The env that ``env`` wraps, as PettingZoo's conversions do, too; None if it wraps none."""
    inner = getattr(env, "env", None)
    if inner is None:
        inner = getattr(env, "aec_env", None)  # of an env of turns in parallel form
    return None if inner is env else inner


def informed_envs(env: Any) -> list[Any]:
    """``env`` or the first env within it that has the method itself; of a vector env those of each of its ``envs``."""
    while env is not None:
        if any(_SET in vars(kind) for kind in type(env).__mro__):  # a wrapper may only pass attributes on
            return [env]
        inner = inner_env(env)
        if inner is None and hasattr(env, "num_envs"):
            if hasattr(env, "call_async"):
                return [_InProcesses(env)] if all(env.call("has_wrapper_attr", _SET)) else []
            return [informed for each in getattr(env, "envs", ()) for informed in informed_envs(each)]
        env = inner
    return []


def set_training_info(env: Any, env_steps: int) -> None:
    """Call the method of ``env``, or of the envs in it, if there is one."""
    for target in informed_envs(env):
        target.set_training_info({"env_steps": env_steps})
