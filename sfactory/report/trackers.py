"""Observers that send a run to experiment trackers: ``--observers wandb``, ``mlflow``, ``trackio``.

Each is configured by the variables of its own package (WANDB_PROJECT, MLFLOW_TRACKING_URI, ...); without
them its project is ``sfactory``. Every row of metrics.jsonl is sent, over env steps, videos of evaluations, and the
settings once. A resumed run goes on where it was. A tracker that fails while the run trains loses rows or videos, which
is logged; the run goes on.

NOTE [Calls of trackers]: each tracker has a thread that makes all calls of its package, in order. Main never waits for
a row. It waits for the begin and the end of a tracker's run, for TIMEOUTS.tracker seconds at most.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from sfactory import atomic
from sfactory.clock import TIMEOUTS
from sfactory.config.flags import utf8_text, value_text, values_of
from sfactory.config.saved_config import RUN_NAME, VIDEOS_NAME
from sfactory.errors import ResourceError, named
from sfactory.experiment.summary import Outcome
from sfactory.report.eval_results import VIDEO
from sfactory.report.observers import Observer, RunFacts
from sfactory.system.optional_packages import required

PROJECT = "sfactory"
_MLFLOW_PARAMS = 100  # in one request
_NOT_IN_MLFLOW = re.compile(r"[^\w\-. :/]")
_MLFLOW_CHARACTERS = 250  # of a name
_MOST_WAITING = 1000  # rows that a tracker has not taken yet; more are lost

_log = logging.getLogger(__name__)


class Tracker(Observer):
    """What all trackers do; ``package`` is the module that sends, and the extra that installs it."""

    package: str

    def __init__(self) -> None:
        """Raises ConfigError without the package."""
        self._api: Any = required(self.package, f"the observer {type(self).__name__}", self.package)
        self._warned = set[str]()
        self._calls: queue.SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = queue.SimpleQueue()

    def _call(self) -> None:
        """The thread of NOTE [Calls of trackers], until there is None to call."""
        for call, result in iter(self._calls.get, None):
            try:
                call()
                result.set_result(None)
            except BaseException as error:  # of a foreign package
                result.set_exception(error)

    def _submit(self, call: Callable[[], None]) -> Future[None]:
        result = Future[None]()
        self._calls.put((call, result))
        return result

    def on_init(self, facts: RunFacts) -> None:
        """Begin, or go on with what an earlier session of the run has begun; an error ends the run before it trains."""
        # The first session names the run: its folder may be moved, and another may get its name later.
        first = atomic.read_json(facts.run_dir / RUN_NAME)["sessions"][0]["id"]
        values = values_of(facts.config)
        settings = {name: utf8_text(value) if isinstance(value, str) else value for name, value in values.items()}
        threading.Thread(target=self._call, name=self.package, daemon=True).start()
        begun = self._submit(lambda: self.begin(facts.run_dir.name, str(first), settings, str(facts.run_dir)))
        try:
            begun.result(TIMEOUTS.tracker)
        except BaseException as error:
            self._calls.put(None)
            if not isinstance(error, TimeoutError) or begun.done():  # raised by the package
                raise
            raise ResourceError(
                f"--observers={self.package}: its run did not begin within {TIMEOUTS.tracker:.0f} s; look whether its "
                "server can be reached, use its offline mode (docs/report.md), or leave it out"
            ) from error

    def on_report(self, row: Mapping[str, float | None]) -> None:
        """Send a row, without its unknown numbers."""
        numbers = {name: value for name, value in row.items() if value is not None}
        self._send("rows", lambda: self.send(numbers, int(numbers["env_steps"])))

    def on_video(self, path: Path, env_steps: int) -> None:
        """Send a video."""
        self._send("videos", lambda: self.send_video(path, env_steps))

    def _send(self, what: str, call: Callable[[], None]) -> None:
        def look(sent: Future[None]) -> None:
            if (error := sent.exception()) is not None:
                self._warn(what, named(error))

        if self._calls.qsize() < _MOST_WAITING:
            self._submit(call).add_done_callback(look)
        else:
            self._warn(what, f"it has not taken the last {_MOST_WAITING} rows")

    def _warn(self, what: str, cause: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("%s: %s are lost: %s; training continues", self.package, what, cause)

    def on_stop(self, outcome: Outcome) -> None:
        """Send what is left, and how the run ended."""
        ended = self._submit(lambda: self.end(outcome))
        self._calls.put(None)
        try:
            ended.result(TIMEOUTS.tracker)
        except Exception as error:
            cause = named(error) if ended.done() else f"it takes longer than {TIMEOUTS.tracker:.0f} s"
            _log.warning("%s: could not end its run, rows may be lost: %s", self.package, cause)

    def begin(self, name: str, identity: str, settings: Mapping[str, object], folder: str) -> None:
        """Begin a run, or go on with the one of this ``identity``. settings: values by flag."""
        raise NotImplementedError

    def send(self, numbers: Mapping[str, float], env_steps: int) -> None:
        """Send one row."""
        raise NotImplementedError

    def send_video(self, path: Path, env_steps: int) -> None:
        """Send the mp4 at ``path``."""
        raise NotImplementedError

    def end(self, outcome: Outcome) -> None:
        """End the run."""
        raise NotImplementedError


def _plain(settings: Mapping[str, object]) -> dict[str, Any]:
    """As JSON has them, so that a tracker can sort and plot by them: numbers, true and false, lists, dicts."""

    def converted(value: object) -> object:
        return dict(value) if isinstance(value, Mapping) else str(value)

    return dict(json.loads(json.dumps(dict(settings), default=converted)))


class WandbTracker(Tracker):
    """Weights & Biases; WANDB_MODE=offline keeps all in the run's folder, for ``wandb sync``."""

    package = "wandb"

    def begin(self, name: str, identity: str, settings: Mapping[str, object], folder: str) -> None:
        for bound in ("WANDB_INIT_TIMEOUT", "WANDB_FINISH_TIMEOUT"):  # its exit handler would wait without an end, too
            os.environ.setdefault(bound, f"{TIMEOUTS.tracker:g}")
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run = self._api.init(
            project=project, name=name, id=identity, resume="allow", config=_plain(settings), dir=folder
        )
        # Not its own step, which may not go back as a resumed run does.
        self._run.define_metric("*", step_metric="env_steps")

    def send(self, numbers: Mapping[str, float], env_steps: int) -> None:
        self._run.log(dict(numbers))

    def send_video(self, path: Path, env_steps: int) -> None:
        self._run.log({VIDEO: self._api.Video(str(path), format="mp4"), "env_steps": env_steps})

    def end(self, outcome: Outcome) -> None:
        self._run.finish(exit_code=0 if outcome.status == "done" else 1)


