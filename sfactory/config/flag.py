"""Room: how a flag is declared in a section. In: default, help text, bounds. Out: a dataclass field, ``FlagInfo``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

_META = "sfactory"


@dataclass(frozen=True)
class FlagInfo:
    """What is known of one flag beside its type and default: help text and the range it accepts."""

    help: str
    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None


def flag(
    default: Any,
    help: str,
    *,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
) -> Any:
    """Declare a config field: ``default``, ``help`` text and bounds (gt, ge, lt, le; NaN and inf are never legal)."""
    info = FlagInfo(help=help, gt=gt, ge=ge, lt=lt, le=le)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata={_META: info})
    return dataclasses.field(default=default, metadata={_META: info})


def flag_info(field: dataclasses.Field[Any]) -> FlagInfo:
    """The ``FlagInfo`` that ``flag`` attached to a dataclass field."""
    info = field.metadata[_META]
    assert isinstance(info, FlagInfo)
    return info
