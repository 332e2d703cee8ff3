"""Whole runs on a GPU: they end well, recover from killed processes, and leave the GPU's memory free."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch

from sfactory.errors import ExitCode
from tests.support.processes import eventually
from tests.support.trainer import CLEAN_S, ENDLESS, REAL, RunTrainer, TrainerRun, process_of_rank, within

GIB = 2**30
RESTARTED = "from the checkpoint at"
FREE_AGAIN = GIB // 4  # bytes: less than one CUDA context


@pytest.fixture
def gpu(device: torch.device) -> str:
    """The device as a flag. CUDA starts in this process, too, before the files that it has open are counted."""
    if device.type != "cuda":
        return "cpu"
    free_bytes(device)
    return "gpu"


def free_bytes(device: torch.device) -> int:
    """Free memory of the GPU."""
    return torch.cuda.mem_get_info()[0] if device.type == "cuda" else 0


def test_runs_of_all_kinds_learn_and_end(run_trainer: RunTrainer, gpu: str) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "graphs": {"cuda_graphs": True, "amp": "auto", "use_rnn": True, "rnn_size": 16},
        "serial": {"serial_mode": True, "num_epochs": 2, "num_batches_per_epoch": 2},
        "resident": {
            "env": "sfactory_envs.synthetic.counting_tensors:CountingTensors",
            "env_kwargs": {"steps": 3000},
            **dict.fromkeys(("num_workers", "worker_num_splits", "inference")),  # one process has all
            "num_envs_per_worker": 16,
            "rollout": 16,
            "batch_size": 256,
        },
        "policies": {"num_policies": 2, "policy_workers_per_policy": 2, "cuda_graphs": True},
    }
    steps = 20_000 if gpu == "gpu" else 4096
    runs = {
        # A run forked from the warm process would fork processes that use CUDA after it has asked for devices itself.
        name: run_trainer(REAL, device=gpu, experiment=name, train_for_env_steps=steps, **flags)
        for name, flags in kinds.items()
    }
    for run in runs.values():
        run.wait()
    for name, run in runs.items():
        run.done()
        assert run.result()["env_steps"] >= steps
        assert "kernel by kernel" not in run.stderr
        for policy in range(2 if name == "policies" else 1):
            weights = run.payload(policy)["model"].values()
            assert all(torch.isfinite(weight).all() and weight.device.type == "cpu" for weight in weights)


def test_killed_policy_worker_and_learner_are_replaced_and_the_memory_of_the_gpu_is_free_at_the_end(
    run_trainer: RunTrainer, gpu: str, device: torch.device
) -> None:
    free = free_bytes(device)
    run = run_trainer(REAL, device=gpu, train_for_env_steps=ENDLESS, max_restarts=5, cuda_graphs=True)
    run.wait_until_training()

    run.kill("sf-policy-0-0")
    run.wait_until(rf"sf-policy-0-0 was killed by SIGKILL.*; replaced|{RESTARTED}")  # the latter if it locked a ring
    run.saves_again()
    restarts = run.stderr.count(RESTARTED)
    run.kill("sf-learner-0")
    run.wait_until(lambda: run.stderr.count(RESTARTED) > restarts)
    run.saves_again()
    run.stop()

    assert_free_again(device, free, run)


def test_batch_that_is_too_large_for_the_gpu_ends_the_run_with_advice(
    run_trainer: RunTrainer, gpu: str, device: torch.device
) -> None:
    if device.type != "cuda":
        pytest.skip("it is the memory of a GPU that is used up here")
    free = free_bytes(device)
    ballast = torch.empty(max(0, free - 3 * GIB), dtype=torch.uint8, device=device)
    layers = (512,) * 24  # a batch of 65,536 takes 3 GiB after them
    sizes = {"num_workers": 4, "num_envs_per_worker": 64, "rollout": 32, "batch_size": 65_536}

    run = run_trainer(REAL, device=gpu, train_for_env_steps=ENDLESS, encoder_mlp_layers=layers, **sizes)

    run.assert_ended(ExitCode.LEARNER)
    assert "out of memory: " in run.last_stderr_line, run.report("no cause")
    assert "--microbatch_size" in run.last_stderr_line, run.report("no advice")
    assert not list(run.run_dir.glob("**/diverged_batch.pt"))
    del ballast
    torch.cuda.empty_cache()
    assert_free_again(device, free, run)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_ranks_on_gpus_end_by_name_with_one_that_is_lost_and_save(
    number: int, run_trainer: RunTrainer, gpu: str, device: torch.device
) -> None:
    if device.type == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("it takes two GPUs: NCCL has one rank on each")
    devices = "0,1" if gpu == "gpu" else "cpu,cpu"
    flags = {"device": None, "learner_devices": devices, "num_workers": 1, "rank_timeout_sec": 10}
    run = run_trainer(REAL, **flags, train_for_env_steps=ENDLESS)
    run.wait_until_training()

    os.kill(pid := process_of_rank(run, 1, "sf-learner-0"), number)

    run.assert_ended(ExitCode.LEARNER, within(60.0))
    assert f"rank 1 (process {pid} on " in run.last_stderr_line
    assert run.saved_env_steps() == run.result()["env_steps"]


def assert_free_again(device: torch.device, free: int, run: TrainerRun) -> None:
    """As much memory of the GPU is free as before the run."""
    freed = eventually(lambda: free_bytes(device) > free - FREE_AGAIN, CLEAN_S)
    assert freed, run.report(f"{(free - free_bytes(device)) >> 20} MiB of the GPU are still taken")
