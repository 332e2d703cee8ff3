"""A start that ends before it has trained leaves the earlier run of its name as it was."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from sfactory.checkpoint.directory import CheckpointDir
from sfactory.config.resolve import read_command_line
from sfactory.env.factory import EnvFactory
from sfactory.errors import ConfigError, SFactoryError, WorkerDied
from sfactory.experiment.run_dir import saved_env_steps
from sfactory.experiment.summary import Outcome
from sfactory.pbt.state import STATE_NAME
from sfactory.planning.env_probe import Probed, examine
from sfactory.process.signals import Interrupts
from sfactory.process.spawn import Spawner
from sfactory.report.observers import Observer, RunFacts
from sfactory.results.runs import Run
from sfactory.runner import session
from sfactory.runner.serial import SerialExecutor, SerialSampling
from tests.support.files import write_files

ENV = "--env=sfactory_envs.synthetic.bandit:Bandit"
FLAGS = "--serial_mode=True --device=cpu --task_defaults=False --num_workers=1 --num_envs_per_worker=2 --rollout=8"
SIZES = "--batch_size=16 --num_batches_per_epoch=1 --encoder_mlp_layers 4 --with_tensorboard=False --experiment=run"


class Refusing(Observer):
    """Refuses the run that it is to observe, as a tracker does that is not logged in."""

    def on_init(self, facts: RunFacts) -> None:
        raise ConfigError(["no account"])


class Stopping(Observer):
    """Sends Ctrl-C as soon as all has started."""

    def on_start(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


class Ended(Observer):
    """Writes down how its session began and ended."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_init(self, facts: RunFacts) -> None:
        self.calls.append("on_init")

    def on_stop(self, outcome: Outcome) -> None:
        self.calls.append(f"{outcome.status} at {outcome.summary.env_steps}: {outcome.error}")


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    def probed(_spawner: Spawner, factory: EnvFactory, *_: object, **__: object) -> Probed:
        return examine(factory)

    monkeypatch.setattr(session, "probe_env", probed)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])


def start(folder: Path, *words: str, observing: Mapping[str, Observer] | None = None) -> Outcome:
    argv = [*words, *FLAGS.split(), *SIZES.split(), f"--train_dir={folder}"]
    try:
        with Interrupts() as interrupts, torch.random.fork_rng():
            return session.Session(read_command_line(argv), argv, Spawner(), interrupts, 0.0).train(observing)
    finally:
        interrupts.restore()  # after a signal they are ignored


def fail(*_: object) -> None:
    raise WorkerDied("no licence is free")


def test_a_run_is_back_under_its_name_after_starts_that_failed_before_they_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start(tmp_path, ENV, "--train_for_env_steps=32")

    with monkeypatch.context() as broken:
        broken.setattr(SerialSampling, "make", fail)
        for _ in range(2):
            assert start(tmp_path, ENV, "--restart_behavior=overwrite").status == "failed"
            assert saved_env_steps(tmp_path / "run") == 32
    command = capsys.readouterr().err.splitlines()[-1].partition(" resume: ")[2]
    assert "--restart_behavior=overwrite" in command
    for _ in range(2):
        with pytest.raises(ConfigError, match="no account"):
            start(tmp_path, ENV, "--restart_behavior=overwrite", observing={"account": Refusing()})
        assert saved_env_steps(tmp_path / "run") == 32

    assert start(tmp_path, ENV, "--restart_behavior=overwrite", "--train_for_env_steps=64").status == "done"
    assert saved_env_steps(tmp_path / "run") == 64
    assert saved_env_steps(tmp_path / "run_overwritten") == 32


def test_flags_of_a_start_that_failed_before_it_trained_are_not_those_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path, ENV, "--train_for_env_steps=32", "--env_kwargs", '{"length": 4}')
    config = tmp_path / "run" / "config.json"
    before = config.read_bytes()
    given = ["--train_for_env_steps=64", "--max_bad_steps=7", "--env_kwargs", '{"length": 3}']

    with pytest.raises(ConfigError, match="no account"):
        start(tmp_path, ENV, *given, observing={"account": Refusing()})
    assert config.read_bytes() == before
    with monkeypatch.context() as broken:
        broken.setattr(SerialSampling, "make", fail)
        assert start(tmp_path, ENV, *given).status == "failed"
    assert config.read_bytes() == before

    assert start(tmp_path, ENV, *given).status == "done"
    assert config.read_bytes() != before


def test_a_start_that_is_stopped_before_it_has_trained_changes_neither_flags_nor_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(tmp_path, ENV, "--train_for_env_steps=32")
    config = tmp_path / "run" / "config.json"
    before = config.read_bytes()
    typo = ("--train_for_env_steps=64", "--learning_rate=0.5")

    assert start(tmp_path, ENV, *typo, observing={"stop": Stopping()}).status == "interrupted"
    assert config.read_bytes() == before
    again = start(tmp_path, ENV, *typo, "--restart_behavior=restart", observing={"stop": Stopping()})

    assert again.status == "interrupted"
    assert config.read_bytes() == before
    assert saved_env_steps(tmp_path / "run") == 32
    assert "--restart_behavior=restart" in capsys.readouterr().err.splitlines()[-1].partition(" resume: ")[2]


