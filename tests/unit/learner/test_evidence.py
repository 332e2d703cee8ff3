"""What training failed at is on the disk, whole and readable, and the error says where."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.errors import DivergedError
from sfactory.learner.batch import Batch
from sfactory.learner.diagnostics import EVIDENCE_FILE
from sfactory.learner.trainer import Trainer
from tests.support.parts import random_batch, tiny_model


def trainer_of(evidence: Path | None, max_bad_steps: int = 2) -> Trainer:
    return Trainer(
        tiny_model(),
        AlgoConfig(),
        OptimConfig(learning_rate=0.01),
        LearnerConfig(max_bad_steps=max_bad_steps),
        seed=0,
        policy=0,
        total_env_steps=2**62,
        evidence=evidence,
    )


def bad(batch: Batch) -> Batch:
    rewards = batch.rewards.clone()
    rewards[1, 2] = torch.nan
    return dataclasses.replace(batch, rewards=rewards)


def diverge(trainer: Trainer, batch: Batch) -> str:
    """Train on ``batch`` until that is given up; what the error says."""
    for _ in range(100):
        try:
            trainer.train(batch)
        except DivergedError as error:
            return str(error)
    raise AssertionError("100 updates that were all skipped did not end training")


def load(path: Path) -> Any:
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("max_bad_steps", [1, 3, 10])
def test_as_many_bad_updates_in_a_row_as_are_allowed_end_training(max_bad_steps: int) -> None:
    trainer = trainer_of(None, max_bad_steps)

    text = diverge(trainer, bad(random_batch(trainer.model)))

    assert trainer.train_step == trainer.stats.skipped == max_bad_steps
    assert text.startswith(f"{max_bad_steps} updates in a row had a loss or gradient that is not finite")


def test_a_batch_that_cannot_be_learned_from_is_saved_with_the_weights_of_then(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "checkpoint_p0")
    good = random_batch(trainer.model)
    trainer.train(good)
    batch = bad(random_batch(trainer.model, seed=7))

    text = diverge(trainer, batch)

    path = tmp_path / "checkpoint_p0" / EVIDENCE_FILE
    assert text.endswith(f"; the batch and the weights of then are in {path}")
    kept = load(path)
    assert kept["train_step"] == 3
    assert kept["reason"].startswith("DivergedError: 2 updates in a row")
    assert set(kept["batch"]) == {field.name for field in dataclasses.fields(Batch)}
    assert torch.equal(kept["batch"]["obs"]["obs"], batch.obs["obs"])
    torch.testing.assert_close(kept["batch"]["rewards"], batch.rewards, rtol=0.0, atol=0.0, equal_nan=True)
    assert all(torch.equal(kept["model"][name], tensor) for name, tensor in trainer.model.state_dict().items())


def test_what_is_saved_makes_training_fail_again(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    diverge(trainer, bad(random_batch(trainer.model)))
    kept = load(tmp_path / EVIDENCE_FILE)

    again = trainer_of(None, max_bad_steps=1)
    again.model.load_state_dict(kept["model"])

    assert "1 updates in a row" in diverge(again, Batch(**kept["batch"]))


def test_a_failure_of_torch_keeps_its_type_and_names_the_file(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    batch = random_batch(trainer.model)
    unfit = dataclasses.replace(batch, obs={"obs": batch.obs["obs"][:, :, :2]})

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as failed:
        trainer.train(unfit)

    assert str(tmp_path / EVIDENCE_FILE) in str(failed.value)
    assert load(tmp_path / EVIDENCE_FILE)["reason"].startswith("RuntimeError: ")


def test_a_part_of_a_larger_memory_is_saved_without_the_rest(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    large = random_batch(trainer.model, steps=50, rows=1000)

    diverge(trainer, bad(large.columns(slice(0, 4))))

    assert (tmp_path / EVIDENCE_FILE).stat().st_size < 100_000


def test_later_evidence_takes_the_place_of_earlier_and_nothing_else_is_left(tmp_path: Path) -> None:
    for seed in (1, 2):
        trainer = trainer_of(tmp_path)
        batch = bad(random_batch(trainer.model, seed=seed))
        diverge(trainer, batch)

    assert [path.name for path in tmp_path.iterdir()] == [EVIDENCE_FILE]
    assert torch.equal(load(tmp_path / EVIDENCE_FILE)["batch"]["obs"]["obs"], batch.obs["obs"])


def test_a_folder_that_cannot_be_written_is_told_and_hides_no_cause(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    trainer = trainer_of(tmp_path / "file")

    text = diverge(trainer, bad(random_batch(trainer.model)))

    assert text.startswith("2 updates in a row")
    assert f"the batch could not be saved as {tmp_path / 'file' / EVIDENCE_FILE}: " in text


def test_without_a_folder_nothing_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = trainer_of(None)

    text = diverge(trainer, bad(random_batch(trainer.model)))

    assert "batch" not in text
    assert list(tmp_path.iterdir()) == []
