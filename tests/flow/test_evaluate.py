"""evaluate plays exactly so many episodes, the same ones in any number of processes, and names what fails."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import sfactory
from sfactory.config.commands import EvaluateConfig
from sfactory.errors import CheckpointError, ConfigError, ExitCode
from sfactory.evaluate import _evaluate
from sfactory.experiment.saved_policy import SavedPolicy
from sfactory.experiment.summary import Summary
from sfactory.play.evaluation import Evaluation
from sfactory.play.player import Episode
from sfactory.runner.evaluation import EvaluationPlan
from tests.support.saved_run import BANDIT, CONTEXTS, SPEC, TRUSTED, checkpoints, payload, save_run
from tests.support.warm_process import finished

FAULTY = "sfactory_envs.synthetic.faulty:Faulty"


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def evaluate(*argv: str, code: int = 0) -> tuple[dict[str, Any], str]:
    """The result, {} if there is none, and what was written to stderr."""
    done = finished("sfactory.evaluate", "--experiment=run", TRUSTED, *argv, cwd=Path.cwd())
    assert done.returncode == code, done.stderr
    return (json.loads(done.stdout) if done.stdout else {}), done.stderr


def test_the_command_shows_each_number_of_episodes_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Reporting:
        def run(self, report: Callable[[Sequence[Episode]], None]) -> Evaluation:
            played = [Episode(1.0, 1, {})] * 3
            for count in (0, 1, 1, 2, 3, 3, 3):
                report(played[:count])
            return Evaluation({}, tuple(played))

    monkeypatch.setattr("sfactory.evaluate._PROGRESS_S", 0.0)
    monkeypatch.setattr(SavedPolicy, "load", lambda _: Mock(checkpoint=Path("c.pth")))
    monkeypatch.setattr(EvaluationPlan, "of", lambda *_: Reporting())

    _evaluate(EvaluateConfig("run", episodes=3))

    shown = [line for line in capsys.readouterr().err.splitlines() if "episodes" in line]
    assert [line.split()[1] for line in shown] == ["1", "2", "3"]


def test_episodes_are_the_same_in_any_number_of_processes() -> None:
    save_run(certainty=0.5)
    common = ("--episodes=7", "--seed=3", '--env_kwargs={"length": 6}')

    alone, _ = evaluate(*common, "--workers=1", "--csv=alone.csv")
    three, shown = evaluate(*common, "--workers=3", "--csv=three.csv")

    assert Path("alone.csv").read_text() == Path("three.csv").read_text()
    rows = list(csv.DictReader(Path("three.csv").read_text().splitlines()))
    assert [int(row["episode"]) for row in rows] == list(range(7))
    assert {row["length"] for row in rows} == {"6"}
    returns = [float(row["return"]) for row in rows]
    assert len(set(returns)) > 1
    assert (alone.pop("workers"), three.pop("workers")) == (1, 3)
    assert alone == three
    assert three["env_kwargs"] == {"num_contexts": 4, "length": 6}
    assert three["episodes"] == 7
    assert three["episode_return_mean"] == pytest.approx(np.mean(returns))
    assert three["episode_return_std"] == pytest.approx(np.std(returns, ddof=1))
    assert three["episode_return_iqm"] == pytest.approx(np.mean(sorted(returns)[1:-1]))
    low, high = three["episode_return_iqm_interval"]
    assert low < three["episode_return_iqm"] < high
    assert "7 of 7 episodes" in shown


def test_an_env_that_fails_or_dies_is_named() -> None:
    save_run(env=FAULTY, env_kwargs={})

    for kwargs, code, text in (
        ({"raise_at": 3}, ExitCode.FAULTS, "EnvFault"),
        ({"signal_at": 3}, ExitCode.REFUSED, "its process died"),
        ({"raise_in_constructor": True}, ExitCode.REFUSED, "EnvFault"),
    ):
        assert_named(kwargs, code, text)


def test_an_env_that_hangs_is_named() -> None:
    save_run(env=FAULTY, env_kwargs={}, reset_timeout_seconds=3.0)  # a busy machine may make any env as late

    assert_named({"hang_at": 3}, ExitCode.REFUSED, "--reset_timeout_seconds=3")


def assert_named(kwargs: Mapping[str, object], code: ExitCode, text: str) -> None:
    result, shown = evaluate("--episodes=4", "--workers=2", f"--env_kwargs={json.dumps(kwargs)}", code=code)
    assert result == {}
    assert text in shown


def test_the_best_of_all_checkpoints_is_named() -> None:
    save_run(certainty=-5.0)
    checkpoints().save_milestone(payload(8.0) | {"env_steps": 30}, train_step=3, env_steps=30)
    checkpoints().save_best(payload(0.0) | {"env_steps": 50}, train_step=5, env_steps=50, metric=9.0)

    found, _ = evaluate("--checkpoints=all", "--episodes=4", "--workers=1", "--seed=3", "--csv=best.csv")

    means = {each["checkpoint_env_steps"]: each["episode_return_mean"] for each in found["checkpoints"]}
    assert list(means) == [30, 50, 70]
    assert means[30] == max(means.values()) == found["episode_return_mean"] > means[50] > means[70]
    assert found["checkpoint_env_steps"] == 30
    assert len(Path("best.csv").read_text().splitlines()) == 5
    _, shown = evaluate("--checkpoints=all", "--checkpoint_env_steps=30", code=ExitCode.REFUSED)
    assert "--checkpoints=all: " in shown


def test_weights_that_do_not_fit_the_env_are_named_by_their_checkpoint() -> None:
    save_run()

    with pytest.raises(CheckpointError, match=r"checkpoint_000000007_70\.pth does not fit"):
        sfactory.evaluate("train_dir/run", 1, env_kwargs={"num_contexts": 5}, trust_run_dir=True)


def test_another_env_is_played_if_its_spaces_are_the_same(caplog: pytest.LogCaptureFixture) -> None:
    save_run(env="gone:Env")
    checkpoints().save({**payload(1.0), "env_spec": SPEC.plain()}, train_step=8, env_steps=80)

    def played(contexts: int) -> Evaluation:
        kwargs = {"num_contexts": contexts, "length": 3}
        return sfactory.evaluate("train_dir/run", 2, workers=1, env=BANDIT, env_kwargs=kwargs)

    found = played(CONTEXTS).summary()
    assert (found["env"], found["env_kwargs"]) == (BANDIT, {"num_contexts": CONTEXTS, "length": 3})
    said = f"--env={BANDIT} is played, if its spaces are equal, in the run's wrappers without its --env_kwargs"
    assert f"{said}: the policy was trained with --env=gone:Env" in caplog.text
    with pytest.raises(ConfigError, match=r"--env=gone:Env, which differs: shape of .*: \(4,\) there, \(5,\) here"):
        played(CONTEXTS + 1)


def test_what_a_run_of_this_program_has_returned_is_trusted() -> None:
    save_run()
    checkpoints().save({**payload(1.0), "env_spec": SPEC.plain()}, train_step=8, env_steps=80)

    with pytest.raises(ConfigError, match="names this code"):
        sfactory.evaluate("train_dir/run", 2, workers=1)

    ended = sfactory.RunResult("done", 0, Summary("done", 70, 70, 70, 1.0), Path("train_dir/run"))
    assert len(sfactory.evaluate(ended, 2, workers=1).returns) == 2
    assert sfactory.load(ended).saved.wanted.trust_run_dir


def test_what_cannot_be_played_is_refused() -> None:
    save_run()
    Path("mine.csv").write_text("mine")

    _, shown = evaluate("--episodes=0", "--csv=mine.csv", code=ExitCode.REFUSED)

    assert "--episodes=0: must be at least 1" in shown
    assert "--csv=mine.csv: exists already" in shown


def test_one_episode_has_no_deviation() -> None:
    one = Evaluation({}, (Episode(2.0, 3, {}),))

    assert (one.mean, one.iqm, one.iqm_interval, one.mean_interval) == (2.0, 2.0, (2.0, 2.0), (2.0, 2.0))
    assert math.isnan(one.std)
    assert one.summary()["episode_return_std"] is None