def test_starts_that_train_nothing_leave_what_is_on_record_of_a_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(_spawner: Spawner, factory: EnvFactory, *_: object, **__: object) -> Probed:
        os.kill(os.getpid(), signal.SIGINT)
        return examine(factory)

    def record() -> dict[str, Any]:
        return dict(json.loads((tmp_path / "run" / "run.json").read_text()))

    start(tmp_path, ENV, "--train_for_env_steps=32", "--seed=3")
    before, summary = record(), (tmp_path / "run" / "summary.json").read_bytes()
    again = start(tmp_path, ENV, "--train_for_env_steps=32", "--seed=7")
    monkeypatch.setattr(session, "probe_env", stopped)
    interrupted = start(tmp_path, ENV, "--train_for_env_steps=64", "--seed=8")

    assert [again.status, interrupted.status] == ["done", "interrupted"]
    sessions = record()["sessions"]
    assert record() == {**before, "sessions": sessions}
    assert [(each["seed"], each["status"]) for each in sessions] == [(3, "done"), (7, "done"), (8, "interrupted")]
    assert (tmp_path / "run" / "summary.json").read_bytes() == summary


def test_the_start_that_finds_a_killed_run_finished_records_that_it_is_done(tmp_path: Path) -> None:
    start(tmp_path, ENV, "--train_for_env_steps=32", "--seed=3")
    file = tmp_path / "run" / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "status": "running"}))

    start(tmp_path, ENV, "--train_for_env_steps=32", "--seed=7")

    record = json.loads(file.read_text())
    assert (record["status"], record["seed"]) == ("done", 3)


def test_a_new_run_that_is_refused_leaves_no_flags(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no account"):
        start(tmp_path, ENV, observing={"account": Refusing()})

    assert not (tmp_path / "run" / "config.json").exists()


def test_observers_that_have_begun_are_ended_where_a_later_one_refuses_the_run(tmp_path: Path) -> None:
    start(tmp_path, ENV, "--train_for_env_steps=32")
    first, last = Ended(), Ended()

    with pytest.raises(ConfigError, match="no account"):
        start(tmp_path, ENV, "--train_for_env_steps=64", observing={"a": first, "b": Refusing(), "c": last})

    assert first.calls == ["on_init", "failed at 32: no account"]
    assert not last.calls
    for name in ("run.json", "summary.json"):
        assert json.loads((tmp_path / "run" / name).read_text())["status"] == "failed"


def test_observers_are_ended_where_a_population_cannot_be_read(tmp_path: Path) -> None:
    write_files(tmp_path / "run", {STATE_NAME: "{"})
    observer = Ended()

    with pytest.raises(SFactoryError, match=STATE_NAME) as refused:
        start(tmp_path, ENV, "--with_pbt=True", "--num_policies=2", observing={"a": observer})

    assert observer.calls == ["on_init", f"failed at 0: {refused.value}"]


def test_observers_are_ended_after_an_error_that_was_not_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observer, before = Ended(), SerialExecutor._finish

    def broken(*given: Any) -> Outcome:
        before(*given)
        raise RuntimeError("something is off")

    monkeypatch.setattr(SerialExecutor, "_finish", broken)
    with pytest.raises(RuntimeError, match="something is off"):
        start(tmp_path, ENV, "--train_for_env_steps=32", observing={"a": observer})

    assert observer.calls == ["on_init", "failed at 32: RuntimeError: something is off"]


def test_a_start_from_an_older_checkpoint_that_fails_before_it_trained_sets_none_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start(tmp_path, ENV, "--train_for_env_steps=32")
    saved = CheckpointDir(tmp_path / "run" / "checkpoint_p0", keep=2)
    older = saved.load()
    assert older is not None
    start(tmp_path, ENV, "--train_for_env_steps=64")
    saved.save_best(older.payload, 2, 32, metric=0.0)
    before = {path.name for path in saved.path.iterdir()}

    monkeypatch.setattr(SerialSampling, "turn", fail)
    start(tmp_path, ENV, "--train_for_env_steps=96", "--load_checkpoint_kind=best")

    assert {path.name for path in saved.path.iterdir()} == before
    assert saved_env_steps(tmp_path / "run") == 64
    assert Run(tmp_path / "run").rows[-1]["env_steps"] == 64
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"] == 64
    assert "--load_checkpoint_kind=best" in capsys.readouterr().err.splitlines()[-1].partition(" resume: ")[2]


def test_a_policy_that_does_not_learn_goes_back_with_the_one_that_learns_unless_that_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = (ENV, "--num_policies=2")
    start(tmp_path, *two, "--train_for_env_steps=32")
    saved = [CheckpointDir(tmp_path / "run" / f"checkpoint_p{policy}", keep=1) for policy in (0, 1)]
    for directory in saved:
        loaded = directory.load()
        assert loaded is not None
        directory.save_best(dict(loaded.payload) | {"train_seconds": 7.0}, 1, 16, metric=0.0)
    before = {path.name for path in saved[1].path.iterdir()}
    back = [*two, "--train_policies", "0", "--load_checkpoint_kind=best", "--train_for_env_steps=96"]

    with monkeypatch.context() as broken:
        broken.setattr(SerialSampling, "turn", fail)
        assert start(tmp_path, *back).status == "failed"
    assert {path.name for path in saved[1].path.iterdir()} == before
    assert start(tmp_path, *back).status == "done"

    again = saved[1].load()
    assert again is not None
    assert again.payload["train_seconds"] == 7.0
