"""Every process and thread that works on a GPU chooses it first; unusable GPUs and small memories are named."""

from __future__ import annotations

import logging
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sfactory.config.flags import config_of
from sfactory.errors import ConfigError, ResourceError, failure_text
from sfactory.inference.policy_worker import PolicySetup, run_policy_worker
from sfactory.learner import learner_process
from sfactory.learner.learner_process import LearnerWorker, run_learner
from sfactory.learner.staging import DeviceSlot
from sfactory.planning.plan import choose_device, plan_run, plan_sizes
from sfactory.process.threads import Threads
from sfactory.system import gpu
from tests.support.lone_learner import LoneLearner
from tests.support.parts import VECTOR

TOO_OLD = "The NVIDIA driver on your system is too old (found version 11040)"


class Began(Exception):
    """Work has begun."""


def begin(*_: object) -> None:
    raise Began


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(thread, device) of each choice of a GPU."""
    choices: list[tuple[str, str]] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda name: choices.append((threading.current_thread().name, name)))
    return choices


def test_processes_and_their_threads_choose_their_gpu_first(
    chosen: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lone = LoneLearner(device="cpu")
    setup = PolicySetup(lone.config, lone.shared, 0, 1, 0, "cuda:1")
    monkeypatch.setattr(PolicySetup, "make_policy", begin)
    monkeypatch.setattr(learner_process, "Learner", begin)
    object.__setattr__(lone.setup, "device", "cuda:2")
    with pytest.raises(Began):
        run_policy_worker(setup, lone.row)
    with pytest.raises(Began):
        run_learner(lone.setup, lone.row)
    threads = Threads("cuda:2")
    threads.start("load-0", begin)
    with pytest.raises(Began):
        threads.wait(lambda: False)
    on_cpu = Threads()
    on_cpu.start("load-0", lambda: None)
    on_cpu.leave()

    main = threading.current_thread().name
    assert chosen == [(main, "cuda:1"), (main, "cuda:2"), ("load-0", "cuda:2")]


@pytest.mark.parametrize(("there", "hidden"), [(True, None), (True, ""), (False, None)])
def test_a_gpu_that_torch_cannot_use_is_named_unless_there_is_none_or_it_is_hidden(
    there: bool,
    hidden: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise RuntimeError(f"{TOO_OLD}\nPlease update it")

    monkeypatch.setattr(torch.cuda, "init", fail)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu, "_DEVICES", tmp_path)
    if there:  # a container may have any GPU of the machine
        (tmp_path / "nvidia3").touch()
    (tmp_path / "nvidiactl").touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    caplog.set_level(logging.WARNING)

    plan = plan_run(config_of({"env": "any", "encoder_mlp_layers": (8,)}), VECTOR)
    with pytest.raises(ConfigError) as refused:
        choose_device("gpu")

    assert plan.device == "cpu"
    is_named = there and hidden is None
    assert (f"({TOO_OLD})" in str(refused.value)) == is_named
    assert (f"so the CPU computes: {TOO_OLD}" in caplog.text) == is_named


def test_datasets_that_do_not_fit_the_memory_of_a_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lone = LoneLearner()
    device, replay = torch.device("cuda:1"), False
    size = DeviceSlot.bytes_of(VECTOR, lone.layout, replay)
    slot = DeviceSlot(VECTOR, lone.layout, torch.device("cpu"), replay)
    assert size == sum(tensor.nbytes for tensor in slot.tensors())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda on: (size, 8 * size))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda on: 3 * size)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda on: 2 * size)
    object.__setattr__(lone.setup, "device", str(device))
    worker = LearnerWorker(lone.setup, lone.learning, lone.row)
    monkeypatch.setattr(learner_process, "DeviceSlot", Slots)

    assert len(worker._device_slots(2)) == 2
    with pytest.raises(
        ResourceError, match=r"3 datasets .* on cuda:1, .*lower --num_gpu_slots, --batch_size"
    ) as refused:
        worker._device_slots(3)
    assert failure_text(refused.value) == f"ResourceError: {refused.value}"


WIDE = {"encoder_mlp_layers": (1008, 1008), "inference": "local", "num_envs_per_worker": 2, "batch_size": 32}
LARGE = {"encoder_mlp_layers": (4096,), "batch_size": 2**16}


@pytest.mark.parametrize(
    ("flags", "mib", "refusal"),
    [
        ({"inference": "central"}, 500, r"at least 512 MiB .* on cuda:0 \(CUDA contexts 512\), .*--inference=local"),
        ({"inference": "central"}, 520, None),
        ({"inference": "local"}, 260, None),
        ({"inference": "central", "num_policies": 4}, 1000, r"CUDA contexts 1,024"),  # two of them on each GPU
        # A million weights: 4 MiB a copy.
        (WIDE, 16, r"contexts 256, weights 16\)"),
        ({**WIDE, "optimizer": "rmsprop"}, 16, r"contexts 256, weights 12\)"),
        ({**WIDE, "optimizer": "rmsprop", "rmsprop_momentum": 0.9}, 16, r"contexts 256, weights 16\)"),
        ({**WIDE, "num_policies": 4, "train_policies": [0, 2]}, 16, r"contexts 512, weights 31\)"),
        ({**WIDE, "num_policies": 4, "train_policies": [0]}, 16, r"contexts 512, weights 20\)"),
        ({**WIDE, "benchmark": True, "sampler_only": True}, 16, r"contexts 256, weights 4\)"),
        (LARGE, 1500, r"minibatches 1,.*which has 1,500; lower --microbatch_size"),
        ({**LARGE, "microbatch_size": 1024}, 1500, None),
        ({**LARGE, "amp": "bf16"}, 1500, None),
        ({**LARGE, "num_gpu_slots": 1000}, 3000, r"datasets 2,.*lower --num_gpu_slots"),
    ],
    ids=str,
)
def test_a_gpu_that_is_too_small_for_a_run_is_refused_before_it_starts(
    flags: dict[str, object], mib: int, refusal: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=mib * 2**20))
    config = config_of({"env": "any", "encoder_mlp_layers": (8,), **flags})

    with nullcontext() if refusal is None else pytest.raises(ResourceError, match=refusal):
        plan_sizes(config, VECTOR)


class Slots:
    """Stands for slots on a GPU."""

    bytes_of = DeviceSlot.bytes_of

    def __init__(self, *_: object) -> None: ...
