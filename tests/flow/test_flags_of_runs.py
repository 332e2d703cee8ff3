"""Flags of a whole run, given as a user gives them, and what can be seen of them from outside."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from sfactory import enjoy, export
from sfactory.errors import ExitCode
from sfactory.seeds import Branch, seed_at
from sfactory.system.cores import Cores
from tests.support.long import long
from tests.support.process_states import wait_until_all_work
from tests.support.trainer import ENDLESS, REAL, RunTrainer, TrainerRun

NEVER_S = 100_000
SEED = 7
SEESAW = "tests.support.envs:Seesaw"
ACTORS = ["sf-actor-0", "sf-actor-1"]


def stop(runs: Iterable[TrainerRun]) -> None:
    """End endless runs, all at once."""
    runs = list(runs)
    for run in runs:
        run.signal_main(signal.SIGTERM)
    for run in runs:
        run.assert_ended(ExitCode.SIGTERM)


def progress_lines(run: TrainerRun) -> int:
    return run.stderr.count("] env_steps=")


def event_bytes(run: TrainerRun) -> int:
    """Size of the flushed part of the event file of the run; 0 if there is none."""
    return sum(path.stat().st_size for path in run.run_dir.glob("events.out.tfevents.*"))


@pytest.mark.long
def test_each_interval_of_reports_has_a_flag_of_its_own(run_trainer: RunTrainer) -> None:
    seldom = {"report_interval_sec": NEVER_S, "experiment_summaries_interval": NEVER_S}
    endless = {"train_for_env_steps": ENDLESS, "save_every_sec": NEVER_S, "env": SEESAW}
    flags: dict[str, dict[str, Any]] = {
        "lines": {**seldom, "report_interval_sec": 0.25},
        "rows": {**seldom, "experiment_summaries_interval": 0.25, "flush_summaries_interval": NEVER_S},
        "flushes": {**seldom, "experiment_summaries_interval": 0.25, "flush_summaries_interval": 0.25},
    }
    runs = {
        name: run_trainer(
            experiment=name, serial_mode=name != "lines", with_tensorboard=name != "lines", **endless, **given
        )
        for name, given in flags.items()
    }

    runs["lines"].wait_until(lambda: progress_lines(runs["lines"]) >= 6)
    runs["rows"].wait_until(lambda: len(runs["rows"].metrics()) >= 6)
    for _ in range(3):
        flushed = event_bytes(runs["flushes"])
        runs["flushes"].wait_until(lambda flushed=flushed: event_bytes(runs["flushes"]) > flushed)  # type: ignore[misc]

    assert runs["lines"].metrics() == []
    assert event_bytes(runs["rows"]) == 0
    assert [progress_lines(runs[name]) for name in ("rows", "flushes")] == [0, 0]
    stop(runs.values())
    # At its end a run reports everything once more.
    assert len(runs["lines"].metrics()) == 1
    assert [progress_lines(runs[name]) for name in ("rows", "flushes")] == [1, 1]
    assert [event_bytes(run) > 0 for run in runs.values()] == [False, True, True]


def reports(path: Path) -> dict[str, Any]:
    """What the first env of a process reports in its file."""
    return dict(json.loads(path.read_text().splitlines()[0]))


def own_library(folder: Path) -> Path:
    """A copy of numpy's library for linear algebra: to the loader it is another one, with threads of its own."""
    # By its place, not from the loaded ones: other packages bring libraries that cannot be loaded from elsewhere.
    own = next(Path(np.__file__).parent.with_name("numpy.libs").glob("libscipy_openblas*"))
    return Path(shutil.copy(own, folder))


