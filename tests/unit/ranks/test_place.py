"""A rank finds its place in the environment, takes its share of the machine, and refuses what works for one alone."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
import torch

from sfactory.config.resolve import Resolved, read_command_line
from sfactory.errors import ConfigError
from sfactory.launch.local_ranks import visible_to_ranks
from sfactory.process.signals import Interrupts
from sfactory.process.spawn import Spawner
from sfactory.ranks.place import EXIT_CODE, ONE_RANK, RUN_ID, Place
from sfactory.ranks.rules import devices_to_start, for_rank
from sfactory.runner import session
from sfactory.runner.first_lines import beside_the_usual
from sfactory.system.cores import RANKS, Cores


def with_flags(*flags: str, several_ranks: bool = False) -> Resolved:
    return read_command_line(["--env=CartPole-v1", "--train_dir=/nowhere", *flags], several_ranks)


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
    monkeypatch.setenv(RANKS, "1")

    gpus = []
    for rank in range(2):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-7,")
        Place(rank, 4, rank, 2).take_share()
        gpus.append(os.environ["CUDA_VISIBLE_DEVICES"])

    assert (pinned, gpus) == ([[0, 2], [4, 6]], ["3", "GPU-7"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES"):
        Place(1, 2, 1, 2).take_share()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    Place(1, 2, 1, 2).take_share()
    assert not os.environ["CUDA_VISIBLE_DEVICES"]


def test_ranks_of_a_machine_divide_its_cpu_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = [set(range(32))]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: mask[-1])
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, ids: mask.append(set(ids)))
    monkeypatch.setattr("sfactory.system.cores.cpu_quota", lambda: 6.0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv(RANKS, "1")
    assert Cores.available().count == 6

    Place(1, 4, 1, 2).take_share()

    assert Cores.available() == Cores(tuple(range(16, 32)), 3.0)
    assert read_command_line(["--env=numpy:zeros"]).config.sampling.num_workers == 3


def test_the_default_of_num_workers_counts_the_cores_that_are_left_to_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cores, "available", lambda: Cores((0, 1, 2, 3, 4), None))

    assert read_command_line(["--env=numpy:zeros"]).config.sampling.num_workers == 5


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
        "pbt_dir=/shared",
    ],
)
def test_what_needs_one_rank_is_refused_with_several(flag: str) -> None:
    more = ["--num_epochs=2", "--num_batches_to_accumulate=3"] if flag.startswith("minibatch") else []
    more += ["--with_pbt=True", "--pbt_member=1"] if flag.startswith("pbt") else []
    assert with_flags(f"--{flag}", *more, "--learner_devices=cpu")

    with pytest.raises(ConfigError, match=f"^--{flag}: with several ranks .*torchrun"):
        with_flags(f"--{flag}", *more, several_ranks=True)
    with pytest.raises(ConfigError, match=f"^--{flag}: with several ranks .*torchrun"):
        with_flags(f"--{flag}", *more, "--learner_devices=cpu,cpu")


def test_all_that_ranks_refuse_is_refused_at_once_with_all_else() -> None:
    flags = ["--serial_mode=True", "--sync_every=20", "--kl_target=0.1", "--gamma=2", "--device=cpu"]
    with pytest.raises(ConfigError) as refused:
        with_flags(*flags, "--learner_devices=cpu,cpu")

    blamed = [problem.partition(":")[0] for problem in refused.value.problems]
    assert sorted(blamed) == ["--device=cpu", "--gamma=2.0", *["--kl_target=0.1"] * 2, "--serial_mode=True"]


@pytest.mark.parametrize("flags", [["--lr_schedule=kl_adaptive_epoch"], ["--kl_target=0.1", "--kl_loss_coeff=1.0"]])
def test_ranks_that_learn_apart_adapt_to_no_divergence(flags: list[str]) -> None:
    assert with_flags(*flags, "--sync_every=20")
    assert with_flags(*flags, several_ranks=True)
    with pytest.raises(ConfigError, match="sync_every=20"):
        with_flags(*flags, "--sync_every=20", several_ranks=True)


def test_one_rank_says_that_it_has_no_weights_to_average_with() -> None:
    config = read_command_line(["--env=CartPole-v1", "--train_dir=/nowhere", "--sync_every=20"]).config

    assert any("--sync_every=20" in sentence for sentence in beside_the_usual(config, ONE_RANK))
    assert not any("sync_every" in sentence for sentence in beside_the_usual(config, Place(0, 2, 0, 2)))


def test_only_the_first_rank_reports() -> None:
    resolved = with_flags("--eval_interval_sec=5")

    assert for_rank(resolved, Place(0, 2, 0, 2)) is resolved
    assert for_rank(dataclasses.replace(resolved, changed=["--gamma=0.9"]), Place(1, 2, 1, 2)).changed == ()
    config = for_rank(resolved, Place(1, 2, 1, 2)).config
    assert (config.report.quiet, config.report.with_tensorboard, config.evaluation.eval_interval_sec) == (
        True,
        False,
        0,
    )


def test_a_rank_but_the_first_writes_in_the_folder_of_its_starter(tmp_path: Path) -> None:
    place = Place(1, 2, 1, 2, str(tmp_path))
    rank = session.Session(with_flags("--seed=3"), [], Spawner(), Interrupts(), 0.0, place)

    with rank._open_run_dir() as run_dir:
        assert run_dir.path.parent.parent == tmp_path  # which the starter removes where this rank is killed
    assert list(tmp_path.iterdir()) == []
    assert rank._seed != 3


def test_learner_devices_are_where_ranks_start_and_where_each_learns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpus, cpus, one = (with_flags(f"--learner_devices={devices}") for devices in ("0,2", "cpu,cpu", "2"))
    ours = {"TORCHELASTIC_RUN_ID": RUN_ID, "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")}
    first, second = (Place.of_environment({**environment(rank, 2, rank, 2), **ours}) for rank in range(2))

    assert devices_to_start(gpus, ONE_RANK) == ["0", "2"]
    assert devices_to_start(gpus, first) == devices_to_start(one, ONE_RANK) == []
    devices = [for_rank(*each).config.run.device for each in ((gpus, first), (cpus, second), (one, ONE_RANK))]
    assert devices == ["gpu", "cpu", "cuda:2"]
    assert (first.leave(EXIT_CODE, "3"), second.leave(EXIT_CODE, "4")) == (True, False)
    assert (tmp_path / EXIT_CODE).read_text() == "3"
    gone = Place(0, 2, 0, 2, str(tmp_path / "gone"))
    assert not gone.leave(EXIT_CODE, "3")  # its starter was killed
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    for place in (ONE_RANK, Place(0, 2, 0, 2)):
        with pytest.raises(ConfigError, match="torchrun has started"):
            devices_to_start(one, place)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    with pytest.raises(ConfigError, match="a program"):
        for_rank(gpus, ONE_RANK)


def test_ranks_remove_the_folder_of_a_starter_that_was_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folders = [tmp_path / "ranks" / "run" / "attempt_0" / str(rank) for rank in range(2)]
    (folders[1] / "run_dir").mkdir(parents=True)
    folders[0].mkdir()
    monkeypatch.setattr("sfactory.ranks.place._STARTER", 0)
    first, second = (Place(rank, 2, rank, 2, str(folder)) for rank, folder in enumerate(folders))

    assert not first.leave(EXIT_CODE, "0")
    assert not second.leave(EXIT_CODE, "0")
    assert (folders[1] / "run_dir").exists()
    (folders[1] / "run_dir").rmdir()
    assert not second.leave(EXIT_CODE, "0")
    assert list(tmp_path.iterdir()) == []


def test_ranks_find_their_gpu_in_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert visible_to_ranks(["2", "0"]) == ["2", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 5, GPU-6")
    assert visible_to_ranks(["2", "0"]) == ["GPU-6", "4"]
    assert visible_to_ranks(["cpu", "cpu"]) == []
    with pytest.raises(ConfigError, match="--learner_devices=0,3"):
        visible_to_ranks(["0", "3"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match="no CUDA device here; use --learner_devices=cpu,cpu, or"):
        visible_to_ranks(["0", "1"])
