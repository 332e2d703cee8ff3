"""Sends envs how far training is, for curricula and schedules of their own.

An env that wants to know has a method ``set_training_info(info)``, directly or on an env that it wraps. It is called
before the env's first step and then before each rollout in which there is news, with a mapping: ``env_steps``, the env
steps that all policies have been trained on, earlier sessions included.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sfactory.actor.split import Split

_SET = "set_training_info"


def informed_env(env: Any) -> Any:
    """Return ``env`` or the first env within it that has the method itself; None if there is none."""
    while env is not None:
        if any(_SET in vars(kind) for kind in type(env).__mro__):  # a wrapper may only pass attributes on
            return env
        inner = getattr(env, "env", None)
        env = None if inner is env else inner
    return None


def send_training_info(splits: list[Split], env_steps: Callable[[], float]) -> None:
    """Call the method of the envs of ``splits`` that have one, whenever a slot begins. env_steps: the number now."""
    for split in splits:
        if any(informed_env(env) is not None for env in split.batch.envs):
            split.before_slot.append(partial(_send, split, env_steps, {}))


def _send(split: Split, env_steps: Callable[[], float], sent: dict[int, tuple[object, int]]) -> None:
    steps = int(env_steps())
    for place, env in enumerate(split.batch.envs):
        target = informed_env(env)  # looked up again: an env may have been recreated
        if target is not None and sent.get(place) != (target, steps):
            sent[place] = target, steps
            target.set_training_info({"env_steps": steps})
