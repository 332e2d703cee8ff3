"""Serial mode repeats itself bit by bit, and a synchronous run never learns from an older policy."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.learned import what_was_learned
from tests.support.long import LONG, long
from tests.support.trainer import RunTrainer

MEMORY = {"use_rnn": True, "rnn_type": "lstm", "rnn_size": 16, "recurrence": 4}
NORMALIZED = {"normalize_input": True, "normalize_returns": True}
SHUFFLED = {"with_vtrace": False, "shuffle_minibatches": True, "num_batches_per_epoch": 2, "num_epochs": 2}
PREDICTING = {"use_cpc": True, "use_spectral_norm": True, "num_batches_per_epoch": 2, "num_epochs": 2}
LIMIT_S = 240.0  # of a whole run, on a machine that runs several


@pytest.mark.parametrize(
    "flags",
    [
        long({}),
        {"inference": "local"},
        {**MEMORY, **NORMALIZED},
        long({"async_rl": False, **SHUFFLED}),
        long({**MEMORY, **PREDICTING}),
    ],
)
def test_serial_mode_gives_the_same_weights_for_the_same_seed_and_others_for_another(
    run_trainer: RunTrainer, flags: dict[str, Any]
) -> None:
    common = {"serial_mode": True, "train_for_env_steps": 6_000, **flags}
    # Side by side: nothing that is learned depends on time.
    runs = [run_trainer(experiment=name, seed=seed, **common) for name, seed in (("1", 5), ("again", 5), ("other", 6))]
    found = []
    for run in runs:
        assert run.wait(LIMIT_S) == 0, run.report("failed")
        assert run.processes() == {}
        run.assert_clean()
        found.append(what_was_learned(run.run_dir))

    first, again, other = found
    assert torch.equal(first, again)
    assert first.shape == other.shape
    assert not torch.equal(first, other)


def test_serial_mode_is_one_process(run_trainer: RunTrainer) -> None:
    run = run_trainer(serial_mode=True, train_for_env_steps=10**9)
    run.wait_until_training()

    assert set(run.processes()) == {"sf-main"}


@pytest.mark.parametrize(
    ("inference", "serial"),
    [("central", False), ("local", True), long("local", False), long("central", True)],
)
def test_a_synchronous_run_has_a_policy_lag_of_zero_in_every_dataset(
    run_trainer: RunTrainer, inference: str, serial: bool
) -> None:
    # 2 workers of 8 envs and a rollout of 16 give 256 steps a round: two minibatches of 128.
    run = run_trainer(
        async_rl=False,
        serial_mode=serial,
        inference=inference,
        batch_size=128,
        num_batches_per_epoch=2,
        num_epochs=2,
        train_for_env_steps=4_000,
    )

    assert run.wait(LIMIT_S) == 0, run.report("failed")
    result = run.result()
    assert result["policy_lag"] == {"min": 0.0, "mean": 0.0, "max": 0.0}
    assert result["updates"] >= 4 * 4_000 // 256
    run.assert_clean()


@LONG
def test_a_dataset_of_several_rounds_is_synchronous_too(run_trainer: RunTrainer) -> None:
    run = run_trainer(async_rl=False, batch_size=768, train_for_env_steps=4_000)

    assert run.wait(LIMIT_S) == 0, run.report("failed")
    assert run.result()["policy_lag"] == {"min": 0.0, "mean": 0.0, "max": 0.0}


@pytest.mark.parametrize("batch_size", [long(48), long(128), 256, 400])
def test_where_no_dataset_may_wait_datasets_of_any_size_come_together(run_trainer: RunTrainer, batch_size: int) -> None:
    run = run_trainer(num_batches_to_accumulate=0, batch_size=batch_size, train_for_env_steps=4_000)

    assert run.wait(LIMIT_S) == 0, run.report("failed")
    result = run.result()
    assert result["updates"] >= 4_000 // batch_size
    # A dataset that takes every slot leaves nothing to be collected while it is learned from.
    assert batch_size != 256 or result["policy_lag"]["max"] == 0.0
    run.assert_clean()
