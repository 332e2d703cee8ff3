"""Runs that are done keep their settings: edited ones are named, and a raised limit has them train further."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from sfactory.config.launcher import LauncherConfig
from sfactory.config.resolve import read_command_line
from sfactory.config.saved_config import write_config
from sfactory.experiment.summary import Summary
from sfactory.launch.jobs import Job, LaunchState, jobs_of
from sfactory.launch.launch import launch
from sfactory.launch.param_search import ParamGrid
from sfactory.launch.run_description import Experiment, RunDescription
from sfactory.process.signals import Interrupts

BANDIT = "--env=sfactory_envs.synthetic.bandit:Bandit"
STARTED = f"{BANDIT} --train_for_env_steps=1000 --gamma=0.9"
SEEDS = [1, 2, 3, 4, 5]


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def jobs(cmd: str, seeds: list[int]) -> list[Job]:
    return jobs_of(RunDescription("many", [Experiment("run", cmd, ParamGrid({"seed": seeds}))]), Path("many"), "")


def finish(job: Job, env_steps: int = 1000, seconds: float = 10.0, policies: Sequence[int] = ()) -> None:
    """Leaves what a run leaves that has finished."""
    resolved = read_command_line(job.arguments)
    job.run_dir.mkdir(parents=True, exist_ok=True)
    write_config(job.run_dir, resolved.config, resolved.sources)
    start(job)
    of_each = [{"env_steps": steps} for steps in policies]
    Summary("done", env_steps, env_steps, env_steps, seconds, policies=of_each).write(job.run_dir / "summary.json")


def start(job: Job) -> None:
    """Leaves what a start leaves that finds its run finished."""
    (job.run_dir / "run.json").write_text(json.dumps({"status": "done", "argv": list(job.arguments)}))


@pytest.mark.parametrize(
    ("edited", "done"),
    [
        ("--train_for_env_steps=1000 --gamma=0.9", True),
        ("--train_for_env_steps 1000 --gamma 0.9", True),
        ("--train_for_env_steps=1000 --gamma=0.5", True),
        ("--train_for_env_steps=999 --gamma=0.9", True),
        ("--train_for_env_steps=5000 --train_for_seconds=9 --gamma=0.9", True),
        ("--train_for_env_steps=5000 --train_for_frames=1000 --gamma=0.9", True),
        ("--train_for_env_steps=1001 --gamma=0.9", False),
        ("--train_for_env_steps=1001 --gamma=0.5", False),
    ],
)
def test_finished_run_is_done_unless_a_limit_was_raised(edited: str, done: bool) -> None:
    finish(jobs(STARTED, [1])[0])

    (job,) = jobs(f"{BANDIT} {edited}", [1])

    assert job.done == done


@pytest.mark.parametrize(
    ("edited", "steps", "done"),
    [
        ("--train_for_env_steps=1000 --gamma=0.5", (1000, 1001), True),
        ("--train_for_env_steps=1001 --gamma=0.5", (1000, 1001), False),
        ("--train_for_env_steps=1000 --gamma=0.5", (1000,), False),
        ("--train_for_env_steps=1000 --gamma=0.5 --train_policies 1", (0, 1001), True),
        ("--train_for_env_steps=5000 --gamma=0.5 --train_for_seconds=9", (1000, 1001), True),
    ],
)
def test_finished_population_is_done_unless_a_limit_of_a_policy_that_learns_was_raised(
    edited: str, steps: tuple[int, ...], done: bool
) -> None:
    finish(jobs(f"{STARTED} --num_policies=2", [1])[0], 2000, policies=steps)

    (job,) = jobs(f"{BANDIT} --num_policies=2 {edited}", [1])

    assert job.done == done


def test_limit_that_is_raised_in_a_file_of_flags_counts_too() -> None:
    cmd = f"{BANDIT} --config=flags.yaml"
    Path("flags.yaml").write_text("train_for_env_steps: 1000\n")
    (job,) = jobs(cmd, [1])
    finish(job)
    before = jobs(cmd, [1])[0].done
    Path("flags.yaml").write_text("train_for_env_steps: 1001\n")

    assert [before, jobs(cmd, [1])[0].done] == [True, False]


def test_run_that_ended_before_its_limit_is_done_for_the_same_arguments_only() -> None:
    finish(jobs(STARTED, [1])[0], env_steps=500)  # an observer has ended it

    assert [jobs(cmd, [1])[0].done for cmd in (STARTED, f"{STARTED} --rollout=32")] == [True, False]


def test_edited_settings_of_finished_runs_are_named_at_each_call(capfd: pytest.CaptureFixture[str]) -> None:
    edited = f"{BANDIT} --train_for_env_steps=1000 --exploration_loss_coeff=0.5"
    for job in jobs(STARTED, SEEDS):
        finish(job)
    start(jobs(edited, SEEDS)[0])  # an earlier call has started it
    Path("many.toml").write_text(f"[[experiments]]\nbase_name='run'\ncmd='{edited}'\ngrid={{seed={SEEDS}}}\n")

    interrupts = Interrupts()
    line, code = launch(LauncherConfig(run="many.toml", train_dir="."), "the command", interrupts)
    interrupts.restore()

    said = capfd.readouterr().err
    runs = json.loads(line)["runs"]
    assert (code, {run["status"] for run in runs}) == (0, {"done"})
    assert [[change.partition(":")[0] for change in run["changed"]] for run in runs] == [
        ["--exploration_loss_coeff=0.5", "--gamma=0.9"]
    ] * len(SEEDS)
    assert "run_seed_1, run_seed_2, run_seed_3 and 2 more: --exploration_loss_coeff=0.5: " in said
    assert "run_seed_1, run_seed_2, run_seed_3 and 2 more: --gamma=0.9: " in said
    assert not [line for line in said.splitlines() if line.startswith("started ")]


def test_a_run_whose_limit_was_raised_waits_until_it_is_started_again() -> None:
    (job,) = jobs(STARTED, [1])
    finish(job)
    with LaunchState.opened(Path("many")) as launch_state:
        launch_state.started(job.name)
        launch_state.ended(job.name, "done", 0)
    edited = f"{BANDIT} --train_for_env_steps=2000"
    Path("many.toml").write_text(f"[[experiments]]\nbase_name='run'\ncmd='{edited}'\ngrid={{seed=[1]}}\n")

    interrupts = Interrupts()
    interrupts.signum, interrupts.count = signal.SIGINT, 1  # before anything is started
    line, code = launch(LauncherConfig(run="many.toml", train_dir="."), "the command", interrupts)
    interrupts.restore()

    assert (code, json.loads(line)["runs"][0]["status"]) == (130, "waiting")
