"""Trackers get the rows of whole runs, offline, with their real packages; a resumed run goes on where it was."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
import threading
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sfactory.clock import TIMEOUTS
from sfactory.config.flags import config_of, values_of
from sfactory.errors import ExitCode, ResourceError
from sfactory.report import trackers
from sfactory.report.trackers import MlflowTracker, Tracker, TrackioTracker, WandbTracker
from tests.support.long import LONG
from tests.support.trainer import ENDLESS, MORE_STEPS, RunTrainer, TrainerRun

STEPS = 20_000
RETURN = "train/episode_return_mean"


def train_twice(run_trainer: RunTrainer, tracker: type[Tracker]) -> TrainerRun:
    """A run and its resumption."""
    pytest.importorskip(tracker.package)
    name = f"{tracker.__module__}:{tracker.__qualname__}"
    for steps in (STEPS, STEPS + MORE_STEPS):
        run = run_trainer(train_for_env_steps=steps, serial_mode=True, inference="local", observers=(name,))
        run.assert_ended(ExitCode.DONE, within_s=300)
    return run


@LONG
def test_weights_and_biases_keeps_both_sessions_under_one_name(
    run_trainer: RunTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")

    run = train_twice(run_trainer, WandbTracker)

    files = sorted(run.run_dir.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    assert len({file.name for file in files}) == 1
    assert all(RETURN.encode() in file.read_bytes() for file in files)


@LONG
def test_mlflow_has_one_run_with_all_rows_and_settings(
    run_trainer: RunTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow: Any = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)

    run = train_twice(run_trainer, MlflowTracker)

    client = mlflow.MlflowClient(uri)
    (found,) = client.search_runs([client.get_experiment_by_name("sfactory").experiment_id])
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.params["env"] == "CartPole-v1"
    sent = {(point.step, point.value) for point in client.get_metric_history(found.info.run_id, RETURN)}
    assert sent == {(row["env_steps"], row[RETURN]) for row in run.metrics() if row.get(RETURN) is not None}


@LONG
def test_trackio_keeps_all_rows_and_settings_on_this_machine(
    run_trainer: RunTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))

    run = train_twice(run_trainer, TrackioTracker)

    first = json.loads((run.run_dir / "run.json").read_text())["sessions"][0]
    (file,) = (tmp_path / "trackio").glob("sfactory*.db")
    with contextlib.closing(sqlite3.connect(file)) as database:
        found = database.execute("SELECT run_name, step, metrics FROM metrics").fetchall()
        ((settings,),) = database.execute("SELECT config FROM configs").fetchall()
    assert {name for name, *_ in found} == {f"run-{first['id']}"}
    sent = {(step, json.loads(metrics).get(RETURN)) for _, step, metrics in found}
    assert {row for row in sent if row[1] is not None} == {
        (row["env_steps"], row[RETURN]) for row in run.metrics() if row.get(RETURN) is not None
    }
    assert json.loads(settings)["env"] == "CartPole-v1"


@LONG
def test_all_trackers_get_videos_of_evaluations(
    run_trainer: RunTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [kind for kind in (WandbTracker, MlflowTracker, TrackioTracker) if find_spec(kind.package)]
    if not kinds:
        pytest.skip("no tracker is installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri := f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    if MlflowTracker in kinds:  # which would put artifacts into the current folder
        import_module("mlflow").MlflowClient(uri).create_experiment("sfactory", str(tmp_path / "artifacts"))
    flags: dict[str, Any] = {"eval_interval_sec": 0.5, "eval_episodes": 1, "eval_video": True}

    observers = tuple(f"{kind.__module__}:{kind.__qualname__}" for kind in kinds)
    run = run_trainer(train_for_env_steps=ENDLESS, observers=observers, **flags)
    run.wait_until(lambda: len(list(run.run_dir.glob("videos/*.mp4"))) >= 2, within_s=300)
    run.stop()

    made = {path.read_bytes() for path in run.run_dir.glob("videos/*.mp4")}
    kept = {
        WandbTracker: run.run_dir.glob("wandb/offline-run-*/files/media/**/*.mp4"),
        MlflowTracker: (tmp_path / "artifacts").glob("*/artifacts/videos/*.mp4"),
        TrackioTracker: (tmp_path / "trackio").glob("**/*.mp4"),
    }
    for kind in kinds:
        assert {path.read_bytes() for path in kept[kind]} == made, kind
    assert "are lost" not in run.stderr


class Hanging(Tracker):
    """Its package waits for a server that never answers, in the calls of these names."""

    package, hangs = "json", ("begin",)

    def begin(self, *_: object) -> None:
        self._wait("begin")

    def send(self, *_: object) -> None:
        self._wait("send")

    def end(self, *_: object) -> None:
        self._wait("end")

    def _wait(self, call: str) -> None:
        if call in self.hangs:
            threading.Event().wait(600.0)


def test_a_tracker_that_hangs_is_waited_for_no_longer_than_its_bound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def wait(seconds: float) -> None:
        monkeypatch.setattr(trackers, "TIMEOUTS", dataclasses.replace(TIMEOUTS, tracker=seconds))

    wait(0.2)
    monkeypatch.setattr(trackers, "_MOST_WAITING", 2)
    facts = facts_in(tmp_path)

    with pytest.raises(ResourceError, match=r"--observers=json: its run did not begin within"):
        Hanging().on_init(facts)
    monkeypatch.setattr(Hanging, "hangs", ("send",))
    tracker = Hanging()
    wait(60.0)
    tracker.on_init(facts)
    for steps in range(5):
        tracker.on_report({"env_steps": steps})
    wait(0.2)
    tracker.on_stop(Mock())

    texts = [record.message for record in caplog.records]
    assert [text.partition(" ")[2].partition(":")[0] for text in texts] == [
        "rows are lost",
        "could not end its run, rows may be lost",
    ]


def facts_in(folder: Path) -> Any:
    """What a tracker reads of a new run there."""
    (folder / "run.json").write_text('{"sessions": [{"id": "a"}]}')
    return Mock(run_dir=folder, config=config_of({"env": "any"}))


def test_settings_are_plain_values_and_texts_for_mlflow() -> None:
    settings = values_of(config_of({"env": "any", "env_kwargs": {"a": [1, None]}, "encoder_mlp_layers": (8, 4)}))
    for kind in (WandbTracker, TrackioTracker):
        tracker = object.__new__(kind)
        tracker._api = Mock()
        tracker.begin("run", "1", settings, "folder")
        sent = tracker._api.init.call_args.kwargs["config"]
        assert sent["env_kwargs"] == {"a": [1, None]}
        assert sent["encoder_mlp_layers"] == [8, 4]
        assert (sent["learning_rate"], sent["use_rnn"], sent["env"]) == (settings["learning_rate"], False, "any")
    mlflow = object.__new__(MlflowTracker)
    mlflow._api = Mock()
    mlflow._api.MlflowClient().search_runs.return_value = []
    mlflow.begin("run", "1", settings, "folder")
    params = dict(call.args for call in mlflow._api.entities.Param.call_args_list)
    assert (params["encoder_mlp_layers"], params["use_rnn"]) == ("8 4", "False")


def test_a_path_that_is_not_utf_8_is_sent_with_escapes(tmp_path: Path) -> None:
    sent: list[object] = []

    class Beginning(Tracker):
        package = "json"

        def begin(self, name: str, identity: str, settings: Mapping[str, object], folder: str) -> None:
            sent.append(settings["train_dir"])

    facts = facts_in(tmp_path)
    facts.config = config_of({"env": "any", "train_dir": "runs\udcff"})
    Beginning().on_init(facts)

    assert sent == ["runs\\udcff"]


def test_metrics_with_names_that_mlflow_refuses_are_sent_under_names_that_it_takes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    odd = {"a[1]": "a_1_", "a(1)": "a_1__2", "50%=x": "50__x", "/b/../c//": "_/b/_/c/_/_", "d" * 251: "d" * 250}
    fine = ["train/loss", "agent 1: return.of-all"]
    mlflow = object.__new__(MlflowTracker)
    mlflow._api, mlflow._warned = Mock(), set()
    mlflow._api.MlflowClient().search_runs.return_value = []
    mlflow.begin("run", "1", {}, "folder")

    for _ in range(2):
        mlflow.send(dict.fromkeys((*odd, *fine), 1.0), 5)

    sent = [list(call.args[0]) for call in mlflow._api.log_metrics.call_args_list]
    assert sent == [[*odd.values(), *fine]] * 2
    assert len(caplog.messages) == 1


def test_a_tracker_that_fails_loses_rows_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    sent: list[Mapping[str, float]] = []

    class Failing(Tracker):
        package = "json"

        def begin(self, *_: object) -> None: ...

        def send(self, numbers: Mapping[str, float], env_steps: int) -> None:
            if env_steps:
                raise ConnectionError("no network")
            sent.append(numbers)

        def send_video(self, path: Path, env_steps: int) -> None:
            raise OSError("no such file")

    tracker = Failing()
    tracker.on_init(facts_in(tmp_path))
    for steps in (0, 1, 2):
        tracker.on_report({"env_steps": steps, "a": 1.0, "unknown": None})
        tracker.on_video(tmp_path / "eval_1.mp4", steps)
    tracker.on_stop(Mock())

    assert sent == [{"env_steps": 0, "a": 1.0}]
    texts = [record.message.rpartition("; ")[0] for record in caplog.records]
    assert texts[:2] == [
        "json: videos are lost: OSError: no such file",
        "json: rows are lost: ConnectionError: no network",
    ]
    assert len(texts) == 3
    assert "could not end" in caplog.text
    monkeypatch.setattr(Failing, "package", "no_such_tracker")
    with pytest.raises(Exception, match="pip install"):
        Failing()
