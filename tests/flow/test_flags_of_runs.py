"""Flags of a whole run, given as a user gives them, and what can be seen of them from outside."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfactory.checkpoint import CheckpointDir
from sfactory.errors import ExitCode
from sfactory.system.cores import Cores
from tests.support.envs import HIGH_RETURN, LOW_RETURN
from tests.support.process_states import wait_until_all_work
from tests.support.trainer import REAL, RunTrainer, TrainerRun

ENDLESS = 1_000_000_000
NEVER_S = 100_000
SEESAW = "tests.support.envs:Seesaw"
ACTORS = ["sf-actor-0", "sf-actor-1"]


def stop(runs: Iterable[TrainerRun]) -> None:
    """End endless runs as a container's stop does, all at once."""
    runs = list(runs)
    for run in runs:
        run.signal_main(signal.SIGTERM)
    for run in runs:
        assert run.wait() == ExitCode.SIGTERM, run.report("wrong exit code")
    for run in runs:
        run.assert_clean()


def finished(run: TrainerRun) -> TrainerRun:
    assert run.wait() == ExitCode.DONE, run.report("wrong exit code")
    run.assert_clean()
    return run


def rows(run: TrainerRun) -> list[dict[str, Any]]:
    path = run.run_dir / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def progress_lines(run: TrainerRun) -> int:
    return run.stderr.count("] env_steps=")


def events(run: TrainerRun) -> int:
    """Whole records in the event file of the run; 0 if there is none."""
    count = 0
    for path in run.run_dir.glob("events.out.tfevents.*"):
        data, at = path.read_bytes(), 0
        while at + 8 <= len(data):
            # Length, its checksum, the record, its checksum.
            at += 8 + 4 + struct.unpack_from("<Q", data, at)[0] + 4
            count += at <= len(data)
    return count


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
    runs["rows"].wait_until(lambda: len(rows(runs["rows"])) >= 6)
    # The first record says which format the file has.
    runs["flushes"].wait_until(lambda: events(runs["flushes"]) >= 1 + 6)

    assert rows(runs["lines"]) == []
    assert events(runs["rows"]) == 0
    assert [progress_lines(runs[name]) for name in ("rows", "flushes")] == [0, 0]
    stop(runs.values())
    # At its end a run tells everything once more.
    assert len(rows(runs["lines"])) == 1
    assert [progress_lines(runs[name]) for name in ("rows", "flushes")] == [1, 1]
    for name in ("rows", "flushes"):
        assert events(runs[name]) == 1 + len(rows(runs[name])) >= 8
    assert events(runs["lines"]) == 0


def test_serial_sessions_end_after_seconds_and_tell_returns_from_what_policies_are_judged_by(
    run_trainer: RunTrainer,
) -> None:
    flags = {
        "env": SEESAW,
        "serial_mode": True,
        "stats_avg": 100,
        "save_best_after": 0,
        "save_best_every_sec": 0,
        "experiment_summaries_interval": 0.25,
        "train_for_env_steps": ENDLESS,
    }
    bests, last_rows = [], []
    for seconds, metric in ((3.0, "score"), (6.0, "reward")):
        run = finished(run_trainer(**flags, save_best_metric=metric, train_for_seconds=seconds))
        result = run.result()
        assert json.loads((run.run_dir / "summary.json").read_text()) == result
        assert (result["status"], result["train_seconds"] >= seconds) == ("done", True)
        assert 256 <= result["env_steps"] == run.saved_env_steps() < ENDLESS
        assert LOW_RETURN < result["episode_return_mean"] <= result["best_episode_return_mean"] < HIGH_RETURN
        last_rows.append(rows(run)[-1])
        loaded = CheckpointDir(run.run_dir / "checkpoint_p0", keep=2).load("best")
        assert loaded is not None, run.report("no best policy")
        bests.append((loaded.payload["best_metric"], loaded.payload["best_objective"]))

    assert [metric for metric, _ in bests] == ["score", "reward"]
    assert 1000 * LOW_RETURN < bests[0][1] < 1000 * HIGH_RETURN
    assert LOW_RETURN < bests[1][1] < HIGH_RETURN
    # Each session ends with a row, and its last hundred episodes are of both kinds.
    for row in last_rows:
        assert [row[f"train/episode_return_{kind}"] for kind in ("min", "max")] == [LOW_RETURN, HIGH_RETURN]
        assert LOW_RETURN < row["train/episode_return_mean"] < HIGH_RETURN
        assert [row[f"train/extra/score_{kind}"] for kind in ("min", "max")] == [1000 * LOW_RETURN, 1000 * HIGH_RETURN]
        assert [row[f"train/episode_length_{kind}"] for kind in ("min", "mean", "max")] == [4.0, 4.0, 4.0]


