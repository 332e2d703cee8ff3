"""Ranks that torchrun or --learner_devices starts train one policy, and end together."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from sfactory.errors import ExitCode
from tests.support.hooks import FOLDER
from tests.support.trainer import CLEAN_S, ENDLESS, UNHURRIED, RunTrainer, assert_resumes, process_of_rank, within

SUMS = "tests.support.hooks:write_checksum"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python")
RANKS: dict[str, object] = {
    "after_train_step": SUMS,
    "num_workers": 1,
    "device": "cpu",
    "rank_timeout_sec": 10,
    "normalize_input": True,
    "normalize_returns": True,
}
LEARNING: dict[str, object] = {
    "task_defaults": True,
    "num_envs_per_worker": None,
    "rollout": None,
    "batch_size": 512,
    "seed": 1,
}
BY_FLAG: dict[str, object] = {**RANKS, "device": None, "learner_devices": "cpu,cpu"}
END_S = within(40.0)


def sums(folder: Path, rank: int) -> dict[str, str]:
    """Checksum of the weights by update, as the rank has written them."""
    path = folder / f"sums-{rank}"
    return dict(line.split() for line in path.read_text().splitlines()) if path.exists() else {}


def assert_equal_weights(folder: Path) -> int:
    """The ranks had the same weights after every update; returns how many there were."""
    first, second = sums(folder, 0), sums(folder, 1)
    common = first.keys() & second.keys()
    assert {update: first[update] for update in common} == {update: second[update] for update in common}
    return len(common)


def test_ranks_have_equal_weights_and_end_by_name_with_one_that_is_killed(
    run_trainer: RunTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    run = run_trainer(**BY_FLAG, env=UNHURRIED, train_for_env_steps=ENDLESS)
    run.wait_until(lambda: len(sums(tmp_path, 1)) > 5 and run.saved_env_steps() > 0, within(60.0))

    os.kill(pid := process_of_rank(run, 1), signal.SIGKILL)

    run.assert_ended(ExitCode.LEARNER, END_S)
    assert f"rank 1 (process {pid} on " in run.last_stderr_line
    assert "typically" not in run.last_stderr_line  # gloo's advice
    assert run.stderr.count("RankLost") == 1
    assert run.stderr.count(f": starting {UNHURRIED}") == 1  # by the first rank
    assert "--learner_devices=cpu,cpu" in run.last_stderr_line  # of the command that resumes it
    assert assert_equal_weights(tmp_path) > 5
    assert run.saved_env_steps() == run.result()["env_steps"]  # saved after the last whole update


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "rank", "name", "apart"),
    [
        (signal.SIGSTOP, 1, "sf-learner-0", 1),
        (signal.SIGKILL, 0, "sf-learner-0", 1),
        (signal.SIGKILL, 1, "sf-learner-0", 20),
        (signal.SIGKILL, 1, "sf-main", 1),
        (signal.SIGKILL, 0, "sf-main", 1),
    ],
)
def test_a_process_that_is_stopped_or_killed_ends_all_ranks(
    run_trainer: RunTrainer, number: int, rank: int, name: str, apart: int
) -> None:
    flags = {**BY_FLAG, "after_train_step": None, "sync_every": apart}
    run = run_trainer(**flags, train_for_env_steps=ENDLESS)
    run.wait_until_training()

    os.kill(pid := process_of_rank(run, rank, name), number)

    run.assert_ended(ExitCode.LEARNER, END_S)
    assert "rank 1 (process" in run.stderr or not rank
    # torch's launcher sees main processes only
    assert f"rank {rank} (main process {pid}) has ended by SIGKILL" in run.stderr or name != "sf-main"


@pytest.mark.long
def test_signals_save_and_end_ranks_and_any_number_of_them_goes_on(run_trainer: RunTrainer) -> None:
    flags: dict[str, object] = {**BY_FLAG, "after_train_step": None, "train_for_env_steps": ENDLESS}
    run = run_trainer(**flags)
    run.wait_until_training()
    run.signal_group(signal.SIGINT)  # as a terminal does
    run.assert_ended(ExitCode.SIGINT)
    saved = run.saved_env_steps()

    run = run_trainer(TORCHRUN, **{**flags, "learner_devices": None, "device": "cpu"})
    run.wait_until(f"resumed at {saved} env steps")
    run.saves_again()
    run.signal_main(signal.SIGTERM)
    assert run.wait() != ExitCode.DONE
    run.assert_clean()
    assert run.result()["status"] == "interrupted"

    run = run_trainer(**{**flags, "learner_devices": "cpu,cpu,cpu"})
    run.wait_until(f"resumed at {run.saved_env_steps()} env steps")
    run.saves_again()
    run.signal_main(signal.SIGKILL)  # ranks do not outlive the process that has started them
    run.assert_all_gone(END_S)
    assert "\nRESULT " in run.stderr
    assert "TCPStore.cpp" not in run.stderr
    assert_resumes(run_trainer(**{**flags, "learner_devices": None, "train_for_env_steps": 1}).done(), run_trainer)


@pytest.mark.long
@pytest.mark.parametrize("apart", [1, 20])
def test_an_observer_ends_all_ranks_as_a_limit_does(run_trainer: RunTrainer, apart: int) -> None:
    flags = {**RANKS, "after_train_step": None, "sync_every": apart, "train_for_env_steps": ENDLESS}
    run = run_trainer(TORCHRUN, **flags, observers=("tests.support.hooks:EndsInTraining",))

    assert run.wait(within(120.0)) == ExitCode.DONE
    run.assert_all_gone(CLEAN_S)
    assert run.result()["status"] == "done"
    assert run.saved_env_steps() == run.result()["env_steps"] > 0


@pytest.mark.long
def test_what_every_rank_refuses_is_refused(run_trainer: RunTrainer) -> None:
    run = run_trainer(**{**BY_FLAG, "after_train_step": None}, env_kwargs={"nonsense": 1})

    run.assert_ended(ExitCode.REFUSED, END_S)
    assert "nonsense" in run.stderr


@pytest.mark.long
def test_torchrun_restarts_all_ranks_from_the_checkpoint(run_trainer: RunTrainer) -> None:
    again = (*TORCHRUN[:-1], "--max-restarts=1", TORCHRUN[-1])
    run = run_trainer(again, **{**RANKS, "after_train_step": None}, train_for_env_steps=ENDLESS)
    run.wait_until_training()

    os.kill(process_of_rank(run, 1, "sf-main"), signal.SIGKILL)

    run.wait_until(r"resumed at \d+ env steps", END_S)
    run.saves_again()
    run.signal_main(signal.SIGTERM)
    run.wait()
    run.assert_clean()
    steps = [row["env_steps"] for row in run.metrics()]
    assert steps == sorted(steps)
    assert run.saved_env_steps() == run.result()["env_steps"] == steps[-1]


@pytest.mark.long
def test_two_ranks_learn_cartpole_and_one_resumes(
    run_trainer: RunTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    learning: dict[str, object] = {**RANKS, **LEARNING}
    run = run_trainer(TORCHRUN, **learning, train_for_env_steps=400_000)

    assert run.wait(within(300.0)) == ExitCode.DONE
    run.assert_all_gone(CLEAN_S)
    assert assert_equal_weights(tmp_path) > 50  # datasets
    result = run.result()
    assert result["best_episode_return_mean"] > 475
    assert result["env_steps"] >= 400_000

    alone = run_trainer(**learning, train_for_env_steps=420_000).done()
    assert alone.result()["updates"] > result["updates"]


@pytest.mark.long
def test_two_ranks_that_learn_apart_learn_cartpole_and_go_on(run_trainer: RunTrainer) -> None:
    learning: dict[str, object] = {**RANKS, **LEARNING, "after_train_step": None, "sync_every": 20}

    run = run_trainer(TORCHRUN, **learning, train_for_env_steps=400_000)

    assert run.wait(within(300.0)) == ExitCode.DONE
    run.assert_all_gone(CLEAN_S)
    assert ": 2 ranks with a mean of weights every 20 updates, each with" in run.stderr
    result = run.result()
    assert result["best_episode_return_mean"] > 475
    assert run.saved_env_steps() == result["env_steps"] >= 400_000  # the mean after the last round
    more = run_trainer(TORCHRUN, **learning, train_for_env_steps=ENDLESS)
    more.wait_until(lambda: more.saved_env_steps() > result["env_steps"], within(60.0))
    more.signal_main(signal.SIGTERM)
    more.wait(END_S)
    more.assert_all_gone(CLEAN_S)
    assert more.saved_env_steps() == more.result()["env_steps"]
