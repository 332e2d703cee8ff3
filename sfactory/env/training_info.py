"""Calls the method by which an env is shown how far training is.

An env that wants to know has a method ``set_training_info(info)``, directly or on an env that it wraps. It is called
when the env has been made, before its first reset, with a mapping: ``env_steps``, the env steps that all policies have
been trained on, earlier sessions included. Actors call it again before rollouts, evaluators before evaluations.
"""

from __future__ import annotations

from typing import Any

_SET = "set_training_info"


def informed_env(env: Any) -> Any:
    """Return ``env`` or the first env within it that has the method itself; None if there is none."""
    while env is not None:
        if any(_SET in vars(kind) for kind in type(env).__mro__):  # a wrapper may only pass attributes on
            return env
        inner = getattr(env, "env", None)
        env = None if inner is env else inner
    return None


def set_training_info(env: Any, env_steps: int) -> None:
    """Call the method of ``env``, if it has one."""
    target = informed_env(env)
    if target is not None:
        target.set_training_info({"env_steps": env_steps})
