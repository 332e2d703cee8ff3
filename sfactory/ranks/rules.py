"""The configuration of a rank: what is refused before anything starts, and what only the first rank does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sfactory.config.flags import assigned, values_of
from sfactory.config.resolve import Resolved
from sfactory.config.schema import Config
from sfactory.config.training_rules import KL_ADAPTIVE
from sfactory.errors import ConfigError
from sfactory.ranks.place import Place

_ONE_RANK = "start it without torchrun"
# Flags, whether their value is refused, and why.
_REFUSED: tuple[tuple[str, Callable[[object], bool], str], ...] = (
    ("serial_mode", bool, "is one process"),
    ("num_policies", lambda value: value != 1, "is not made for several ranks: all train one policy"),
    ("benchmark", bool, "measures one rank"),
    ("autotune", bool, "would tune each rank by itself"),
    ("opponent_pool", bool, "is a pool of each rank by itself"),
    ("torch_compile", bool, "would compile sums over ranks"),
    ("rnd", bool, "would normalize bonuses by the data of each rank"),
    ("minibatch_ring_size", lambda value: value != 1, "would part the ranks at a stop"),
    ("max_restarts", bool, "would restart one rank; torchrun --max-restarts restarts all"),
)


_OF_OTHERS = {"quiet": True, "with_tensorboard": False, "log_to_file": False, "eval_interval_sec": 0.0, "observers": ()}


def for_rank(resolved: Resolved, place: Place) -> Resolved:
    """The configuration at ``place``: ranks but the first neither report nor evaluate.

    Raises ConfigError, with a line for each flag that does not work with several ranks.
    """
    if place.world > 1 and (problems := list(_problems(resolved.config, place))):
        raise ConfigError(problems)
    return resolved.replaced(_OF_OTHERS, f"rank {place.rank}") if place.rank else resolved


# The same for ranks that learn apart, see NOTE [Local updates]: flags that adapt to the data of one rank.
_REFUSED_APART = (("lr_schedule", lambda value: value in KL_ADAPTIVE), ("kl_target", bool))


def _problems(config: Config, place: Place) -> Iterator[str]:
    values = values_of(config)
    for name, adapts in _REFUSED_APART if config.learner.sync_every > 1 else ():
        if adapts(values[name]):
            both = f"{assigned(name, values[name])} and {assigned('sync_every', config.learner.sync_every)}"
            yield f"{both}: each of {place.world} ranks would adapt to its own data; leave one of the two out"
    for flag, is_wrong, why in _REFUSED:
        if is_wrong(values[flag]):
            yield f"{assigned(flag, values[flag])} {why}, and WORLD_SIZE={place.world}: leave it out, or {_ONE_RANK}"
