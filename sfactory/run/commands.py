"""Room: the command lines that a run tells its user. In: the arguments of a session. Out: one line for a shell."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Sequence

from sfactory.config.flags import all_flags, assigned
from sfactory.config.saved import OF_ONE_START


def train_command(arguments: Sequence[str]) -> str:
    """The command that starts a run with these arguments."""
    return shlex.join([sys.executable, "-m", "sfactory.train", *arguments])


def resume_command(arguments: Sequence[str], from_file: Collection[str] = ()) -> str:
    """The command that goes on with a run started with ``arguments``: from its latest checkpoint, always.

    ``from_file``: names of the flags that the config file sets; what is said there of one start is countermanded.
    """
    kept: list[str] = []
    dropping = False
    for word in arguments:
        # A flag's value may follow in words of their own, none of which begins with two dashes.
        if word.startswith("--"):
            dropping = word[2:].partition("=")[0].replace("-", "_") in OF_ONE_START
        if not dropping:
            kept.append(word)
    countermanded = sorted(OF_ONE_START.intersection(from_file))
    return train_command([*kept, *(assigned(flag, all_flags()[flag].default) for flag in countermanded)])
