"""Best policies of two sessions are compared only if both sessions use the same save_best_metric."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfactory.checkpoint.directory import CheckpointDir
from sfactory.config.flags import config_of
from sfactory.config.schema import Config
from sfactory.experiment.resume import Resumed
from sfactory.experiment.run_dir import RunDir
from sfactory.experiment.summary import Summary
from sfactory.learner.learner import Learner
from sfactory.learner.setup import LearnerSetup
from sfactory.messages import PolicyLag
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import flat_bytes
from sfactory.report.collector import ReportCollector
from sfactory.shared.objects import SharedObjects
from tests.support.parts import VECTOR, small_layout

LOWEST = float("-inf")


def config_with(metric: str) -> Config:
    return config_of(
        {"env": "any", "save_best_metric": metric, "save_best_after": 0, "stats_avg": 10, "encoder_mlp_layers": (8,)}
    )


class Session:
    """A learner that trains nothing."""

    def __init__(self, rundir: RunDir, metric: str) -> None:
        config = config_with(metric)
        shared = SharedObjects(VECTOR, small_layout(), flat_bytes(ActorCritic(VECTOR, config.model)))
        self._control = shared.control
        setup = LearnerSetup(config, shared, 0, 1, "cpu", 1, str(rundir.checkpoint_dir(0)))
        self._learning = Learner(setup, shared.status.row("sf-learner-0"))
        self._learning.begin()

        self.best = self._learning.progress.best_objective  # what the next policy has to exceed

    def end(self, objective: float, env_steps: int) -> None:
        """End the session with this value of the metric."""
        progress = self._learning.progress
        progress.env_steps = progress.agent_steps = progress.run_env_steps = env_steps
        self._control.tell_objective(0, objective)
        self._learning.finish(save=True)


def summary_of(best_return: float | None, episodes: int = 70) -> Summary:
    return Summary("done", 1000, 1000, 1000, 20.0, 50.0, 60.0, episodes, 3.0, best_return, 10.0, PolicyLag(), 30)


def test_best_by_another_metric_is_not_compared(tmp_path: Path) -> None:
    sessions = [
        *[("reward", LOWEST, 50.0, ("reward", 50.0)), ("score", LOWEST, -3.0, ("score", -3.0))],
        *[("score", -3.0, -4.0, ("score", -3.0)), ("reward", LOWEST, 7.0, ("reward", 7.0))],
    ]
    with RunDir.open(tmp_path, "run") as rundir:
        for number, (metric, to_exceed, objective, on_disk) in enumerate(sessions, 1):
            session = Session(rundir, metric)
            assert session.best == to_exceed
            session.end(objective, env_steps=100 * number)
            loaded = CheckpointDir(rundir.checkpoint_dir(0), keep=2).load("best")
            assert loaded is not None
            assert (loaded.payload["best_metric"], loaded.payload["best_objective"]) == on_disk


@pytest.mark.parametrize(
    ("metric", "objective", "summary", "best_return"),
    [
        pytest.param("reward", 50.0, None, 50.0, id="killed before its first summary"),
        pytest.param("reward", 50.0, summary_of(7.0), 50.0, id="killed after the best"),
        pytest.param("reward", 5.0, summary_of(7.0), 7.0, id="a best that was not saved"),
        pytest.param("reward", 50.0, summary_of(70.0, episodes=9), 50.0, id="too few episodes for a mean"),
        pytest.param("score", 1000.0, summary_of(7.0), 7.0, id="another metric"),
        pytest.param("score", 1000.0, None, None, id="another metric, killed before its first summary"),
        pytest.param("true_objective", 1000.0, summary_of(-7.0), -7.0, id="the objective of the env"),
    ],
)
def test_best_return_of_earlier_sessions_is_a_return_for_any_metric(
    tmp_path: Path, metric: str, objective: float, summary: Summary | None, best_return: float | None
) -> None:
    with RunDir.open(tmp_path, "run") as rundir:
        Session(rundir, metric).end(objective, env_steps=1000)
        if summary is not None:
            summary.write(rundir.summary_path)
        configs = [config_with(metric_now) for metric_now in ("reward", "score")]

        found = [Resumed.from_checkpoint(rundir, config) for config in configs]

    for config, resumed in zip(configs, found, strict=True):
        assert resumed is not None
        assert (resumed.env_steps, resumed.best_return) == (1000, best_return)
        shared = SharedObjects(VECTOR, small_layout(), weight_bytes=8)
        reports = ReportCollector(config, shared.actors_to_main, shared.learners_to_main, shared.status, resumed)
        assert reports.summary("done").best_episode_return_mean == best_return
        assert reports.scalars()["train/best_episode_return_mean"] == best_return
