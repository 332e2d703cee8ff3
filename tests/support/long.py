"""Cases that only ``make test-long`` runs."""

from __future__ import annotations

from typing import Any

import pytest

LONG = pytest.mark.long


def long(*values: object, id: str | None = None) -> Any:
    """One case of a parametrized test."""
    return pytest.param(*values, id=id, marks=LONG)
