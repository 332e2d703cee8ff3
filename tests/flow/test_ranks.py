"""Ranks that torchrun starts train one policy, and end together."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from scripts.proc import marked
from sfactory.errors import ExitCode
from tests.support.hooks import FOLDER
from tests.support.trainer import CLEAN_S, ENDLESS, RunTrainer, TrainerRun, within

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
END_S = within(40.0)


def sums(folder: Path, rank: int) -> dict[str, str]:
    """Checksum of the weights by update, as the rank has written them."""
    path = folder / f"sums-{rank}"
    return dict(line.split() for line in path.read_text().splitlines()) if path.exists() else {}


def learner_of(run: TrainerRun, rank: int) -> int:
    """Process id of a rank's learner."""

    def is_of(pid: int) -> bool:
        return f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")

    return next(pid for pid, name in marked(run.mark).items() if name == "sf-learner-0" and is_of(pid))


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
    run = run_trainer(TORCHRUN, **RANKS, train_for_env_steps=ENDLESS)
    run.wait_until(lambda: len(sums(tmp_path, 1)) > 5 and run.saved_env_steps() > 0, within(60.0))

    os.kill(pid := learner_of(run, 1), signal.SIGKILL)

    assert run.wait(END_S) != ExitCode.DONE
    run.assert_all_gone(CLEAN_S)
    assert f"rank 1 (process {pid} on " in run.stderr
    assert assert_equal_weights(tmp_path) > 5
    summary = run.result()
    assert summary["status"] == "failed"
    assert run.saved_env_steps() == summary["env_steps"]  # saved after the last whole update


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "rank", "apart"), [(signal.SIGSTOP, 1, 1), (signal.SIGKILL, 0, 1), (signal.SIGKILL, 1, 20)]
)
def test_a_learner_that_is_stopped_or_killed_ends_all_ranks(
    run_trainer: RunTrainer, number: int, rank: int, apart: int
) -> None:
    flags = {**RANKS, "after_train_step": None, "sync_every": apart}
    run = run_trainer(TORCHRUN, **flags, train_for_env_steps=ENDLESS)
    run.wait_until_training()

    os.kill(learner_of(run, rank), number)

    assert run.wait(END_S) != ExitCode.DONE
    run.assert_all_gone(CLEAN_S)
    assert run.saved_env_steps() > 0


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
    result = run.result()
    assert result["best_episode_return_mean"] > 475
    assert run.saved_env_steps() == result["env_steps"] >= 400_000  # the mean after the last round
    more = run_trainer(TORCHRUN, **learning, train_for_env_steps=ENDLESS)
    more.wait_until(lambda: more.saved_env_steps() > result["env_steps"], within(60.0))
    more.signal_main(signal.SIGTERM)
    more.wait(END_S)
    more.assert_all_gone(CLEAN_S)
    assert more.saved_env_steps() == more.result()["env_steps"]
