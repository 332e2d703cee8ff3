"""Pictures of the report page for docs/report.md: of runs, in a wide window and on a phone.

    python scripts/draw_report.py train_dir/lr_* docs/report

writes docs/report.png and docs/report_phone.png. Needs chromium.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.chromium import Chromium
from sfactory import report_page

WIDE, PHONE = {"width": 1280, "height": 980}, {"width": 390, "height": 980, "dark": True}


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="folders of runs")
    parser.add_argument("target", type=Path, help="the pictures' path, without .png")
    parser.add_argument("--whole", action="store_true", help="the whole page, not only what fits in the window")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        if report_page.main([*given.runs, f"--out={page}"]):
            raise SystemExit(2)
        with Chromium(Path(folder)) as browser:
            for end, window in (("", WIDE), ("_phone", PHONE)):
                browser.show(page.as_uri(), **window)
                browser.picture(given.target.with_name(f"{given.target.name}{end}.png"), given.whole)
            if browser.complaints:
                raise SystemExit(f"error: the page complains: {browser.complaints}")


if __name__ == "__main__":
    main()
