"""Room: the settings of ``sfactory.export``. In: argv. Out: ``ExportConfig``, or every problem of the line at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sfactory.config.command import Clash, Command
from sfactory.config.flag import flag
from sfactory.config.flags import Flag, assigned

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class ExportConfig:
    """Which weights to export, and into which file."""

    experiment: str = flag("default_experiment", "name of the run whose weights are exported")
    train_dir: str = flag("./train_dir", "directory that holds one folder per experiment")
    load_checkpoint_kind: Literal["latest", "best", "milestone"] = flag(
        "latest", "checkpoint to export: the newest, the best, or the newest of those that are kept for ever"
    )
    checkpoint_env_steps: int | None = flag(
        None,
        "export exactly the checkpoint of this env step, of any kind, or of the kind that load_checkpoint_kind names "
        "if that is best or milestone",
        ge=0,
    )
    policy_index: int = flag(0, "policy to export, of a run that trains several", ge=0)
    out: str = flag("", "file to write, which does not exist yet; its name ends in .safetensors")


def export_flags() -> Mapping[str, Flag]:
    """The flags of export by name."""
    return _COMMAND.flags


def read_export_line(argv: Sequence[str], *, prog: str) -> ExportConfig:
    """The settings that ``argv`` asks for, see ``Command.read``."""
    return _COMMAND.read(argv, prog=prog)


def _clashes(config: ExportConfig) -> list[Clash]:
    name = Path(config.out).name
    if name.endswith(SUFFIX) and name != SUFFIX and "\0" not in config.out:
        return []
    return [
        ({"out"}, f"{assigned('out', config.out)}: must be a file whose name ends in {SUFFIX}, --out=cartpole{SUFFIX}")
    ]


_COMMAND = Command(
    ExportConfig,
    "export",
    "Writes the weights of a checkpoint into a safetensors file, which holds numbers alone and no code.",
    _clashes,
)
