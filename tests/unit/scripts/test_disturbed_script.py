"""scripts/disturbed.py kills actors of one run of each pair, and compares what was learned from."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.disturbed import END_S, START_S, killed
from tests.support.source import ROOT

LIMIT_S = 2 * (START_S + 6.0 + END_S)  # of a pair of runs, neither of which may take longer


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing for a minute."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_one_run_of_each_pair_is_disturbed_and_the_ratio_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "disturbed.json"

    done = subprocess.run(
        [sys.executable, ROOT / "scripts/disturbed.py", "--rounds=1", "--seconds=6", "--every=3", f"--out={out}"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )

    found = json.loads(out.read_text())
    (alone,), (disturbed,) = found["runs"]["left alone"], found["runs"]["disturbed"]
    assert (alone["kills"], alone["replaced"]) == (0, 0)
    assert disturbed["kills"] >= 1
    assert 1 <= disturbed["replaced"] + disturbed["anew"] <= disturbed["kills"]
    assert found["ratio"]["median"] == round(disturbed["env_steps"] / alone["env_steps"], 4)
    assert "disturbed over left alone: " in done.stdout


def test_a_share_that_is_too_small_is_an_error(tmp_path: Path) -> None:
    out = tmp_path / "disturbed.json"
    limits = ["--rounds=1", "--seconds=3", "--every=1", "--at_least=9", f"--out={out}"]

    done = subprocess.run(
        [sys.executable, ROOT / "scripts/disturbed.py", *limits], capture_output=True, text=True, timeout=LIMIT_S
    )

    assert done.returncode == 1
    assert "error: less than 900% of the run left alone" in done.stderr
    assert json.loads(out.read_text())["ratio"]["median"] < 9


def test_a_run_that_ends_too_early_is_an_error_with_its_command(tmp_path: Path) -> None:
    out = tmp_path / "disturbed.json"
    flags = ["--env=sfactory_envs.synthetic.faulty:Faulty", '--env_kwargs={"raise_at": 20}', "--max_env_restarts=0"]

    done = subprocess.run(
        [sys.executable, ROOT / "scripts/disturbed.py", "--rounds=1", f"--out={out}", "--", *flags],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )

    assert done.returncode == 1
    assert "ended with 3; the end of its stderr:" in done.stderr
    assert "sfactory.train --env=sfactory_envs.synthetic.faulty:Faulty" in done.stderr
    assert "sf-actor-" in done.stderr
    assert not out.exists()


def test_actors_alone_are_killed_in_turn(sleeper: subprocess.Popen[bytes]) -> None:
    processes = {1: "sf-main", sleeper.pid: "sf-actor-1", 2: "sf-learner-0"}

    assert killed(processes, turn=3) == 1
    assert sleeper.wait(60) == -signal.SIGKILL


def test_an_actor_that_has_just_ended_is_not_killed(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()

    assert killed({sleeper.pid: "sf-actor-0"}, turn=0) == 0


def test_where_no_actor_lives_none_is_killed() -> None:
    assert killed({1: "sf-main"}, turn=0) == 0
