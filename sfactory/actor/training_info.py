"""Has envs know before each rollout how far training is, for curricula and schedules of their own.

They know it when they are made, too: see ``sfactory.env.training_info``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sfactory.actor.split import Split
from sfactory.env.training_info import informed_envs


def send_training_info(splits: list[Split], env_steps: Callable[[], float]) -> None:
    """Call the method of the envs of ``splits`` that have one, whenever a slot begins. env_steps: the number now."""
    for split in splits:
        if any(informed_envs(env) for env in split.batch.envs):
            split.before_slot.append(partial(_send, split, env_steps, {}))


def _send(split: Split, env_steps: Callable[[], float], sent: dict[int, tuple[object, int]]) -> None:
    steps = int(env_steps())
    found = (target for env in split.batch.envs for target in informed_envs(env))
    for place, target in enumerate(found):  # looked up again: an env may have been recreated
        if sent.get(place) != (target, steps):
            sent[place] = target, steps
            target.set_training_info({"env_steps": steps})
