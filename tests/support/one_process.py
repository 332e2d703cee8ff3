"""Runs serial and resident executors in the process of the test, and keeps each dataset that was learned from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sfactory.config.flags import config_of
from sfactory.config.schema import Config
from sfactory.env.factory import EnvFactory
from sfactory.experiment.resume import Resumed
from sfactory.experiment.run_dir import RunDir
from sfactory.experiment.summary import Outcome
from sfactory.learner.learner import Learner
from sfactory.learner.staging import Columns
from sfactory.planning.env_probe import examine
from sfactory.planning.plan import Plan, plan_run
from sfactory.process.signals import Interrupts
from sfactory.process.spawn import Spawner
from sfactory.report.console import Console
from sfactory.report.observers import Observers
from sfactory.runner.context import RunContext
from sfactory.runner.resident import ResidentExecutor
from sfactory.runner.serial import SerialExecutor
from sfactory.supervise.restarts import RestartBudget

Dataset = dict[str, torch.Tensor]
FLAGS: dict[str, object] = {
    "device": "cpu",
    "task_defaults": False,
    "serial_mode": True,
    "async_rl": False,
    "inference": "local",
    "num_workers": 1,
    "worker_num_splits": 1,
    "encoder_mlp_layers": (16,),
    "with_tensorboard": False,
}


def config_for(env: str, **flags: object) -> Config:
    """What a run with a TensorEnv has."""
    return config_of({**FLAGS, "env": env, "experiment": "run", **flags})


def snapshot(columns: Columns) -> Dataset:
    """Copies of all tensors of a dataset, by name."""
    tensors = {f"obs:{key}": value for key, value in columns.obs.items()}
    tensors |= {f"action:{key}": value for key, value in columns.actions.items()}
    tensors |= {**columns.scalars, "is_first": columns.is_first, "rnn_states": columns.rnn_states}
    return {name: tensor.clone() for name, tensor in tensors.items()}


def trained_in_process(
    config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], list[Dataset]]:
    """Train to the limit; returns weights, moments and "summary" at the end, and the datasets."""
    executor, outcome, datasets = run_in_process(config, folder, monkeypatch)
    assert outcome.error is None, outcome.error
    trainer = executor._learners[0].trainer
    state = {"model": dict(trainer.model.state_dict()), **trainer.updater.state()}
    return {**state, "summary": outcome.summary}, datasets


def context_in(
    run_dir: RunDir, interrupts: Interrupts, config: Config, plan: Plan, resumed: Resumed | None = None
) -> RunContext:
    """Of a run without a console, observers, and restarts."""
    return RunContext(
        config=config,
        seed=1,
        plan=plan,
        run_dir=run_dir,
        resumed=resumed or Resumed(),
        console=Console(None, None),
        observers=Observers(),
        spawner=Spawner(),
        interrupts=interrupts,
        started_at=0.0,
        worker_restarts=RestartBudget("max_worker_restarts", 0),
        run_restarts=RestartBudget("max_restarts", 0),
    )


def run_in_process(
    config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[SerialExecutor, Outcome, list[Dataset]]:
    """Train until the run ends; returns the datasets, too."""
    datasets: list[Dataset] = []
    learn = Learner.learn

    def learn_and_keep(learner: Learner, columns: Columns) -> None:
        datasets.append(snapshot(columns))
        learn(learner, columns)

    monkeypatch.setattr(Learner, "learn", learn_and_keep)
    probed = examine(EnvFactory.of(config))
    with Interrupts() as interrupts, RunDir.open(folder, "run") as run_dir, torch.random.fork_rng():
        plan = plan_run(config, probed.spec.for_model(config.model), resident=probed.makes_tensors)
        context = context_in(run_dir, interrupts, config, plan)
        executor = (ResidentExecutor if probed.makes_tensors else SerialExecutor)(context)
        outcome = executor.run()
    monkeypatch.undo()
    return executor, outcome, datasets
