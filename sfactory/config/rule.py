"""Defines rules over several flags, and the kinds of them.

Every rule may assume that each value is legal by itself (see ``validation.value_problem``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sfactory.config.flags import all_flags, value_of, values_of
from sfactory.config.schema import Config
from sfactory.system.operating_system import LINUX, NAME

WAITING = ("async_rl", "num_batches_to_accumulate")
Refused = tuple[str, Callable[[Any], bool], str]  # a flag, whether its value is refused, and why


@dataclass(frozen=True)
class Rule:
    """A rule over several flags. ``find`` returns the problem as text, or None; errors blame the first of ``flags``.

    idle: the rule refuses a value without effect. It applies only where the user chose that value.
    """

    flags: tuple[str, ...]
    find: Callable[[Config], str | None]
    idle: bool = False


def is_default(config: Config, name: str) -> bool:
    """Whether the flag has the default of the schema."""
    return bool(value_of(config, name) == all_flags()[name].default)


def refuse(flags: tuple[str, ...], wrong: Callable[[Config], bool], text: str) -> Rule:
    """A rule that returns ``text`` where ``wrong`` holds; ``{flag}`` in the text stands for the value of that flag."""

    def find(config: Config) -> str | None:
        return text.format_map(values_of(config)) if wrong(config) else None

    return Rule(flags, find)


def refuse_each(rows: Iterable[Refused], where: Callable[[Config], bool], text: str, *others: str) -> tuple[Rule, ...]:
    """A rule for each row, which applies ``where``, a condition on ``others``; {why} in ``text`` is its reason."""

    def wrong(flag: str, is_wrong: Callable[[Any], bool], config: Config) -> bool:
        return where(config) and is_wrong(value_of(config, flag))

    return tuple(
        refuse((flag, *others), partial(wrong, flag, is_wrong), text.replace("{why}", why))
        for flag, is_wrong, why in rows
    )


def needs(
    name: str, need: str, why: str, works: Callable[[Any], bool] = bool, value: object = True, idle: bool = False
) -> Rule:
    """A rule that a value of ``name`` other than its default breaks unless ``works`` for flag ``need``.

    value: the value of ``need`` that the problem advises.
    """

    def find(config: Config) -> str | None:
        fine = is_default(config, name) or works(value_of(config, need))
        return None if fine else f"{why}: leave it out, or add --{need}={value}"

    return Rule((name, need), find, idle)


def idle_unless(
    names: tuple[str, ...], need: str, works: Callable[[Any], bool] = bool, value: object = True
) -> tuple[Rule, ...]:
    """One rule for each of ``names``, as ``needs``: without ``need`` its value has no effect."""
    return tuple(needs(name, need, "has no effect as it is", works, value, idle=True) for name in names)


def idle_if(flags: tuple[str, ...], is_idle: Callable[[Config], bool], advice: str) -> Rule:
    """A rule that a value of the first of ``flags`` other than its default breaks where ``is_idle``.

    advice: the settings with which it has an effect.
    """

    def find(config: Config) -> str | None:
        works = is_default(config, flags[0]) or not is_idle(config)
        return None if works else f"has no effect as it is: leave it out, or add {advice}"

    return Rule(flags, find, idle=True)


def excludes(name: str, other: str, why: str) -> Rule:
    """A rule that is broken where both flags are on."""
    advice = f"leave this or --{other} out"
    if other == "serial_mode" and not LINUX:  # where it is the default
        advice = f"leave this out, as the processes of a run need Linux, and this is {NAME}"
    return refuse(
        (name, other), lambda config: bool(value_of(config, name) and value_of(config, other)), f"{why}: {advice}"
    )


def at_most(name: str, other: str, why: str = "") -> Rule:
    """A rule that is broken where the value of ``name`` is greater than that of ``other``."""
    text = f"must be at most {other} ({{{other}}}){why}"
    return refuse((name, other), lambda config: value_of(config, name) > value_of(config, other), text)


def multiple_of(name: str, other: str) -> Rule:
    """A rule that is broken where the value of ``name`` is no multiple of that of ``other``."""

    def find(config: Config) -> str | None:
        value, unit = value_of(config, name), value_of(config, other)
        below = value // unit * unit
        nearest = f"nearest are {below} and {below + unit}" if below else f"nearest is {unit}"
        return None if below == value else f"must be a multiple of {other} ({unit}): {nearest}"

    return Rule((name, other), find)


def refused_where_collection_waits(name: str, advice: str) -> Rule:
    """A rule that a value of ``name`` other than its default breaks where collection stops while the learner trains."""
    return refuse(
        (name, *WAITING),
        lambda config: waits_for_learner(config) and not is_default(config, name),
        f"where collection waits for the learner (async_rl=False or num_batches_to_accumulate=0) {advice}",
    )


def waits_for_learner(config: Config) -> bool:
    """Whether collection stops while the learner trains."""
    return not config.sampling.async_rl or not config.learner.num_batches_to_accumulate
