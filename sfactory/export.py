"""Exports a policy of a run: ``python -m sfactory.export --experiment=NAME [--format=onnx] [--push_to_hub=USER/NAME]``.

stdout carries one JSON line that describes the export; everything else goes to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sfactory.config.commands import ExportConfig, read_export_line
from sfactory.process.command import Command, importing_torch


def main(argv: Sequence[str] | None = None) -> int:
    """Export as ``argv`` (default: the command line) says; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with Command("sf-export") as command:
        config = read_export_line(arguments)
        command.print_result(lambda: _export(config))
    return command.exit_code


def _export(config: ExportConfig) -> str:
    # Imported only now, so that a mistyped flag is reported at once.
    with importing_torch(f"exporting {config.experiment}"):
        from sfactory.exporting.export import export

    return export(config)


if __name__ == "__main__":
    sys.exit(main())
