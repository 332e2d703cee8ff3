"""Rules over several flags: what a rule is, and constructors for the two usual forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    names: tuple[str, ...], needs: tuple[str, ...], works: Callable[[Config], bool], missing: str
) -> tuple[Rule, ...]:
    """One rule for each of ``names``: a value other than its default has no effect unless ``works``.

    needs: the flags that ``works`` reads. missing: the flags that would give it an effect; the text says "add" them.
    """

    def finder(name: str) -> Callable[[Config], str | None]:
        def find(config: Config) -> str | None:
            is_default = values_of(config)[name] == all_flags()[name].default
            return None if is_default or works(config) else f"has no effect as it is: leave it out, or add {missing}"

        return find

    return tuple(Rule((name, *needs), finder(name), idle=True) for name in names)


def waits_for_learner(config: Config) -> bool:
    """Whether collection stops while the learner trains."""
    return not config.sampling.async_rl or not config.learner.num_batches_to_accumulate


def nearest_multiples(value: int, of: int) -> str:
    """The positive multiples of ``of`` next to ``value``, as text: "nearest are 62 and 64"."""
    below = value // of * of
    return f"nearest is {of}" if below == 0 else f"nearest are {below} and {below + of}"
