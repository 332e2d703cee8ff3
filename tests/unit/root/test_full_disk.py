"""A disk that is really full: a save is refused, what was there stays, and with space the next one succeeds."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.source import ROOT

# A disk of 2 MB that nobody else sees, in namespaces of this one process.
MOUNT = ["unshare", "--map-root-user", "--mount", "--", "sh", "-c"]
ON_A_SMALL_DISK = 'mount -t tmpfs -o size=2m none "$1" && exec "$2" -c "$3" "$1"'

SAVES = """
    import sys
    from pathlib import Path
    import torch
    from sfactory.checkpoint import CheckpointDir
    from sfactory.errors import CannotSaveError

    disk = Path(sys.argv[1])
    directory = CheckpointDir(disk / "checkpoint_p0", keep=2)
    payload = lambda value: {"w": torch.full((100_000,), float(value))}  # 400 KB

    directory.save(payload(1), 1, 100)
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            print("full:", error.strerror)
    try:
        directory.save(payload(2), 2, 200)
    except CannotSaveError as error:
        print("refused:", "No space left on device" in str(error))
    print("left:", sorted(path.name for path in directory.path.iterdir()))
    print("loads:", float(directory.load().payload["w"][0]))
    filler.unlink()
    directory.save(payload(3), 2, 200)
    print("then:", float(directory.load().payload["w"][0]))
"""


def test_a_full_disk_refuses_a_save_and_loses_nothing(tmp_path: Path) -> None:
    trial = subprocess.run([*MOUNT, 'mount -t tmpfs -o size=2m none "$1"', "sh", str(tmp_path)], capture_output=True)
    if trial.returncode != 0:
        pytest.skip(f"no disk of one's own can be mounted here: {trial.stderr.decode(errors='replace').strip()}")

    done = subprocess.run(
        [*MOUNT, ON_A_SMALL_DISK, "sh", str(tmp_path), sys.executable, textwrap.dedent(SAVES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "full: No space left on device",
        "refused: True",
        "left: ['checkpoint_000000001_100.pth', 'checkpoint_000000001_100.pth.json']",
        "loads: 1.0",
        "then: 3.0",
    ]
