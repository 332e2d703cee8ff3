"""The sizes of a run follow from its configuration."""

from __future__ import annotations

import pytest

from sfactory.config.schema import EvaluationConfig, LearnerConfig, SamplingConfig
from sfactory.layout import ActingCost, Layout, choose_inference, episodes_of, is_actor, is_learner, num_evaluators
from tests.support.parts import small_layout

SAMPLING = SamplingConfig(
    num_workers=3,
    num_envs_per_worker=12,
    worker_num_splits=2,
    policy_workers_per_policy=2,
    rollout=16,
    min_traj_buffers_per_worker=4,
)
LEARNER = LearnerConfig(batch_size=160, num_batches_per_epoch=3, num_batches_to_accumulate=5)


def test_sizes_follow_from_flags_and_an_actor_with_local_inference_has_one_wide_split() -> None:
    central, local = Layout.plan(SAMPLING, LEARNER, "central"), Layout.plan(SAMPLING, LEARNER, "local")

    assert (central.num_actors, central.splits, central.rows, central.rollout) == (3, 2, 6, 16)
    assert (central.slots_per_actor, central.num_slots, central.policy_workers) == (8, 24, 2)
    assert (central.dataset_rows, central.datasets) == (30, 5)
    assert (local.splits, local.rows, local.slots_per_actor, local.policy_workers) == (1, 12, 4, 0)
    without_thread = LearnerConfig(train_in_background_thread=False, num_batches_to_accumulate=5)
    assert Layout.plan(SAMPLING, without_thread, "local").datasets == 1


def test_processes_are_named_as_the_kernel_can_keep_them() -> None:
    layout = Layout.plan(SAMPLING, LEARNER, "central", evaluators=2)

    assert layout.process_names == [
        *("sf-learner-0", "sf-policy-0-0", "sf-policy-0-1"),
        *("sf-actor-0", "sf-actor-1", "sf-actor-2", "sf-eval-0", "sf-eval-1"),
    ]
    assert [name for name in layout.process_names if is_actor(name)] == layout.actor_names
    assert [name for name in layout.process_names if is_learner(name)] == layout.learner_names
    assert max(len(name) for name in small_layout(num_actors=4096, evaluators=64).process_names) <= 15


@pytest.mark.parametrize(
    ("interval", "workers", "episodes", "shares"),
    [(0.0, 3, 10, []), (5.0, 1, 10, [10]), (5.0, 3, 10, [4, 3, 3]), (5.0, 3, 2, [1, 1]), (5.0, 64, 64, [1] * 64)],
)
def test_the_episodes_of_an_evaluation_are_shared_out_evenly(
    interval: float, workers: int, episodes: int, shares: list[int]
) -> None:
    evaluators = num_evaluators(EvaluationConfig(interval, workers, episodes))

    assert [episodes_of(evaluator, evaluators, episodes) for evaluator in range(evaluators)] == shares


@pytest.mark.parametrize(
    ("on_gpu", "cost", "chosen"),
    [
        (False, None, "local"),
        (False, ActingCost(1.0, 100.0), "local"),
        (True, None, "central"),
        (True, ActingCost(100.0, 24.9), "local"),
        (True, ActingCost(100.0, 25.0), "central"),
    ],
)
def test_auto_chooses_the_gpu_only_if_acting_in_actors_costs_much(
    on_gpu: bool, cost: ActingCost | None, chosen: str
) -> None:
    assert choose_inference("auto", on_gpu, cost).inference == chosen
    assert [choose_inference(wanted, on_gpu, cost).inference for wanted in ("local", "central")] == ["local", "central"]