class MlflowTracker(Tracker):
    """MLflow."""

    package = "mlflow"

    def begin(self, name: str, identity: str, settings: Mapping[str, object], folder: str) -> None:
        self._names: dict[str, str] = {}  # there, by name here
        self._client = self._api.MlflowClient()
        experiment = self._api.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)).experiment_id
        found = self._client.search_runs([experiment], f"tags.sfactory_session = '{identity}'")
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        run = self._client.create_run(experiment, run_name=name, tags={"sfactory_session": identity})
        self._run = run.info.run_id
        params = [self._api.entities.Param(name, value_text(value)) for name, value in settings.items()]
        for at in range(0, len(params), _MLFLOW_PARAMS):
            self._client.log_batch(self._run, params=params[at : at + _MLFLOW_PARAMS])

    def send(self, numbers: Mapping[str, float], env_steps: int) -> None:
        accepted = {self._accepted(name): number for name, number in numbers.items()}
        self._api.log_metrics(accepted, step=env_steps, run_id=self._run)

    def _accepted(self, name: str) -> str:
        """The name of a metric without what MLflow refuses, which would cost the whole row; no two get the same."""
        if name not in self._names:
            parts = _NOT_IN_MLFLOW.sub("_", name)[:_MLFLOW_CHARACTERS].split("/")
            wanted = "/".join("_" if part in ("", ".", "..") else part for part in parts)
            taken, number, found = set(self._names.values()), 1, wanted
            while found in taken:
                number += 1
                ending = f"_{number}"
                found = wanted[: _MLFLOW_CHARACTERS - len(ending)] + ending
            self._names[name] = found
            if found != name and "names" not in self._warned:
                self._warned.add("names")
                _log.warning("mlflow: it refuses metrics named like %r, which are like %r there", name, found)
        return self._names[name]

    def send_video(self, path: Path, env_steps: int) -> None:
        # An artifact, which MLflow shows by its name.
        self._client.log_artifact(self._run, str(path), VIDEOS_NAME)

    def end(self, outcome: Outcome) -> None:
        status = {"done": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}[outcome.status]
        self._client.set_terminated(self._run, status)


class TrackioTracker(Tracker):
    """Trackio; keeps all on this machine unless TRACKIO_SPACE_ID names a place on the Hugging Face Hub."""

    package = "trackio"

    def begin(self, name: str, identity: str, settings: Mapping[str, object], folder: str) -> None:
        # Trackio knows a run by its name, so the identity is part of it.
        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        self._run = self._api.init(
            project=project, name=f"{name}-{identity}", config=_plain(settings), resume="allow", embed=False
        )

    def send(self, numbers: Mapping[str, float], env_steps: int) -> None:
        self._run.log(dict(numbers), step=env_steps)

    def send_video(self, path: Path, env_steps: int) -> None:
        self._run.log({VIDEO: self._api.Video(str(path), format="mp4")}, step=env_steps)

    def end(self, outcome: Outcome) -> None:
        self._run.finish()
