"""Rules over several flags: what a rule is, and constructors for the two usual forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sfactory.config.flags import all_flags, values_of
from sfactory.config.schema import Config


@dataclass(frozen=True)
class Rule:
    """A rule over several flags. ``find`` returns the problem as text, or None; errors blame the first of ``flags``.

    idle: the rule refuses a value without effect. It applies only where the user chose that value.
    """

    flags: tuple[str, ...]
    find: Callable[[Config], str | None]
    idle: bool = False


def refuse(flags: tuple[str, ...], wrong: Callable[[Config], bool], text: str) -> Rule:
    """A rule that returns ``text`` where ``wrong`` holds; ``{flag}`` in the text stands for the value of that flag."""

    def find(config: Config) -> str | None:
        return text.format_map(values_of(config)) if wrong(config) else None

    return Rule(flags, find)


def idle_unless(
    names: tuple[str, ...], need: str, works: Callable[[Any], bool] = bool, value: object = True
) -> tuple[Rule, ...]:
    """One rule for each of ``names``: a value other than its default has no effect unless ``works`` for flag ``need``.

    value: the value of ``need`` that the problem advises.
    """

    def finder(name: str) -> Callable[[Config], str | None]:
        def find(config: Config) -> str | None:
            values = values_of(config)
            if values[name] == all_flags()[name].default or works(values[need]):
                return None
            return f"has no effect as it is: leave it out, or add --{need}={value}"

        return find

    return tuple(Rule((name, need), finder(name), idle=True) for name in names)


def waits_for_learner(config: Config) -> bool:
    """Whether collection stops while the learner trains."""
    return not config.sampling.async_rl or not config.learner.num_batches_to_accumulate


def nearest_multiples(value: int, of: int) -> str:
    """The positive multiples of ``of`` next to ``value``, as text: "nearest are 62 and 64"."""
    below = value // of * of
    return f"nearest is {of}" if below == 0 else f"nearest are {below} and {below + of}"
