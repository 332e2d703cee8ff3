"""Serial mode repeats itself bit by bit, and a synchronous run never learns from an older policy."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sfactory.errors import ExitCode
from tests.support.long import long
from tests.support.trainer import RunTrainer, learned_by

MEMORY = {"use_rnn": True, "rnn_type": "lstm", "rnn_size": 16, "recurrence": 4}
NORMALIZED = {"normalize_input": True, "normalize_returns": True}
SHUFFLED = {"with_vtrace": False, "shuffle_minibatches": True, "num_batches_per_epoch": 2, "num_epochs": 2}
PREDICTING = {"use_cpc": True, "use_spectral_norm": True, "num_batches_per_epoch": 2, "num_epochs": 2}
# 2 workers of 8 envs and a rollout of 16 give 256 steps a round: two minibatches of 128.
ROUND = {"batch_size": 128, "num_batches_per_epoch": 2, "num_epochs": 2}
LIMIT_S = 240.0  # of a whole run, on a machine that runs several


@pytest.mark.parametrize(
    "flags",
    [
        long({}),
        long({**MEMORY, **NORMALIZED}),
        {"inference": "local", **MEMORY, **NORMALIZED},
        long({"async_rl": False, **SHUFFLED}),
        long({**MEMORY, **PREDICTING}),
    ],
)
def test_serial_mode_gives_the_same_weights_for_the_same_seed_alone(
    run_trainer: RunTrainer, flags: dict[str, Any]
) -> None:
    common = {"serial_mode": True, "train_for_env_steps": 3_000, **flags}
    # Side by side: nothing that is learned depends on time.
    runs = [run_trainer(experiment=name, seed=seed, **common) for name, seed in (("1", 5), ("again", 5), ("other", 6))]
    for run in runs:
        run.assert_ended(ExitCode.DONE, LIMIT_S)

    first, again, other = map(learned_by, runs)
    assert torch.equal(first, again)
    assert first.shape == other.shape
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("inference", "serial", "flags"),
    [
        ("central", False, ROUND),
        ("local", True, ROUND),
        long("local", False, ROUND),
        long("central", True, ROUND),
        long("central", False, {"batch_size": 768}),  # a dataset of several rounds
    ],
)
def test_synchronous_run_has_a_policy_lag_of_zero(
    run_trainer: RunTrainer, inference: str, serial: bool, flags: dict[str, Any]
) -> None:
    run = run_trainer(
        async_rl=False, serial_mode=serial, inference=inference, train_for_env_steps=4_000, **flags
    ).done()

    assert run.result()["policy_lag"] == {"min": 0.0, "mean": 0.0, "max": 0.0}
    assert flags is not ROUND or run.result()["updates"] >= 4 * 4_000 // 256


@pytest.mark.parametrize("batch_size", [long(48), long(400), 256])
def test_datasets_of_any_size_are_filled_where_none_may_wait(run_trainer: RunTrainer, batch_size: int) -> None:
    run = run_trainer(num_batches_to_accumulate=0, batch_size=batch_size, train_for_env_steps=4_000).done()

    result = run.result()
    assert result["updates"] >= 4_000 // batch_size
    # A dataset that takes every slot leaves nothing to be collected while it is learned from.
    assert batch_size != 256 or result["policy_lag"]["max"] == 0.0
