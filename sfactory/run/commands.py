"""Room: the command lines that a run tells its user. In: the arguments of a session. Out: one line for a shell."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

_WHICH_CHECKPOINT = "__load_checkpoint_kind"  # with underscores for dashes


def train_command(arguments: Sequence[str]) -> str:
    """The command that starts a run with these arguments."""
    return shlex.join([sys.executable, "-m", "sfactory.train", *arguments])


def resume_command(arguments: Sequence[str]) -> str:
    """The command that goes on with a run started with ``arguments``: from its latest checkpoint, always."""
    kept = [word for word in arguments if not word.replace("-", "_").startswith(_WHICH_CHECKPOINT + "=")]
    for position, word in enumerate(kept):
        if word.replace("-", "_") == _WHICH_CHECKPOINT:
            del kept[position : position + 2]
            break
    return train_command(kept)
