"""The bottleneck is named from counters of the processes, and advice suggests flags that help this run."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sfactory.action_heads import DiscreteHead
from sfactory.config.flags import config_of
from sfactory.config.validation import check
from sfactory.layout import Inference, Layout
from sfactory.planning.plan import Plan
from sfactory.report import bottleneck
from sfactory.report.bottleneck import Advisor, Load, LoadMeter, depth_statistics
from sfactory.shared import status as status_module
from sfactory.shared.status import MAX_DEPTH, StatusBoard, Stopwatch
from sfactory.spec import EnvSpec, TensorSpec
from sfactory.system.cores import Cores
from tests.support.parts import VECTOR

WITH_POLICY_WORKERS = ["sf-learner-0", "sf-policy-0-0", "sf-actor-0", "sf-actor-1"]
WITHOUT_POLICY_WORKERS = ["sf-learner-0", "sf-actor-0", "sf-actor-1"]


class Processes:
    """The stopwatches of all processes, a meter, and a clock."""

    def __init__(self, names: list[str], cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 100.0
        for module in (bottleneck, status_module):
            monkeypatch.setattr(module, "now", lambda: self.time)
        self.board = StatusBoard(names)
        self.watches = {name: Stopwatch(self.board.row(name)) for name in names}
        self.meter = LoadMeter(self.board, cores)

    def work(self, seconds: float, **busy: float) -> None:
        """Let ``seconds`` pass: each process is busy for the share of its kind, and then waits."""
        start = self.time
        for name, watch in self.watches.items():
            share = next(share for kind, share in busy.items() if name.startswith(f"sf-{kind}"))
            self.time = start
            watch.after_wait()
            self.time = start + share * seconds
            watch.before_wait()
        self.time = start + seconds


def test_depth_statistics_equal_those_of_numpy() -> None:
    rng = np.random.default_rng(3)
    depths = rng.geometric(0.1, 999)

    found = depth_statistics(np.bincount(depths))

    percentiles = np.percentile(depths, [10, 50, 90], method="inverted_cdf")
    expected = [999, depths.mean(), depths.std(), depths.min(), *percentiles, depths.max()]
    assert list(found) == ["count", "mean", "std", "min", "p10", "p50", "p90", "max"]
    assert list(found.values()) == pytest.approx(expected)
    assert {*depth_statistics(np.zeros(8, np.int64)).values()} == {None}


def test_shares_are_means_over_the_processes_of_a_kind_in_the_last_window(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes(WITH_POLICY_WORKERS, 8, monkeypatch)
    processes.work(10.0, actor=0.1, policy=0.1, learner=0.1)
    processes.meter.take()

    processes.work(4.0, **{"actor-0": 0.5, "actor-1": 0.75, "policy": 0.25, "learner": 0.75})
    load = processes.meter.take()

    assert load.busy == pytest.approx({"actor": 0.625, "policy": 0.25, "learner": 0.75})
    assert load.waiting == pytest.approx({"actor": 0.375, "policy": 0.75, "learner": 0.25})
    assert load.idle_cores == pytest.approx(8 - 2 * 0.625 - 0.25 - 0.75)


def test_cores_of_other_programs_are_those_that_busy_processes_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    queued = iter((0.0, 14.0, 28.0))
    monkeypatch.setattr(LoadMeter, "_read_queued", lambda self: next(queued))
    processes = Processes(WITHOUT_POLICY_WORKERS, 2, monkeypatch)

    lost = []
    for share in (1.0, 0.0):
        processes.work(10.0, actor=share, learner=share)
        lost.append(processes.meter.take().lost_cores)

    assert lost == pytest.approx([0.4, 1.4])  # three processes on two cores wait for one another, too
    load = Load({"actor": 1.0, "learner": 0.0}, {}, {}, "actor", lost_cores=1.4)
    assert "other programs hold about 1.4 of the 4 cores" in str(advice("actor", load=load))
    assert "other programs" not in str(advice("actor", load=load, cores=16))  # some of many always wait for a moment
    assert "other programs" not in str(advice("actor", load=replace(load, idle_cores=1.0)))


def test_unfinished_work_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes(WITHOUT_POLICY_WORKERS, 8, monkeypatch)
    learner, actor = processes.watches["sf-learner-0"], processes.watches["sf-actor-0"]
    actor.before_wait()
    processes.time += 1.0
    learner.lap()

    for _ in range(3):  # the learner trains and one actor waits during three complete windows
        processes.time += 2.0
        load = processes.meter.take()
        assert load.busy == {"learner": 1.0, "actor": 0.5}
        assert load.waiting == {"learner": 0.0, "actor": 0.5}
        assert load.bound_by == "learner"

    processes.time += 3.0
    learner.before_wait()
    processes.time += 1.0
    assert processes.meter.take().busy["learner"] == pytest.approx(0.75)


def test_a_process_that_stops_working_during_the_reading_loses_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ten seconds of work end after the reader has seen that the process is busy, and before it reads for how long.
    processes = Processes(WITHOUT_POLICY_WORKERS, 8, monkeypatch)
    row, watch = processes.board.row("sf-learner-0"), processes.watches["sf-learner-0"]
    processes.time += 10.0
    get = row.get

    def finish_work(name: str) -> float:
        if name == "busy_s":
            watch.before_wait()
        return get(name)

    monkeypatch.setattr(row, "get", finish_work)

    assert row.times(processes.time) == (10.0, 0.0)


def test_depths_of_rings_and_datasets_cover_the_last_window_only(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes(WITH_POLICY_WORKERS, 8, monkeypatch)
    learner, policy, *actors = (processes.board.row(name) for name in WITH_POLICY_WORKERS)
    policy.count_depth(7)
    learner.count_ready(5)
    processes.meter.take()

    for messages in (1, 3, 3, 0, 1000):
        policy.count_depth(messages)
    for messages, actor in enumerate(actors, 1):
        actor.count_depth(messages)
    for datasets in (0, 2, 0, 2):  # here 0 counts
        learner.count_ready(datasets)
    scalars = processes.meter.take().scalars()

    assert [scalars[f"ring/requests_{name}"] for name in ("count", "p50", "min", "max")] == [4, 3, 1, MAX_DEPTH]
    assert (scalars["ring/replies_count"], scalars["ring/replies_mean"]) == (2, 1.5)
    assert [scalars[f"ring/datasets_{name}"] for name in ("count", "mean", "min", "max")] == [4, 1.0, 0, 2]
    assert scalars["ring/trajectories_count"] is None
    # The next window is empty and has the same columns.
    empty = processes.meter.take().scalars()
    assert empty["ring/requests_count"] is None
    assert empty.keys() == scalars.keys()


@pytest.mark.parametrize(
    ("cores", "actor", "policy", "learner", "bound_by"),
    [
        (8, 0.98, 0.5, 0.3, "actor"),
        (8, 0.3, 0.95, 0.3, "policy"),
        (8, 0.3, 0.5, 0.99, "learner"),
        (8, 0.5, 0.5, 0.5, "none"),
        (2, 0.6, 0.5, 0.5, "cores"),
        (2, 0.99, 0.3, 0.3, "actor"),
        (8, 0.0, 0.0, 0.0, None),
    ],
)
def test_bottleneck_is_named(
    monkeypatch: pytest.MonkeyPatch, cores: int, actor: float, policy: float, learner: float, bound_by: str | None
) -> None:
    processes = Processes(WITH_POLICY_WORKERS, cores, monkeypatch)
    processes.work(2.0, actor=actor, policy=policy, learner=learner)

    assert processes.meter.take().bound_by == bound_by


CHOICES = (DiscreteHead("action", 4),)
IMAGES = EnvSpec(obs=(("obs", TensorSpec((4, 84, 84), "uint8", layout="chw")),), actions=CHOICES)
GREY = EnvSpec(obs=(("obs", TensorSpec((84, 84), "uint8", layout="hw")),), actions=CHOICES)
TABLES = EnvSpec(obs=(("obs", TensorSpec((4, 8, 8), "float32")),), actions=CHOICES)
# Defaults of the table below: 4 cores, 2 workers with one wide split of vector observations, one epoch.
DEFAULTS: dict[str, Any] = {
    "env": "CartPole-v1",
    "num_workers": 2,
    "num_envs_per_worker": 1024,
    "rollout": 32,
    "batch_size": 4096,
    "num_epochs": 1,
}
# A process can hold only one game of this family.
ONE_GAME = {"env": "retro:Airstriker-Genesis-v0", "num_envs_per_worker": 1, "worker_num_splits": 1}
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
    load: Load | None = None,
    useful: int = 99,
) -> str | None:
    """The advice for a run with these flags and this bottleneck."""
    config = config_of({**DEFAULTS, **(flags or {})})
    assert check(config) == []
    inference: Inference = "local" if config.sampling.inference == "local" else "central"
    layout = Layout.plan(config.sampling, config.learner, inference)
    kept = config.learner.learner_cores
    plan = Plan(spec, layout, device, Cores(tuple(range(cores)), None, kept, learner_use=useful), weight_bytes=8)
    busy = {"actor": 0.5, "learner": 1.0 if verdict == "learner" else 0.5}
    return Advisor(config, plan).advice(load or Load(busy, {}, {}, verdict, idle))


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
    ("actor", {"inference": "local"}, {"spec": GREY}, {BF16}),
    ("actor", {"inference": "local"}, {"spec": TABLES}, set()),  # no images, though of three dimensions
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
    ("learner", {"learner_num_threads": 1}, {"idle": 2.1, "device": "cuda:0"}, {BATCH, GRAPHS}),
    ("learner", {}, {"spec": IMAGES}, {BATCH, BF16}),
    ("learner", {}, {"spec": IMAGES, "device": "cuda:0"}, {BATCH, AUTO, GRAPHS}),
    ("learner", {"optimizer": "rmsprop"}, {"device": "cuda:0"}, {BATCH}),
    ("learner", {"amp": "auto", "cuda_graphs": True}, {"spec": IMAGES, "device": "cuda:0"}, {BATCH}),
    ("learner", {"train_in_background_thread": False}, {}, {BATCH, "--train_in_background_thread"}),
    # All cores are busy.
    ("cores", {}, {}, {LOCAL}),
    ("cores", {"inference": "local"}, {}, set()),
    ("cores", {"inference": "local", "num_workers": 6, "num_epochs": 2}, {}, {WORKERS, EPOCHS}),
    ("cores", {"inference": "local", "num_envs_per_worker": 16}, {"spec": IMAGES}, {WIDER, BF16}),
    ("cores", {"inference": "local", "num_epochs": 2}, {"device": "cuda:0"}, {CENTRAL}),
    ("cores", {**ONE_GAME, "inference": "local"}, {}, set()),
    # All processes wait for each other.
    ("none", ONE_GAME, {}, set()),
    ("none", {"num_envs_per_worker": 8, "worker_num_splits": 1}, {}, {SPLITS, WIDER}),
    ("none", {"num_envs_per_worker": 8, "inference": "local"}, {}, {WIDER, "--min_traj_buffers_per_worker"}),
    ("none", {"async_rl": False, "batch_size": 65536}, {}, {"--async_rl"}),
    ("none", {"num_batches_to_accumulate": 0}, {}, {"--num_batches_to_accumulate"}),
    ("none", {"num_batches_to_accumulate": 1}, {}, {"--num_batches_to_accumulate"}),
    ("none", {"train_in_background_thread": False}, {}, {"--train_in_background_thread"}),
    ("none", {"max_sample_requests_in_flight_per_worker": 1}, {}, {"--max_sample_requests_in_flight_per_worker"}),
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


def test_values_fit_the_machine_and_required_flags_are_suggested_together() -> None:
    odd = {"num_envs_per_worker": 7, "worker_num_splits": 1}

    assert f"{THREADS}=3 " in str(advice("learner", {"learner_num_threads": 1}, idle=2.2))
    assert f"{THREADS}=2 " in str(advice("learner", {"learner_num_threads": 1}, idle=2.2, useful=2))
    assert f"{WORKERS}=3 " in str(advice("actor", idle=1.9))
    assert f"{LOCAL} {POLICIES}=1" in str(advice("policy", {"policy_workers_per_policy": 2}))
    assert f"{SPLITS}=2 with an even {WIDER}" in str(advice("none", odd))
