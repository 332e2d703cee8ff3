"""Determines which flags population-based training mutates, and within which range.

NOTE [Mutated flags]: PBT mutates a flag that its section declares as mutable, if the flag named there is True or
``pbt_hyperparameters`` names it. It skips flags without effect under the config, and flags that are 0 (off), unless
``pbt_hyperparameters`` names them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sfactory.config.ancestors import ancestor_hint
from sfactory.config.field import How, Mutable
from sfactory.config.flags import Flag, all_flags, did_you_mean, value_of
from sfactory.config.points import decays
from sfactory.config.schema import Config

# The keys of a flag in ``pbt_hyperparameters``.
_MIN, _MAX, _HOW = "min", "max", "how"


@dataclass(frozen=True)
class Hyperparameter:
    """One flag that is mutated within ``low`` and ``high``; ``default`` is the value that the run was given."""

    name: str
    low: float
    high: float
    how: How
    whole: bool
    default: float


# When a flag has an effect, and what it needs for it; other flags always have one.
_Effect = tuple[Callable[[Config], bool], str]
_OF_VTRACE: _Effect = (lambda config: config.algo.with_vtrace, "--with_vtrace=True")
_OF_ADAM: _Effect = (lambda config: config.optim.optimizer != "rmsprop", "--optimizer=adam")
_EFFECTS: Mapping[str, _Effect] = {
    "learning_rate": (
        lambda config: config.optim.lr_schedule == "constant" or decays(config.optim.lr_schedule),
        "--lr_schedule=constant",
    ),
    "exploration_loss_coeff": (
        lambda config: (
            config.algo.exploration_loss != "none"
            and (not config.algo.exploration_loss_coeff_schedule or decays(config.algo.exploration_loss_coeff_schedule))
        ),
        "--exploration_loss=entropy and no points in --exploration_loss_coeff_schedule",
    ),
    "ppo_clip_ratio": (lambda config: config.algo.policy_loss == "ppo_clip", "--policy_loss=ppo_clip"),
    "gae_lambda": (lambda config: config.algo.uses_gae, "--with_vtrace=False or --rnd=True"),
    **dict.fromkeys(("vtrace_rho", "vtrace_c", "vtrace_lambda"), _OF_VTRACE),
    "vtrace_pg_rho": (
        lambda config: config.algo.with_vtrace and config.algo.weights_advantages,
        "--with_vtrace=True, and --policy_loss=pg or --vtrace_adv_weighting=rho",
    ),
    "kl_loss_coeff": (lambda config: not config.algo.kl_target, "--kl_target=0"),
    "aux_loss_coeff": (lambda config: config.algo.use_cpc, "--use_cpc=True"),
    "rnd_coeff": (lambda config: config.algo.rnd, "--rnd=True"),
    "value_lr": (
        lambda config: config.optim.separate_value_optimizer and not config.optim.value_lr_schedule,
        "--separate_value_optimizer=True and no --value_lr_schedule",
    ),
    "weight_decay": (lambda config: config.optim.optimizer in ("adamw", "lamb", "muon"), "--optimizer=adamw"),
    **dict.fromkeys(("adam_eps", "adam_beta1"), _OF_ADAM),
}


def mutable_flags() -> dict[str, Mutable]:
    """All mutable flags by name, as their sections declare them."""
    return {name: flag.info.mutable for name, flag in all_flags().items() if flag.info.mutable is not None}


def hyperparameters(config: Config) -> tuple[Hyperparameter, ...]:
    """What PBT mutates under a ``config`` without problems, in the order of the schema."""
    return tuple(found for name in mutable_flags() if (found := hyperparameter(config, name)) is not None)


def hyperparameter(config: Config, name: str) -> Hyperparameter | None:
    """How the mutable flag ``name`` is mutated under ``config``; None if it is not (see NOTE [Mutated flags])."""
    asked = config.population.pbt_hyperparameters
    if not config.population.with_pbt or _idle_text(config, name):
        return None
    if name in asked:
        return None if asked[name] is None else _declared(config, name, asked[name])
    switch = mutable_flags()[name].on
    is_on = switch and value_of(config, switch) and value_of(config, name)
    return _declared(config, name, {}) if is_on else None


def range_problem(name: str, config: Config) -> str | None:
    """The problem of the value of ``name`` if it is mutated by default; None if there is none."""
    if name in config.population.pbt_hyperparameters:
        return None
    found = hyperparameter(config, name)
    if found is None or found.low <= found.default <= found.high:
        return None
    bound, factor = (_MIN, 0.1) if found.default < found.low else (_MAX, 10)
    value = found.default * (1 if found.how is How.ONE_MINUS else factor)
    return (
        f"population-based training mutates it within {found.low:g} and {found.high:g}: choose a value in this range, "
        f'or another range: --pbt_hyperparameters=\'{{"{name}": {{"{bound}": {value:g}}}}}\''
    )


def request_problems(config: Config) -> list[str]:
    """The problems of ``pbt_hyperparameters``, a line for each flag in it."""
    asked = config.population.pbt_hyperparameters
    return [f"{name}: {text}" for name, body in asked.items() if (text := _request_problem(config, name, body))]


def idle_requests(config: Config) -> list[str]:
    """The flags in ``pbt_hyperparameters`` that have no effect, a line for each."""
    asked = (name for name, body in config.population.pbt_hyperparameters.items() if body is not None)
    return [f"{name}: {text}" for name in asked if (text := _idle_text(config, name))]


def _request_problem(config: Config, name: str, body: object) -> str | None:
    flag = all_flags().get(name)
    if flag is None:
        return ancestor_hint(name, mutable_flags()) or f"is not a flag{did_you_mean(name, mutable_flags())}"
    if flag.info.mutable is None:
        kind = "cannot change during a run" if is_number(flag.default) else "is not a number"
        return f"{kind}; what can be mutated: {', '.join(mutable_flags())}"
    if body is None:
        return None
    if not isinstance(body, Mapping) or body.keys() - {_MIN, _MAX, _HOW}:
        return 'must be null or an object with "min", "max" and "how", all of which may be left out'
    if any(not is_number(body[key]) for key in (_MIN, _MAX) if key in body):
        return '"min" and "max" must be finite numbers'
    ways = [how.value for how in How if how is not (How.ONE_MINUS if flag.type is int else How.DOUBLE)]
    if _HOW in body and body[_HOW] not in ways:
        return f'"how" must be one of {", ".join(ways)}'
    return _value_problem(config, flag, body)


def _value_problem(config: Config, flag: Flag, body: Mapping[str, object]) -> str | None:
    """The problem of a range, or of the present value's place in it."""
    value = value_of(config, flag.name)
    if not is_number(value):
        return f"is {'none' if value is None else value}, so there is nothing to mutate"
    found = _declared(config, flag.name, body)
    if not found.low < found.high:
        return f'"min" ({found.low:g}) must be less than "max" ({found.high:g})'
    if found.how in (How.FACTOR, How.LOG_UNIFORM, How.DOUBLE) and found.low <= 0:
        return f'"min" must be greater than 0, since "how" is {found.how}'
    if found.how is How.ONE_MINUS and not 0 <= found.low < found.high < 1:
        return f'"min" and "max" must be at least 0 and less than 1, since "how" is {found.how}'
    for bound in (found.low, found.high):
        if wrong := flag.info.broken_bound(bound):
            return f"{bound:g} is not a value of --{flag.name}, which must be {wrong}"
    if not found.low <= found.default <= found.high:
        return f"its value, {found.default:g}, lies outside of {found.low:g} to {found.high:g}: change it or the range"
    return None


def _declared(config: Config, name: str, body: Mapping[str, Any]) -> Hyperparameter:
    """The hyperparameter as its section declares it; keys of ``body``, which have the right types, replace that."""
    flag, value = all_flags()[name], value_of(config, name)
    declared = flag.info.mutable
    assert declared is not None
    assert isinstance(value, int | float)
    unit, whole = value if declared.relative else 1, flag.type is int
    low, high = body.get(_MIN, declared.low * unit), body.get(_MAX, declared.high * unit)
    if whole:
        low, high = math.ceil(low), math.floor(high)
    return Hyperparameter(name, low, high, How(body.get(_HOW, declared.how)), whole, value)


def _idle_text(config: Config, name: str) -> str | None:
    works, needs = _EFFECTS.get(name, (lambda config: True, ""))
    return None if works(config) else f"has no effect as it is: leave it out, or add {needs}"


def is_number(value: object) -> bool:
    """Whether ``value`` is a finite number that a float can hold; False for booleans."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False