def own_library(folder: Path) -> Path:
    """A copy of numpy's library for linear algebra: to the loader it is another one, with threads of its own."""
    # By its place, not by what is loaded: other packages bring libraries that cannot be loaded from elsewhere.
    own = next(Path(np.__file__).parent.with_name("numpy.libs").glob("libscipy_openblas*"))
    return Path(shutil.copy(own, folder))


def test_processes_are_as_nice_as_pinned_and_as_threaded_as_is_wanted(
    run_trainer: RunTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "4")
    library = own_library(tmp_path)
    flags: dict[str, dict[str, Any]] = {
        "pinned": {"default_niceness": 3, "set_workers_cpu_affinity": True, "force_envs_single_thread": False},
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
            env="tests.support.envs:Threaded",
            env_kwargs={"folder": str(folders[name]), "library": str(library)},
            train_for_env_steps=ENDLESS,
            **given,
        )
    for run in runs.values():
        wait_until_all_work(run)

    own, cores = os.getpriority(os.PRIO_PROCESS, 0), Cores.available()
    for name, niceness in (("pinned", 3), ("single", 0)):
        for process, more in {"learner-0": 0, "policy-0-0": 2, "actor-0": 10, "actor-1": 10}.items():
            found = os.getpriority(os.PRIO_PROCESS, runs[name].pid_of(f"sf-{process}"))
            assert found == min(19, own + niceness + more), f"{process} of {name}"
    for index, actor in enumerate(ACTORS):
        pinned_to = cores.cores_of_actor(index, len(ACTORS))
        assert os.sched_getaffinity(runs["pinned"].pid_of(actor)) == (pinned_to or set(cores.ids))
        assert os.sched_getaffinity(runs["single"].pid_of(actor)) == set(cores.ids)
        threads = {name: json.loads((folders[name] / actor).read_text()) for name in flags}
        # Those that a process is born with, and the one that the env brings along.
        assert {str(library)} < set(threads["single"])
        assert set(threads["single"].values()) == {1}, threads["single"]
        assert len(cores.ids) == 1 or max(threads["pinned"].values()) > 1, threads["pinned"]
    stop(runs.values())


@pytest.mark.skipif(Cores.available().count < 2, reason="one core cannot be kept free of the only one")
def test_cores_that_are_kept_for_the_learner_are_closed_to_actors_alone(run_trainer: RunTrainer) -> None:
    run = run_trainer(learner_cores=1, train_for_env_steps=ENDLESS)
    wait_until_all_work(run)

    cores = Cores.available().ids
    learner = os.sched_getaffinity(run.pid_of("sf-learner-0"))
    actors = [os.sched_getaffinity(run.pid_of(actor)) for actor in ACTORS]
    stop([run])

    assert learner == set(cores)
    assert all(len(own) > 0 and own <= set(cores[1:]) for own in actors)


def drawn(run_trainer: RunTrainer, folder: Path, actors: list[str], **flags: object) -> list[list[float]]:
    """What the first env of each actor drew from the generators of its process, in a run with these flags."""
    folder.mkdir()
    run = run_trainer(
        env="tests.support.envs:Drawing",
        env_kwargs={"folder": str(folder)},
        experiment=folder.name,
        train_for_env_steps=512,
        **flags,
    )
    finished(run)
    return [json.loads((folder / actor).read_text().splitlines()[0]) for actor in actors]


def test_the_seed_reaches_the_generators_of_an_actors_process(run_trainer: RunTrainer, tmp_path: Path) -> None:
    # Synchronous, so that no actor can be left out.
    first = drawn(run_trainer, tmp_path / "first", ACTORS, seed=1, async_rl=False)
    again = drawn(run_trainer, tmp_path / "again", ACTORS, seed=1, async_rl=False)
    other = drawn(run_trainer, tmp_path / "other", ACTORS, seed=2, async_rl=False)

    assert first == again
    # Python's, numpy's and torch's number differ between actors and between seeds.
    assert all(one != two for one, two in zip(first[0], first[1], strict=True))
    assert all(one != two for one, two in zip(first[0], other[0], strict=True))


def test_in_serial_mode_the_seed_reaches_the_generators_of_the_process(run_trainer: RunTrainer, tmp_path: Path) -> None:
    first = drawn(run_trainer, tmp_path / "first", ["sf-main"], seed=1, serial_mode=True)
    again = drawn(run_trainer, tmp_path / "again", ["sf-main"], seed=1, serial_mode=True)
    other = drawn(run_trainer, tmp_path / "other", ["sf-main"], seed=2, serial_mode=True)

    assert first == again
    assert all(one != two for one, two in zip(first[0], other[0], strict=True))
