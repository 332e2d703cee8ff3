"""Room: how a flag is declared in a section. In: default, help, bounds. Out: a dataclass field, ``FlagInfo``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from sfactory.config.mutable import Mutable

_META = "sfactory"


@dataclass(frozen=True)
class FlagInfo:
    """What is known of one flag beside its type and default: help text and the range it accepts.

    mutable: how population-based training may change it; None: not at all.
    """

    help: str
    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    mutable: Mutable | None = None


def flag(
    default: Any,
    help: str,
    *,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    mutable: Mutable | None = None,
) -> Any:
    """Declare a config field: ``default``, ``help`` text and bounds (gt, ge, lt, le; NaN and inf are never legal).

    mutable: that population-based training may change it, and how.
    """
    info = FlagInfo(help=help, gt=gt, ge=ge, lt=lt, le=le, mutable=mutable)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata={_META: info})
    return dataclasses.field(default=default, metadata={_META: info})


def flag_info(field: dataclasses.Field[Any]) -> FlagInfo:
    """The ``FlagInfo`` that ``flag`` attached to a dataclass field."""
    info = field.metadata[_META]
    assert isinstance(info, FlagInfo)
    return info
