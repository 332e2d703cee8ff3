"""Observers that send a run to experiment trackers: ``--observers wandb``, ``mlflow``.

Each is configured by the variables of its own package (WANDB_PROJECT, MLFLOW_TRACKING_URI, ...); without
them its project is ``sfactory``. Every row of metrics.jsonl is sent, over env steps, and the settings once. A resumed
run goes on where it was. A tracker that fails while the run trains loses rows, which is logged; the run goes on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from sfactory import atomic
from sfactory.config.flags import value_text, values_of
from sfactory.config.saved_config import RUN_NAME
from sfactory.errors import named
from sfactory.experiment.summary import Outcome
from sfactory.report.observers import Observer, RunFacts
from sfactory.system.optional_packages import required

PROJECT = "sfactory"
_MLFLOW_PARAMS = 100  # in one request

_log = logging.getLogger(__name__)


class Tracker(Observer):
    """What all trackers do; ``package`` is the module that sends, and the extra that installs it."""

    package: str

    def __init__(self) -> None:
        """Raises ConfigError without the package."""
        self._api: Any = required(self.package, f"the observer {type(self).__name__}", self.package)
        self._warned = False

    def on_init(self, facts: RunFacts) -> None:
        """Begin, or go on with what an earlier session of the run has begun; an error ends the run before it trains."""
        # The first session names the run: its folder may be moved, and another may get its name later.
        first = atomic.read_json(facts.run_dir / RUN_NAME)["sessions"][0]["id"]
        settings = {name: value_text(value) for name, value in values_of(facts.config).items()}
        self.begin(facts.run_dir.name, str(first), settings, str(facts.run_dir))

    def on_report(self, row: Mapping[str, float | None]) -> None:
        """Send a row, without its unknown numbers."""
        numbers = {name: value for name, value in row.items() if value is not None}
        try:
            self.send(numbers, int(numbers["env_steps"]))
        except Exception as error:
            if not self._warned:
                self._warned = True
                _log.warning("%s: rows are lost: %s; training continues", self.package, named(error))

    def on_stop(self, outcome: Outcome) -> None:
        """Send what is left, and how the run ended."""
        try:
            self.end(outcome)
        except Exception as error:
            _log.warning("%s: could not end its run: %s", self.package, named(error))

    def begin(self, name: str, identity: str, settings: Mapping[str, str], folder: str) -> None:
        """Begin a run, or go on with the one of this ``identity``."""
        raise NotImplementedError

    def send(self, numbers: Mapping[str, float], env_steps: int) -> None:
        """Send one row."""
        raise NotImplementedError

    def end(self, outcome: Outcome) -> None:
        """End the run."""
        raise NotImplementedError


class WandbTracker(Tracker):
    """Weights & Biases; WANDB_MODE=offline keeps all in the run's folder, for ``wandb sync``."""

    package = "wandb"

    def begin(self, name: str, identity: str, settings: Mapping[str, str], folder: str) -> None:
        """See ``Tracker``."""
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run = self._api.init(
            project=project, name=name, id=identity, resume="allow", config=dict(settings), dir=folder
        )
        # Not its own step, which may not go back as a resumed run does.
        self._run.define_metric("*", step_metric="env_steps")

    def send(self, numbers: Mapping[str, float], env_steps: int) -> None:
        """See ``Tracker``."""
        self._run.log(dict(numbers))

    def end(self, outcome: Outcome) -> None:
        """See ``Tracker``."""
        self._run.finish(exit_code=0 if outcome.status == "done" else 1)


class MlflowTracker(Tracker):
    """MLflow; rows are sent by its own thread."""

    package = "mlflow"

    def begin(self, name: str, identity: str, settings: Mapping[str, str], folder: str) -> None:
        """See ``Tracker``."""
        self._client = self._api.MlflowClient()
        experiment = self._api.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)).experiment_id
        found = self._client.search_runs([experiment], f"tags.sfactory_session = '{identity}'")
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        run = self._client.create_run(experiment, run_name=name, tags={"sfactory_session": identity})
        self._run = run.info.run_id
        params = [self._api.entities.Param(name, value) for name, value in settings.items()]
        for at in range(0, len(params), _MLFLOW_PARAMS):
            self._client.log_batch(self._run, params=params[at : at + _MLFLOW_PARAMS])

    def send(self, numbers: Mapping[str, float], env_steps: int) -> None:
        """See ``Tracker``."""
        self._api.log_metrics(dict(numbers), step=env_steps, synchronous=False, run_id=self._run)

    def end(self, outcome: Outcome) -> None:
        """See ``Tracker``."""
        self._api.flush_async_logging()
        status = {"done": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}[outcome.status]
        self._client.set_terminated(self._run, status)
