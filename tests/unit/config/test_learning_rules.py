"""Settings of learning that do not go together: what is said of them, and what does go together."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from sfactory.config.flags import config_of
from sfactory.config.validation import check
from tests.support.broken_settings import CPC, OWN_CRITIC, REPLAY, SYNCHRONOUS

RING = {"minibatch_ring_size": 2, "num_epochs": 2}
TARGET = {"use_target_net": True, "target_update_interval": 8, "target_tau": 0.5, "target_worker_clip": 1.5}
EVALUATION = {"eval_interval_sec": 60.0, "eval_workers": 2, "eval_episodes": 20, "eval_deterministic": False}


def problems(**values: Any) -> list[str]:
    return check(config_of({"env": "CartPole-v1", **values}), chosen=values)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            RING,
            "--minibatch_ring_size=2: those turned over and one in the making by each of num_batchers take 3 datasets: "
            "--num_batches_to_accumulate=3 or more holds so many",
        ),
        (
            {**RING, "minibatch_ring_size": 4, "num_batchers": 2, "num_workers": 2, "num_batches_to_accumulate": 5},
            "--minibatch_ring_size=4: those turned over and one in the making by each of num_batchers take 6 datasets: "
            "--num_batches_to_accumulate=6 or more holds so many",
        ),
        (
            {**RING, **SYNCHRONOUS, "train_in_background_thread": False},
            "--minibatch_ring_size=2: must be 1 with async_rl=False and train_in_background_thread=False: the learner "
            "then holds one dataset at a time",
        ),
        (
            {"num_batchers": 2, "num_workers": 2, "serial_mode": True},
            "--num_batchers=2: must be 1 with serial_mode=True: the learner then assembles one dataset at a time",
        ),
        (
            {"num_batchers": 3, "num_workers": 2, "num_batches_to_accumulate": 9},
            "--num_batchers=3: must be at most num_workers (2), whose trajectories they assemble",
        ),
        (
            {"ring_warmup": 3, "num_epochs": 2},
            "--ring_warmup=3: must be at most num_epochs (2), which the number of passes rises to",
        ),
        (
            {
                "learner_queue_policy": "drop_oldest",
                "num_batchers": 2,
                "num_workers": 2,
                "num_batches_to_accumulate": 3,
            },
            "--learner_queue_policy=drop_oldest: those learned from, one in the making by each of num_batchers, and "
            "one that waits take 4 datasets: --num_batches_to_accumulate=4 or more holds so many",
        ),
        (
            {"replay_proportion": 0.5},
            "--replay_proportion=0.5: there are no trajectories to replay: say how many are kept, for example "
            "--replay_slots=100",
        ),
        (
            {**REPLAY, "with_vtrace": False},
            "--replay_proportion=0.5: replayed trajectories are of old policies, which V-trace alone corrects: needs "
            "--with_vtrace=True",
        ),
        (
            {**REPLAY, "replay_proportion": 3.5, "batch_size": 64, "num_batches_per_epoch": 2},
            "--replay_proportion=3.5: a dataset has 4 rows (batch_size / rollout x num_batches_per_epoch), and one new "
            "one with all that it brings along takes 5: make datasets larger or this smaller",
        ),
        ({"replay_slots": 10}, "--replay_slots=10: has no effect as it is: leave it out, or add --replay_proportion=1"),
        (
            {"microbatch_size": 1024},
            "--microbatch_size=1024: must be a divisor of batch_size (1024) and a multiple of rollout, since V-trace "
            "and memory keep rollouts whole, and less than it: nearest is 512",
        ),
        (
            {"microbatch_size": 8, "with_vtrace": False, "use_rnn": True},
            "--microbatch_size=8: must be a divisor of batch_size (1024) and a multiple of rollout, since V-trace and "
            "memory keep rollouts whole, and less than it: nearest is 32",
        ),
        (
            {"microbatch_size": 5, "with_vtrace": False, "batch_size": 96},
            "--microbatch_size=5: must be a divisor of batch_size (96) and less than it: nearest are 4 and 6",
        ),
        (
            {"microbatch_size": 16, "batch_size": 32},
            "--microbatch_size=16: must be a divisor of batch_size (32) and a multiple of rollout, since V-trace and "
            "memory keep rollouts whole, and less than it, and there is none: leave it at 0",
        ),
        (
            {"kl_target": 0.01},
            "--kl_target=0.01: adapts kl_loss_coeff, which is 0 and would stay so: say where it starts, for example "
            "--kl_loss_coeff=0.2",
        ),
        (
            {"exploration_loss_coeff_schedule": "0:0.1,5:0.2,5:0"},
            "--exploration_loss_coeff_schedule=0:0.1,5:0.2,5:0: must be points as 0:5e-4,20e6:1e-6, which are trained "
            "env steps and the value there: step 5 stands twice",
        ),
        (
            {"lr_schedule": "kl_adaptive"},
            "--lr_schedule=kl_adaptive: must be one of constant, linear_decay, kl_adaptive_minibatch, "
            "kl_adaptive_epoch, or points as 0:5e-4,20e6:1e-6, which are trained env steps and the value there; did "
            "you mean kl_adaptive_epoch or kl_adaptive_minibatch?",
        ),
        (
            {"lr_schedule": "0:1e-3,20:1e-4,10:0"},
            "--lr_schedule=0:1e-3,20:1e-4,10:0: must be one of constant, linear_decay, kl_adaptive_minibatch, "
            "kl_adaptive_epoch, or points as 0:5e-4,20e6:1e-6, which are trained env steps and the value there: steps "
            "must rise, and 10 follows 20",
        ),
        (
            {"optimizer": "muon"},
            "--optimizer=muon: needs the package pytorch_optimizer, which is not installed: run pip install "
            "'sfactory[optimizers]'",
        ),
        ({"optimizer": "adamax"}, "--optimizer=adamax: must be one of adam, adamw, rmsprop, lamb, muon"),
        (
            {"separate_value_optimizer": True, "use_rnn": True},
            "--separate_value_optimizer=True: encoder, recurrent core and decoder are shared by actor and critic, so "
            "that two optimizers would step them: needs --actor_critic_share_weights=False",
        ),
        ({"weight_decay": 0.1}, "--weight_decay=0.1: has no effect as it is: leave it out, or add --optimizer=adamw"),
        ({"exploration_loss_coeff": -0.1}, "--exploration_loss_coeff=-0.1: must be at least 0"),
        (
            {**CPC, "rollout": 8},
            "--cpc_forward_steps=8: must be less than rollout (8), in which what is predicted must lie",
        ),
        (
            {"observers": ("my_hooks:Watch", "my_hooks", "a b:C")},
            "--observers my_hooks:Watch my_hooks a b:C: 'my_hooks', 'a b:C' must read module:Class, for example "
            "--observers my_hooks:Watch",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_advice(
    values: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)

    assert problems(**values) == [expected]


@pytest.mark.parametrize(
    "values",
    [
        {**RING, "num_batches_to_accumulate": 3, "ring_warmup": 1, "ring_nonblocking": True},
        {**RING, "num_batchers": 2, "num_workers": 2, "num_batches_to_accumulate": 4},
        {"num_batchers": 2, "num_workers": 2, "num_batches_to_accumulate": 3},
        {"learner_queue_policy": "drop_oldest", "num_batches_to_accumulate": 3},
        {**REPLAY, "replay_include_new": True, "max_replay_lag": 5},
        {**REPLAY, "serial_mode": True},
        {**REPLAY, "replay_proportion": 3.0, "batch_size": 64, "num_batches_per_epoch": 2},
        {"num_batches_to_accumulate": 1},
        {"microbatch_size": 512},
        {"microbatch_size": 32},
        {"microbatch_size": 1, "with_vtrace": False},
        {"early_stop_kl": 0.1, "num_epochs": 2},
        {"vtrace_rho": None, "vtrace_pg_rho": None, "vtrace_c": None, "vtrace_lambda": 0.0},
        {"vtrace_adv_weighting": "none", "policy_loss": "pg"},
        {"vtrace_drop_last_ts": True, "rollout": 2},
        {"kl_target": 0.01, "kl_loss_coeff": 0.2},
        TARGET,
        {"exploration_loss_coeff_schedule": "0:0.01, 1e6:0", "exploration_loss": "symmetric_kl"},
        {"lr_schedule": "0:5e-4,20e6:1e-6"},
        {**OWN_CRITIC, "value_lr": 0.0},
        {**OWN_CRITIC, "value_lr_schedule": "0:1e-3"},
        {"optimizer": "adamw", "weight_decay": 0.1, "adam_beta1": 0.8},
        {"optimizer": "rmsprop", "rmsprop_alpha": 0.9, "rmsprop_momentum": 0.5, "rmsprop_tf_style": True},
        {**CPC, "cpc_forward_steps": 31, "cpc_forward_subsample": 31, "aux_loss_coeff": 1.0},
        EVALUATION,
        {"observers": ("my_hooks:Watch", "a.b:C"), "after_train_step": ("my_hooks:look",)},
    ],
)
def test_what_goes_together_passes(values: dict[str, Any]) -> None:
    assert problems(**values) == []


def test_the_nearest_microbatches_are_found_in_time_however_large_the_batch() -> None:
    found = problems(rollout=1, batch_size=2**62, microbatch_size=3, with_vtrace=False)

    assert found[0].endswith("nearest are 2 and 4")


def test_all_that_is_wrong_is_said_at_once() -> None:
    found = problems(
        lr_schedule="5:1",
        minibatch_ring_size=2,
        replay_proportion=1.0,
        microbatch_size=100,
        exploration_loss_coeff=-1.0,
    )

    assert sorted(text.partition("=")[0] for text in found) == [
        "--exploration_loss_coeff",
        "--lr_schedule",
        "--microbatch_size",
        "--minibatch_ring_size",
        "--replay_proportion",
    ]


def test_the_optimizers_of_the_extra_are_taken_where_it_is_installed() -> None:
    pytest.importorskip("pytorch_optimizer")

    assert problems(optimizer="lamb") == []
    assert problems(optimizer="muon", weight_decay=0.1) == []
