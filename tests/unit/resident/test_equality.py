"""Twenty updates with a TensorEnv give the same weights, bit by bit, as serial mode with the same env behind arrays."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from sfactory.errors import ExitCode
from sfactory.experiment.summary import Summary
from tests.support.equality import assert_same
from tests.support.one_process import config_for, run_in_process, trained_in_process

ENVS, STEPS, UPDATES = 6, 8, 20
COUNTING = "sfactory_envs.synthetic.counting_tensors:"


@pytest.mark.parametrize(
    "flags",
    [
        {"use_rnn": True, "rnn_size": 8, "recurrence": 4},
        {
            "env_kwargs": {"autoreset_mode": "SameStep"},
            "with_vtrace": False,
            "batch_size": ENVS * STEPS // 2,
            "num_batches_per_epoch": 4,
            "num_epochs": 2,
            "shuffle_minibatches": True,
            "reward_scale": 0.01,
        },
    ],
    ids=["V-trace, GRU", "PPO, two rollouts in a dataset"],
)
def test_weights_and_rows_are_those_of_serial_mode(
    flags: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"num_envs_per_worker": ENVS, "rollout": STEPS, "batch_size": ENVS * STEPS, **flags}
    limit = int(UPDATES * ENVS * STEPS * 0.9)  # of which some are resets

    arrays, due = trained_in_process(
        config_for(f"{COUNTING}counting_tensor_vector", train_for_env_steps=limit, **sizes),
        tmp_path / "arrays",
        monkeypatch,
    )
    tensors, found = trained_in_process(
        config_for(f"{COUNTING}CountingTensors", train_for_env_steps=limit, **sizes), tmp_path / "tensors", monkeypatch
    )

    extra = {name for data in found for name in data} - due[0].keys()
    assert_same([{name: data[name] for name in due[0]} for data in found], due)
    assert extra <= {"final_value"}
    ours, theirs = (_counts(state.pop("summary")) for state in (tensors, arrays))
    assert ours == theirs
    assert ours["updates"] >= UPDATES
    assert ours["env_steps"] == sum(int(data["valid"].sum()) for data in found)
    assert_same(tensors, arrays)


def test_a_run_whose_env_raises_saves_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"num_envs_per_worker": ENVS, "rollout": STEPS, "batch_size": ENVS * STEPS}
    config = config_for(f"{COUNTING}CountingTensors", env_kwargs={"steps": 3 * STEPS}, **sizes)

    _, outcome, datasets = run_in_process(config, tmp_path, monkeypatch)

    assert len(datasets) == 3
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert outcome.error.exit_code is ExitCode.FAULTS
    assert "IndexError" in str(outcome.error)
    assert outcome.saved_env_steps == sum(int(data["valid"].sum()) for data in datasets)


def _counts(summary: Summary) -> dict[str, Any]:
    """What a run reports, without what depends on time."""
    timed = ("train_seconds", "fps", "sample_fps")
    return {name: value for name, value in dataclasses.asdict(summary).items() if name not in timed}
