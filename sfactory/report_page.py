"""Shows runs in a browser: ``python -m sfactory.report_page RUN ...`` writes a page, ``--serve`` follows the runs.

stdout gets one JSON line with the result; everything else goes to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from sfactory import atomic
from sfactory.config.commands import Page, read_page_line
from sfactory.errors import ResourceError
from sfactory.process.command import Command
from sfactory.results.page import data_of, embedded_or_linked, page_of
from sfactory.results.server import LivePage, PageServer


class _ReportCommand(Command):
    def on_interrupt(self) -> None:
        """A page is served until a signal comes, so nothing is said about it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: ``sys.argv``); returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with _ReportCommand("sf-report") as command:
        page = read_page_line(arguments)
        if page.out is not None:
            command.print_result(lambda: _write(page.runs, page.out or Path()))
        else:
            _serve(page)
    return command.exit_code


def _write(runs: Sequence[Path], out: Path) -> str:
    content = page_of(data_of(runs, embedded_or_linked(out)))
    try:
        atomic.write_bytes(out, content)
    except OSError as error:
        raise ResourceError(f"{out} cannot be written: {error.strerror or error}; choose another --out") from error
    return json.dumps({"out": str(out), "runs": len(runs), "bytes": len(content)})


def _serve(page: Page) -> None:
    with PageServer(LivePage(page.runs, page.find), page.port) as server:
        print(json.dumps({"url": server.url, "runs": len(page.runs)}), flush=True)
        print(f"serving {server.url} until Ctrl-C", file=sys.stderr, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
