"""Room: what a rule over several flags is, and how the usual ones are made. In: flags and conditions. Out: ``Rule``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sfactory.config.flags import all_flags, values_of
from sfactory.config.schema import Config


@dataclass(frozen=True)
class Rule:
    """A rule over several flags, the first of which is blamed. ``find`` says what is wrong, or returns None.

    idle: it speaks of a value that has no effect, which matters only where somebody chose that value.
    """

    flags: tuple[str, ...]
    find: Callable[[Config], str | None]
    idle: bool = False


def nearest_multiples(value: int, of: int) -> str:
    """The positive multiples of ``of`` next to ``value``, as text: "nearest are 62 and 64"."""
    below = value // of * of
    return f"nearest is {of}" if below == 0 else f"nearest are {below} and {below + of}"


def idle_unless(
    names: Iterable[str], needs: tuple[str, ...], works: Callable[[Config], bool], missing: str
) -> tuple[Rule, ...]:
    """One rule for each of ``names``: set to other than its default, it has no effect unless ``works``.

    needs: the flags that ``works`` looks at. missing: what would give it an effect, to follow "add".
    """
    return tuple(Rule((name, *needs), _Idle(name, works, missing).find, idle=True) for name in names)


@dataclass(frozen=True)
class _Idle:
    name: str
    works: Callable[[Config], bool]
    missing: str

    def find(self, config: Config) -> str | None:
        default = all_flags()[self.name].default
        if values_of(config)[self.name] == default or self.works(config):
            return None
        return f"has no effect as it is: leave it out, or add {self.missing}"
