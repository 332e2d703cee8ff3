"""Advice names flags that would help this very run: none set that way already, none that the machine cannot serve."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sfactory.config.flags import config_of
from sfactory.config.validation import check
from sfactory.layout import Inference, Layout
from sfactory.planning.plan import Plan
from sfactory.report import bottleneck as advisor_module
from sfactory.report.bottleneck import Advisor, Load
from sfactory.spec import DiscreteHead, EnvSpec, TensorSpec
from sfactory.system.cores import Cores
from tests.support.parts import VECTOR

IMAGES = EnvSpec(obs=(("obs", TensorSpec((4, 84, 84), "uint8")),), actions=(DiscreteHead("action", 4),))
# What the table below leaves out: 4 cores, 2 workers of one wide split of plain numbers, one pass over each batch.
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
    """What is said of a run with these flags in which ``verdict`` sets the pace."""
    config = config_of({**DEFAULTS, **(flags or {})})
    assert check(config) == []
    inference: Inference = "local" if config.sampling.inference == "local" else "central"
    layout = Layout.plan(config.sampling, config.learner, inference)
    kept = config.learner.learner_cores
    plan = Plan(spec, layout, device, Cores(tuple(range(cores)), None, kept), weight_bytes=8)
    busy = {"actor": 0.5, "learner": 1.0 if verdict == "learner" else 0.5}
    return Advisor.of(config, plan).advice(Load(busy, {}, {}, verdict, idle))


def named(text: str | None) -> set[str]:
    """The flags in it, with the values of those whose value matters in the table below."""
    assert text is not None
    valued = ("--inference", "--amp")
    return {flag if flag.startswith(valued) else flag.partition("=")[0] for flag in re.findall(r"--[\w=]+", text)}


@pytest.mark.parametrize(
    ("verdict", "flags", "machine", "due"),
    [
        # Actors: more of them where cores are idle; those that choose actions may do so more cheaply.
        ("actor", {}, {"idle": 1.9}, {WORKERS}),
        ("actor", {}, {}, set()),
        ("actor", {"learner_cores": 2}, {"idle": 1.9}, {"--learner_cores"}),
        ("actor", {"num_envs_per_worker": 8}, {}, set()),
        ("actor", {"inference": "local", "num_envs_per_worker": 8}, {"idle": 1.0}, {WORKERS, WIDER}),
        ("actor", {"inference": "local"}, {"spec": IMAGES}, {BF16}),
        ("actor", {"inference": "local", "amp": "bf16"}, {"spec": IMAGES}, set()),
        ("actor", {"inference": "local"}, {"device": "cuda:0"}, {CENTRAL}),
        ("actor", {"benchmark": True, "benchmark_stage": "env", "inference": "local"}, {"spec": IMAGES}, set()),
        # Policy workers.
        ("policy", {}, {}, {LOCAL}),
        ("policy", {}, {"idle": 1.0}, {LOCAL, POLICIES}),
        ("policy", {"policy_workers_per_policy": 2}, {"idle": 1.0}, {LOCAL, POLICIES}),
        ("policy", {"num_envs_per_worker": 8}, {"spec": IMAGES}, {LOCAL, WIDER, BF16}),
        ("policy", {}, {"device": "cuda:0"}, {GRAPHS, POLICIES}),
        ("policy", {"cuda_graphs": True}, {"device": "cuda:0", "spec": IMAGES}, {POLICIES, AUTO}),
        ("policy", {"num_workers": 1, "cuda_graphs": True}, {"device": "cuda:0"}, set()),
        # The learner: threads only for cores that are idle, and on a CPU; less learning only where there is less.
        ("learner", {}, {}, {BATCH}),
        ("learner", {"num_epochs": 3}, {}, {BATCH, EPOCHS}),
        ("learner", {"learner_num_threads": 1}, {"idle": 2.1}, {BATCH, THREADS}),
        ("learner", {"learner_num_threads": 4}, {"idle": 3.0}, {BATCH}),
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
        # Everybody waits for somebody.
        ("nobody", {"num_envs_per_worker": 8}, {}, {WIDER}),
        ("nobody", {"num_envs_per_worker": 8, "worker_num_splits": 1}, {}, {SPLITS, WIDER}),
        ("nobody", {"num_envs_per_worker": 8, "inference": "local"}, {}, {WIDER, "--min_traj_buffers_per_worker"}),
        ("nobody", {"async_rl": False, "batch_size": 65536}, {}, {"--async_rl"}),
        ("nobody", {"num_batches_to_accumulate": 0}, {}, {"--num_batches_to_accumulate"}),
        ("nobody", {"num_batches_to_accumulate": 1}, {}, {"--num_batches_to_accumulate"}),
        ("nobody", {"train_in_background_thread": False}, {}, {"--train_in_background_thread"}),
        (
            "nobody",
            {"max_sample_requests_in_flight_per_worker": 1},
            {},
            {"--max_sample_requests_in_flight_per_worker"},
        ),
    ],
)
def test_the_flags_that_are_named_would_help_this_run(
    verdict: str, flags: dict[str, Any], machine: dict[str, Any], due: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advisor_module, "cpu_has_bf16", lambda: True)

    assert named(advice(verdict, flags, **machine)) == due


def test_a_short_format_is_named_only_where_the_processor_has_units_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advisor_module, "cpu_has_bf16", lambda: False)

    assert named(advice("learner", spec=IMAGES)) == {BATCH}


def test_values_are_those_that_the_machine_has_room_for() -> None:
    threads = advice("learner", {"learner_num_threads": 1}, idle=2.2)
    workers = advice("actor", idle=1.9)

    assert threads is not None
    assert "--learner_num_threads=3 " in threads
    assert workers is not None
    assert "--num_workers=3 " in workers


def test_threads_of_the_learner_leave_no_core_idle() -> None:
    # 2 actors leave the learner 2 of 4 cores, both of which it keeps busy; main sees one busy process.
    assert named(advice("learner", idle=1.0)) == {BATCH}


def test_what_a_flag_needs_beside_it_is_named_with_it() -> None:
    alone = advice("policy", {"policy_workers_per_policy": 2})
    odd = advice("nobody", {"num_envs_per_worker": 7, "worker_num_splits": 1})

    assert alone is not None
    assert "--inference=local --policy_workers_per_policy=1" in alone
    assert odd is not None
    assert "--worker_num_splits=2 with an even --num_envs_per_worker" in odd


def test_a_verdict_is_told_in_words_and_no_verdict_needs_no_advice() -> None:
    text = advice("actor", {"inference": "local"}, idle=2.0)

    assert text == "bound by actor: stepping environments and choosing their actions sets the pace; " + (
        "--num_workers=3 uses idle cores"
    )
    assert advice(None) is None
