"""Advice suggests flags that help this run: none that is set already, none that the machine does not support."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sfactory.config.flags import config_of
from sfactory.config.validation import check
from sfactory.layout import Inference, Layout
from sfactory.planning.plan import Plan
from sfactory.report import bottleneck
from sfactory.report.bottleneck import Advisor, Load
from sfactory.spec import DiscreteHead, EnvSpec, TensorSpec
from sfactory.system.cores import Cores
from tests.support.parts import VECTOR

IMAGES = EnvSpec(obs=(("obs", TensorSpec((4, 84, 84), "uint8")),), actions=(DiscreteHead("action", 4),))
# Defaults of the table below: 4 cores, 2 workers with one wide split of vector observations, one epoch.
DEFAULTS: dict[str, Any] = {
    "env": "CartPole-v1",
    "num_workers": 2,
    "num_envs_per_worker": 1024,
    "rollout": 32,
    "batch_size": 4096,
    "num_epochs": 1,
}
BATCH, EPOCHS, WIDER = "--batch_size", "--num_epochs", "--num_envs_per_worker"
LOCAL, CENTRAL, SPLITS = "--inference=local", "--inference=central", "--worker_num_splits"
THREADS, WORKERS, POLICIES = "--learner_num_threads", "--num_workers", "--policy_workers_per_policy"
BF16, AUTO, GRAPHS = "--amp=bf16", "--amp=auto", "--cuda_graphs"


def advice(
    verdict: str | None,
    flags: dict[str, Any] | None = None,
    *,
    idle: float = 0.0,
    cores: int = 4,
    device: str = "cpu",
    spec: EnvSpec = VECTOR,
) -> str | None:
    """The advice for a run with these flags and this bottleneck."""
    config = config_of({**DEFAULTS, **(flags or {})})
    assert check(config) == []
    inference: Inference = "local" if config.sampling.inference == "local" else "central"
    layout = Layout.plan(config.sampling, config.learner, inference)
    kept = config.learner.learner_cores
    plan = Plan(spec, layout, device, Cores(tuple(range(cores)), None, kept), weight_bytes=8)
    busy = {"actor": 0.5, "learner": 1.0 if verdict == "learner" else 0.5}
    return Advisor(config, plan).advice(Load(busy, {}, {}, verdict, idle))


def named(text: str | None) -> set[str]:
    """The flags in an advice; --inference and --amp with their values."""
    valued = ("--inference", "--amp")
    return {flag if flag.startswith(valued) else flag.partition("=")[0] for flag in re.findall(r"--[\w=]+", text or "")}


CASES: list[tuple[str, dict[str, Any], dict[str, Any], set[str]]] = [
    # Actors: more of them if cores are idle; cheaper inference if they choose actions.
    ("actor", {}, {"idle": 1.9}, {WORKERS}),
    ("actor", {"learner_cores": 2}, {"idle": 1.9}, {"--learner_cores"}),
    ("actor", {"num_envs_per_worker": 8}, {}, set()),
    ("actor", {"inference": "local", "num_envs_per_worker": 8}, {"idle": 1.0}, {WORKERS, WIDER}),
    ("actor", {"inference": "local"}, {"spec": IMAGES}, {BF16}),
    ("actor", {"inference": "local"}, {"device": "cuda:0"}, {CENTRAL}),
    ("actor", {"benchmark": True, "benchmark_stage": "env", "inference": "local"}, {"spec": IMAGES}, set()),
    # Policy workers.
    ("policy", {}, {}, {LOCAL}),
    ("policy", {}, {"idle": 1.0}, {LOCAL, POLICIES}),
    ("policy", {"num_envs_per_worker": 8}, {"spec": IMAGES}, {LOCAL, WIDER, BF16}),
    ("policy", {}, {"device": "cuda:0"}, {GRAPHS, POLICIES}),
    ("policy", {"cuda_graphs": True}, {"device": "cuda:0", "spec": IMAGES}, {POLICIES, AUTO}),
    ("policy", {"num_workers": 1, "cuda_graphs": True}, {"device": "cuda:0"}, set()),
    # The learner: threads only for idle cores of a CPU; fewer epochs only if there are several.
    ("learner", {}, {}, {BATCH}),
    ("learner", {"num_epochs": 3}, {}, {BATCH, EPOCHS}),
    ("learner", {"learner_num_threads": 1}, {"idle": 2.1}, {BATCH, THREADS}),
    ("learner", {"learner_num_threads": 3}, {"idle": 2.1}, {BATCH}),
    ("learner", {"learner_num_threads": 1}, {"idle": 2.1, "device": "cuda:0"}, {BATCH}),
    ("learner", {}, {"spec": IMAGES}, {BATCH, BF16}),
    ("learner", {}, {"spec": IMAGES, "device": "cuda:0"}, {BATCH, AUTO}),
    ("learner", {"amp": "auto"}, {"spec": IMAGES, "device": "cuda:0"}, {BATCH}),
    ("learner", {"train_in_background_thread": False}, {}, {BATCH, "--train_in_background_thread"}),
    # All cores are busy.
    ("cores", {}, {}, {LOCAL}),
    ("cores", {"inference": "local"}, {}, set()),
    ("cores", {"inference": "local", "num_workers": 6, "num_epochs": 2}, {}, {WORKERS, EPOCHS}),
    ("cores", {"inference": "local", "num_envs_per_worker": 16}, {"spec": IMAGES}, {WIDER, BF16}),
    ("cores", {"inference": "local", "num_epochs": 2}, {"device": "cuda:0"}, {CENTRAL}),
    # All processes wait for each other.
    ("nobody", {"num_envs_per_worker": 8, "worker_num_splits": 1}, {}, {SPLITS, WIDER}),
    ("nobody", {"num_envs_per_worker": 8, "inference": "local"}, {}, {WIDER, "--min_traj_buffers_per_worker"}),
    ("nobody", {"async_rl": False, "batch_size": 65536}, {}, {"--async_rl"}),
    ("nobody", {"num_batches_to_accumulate": 0}, {}, {"--num_batches_to_accumulate"}),
    ("nobody", {"num_batches_to_accumulate": 1}, {}, {"--num_batches_to_accumulate"}),
    ("nobody", {"train_in_background_thread": False}, {}, {"--train_in_background_thread"}),
    ("nobody", {"max_sample_requests_in_flight_per_worker": 1}, {}, {"--max_sample_requests_in_flight_per_worker"}),
]


def test_advice_suggests_flags_that_help_this_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bottleneck, "cpu_has_bf16", lambda: True)

    for verdict, flags, machine, expected in CASES:
        assert named(advice(verdict, flags, **machine)) == expected, (verdict, flags, machine)


def test_advice_depends_on_the_processor_and_on_idle_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bottleneck, "cpu_has_bf16", lambda: False)

    assert named(advice("learner", spec=IMAGES)) == {BATCH}
    # 2 actors leave the learner 2 of 4 cores, and it keeps both busy although it is one process.
    assert named(advice("learner", idle=1.0)) == {BATCH}
    assert advice(None) is None


@pytest.mark.parametrize(
    ("verdict", "flags", "idle", "words"),
    [
        ("learner", {"learner_num_threads": 1}, 2.2, "--learner_num_threads=3 "),
        ("actor", {}, 1.9, "--num_workers=3 "),
        ("policy", {"policy_workers_per_policy": 2}, 0.0, "--inference=local --policy_workers_per_policy=1"),
        ("nobody", {"num_envs_per_worker": 7, "worker_num_splits": 1}, 0.0, "=2 with an even --num_envs_per_worker"),
    ],
)
def test_values_fit_the_machine_and_required_flags_are_suggested_together(
    verdict: str, flags: dict[str, Any], idle: float, words: str
) -> None:
    assert words in str(advice(verdict, flags, idle=idle))