@pytest.mark.long
def test_processes_have_the_niceness_cores_threads_and_seed_of_the_flags(
    run_trainer: RunTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "4")
    library = own_library(tmp_path)
    flags: dict[str, dict[str, Any]] = {
        "pinned": {
            "default_niceness": 3,
            "set_workers_cpu_affinity": True,
            "force_envs_single_thread": False,
            "num_batches_to_accumulate": 0,
        },
        # Not pinned: on one core a library would begin with one thread by itself.
        "single": {"default_niceness": 0, "set_workers_cpu_affinity": False, "force_envs_single_thread": True},
    }
    runs, folders = {}, {}
    for name, given in flags.items():
        folders[name] = tmp_path / f"threads_of_{name}"
        folders[name].mkdir()
        runs[name] = run_trainer(
            REAL,  # libraries choose their numbers of threads when they are loaded
            experiment=name,
            env="tests.support.envs:Reporting",
            env_kwargs={"folder": str(folders[name]), "library": str(library)},
            train_for_env_steps=ENDLESS,
            seed=SEED,
            **given,
        )
    for run in runs.values():
        wait_until_all_work(run)

    own, cores = os.getpriority(os.PRIO_PROCESS, 0), Cores.available()
    for name, niceness, of_actor in (("pinned", 3, 2), ("single", 0, 7)):  # in turn with the learner, or beside it
        for process, more in {"learner-0": 0, "policy-0-0": 1, "actor-0": of_actor, "actor-1": of_actor}.items():
            found = os.getpriority(os.PRIO_PROCESS, runs[name].pid_of(f"sf-{process}"))
            assert found == min(19, own + niceness + more), f"{process} of {name}"
    drawn: list[list[float]] = []  # by the first env of each actor: Python's, numpy's and torch's number
    for index, actor in enumerate(ACTORS):
        pinned_to = cores.cores_of_actor(index, len(ACTORS))
        assert os.sched_getaffinity(runs["pinned"].pid_of(actor)) == (pinned_to or set(cores.ids))
        assert os.sched_getaffinity(runs["single"].pid_of(actor)) == set(cores.ids)
        reported = {name: reports(folders[name] / actor) for name in flags}
        drawn.append(reported["pinned"]["drawn"])
        assert reported["single"]["drawn"] == drawn[index]
        assert drawn[index][0] == random.Random(seed_at(SEED, Branch.LIBRARIES, index, 0, 0)).random()
        threads = {name: reported[name]["threads"] for name in flags}
        # Those that a process has from its start, and the one that the env brings along.
        assert {str(library)} < set(threads["single"])
        assert set(threads["single"].values()) == {1}, threads["single"]
        assert len(cores.ids) == 1 or max(threads["pinned"].values()) > 1, threads["pinned"]
    assert all(one != two for one, two in zip(*drawn, strict=True))
    stop(runs.values())


@pytest.mark.skipif(Cores.available().count < 2, reason="one core cannot be kept free of the only one")
def test_cores_kept_for_the_learner_are_closed_to_actors_alone(run_trainer: RunTrainer) -> None:
    run = run_trainer(learner_cores=1, train_for_env_steps=ENDLESS)
    wait_until_all_work(run)
    learner, *actors = (os.sched_getaffinity(run.pid_of(name)) for name in ("sf-learner-0", *ACTORS))
    run.stop()

    cores = Cores.available().ids
    assert learner == set(cores)
    assert all(len(own) > 0 and own <= set(cores[1:]) for own in actors)


@pytest.mark.parametrize("evaluated", [False, long(True)])
def test_a_wrapped_env_is_evaluated_resumed_played_and_exported_in_its_wrappers(
    evaluated: bool, run_trainer: RunTrainer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = ("tests.support.wrapped_envs:HalfReward",)
    flags = {
        "sticky_actions": 0.1,
        "action_repeat": 2,
        "max_episode_steps": 6,
        "env_framestack": 3,
        "flatten_obs": True,
    }
    if evaluated:
        run = run_trainer(train_for_env_steps=ENDLESS, eval_interval_sec=0.2, eval_episodes=2, wrapper=code, **flags)
        run.wait_until_training()
        run.wait_until(lambda: any("eval/episodes" in row for row in run.metrics()))
        run.stop()
        lengths = {row["eval/episode_length_mean"] for row in run.metrics() if "eval/episodes" in row}
        assert 4 <= min(lengths) <= max(lengths) <= 6
    else:
        run = run_trainer(train_for_env_steps=512, serial_mode=True, wrapper=code, **flags).done()
    assert "--wrapper tests.support.wrapped_envs:HalfReward, --sticky_actions=0.1, --action_repeat=2" in run.stderr
    # A step is two of CartPole, each of which gives a half.
    assert run.result()["episode_return_mean"] == pytest.approx(run.result()["episode_length_mean"], rel=0.1)
    assert run.result()["episode_length_mean"] <= 6

    frames = 2 * run.saved_env_steps() + 1024
    again = {"train_for_frames": frames, "train_for_env_steps": ENDLESS, "serial_mode": not evaluated}
    resumed = run_trainer(**again, wrapper=code).done()
    assert frames <= resumed.result()["frames"] == 2 * resumed.result()["env_steps"]
    assert resumed.result()["episode_length_mean"] <= 6

    where = [f"--train_dir={run.run_dir.parent}", "--experiment=run"]
    assert enjoy.main([*where, "--max_num_episodes=3"]) == ExitCode.REFUSED
    assert enjoy.main([*where, "--max_num_episodes=3", "--trust_run_dir=True"]) == ExitCode.DONE
    assert json.loads(capfd.readouterr().out)["episode_length_mean"] <= 6
    assert export.main([*where, f"--out={tmp_path / 'a.safetensors'}"]) == ExitCode.DONE
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert json.loads(file.metadata()["env_wrappers"]) == {"wrapper": list(code), **flags}
