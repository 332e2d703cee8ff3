"""Reads command lines as a run does."""

from __future__ import annotations

import pytest

from sfactory.config.resolve import Resolved, read_command_line
from sfactory.errors import ConfigError

# Registered with Gymnasium, and no family's: its defaults are the schema's.
PLAIN_ENV = "--env=phys2d/CartPole-v1"


def read(*argv: str) -> Resolved:
    """What ``sfactory.train`` makes of ``argv``."""
    return read_command_line(argv)


def refused(*argv: str) -> list[str]:
    """The problems because of which it refuses ``argv``."""
    with pytest.raises(ConfigError) as caught:
        read(*argv)
    return caught.value.problems
