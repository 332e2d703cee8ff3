"""Room: the command lines that a run tells its user. In: the arguments of a session. Out: one line for a shell."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Mapping, Sequence

from sfactory.config.flags import all_flags, assigned
from sfactory.config.saved import OF_ONE_START, OF_TUNING


def train_command(arguments: Sequence[str]) -> str:
    """The command that starts a run with these arguments."""
    return shlex.join([sys.executable, "-m", "sfactory.train", *arguments])


def resume_command(arguments: Sequence[str], from_file: Collection[str] = ()) -> str:
    """The command that goes on with a run started with ``arguments``: from its latest checkpoint, always.

    ``from_file``: names of the flags that the config file sets; what is said there of one start is countermanded.
    """
    return train_command([*without(arguments, OF_ONE_START), *_countermanded(OF_ONE_START, from_file)])


def tuned_command(arguments: Sequence[str], chosen: Mapping[str, object], from_file: Collection[str] = ()) -> str:
    """The command that does what ``arguments`` ask for with the settings that autotune has ``chosen``, untuned.

    ``from_file`` is as for ``resume_command``.
    """
    kept = without(arguments, OF_TUNING | chosen.keys())
    settings = [assigned(name, value) for name, value in chosen.items()]
    return train_command([*kept, *settings, *_countermanded(OF_TUNING, from_file)])


def without(arguments: Sequence[str], flags: Collection[str]) -> list[str]:
    """``arguments`` less those ``flags`` and their values."""
    kept: list[str] = []
    dropping = False
    for word in arguments:
        # A flag's value may follow in words of their own, none of which begins with two dashes.
        if word.startswith("--"):
            dropping = word[2:].partition("=")[0].replace("-", "_") in flags
        if not dropping:
            kept.append(word)
    return kept


def _countermanded(flags: Collection[str], from_file: Collection[str]) -> list[str]:
    """Flags that say the default where a config file says something else."""
    return [assigned(flag, all_flags()[flag].default) for flag in sorted(set(flags).intersection(from_file))]
