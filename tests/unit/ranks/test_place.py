"""A rank finds its place in the environment, takes its share of the machine, and refuses what works for one alone."""

from __future__ import annotations

import os

import pytest

from sfactory.config.resolve import read_command_line
from sfactory.errors import ConfigError
from sfactory.ranks.place import ONE_RANK, Place
from sfactory.ranks.rules import for_rank


def environment(rank: int, world: int, local_rank: int, local_world: int) -> dict[str, str]:
    numbers = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_world}
    return {**{name: str(number) for name, number in numbers.items()}, "MASTER_ADDR": "here", "MASTER_PORT": "1"}


def test_a_place_is_that_of_torchrun_and_one_rank_needs_none() -> None:
    assert Place.of_environment(environment(5, 8, 1, 4)) == Place(5, 8, 1, 4)
    assert Place.of_environment(environment(0, 1, 0, 1)) == ONE_RANK
    assert Place.of_environment({"RANK": "3", "WORLD_SIZE": "4"}) == ONE_RANK  # of a cluster, without torchrun
    for wrong in ((4, 4, 0, 1), (0, 4, 2, 2), (0, 2, 0, 4)):
        with pytest.raises(ConfigError, match="RANK"):
            Place.of_environment(environment(*wrong))


def test_ranks_of_a_machine_divide_its_cores_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[list[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 4, 6, 8})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: pinned.append(list(cores)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,7")

    gpus = []
    for rank in range(2):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,7")
        Place(rank, 4, rank, 2).take_share()
        gpus.append(os.environ["CUDA_VISIBLE_DEVICES"])

    assert (pinned, gpus) == ([[0, 2], [4, 6]], ["3", "7"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES"):
        Place(1, 2, 1, 2).take_share()


@pytest.mark.parametrize(
    "flag",
    [
        "serial_mode=True",
        "num_policies=2",
        "benchmark=True",
        "autotune=True",
        "opponent_pool=4",
        "rnd=True",
        "torch_compile=True",
        "minibatch_ring_size=2",
        "max_restarts=1",
    ],
)
def test_what_needs_one_rank_is_refused_with_several(flag: str) -> None:
    more = ["--num_epochs=2", "--num_batches_to_accumulate=3"] if flag.startswith("minibatch") else []
    resolved = read_command_line(["--env=CartPole-v1", "--train_dir=/nowhere", f"--{flag}", *more])

    with pytest.raises(ConfigError, match="torchrun"):
        for_rank(resolved, Place(0, 2, 0, 2))
    assert for_rank(resolved, ONE_RANK) is resolved


@pytest.mark.parametrize("flags", [["--lr_schedule=kl_adaptive_epoch"], ["--kl_target=0.1", "--kl_loss_coeff=1.0"]])
def test_ranks_that_learn_apart_adapt_to_no_divergence(flags: list[str]) -> None:
    resolved = read_command_line(["--env=CartPole-v1", "--train_dir=/nowhere", "--sync_every=20", *flags])

    with pytest.raises(ConfigError, match="sync_every"):
        for_rank(resolved, Place(0, 2, 0, 2))
    assert for_rank(resolved, ONE_RANK) is resolved
    together = read_command_line(["--env=CartPole-v1", "--train_dir=/nowhere", *flags])
    assert for_rank(together, Place(0, 2, 0, 2)) is together


def test_only_the_first_rank_reports() -> None:
    resolved = read_command_line(["--env=CartPole-v1", "--train_dir=/nowhere", "--eval_interval_sec=5"])

    assert for_rank(resolved, Place(0, 2, 0, 2)) is resolved
    config = for_rank(resolved, Place(1, 2, 1, 2)).config
    assert (config.report.quiet, config.report.with_tensorboard, config.evaluation.eval_interval_sec) == (
        True,
        False,
        0,
    )
