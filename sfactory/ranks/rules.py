"""The configuration of a rank: where it learns, and what only the first rank does."""

from __future__ import annotations

import os
from dataclasses import replace

from sfactory.config.flags import assigned
from sfactory.config.resolve import Resolved
from sfactory.errors import ConfigError
from sfactory.ranks.place import Place

_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"  # is set for one rank, too
_OF_OTHERS = {"quiet": True, "with_tensorboard": False, "log_to_file": False, "eval_interval_sec": 0.0, "observers": ()}


def devices_to_start(resolved: Resolved, place: Place) -> list[str]:
    """Where this process, which is at ``place``, is to start ranks on this machine; empty if it trains itself.

    Raises ConfigError if torchrun has started it for that.
    """
    run = resolved.config.run
    devices = run.learner_devices.split(",") if run.learner_devices else []
    if devices and not place.folder and (place.world > 1 or _BY_TORCHRUN in os.environ):
        given = assigned("learner_devices", run.learner_devices)
        raise ConfigError([f"{given}: torchrun has started this rank; leave it out, or start it without torchrun"])
    return devices if len(devices) > 1 and not place.folder else []


def for_rank(resolved: Resolved, place: Place) -> Resolved:
    """The configuration at ``place``: ranks but the first neither report nor evaluate.

    Raises ConfigError if a process that is no rank has devices for several.
    """
    run = resolved.config.run
    devices = run.learner_devices.split(",")
    if place.world == 1 < len(devices):
        text = "starts ranks, which a program cannot do; use the command python -m sfactory.train, or one device"
        raise ConfigError([f"{assigned('learner_devices', run.learner_devices)}: {text}"])
    if devices[0]:
        gpu = "gpu" if place.world > 1 else f"cuda:{devices[0]}"  # a rank sees no other
        resolved = resolved.replaced({"device": "cpu" if devices[0] == "cpu" else gpu}, "learner_devices")
    return replace(resolved.replaced(_OF_OTHERS, f"rank {place.rank}"), changed=()) if place.rank else resolved
