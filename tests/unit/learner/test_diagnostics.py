"""The batch at which training fails is saved; a learner without datasets ends if none can come."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.errors import DivergedError, ExitCode, Starved
from sfactory.learner import diagnostics
from sfactory.learner.batch import Batch
from sfactory.learner.diagnostics import EVIDENCE_FILE, Starvation
from sfactory.learner.trainer import Trainer
from sfactory.model.flat_state import FlatState
from sfactory.shared.slots import SlotTable
from sfactory.shared.status import State, StatusBoard
from tests.support.equality import assert_same
from tests.support.parts import model_of, random_batch


def trainer_of(evidence: Path, **model: Any) -> Trainer:
    algo, optim, learner = AlgoConfig(), OptimConfig(learning_rate=0.01), LearnerConfig(max_bad_steps=2)
    return Trainer(model_of(**model), algo, optim, learner, seed=0, policy=0, total_env_steps=2**62, evidence=evidence)


def diverge(trainer: Trainer, batch: Batch) -> str:
    """Train on ``batch``, with a reward of NaN, until that is given up; the error's message."""
    batch.rewards[1, 2] = torch.nan
    trainer.train(batch)
    with pytest.raises(DivergedError) as caught:
        trainer.train(batch)
    return str(caught.value)


def load(folder: Path) -> Any:
    return torch.load(folder / EVIDENCE_FILE, weights_only=True)


def test_a_batch_that_cannot_be_learned_from_is_saved_with_the_weights_of_then(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint_p0"
    trainer = trainer_of(folder)
    trainer.train(random_batch(trainer.model))
    batch = random_batch(trainer.model, seed=7)

    text = diverge(trainer, batch)

    assert text.endswith(f"; the batch and the weights of then are in {folder / EVIDENCE_FILE}")
    kept = load(folder)
    assert kept["train_step"] == 3
    assert kept["reason"].startswith("DivergedError: 2 updates in a row")
    assert torch.equal(kept["batch"]["obs"]["obs"], batch.obs["obs"])
    torch.testing.assert_close(kept["batch"]["rewards"], batch.rewards, rtol=0.0, atol=0.0, equal_nan=True)
    assert_same(kept["model"], dict(trainer.model.state_dict()))
    # Later evidence replaces it, and a part of a larger memory is saved without the rest.
    other = trainer_of(folder)
    part = random_batch(other.model, steps=50, rows=1000).columns(slice(0, 4))
    diverge(other, part)
    assert [path.name for path in folder.iterdir()] == [EVIDENCE_FILE]
    assert torch.equal(load(folder)["batch"]["obs"]["obs"], part.obs["obs"])
    assert (folder / EVIDENCE_FILE).stat().st_size < 100_000


def test_evidence_is_saved_where_all_weights_are_views_of_one_block(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, normalize_input=True, normalize_returns=True)
    flat = FlatState(trainer.model)

    diverge(trainer, random_batch(trainer.model))

    assert flat.is_finite(float(flat.sum()))
    assert_same(load(tmp_path)["model"], dict(trainer.model.state_dict()))


def test_a_failure_of_torch_keeps_its_type_and_names_the_file(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    batch = random_batch(trainer.model)
    batch.obs["obs"] = batch.obs["obs"][:, :, :2]

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as failed:
        trainer.train(batch)

    assert str(tmp_path / EVIDENCE_FILE) in str(failed.value)
    assert load(tmp_path)["reason"].startswith("RuntimeError: ")


def test_a_batch_too_large_for_the_device_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(tmp_path / "new")

    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(trainer, "_update", exhausted)
    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory$"):
        trainer.train(random_batch(trainer.model))

    assert not (tmp_path / "new").exists()


def test_the_first_error_of_a_device_is_raised_although_all_later_calls_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, batch = trainer_of(tmp_path), random_batch(model_of())

    def break_device(*_: object) -> None:
        monkeypatch.setattr(torch.Tensor, "cpu", fail)
        raise RuntimeError("CUDA error: device-side assert triggered")

    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(trainer, "_update", break_device)
    with pytest.raises(RuntimeError, match=r"^CUDA error: device-side assert triggered; the batch could not be saved"):
        trainer.train(batch)


def test_unwritable_folder_hides_no_cause(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    trainer = trainer_of(tmp_path / "file")

    text = diverge(trainer, random_batch(trainer.model))

    assert text.startswith("2 updates in a row")
    assert f"the batch could not be saved as {tmp_path / 'file' / EVIDENCE_FILE}: " in text


NAMES = ["sf-learner-0", "sf-policy-0-0", "sf-actor-0", "sf-actor-1"]


@pytest.fixture
def board() -> StatusBoard:
    status = StatusBoard(NAMES)
    for name in NAMES:
        status.row(name).start()
        status.row(name).set("state", State.RUNNING)
    return status


class Time:
    """A clock that stands still until ``at`` is changed, in place of Awake's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = 1000.0
        monkeypatch.setattr(diagnostics, "Awake", self._awake)

    def _awake(self) -> SimpleNamespace:
        since = self.at
        return SimpleNamespace(look=lambda: self.at - since)


def starving(board: StatusBoard, timeout_s: float = 300.0, port: int = 0) -> Starvation:
    table = SlotTable(2, 1, 2, 1)
    table.begin(0)
    table.begin(3)
    table.publish(3, 0)
    return Starvation(timeout_s, board, table, port=port)


def test_slow_envs_are_reported_and_waited_for(
    board: StatusBoard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    time = Time(monkeypatch)
    starvation = starving(board)
    for _ in range(3):
        time.at += 301.0
        board.row("sf-actor-1").count_env_steps(7)
        starvation.look()

    assert len(caplog.records) == 3
    assert "no dataset to learn from for 300 s" in caplog.text
    assert "actors have taken 7 steps meanwhile" in caplog.text
    board.row("sf-actor-1").set("state", State.RESETTING)
    time.at += 301.0
    starvation.look()
    assert "actors still create or reset" in caplog.text


def test_starved_learner_ends_with_the_state_of_every_process(
    board: StatusBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time(monkeypatch)
    starvation, never = starving(board, port=5555), starving(board, timeout_s=0.0)
    time.at += 250.0
    starvation.begin()  # a dataset has come
    board.row("sf-actor-0").begin_work()
    time.at += 299.0
    starvation.look()
    time.at += 2.0
    never.look()

    with pytest.raises(Starved, match="no actor has taken a step meanwhile") as caught:
        starvation.look()

    text = str(caught.value)
    assert "so none will come; python -m sfactory.remote_actors --connect=HOST:5555 starts" in text
    for part in (*NAMES, "sf-actor-0: running, busy for", "slots: 1 filling, 1 free", "slots: 1 free, 1 ready"):
        assert part in text
    assert Starved.exit_code is ExitCode.LEARNER


def test_paused_run_does_not_count_as_waiting(board: StatusBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    at = 1000.0
    monkeypatch.setattr("sfactory.clock.now", lambda: at)
    starvation = starving(board)

    for seconds in (3600.0, *[1.0] * 297):
        at += seconds
        starvation.look()

    at += 1.5
    with pytest.raises(Starved, match="no actor has taken a step"):
        starvation.look()
