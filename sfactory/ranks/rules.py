"""The configuration of a rank: what is refused before anything starts, and what only the first rank does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from sfactory.config.flags import assigned, values_of
from sfactory.config.resolve import COMMAND_LINE, CONFIG_FILE, Resolved
from sfactory.config.schema import Config
from sfactory.config.training_rules import KL_ADAPTIVE
from sfactory.errors import ConfigError
from sfactory.ranks.place import START_ONE_RANK, Place

_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"  # is set for one rank, too
# Flags, whether their value is refused, and why.
_REFUSED: tuple[tuple[str, Callable[[object], bool], str], ...] = (
    ("serial_mode", bool, "is one process"),
    ("num_policies", lambda value: value != 1, "is not made for several ranks: all train one policy"),
    ("pbt_dir", bool, "is not made for several ranks: a member is a run of one rank"),
    ("benchmark", bool, "measures one rank"),
    ("autotune", bool, "would tune each rank by itself"),
    ("opponent_pool", bool, "is a pool of each rank by itself"),
    ("torch_compile", bool, "would compile sums over ranks"),
    ("rnd", bool, "would normalize bonuses by the data of each rank"),
    ("minibatch_ring_size", lambda value: value != 1, "would part the ranks at a stop"),
    ("remote_actors_port", bool, "would send remote actors to one rank"),
    ("max_restarts", bool, "would restart one rank; torchrun --max-restarts restarts all"),
)
# The same for ranks that learn apart, see NOTE [Local updates]: flags that adapt to the data of one rank.
_REFUSED_APART = (("lr_schedule", lambda value: value in KL_ADAPTIVE), ("kl_target", bool))
_OF_OTHERS = {"quiet": True, "with_tensorboard": False, "log_to_file": False, "eval_interval_sec": 0.0, "observers": ()}


def devices_to_start(resolved: Resolved, place: Place) -> list[str]:
    """Where this process, which is at ``place``, is to start ranks on this machine; empty if it trains itself.

    Raises ConfigError, with a line for each flag that does not work with several ranks.
    """
    run = resolved.config.run
    devices = run.learner_devices.split(",") if run.learner_devices else []
    given = assigned("learner_devices", run.learner_devices)
    if devices and resolved.sources["device"] in (COMMAND_LINE, CONFIG_FILE):
        raise ConfigError([f"{assigned('device', run.device)}: {given} names the devices; leave one of the two out"])
    if devices and not place.folder and (place.world > 1 or _BY_TORCHRUN in os.environ):
        raise ConfigError([f"{given}: torchrun has started this rank; leave it out, or start it without torchrun"])
    if len(devices) < 2 or place.folder:
        return []
    _require_settings_of_several(resolved.config, len(devices))
    return devices


def for_rank(resolved: Resolved, place: Place) -> Resolved:
    """The configuration at ``place``: ranks but the first neither report nor evaluate.

    Raises ConfigError, with a line for each flag that does not work with several ranks.
    """
    devices = resolved.config.run.learner_devices.split(",")
    if place.world > 1:
        _require_settings_of_several(resolved.config, place.world)
    elif len(devices) > 1:
        text = "starts ranks, which a program cannot do; use the command python -m sfactory.train, or one device"
        raise ConfigError([f"{assigned('learner_devices', resolved.config.run.learner_devices)}: {text}"])
    if devices[0]:
        gpu = "gpu" if place.world > 1 else f"cuda:{devices[0]}"  # a rank sees no other
        resolved = resolved.replaced({"device": "cpu" if devices[0] == "cpu" else gpu}, "learner_devices")
    return resolved.replaced(_OF_OTHERS, f"rank {place.rank}") if place.rank else resolved


def _require_settings_of_several(config: Config, world: int) -> None:
    if problems := list(_problems(config, world)):
        raise ConfigError(problems)


def _problems(config: Config, world: int) -> Iterator[str]:
    values = values_of(config)
    for name, adapts in _REFUSED_APART if config.learner.sync_every > 1 else ():
        if adapts(values[name]):
            both = f"{assigned(name, values[name])} and {assigned('sync_every', config.learner.sync_every)}"
            yield f"{both}: each of {world} ranks would adapt to its own data; leave one of the two out"
    for flag, is_wrong, why in _REFUSED:
        if is_wrong(values[flag]):
            yield f"{assigned(flag, values[flag])} {why}, and there are {world}: leave it out, or {START_ONE_RANK}"
