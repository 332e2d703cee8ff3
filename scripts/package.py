"""Builds the sdist and from it the wheel, compares their files with the repository, and tries the wheel.

The wheel is installed into a new virtual environment in a new folder, and run from another one: the commands are
listed, the families of envs are found, and CartPole is trained for some steps and played. By default the environment
shares the packages that are installed here, so that no network is needed; with ``--deps=index`` pip installs them, in
the versions of constraints.txt. ``--python=python3.13`` tries another interpreter (then with ``--deps=index``).
``--out=dist`` keeps the two files. Exit code 1: something is missing, too much, or fails.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PACKAGES = {"sfactory": "sfactory", "envs": "sfactory_envs"}  # folder of the repository: name when installed
_BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
_SMALL = ["--num_workers=1", "--num_envs_per_worker=8", "--rollout=16", "--batch_size=256"]
_TIMEOUT_S = 600


class Refused(Exception):
    """What was built is not what it should be."""


def run(command: Sequence[str | Path], folder: Path) -> str:
    """What a command prints; raises Refused if it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    if done.returncode != 0:
        raise Refused(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def tracked() -> set[str]:
    """The files of the two packages, as git knows them, under the names that they have when installed."""
    names = run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *_PACKAGES], ROOT).splitlines()
    parts = (name.partition("/") for name in names if (ROOT / name).is_file())
    return {f"{_PACKAGES[folder]}/{rest}" for folder, _, rest in parts}


def build(out: Path, work: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from the unpacked sdist alone; returns both."""
    copy = work / "repository"  # setuptools writes into the folder that it builds from
    names = run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], ROOT).splitlines()
    for name in filter(lambda name: (ROOT / name).is_file(), names):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    run([sys.executable, "-c", _BUILD, "build_sdist", out], copy)
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "sdist", filter="data")
    (unpacked,) = (work / "sdist").iterdir()
    run([sys.executable, "-c", _BUILD, "build_wheel", out], unpacked)
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


def compare(sdist: Path, wheel: Path) -> None:
    """Raise Refused unless the wheel has all files of the packages and no others, and the sdist has them, too."""
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {name for name in archive.namelist() if ".dist-info/" not in name}
    with tarfile.open(sdist) as archive:
        in_sdist = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    wanted = tracked()
    back = {installed: folder for folder, installed in _PACKAGES.items()}
    sources = {f"{back[top]}/{rest}" for top, _, rest in (name.partition("/") for name in wanted)}
    wrong = {
        "missing in the wheel": wanted - in_wheel,
        "too much in the wheel": in_wheel - wanted,
        "missing in the sdist": {*sources, "LICENSE", "README.md", "CITATION.cff", "constraints.txt"} - in_sdist,
        "too much in the sdist": {name for name in in_sdist if name.startswith(("tests/", "docs/", ".ci/"))},
    }
    version = wheel.name.split("-")[1]
    if f"\nversion: {version}\n" not in (ROOT / "CITATION.cff").read_text():
        raise Refused(f"CITATION.cff does not name version {version}")
    if any(wrong.values()):
        raise Refused("\n".join(f"{what}: {', '.join(sorted(names))}" for what, names in wrong.items() if names))


def install(wheel: Path, work: Path, python: str, deps: str) -> Path:
    """Install the wheel into a new environment; returns the folder of its commands."""
    run([python, "-m", "venv", work / "venv"], work)
    commands = work / "venv" / "bin"
    wanted = ["--no-deps", wheel]
    if deps == "index":
        wanted = [wheel, "-c", ROOT / "constraints.txt"]
    else:
        site = run([commands / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], work).strip()
        # A plain line adds the folder, without the .pth files in it: the editable sfactory of this one is not seen.
        Path(site, "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run([commands / "python", "-m", "pip", "install", "--disable-pip-version-check", "-q", *wanted], work)
    return commands


def try_out(commands: Path, folder: Path) -> None:
    """Run what a new user would run first; raises Refused."""
    folder.mkdir()
    sfactory = commands / "sfactory"
    where = run([commands / "python", "-c", "import sfactory; print(sfactory.__file__)"], folder).strip()
    if not Path(where).is_relative_to(commands.parent):
        raise Refused(f"sfactory is imported from {where}, not from {commands.parent}")
    if "train" not in run([sfactory, "--help"], folder):
        raise Refused("sfactory --help does not name the command train")
    if "CartPole-v1" not in run([sfactory, "envs"], folder):
        raise Refused("sfactory envs does not list CartPole-v1: the families of envs are not found")
    training = ["--env=CartPole-v1", "--experiment=try", "--serial_mode=True", "--train_for_env_steps=5000", *_SMALL]
    summary = json.loads(run([sfactory, "train", *training], folder).splitlines()[-1])
    if summary["status"] != "done" or summary["env_steps"] < 5000:
        raise Refused(f"the training ended with {summary}")
    run([sfactory, "enjoy", "--experiment=try", "--max_num_episodes=2", "--no_render=True"], folder)
    run([sfactory, "init", "agent"], folder)  # writes the files that are data of the package


def main(argv: Sequence[str] | None = None) -> int:
    """Build and try; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the interpreter to try the wheel with")
    parser.add_argument("--deps", choices=("here", "index"), default="here", help="where its dependencies come from")
    parser.add_argument("--out", type=Path, help="an empty or missing folder that gets the sdist and the wheel")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="sfactory-package-") as name:
        work = Path(name)
        out = (given.out or work / "dist").absolute()
        out.mkdir(parents=True, exist_ok=True)
        try:
            sdist, wheel = build(out, work)
            compare(sdist, wheel)
            try_out(install(wheel, work, given.python, given.deps), work / "elsewhere")
        except Refused as problem:
            print(f"error: {problem}", file=sys.stderr)
            return 1
        print(f"{sdist.name} ({sdist.stat().st_size:,} bytes) and {wheel.name} ({wheel.stat().st_size:,} bytes):")
    print("complete; installed elsewhere, trained CartPole-v1 for 5,000 steps, and played it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
