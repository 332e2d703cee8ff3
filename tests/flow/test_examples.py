"""The code of docs/own_agent.md runs as it stands, and the example package trains, resumes and plays as installed."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.long import long
from tests.support.source import ROOT, documents
from tests.support.trainer import CHEAP, to_argv
from tests.support.warm_process import finished

PACKAGE = ROOT / "docs" / "examples" / "gridagent"
PAGE = documents()["docs/own_agent.md"]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
TRAINING = "python -m sfactory.train "
COMMANDS = [line for kind, text in BLOCKS if not kind for line in text.splitlines()]
# Beside what a command names.
SMALL = {"num_envs_per_worker": 4, "serial_mode": True, "train_for_env_steps": 500}
ALL_AT_ONCE = (
    f"{TRAINING}--env=my_envs:Growing --wrapper=my_wrappers:Noisy --encoder=my_agent:Attention --use_rnn=True "
    "--core=my_parts:Core --decoder=my_parts:Decoder --observers=my_watch:Watch --experiment=all"
)


def run(argv: list[str], folder: Path, packages: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command in ``folder`` that has ended well. packages: a folder with installed ones."""
    environ = os.environ if packages is None else {**os.environ, "PYTHONPATH": str(packages)}
    done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done


def train(
    command: str, folder: Path, limit: int | None = None, packages: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """A command of training, with cheap settings for all that it does not name; ``limit`` is one of env steps."""
    words = shlex.split(re.sub(r"--train_for_env_steps=\d+", "", command).removeprefix(TRAINING))
    named = {word.partition("=")[0].removeprefix("--") for word in words if word.startswith("--")}
    unused = {"inference", *(("encoder_mlp_layers",) if named & {"encoder", "model"} else ())}
    flags = {name: value for name, value in {**CHEAP, **SMALL}.items() if name not in named | unused}
    flags |= {} if limit is None else {"train_for_env_steps": limit}
    done = finished("sfactory.train", *words, *to_argv(flags), cwd=folder, packages=packages)
    assert done.returncode == 0, done.stderr
    return done


def write_code(folder: Path) -> set[str]:
    """Write each block of Python to the file that its first line names; returns the names."""
    names: set[str] = set()
    for kind, text in BLOCKS:
        if kind == "python":
            head = re.match(r"# (my_\w+\.py)\n", text)
            assert head is not None, text
            names.add(head[1])
            with (folder / head[1]).open("a") as file:
                file.write(text)
    return names


def test_all_code_of_the_page_goes_together(tmp_path: Path) -> None:
    files = write_code(tmp_path)
    assert {kind for kind, _ in BLOCKS} == {"python", ""}
    assert {f"{name}.py" for name in re.findall(r"my_\w+(?=:)", ALL_AT_ONCE)} == files

    done = train(ALL_AT_ONCE, tmp_path)

    assert "longest episode: " in done.stderr
    row = json.loads((tmp_path / "train_dir" / "all" / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0.0 <= row["train/extra/near_goal_mean"] <= 1.0
    assert 10 <= row["watch/longest_episode"] <= 50


@pytest.mark.long
def test_every_command_of_the_page_runs(tmp_path: Path) -> None:
    write_code(tmp_path)
    assert len(COMMANDS) >= 7
    assert all(command.startswith(TRAINING) for command in COMMANDS)

    for number, command in enumerate(COMMANDS):
        train(command if "--experiment" in command else f"{command} --experiment=page{number}", tmp_path)


@pytest.fixture(name="installed", scope="module")
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example package, installed by pip."""
    folder = tmp_path_factory.mktemp("installed")
    source, target = shutil.copytree(PACKAGE, folder / "source"), folder / "target"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*pip, "--no-index", f"--target={target}", str(source)], folder)
    return target


@pytest.mark.parametrize("further", [False, long(True)])
def test_installed_example_trains_by_its_short_names(installed: Path, tmp_path: Path, further: bool) -> None:
    readme = re.findall(r"^```\n(.*?)^```", (PACKAGE / "README.md").read_text(), re.DOTALL | re.MULTILINE)[0]
    pip, training, playing = readme.splitlines()
    assert pip == "pip install ."

    done = train(training, tmp_path, packages=installed)

    assert re.search(r"policy 0 has played \d+ episodes", done.stderr)
    row = json.loads((tmp_path / "train_dir" / "grid" / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0.0 < row["train/extra/right_door_mean"] < 1.0
    if further:
        assert "resumed at" in train(training, tmp_path, 1000, installed).stderr
        where = [sys.executable, "-m"]
        played = run([*where, *shlex.split(playing)[2:]], tmp_path, installed)
        assert json.loads(played.stdout.splitlines()[-1])["episodes"] == 20
        run(
            [*where, "sfactory.export", "--experiment=grid", "--out=a.safetensors"],
            tmp_path,
            installed,
        )


@pytest.mark.long
def test_the_example_learns_what_only_memory_can_know(installed: Path, tmp_path: Path) -> None:
    readme = (PACKAGE / "README.md").read_text()
    (training,) = re.findall(rf"^{re.escape(TRAINING)}.*", readme, re.MULTILINE)

    done = run([sys.executable, *shlex.split(training)[1:], "--seed=1", "--device=cpu"], tmp_path, installed)

    assert json.loads(done.stdout.splitlines()[-1])["episode_return_mean"] > 0.85
