"""A run that is stopped, saved, and resumed from disk ends with the very weights of one that never stopped."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from sfactory.checkpoint.directory import CheckpointDir
from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.learner.batch import Batch
from sfactory.learner.checkpointing import Progress, payload_of, restore
from sfactory.learner.trainer import Trainer
from tests.support.equality import assert_same
from tests.support.parts import model_of, record, tiny_config, trainer_for

UPDATES = 8
GAE = {"with_vtrace": False}
NORMALIZED = {"normalize_input": True, "normalize_returns": True}
MEMORY = {"use_rnn": True, "rnn_type": "lstm"}
APART, SEPARATE = {"actor_critic_share_weights": False}, {"separate_value_optimizer": True}
CUT = {"num_batches_per_epoch": 2, "num_epochs": 2}
SHUFFLED = {**CUT, "shuffle_minibatches": True}
POINTS = "0:0.01,50:0.005,160:0.001"


@dataclasses.dataclass(frozen=True)
class Run:
    """The settings of one run, by section."""

    model: dict[str, Any] = dataclasses.field(default_factory=dict)
    algo: dict[str, Any] = dataclasses.field(default_factory=dict)
    optim: dict[str, Any] = dataclasses.field(default_factory=dict)
    learner: dict[str, Any] = dataclasses.field(default_factory=dict)

    def trainer(self, seed: int) -> Trainer:
        optim = OptimConfig(**{"learning_rate": 0.01, **self.optim})
        learner, algo = LearnerConfig(**self.learner), AlgoConfig(gamma=0.9, **self.algo)
        steps = UPDATES * 36
        return trainer_for(model_of(seed=seed, **self.model), algo, optim, learner, seed=11, total_env_steps=steps)

    def batches(self) -> list[Batch]:
        """Recorded by a model that is neither of the trainers'."""
        config, model = tiny_config(**self.model), model_of(seed=5, **self.model)
        return [record(model, config, recurrence=3, seed=seed) for seed in range(UPDATES)]


RUNS = {
    "memory_vtrace": Run(model=MEMORY, learner=CUT),
    "shuffled_rows": Run(learner=SHUFFLED),
    "shuffled_steps": Run(algo=GAE, learner=SHUFFLED),
    "linear_decay": Run(optim={"lr_schedule": "linear_decay"}),
    "points": Run(optim={"lr_schedule": POINTS}),
    "adamw": Run(optim={"optimizer": "adamw", "weight_decay": 0.1}),
    "rmsprop": Run(optim={"optimizer": "rmsprop", "rmsprop_momentum": 0.5, "rmsprop_tf_style": True}, learner=CUT),
    "lamb": Run(optim={"optimizer": "lamb"}),
    "two_optimizers": Run(model=APART, optim={**SEPARATE, "value_lr_schedule": POINTS}),
    "two_of_muon": Run(model={**APART, **MEMORY}, optim={**SEPARATE, "optimizer": "muon"}, learner=CUT),
    "kl_adaptive_minibatch": Run(optim={"lr_schedule": "kl_adaptive_minibatch"}, learner=CUT),
    "kl_adaptive_epoch": Run(optim={"lr_schedule": "kl_adaptive_epoch"}, learner=CUT),
    "normalized_gae": Run(model=NORMALIZED, algo=GAE, learner=CUT),
    "impact": Run(algo={"use_target_net": True, "target_update_interval": 3, "target_tau": 0.5}, learner=CUT),
    "microbatches": Run(model=NORMALIZED, learner={**CUT, "microbatch_size": 6}),
    "auxiliary": Run(model=MEMORY, algo={"use_cpc": True, "cpc_forward_steps": 3, "cpc_time_subsample": 4}),
    "rnd": Run(model={**NORMALIZED, **MEMORY}, algo={"rnd": True}, learner=CUT),
    "rnd_of_steps": Run(algo={"rnd": True, **GAE}, learner=SHUFFLED),
    "kl_target": Run(algo={"kl_loss_coeff": 0.1, "kl_target": 0.001}, learner=CUT),
    "everything": Run(
        model={**NORMALIZED, **MEMORY},
        algo={"exploration_loss": "symmetric_kl", "kl_loss_coeff": 0.1},
        optim={"lr_schedule": "kl_adaptive_epoch"},
        learner=SHUFFLED,
    ),
}
MOVING_RATES = ("linear_decay", "points", "kl_adaptive_minibatch", "kl_adaptive_epoch", "everything")


def learn(trainer: Trainer, progress: Progress, batches: list[Batch]) -> None:
    """Learn from one batch after the other, as Learner does."""
    for batch in batches:
        trainer.coefficients.at(progress.env_steps)
        progress.env_steps += trainer.train(batch)


@pytest.mark.parametrize("name", RUNS)
def test_half_of_the_updates_a_resume_and_the_others_equal_all(name: str, tmp_path: Path) -> None:
    run = RUNS[name]
    batches, half = run.batches(), UPDATES // 2
    unbroken, whole = run.trainer(seed=0), Progress()
    learn(unbroken, whole, batches)

    stopped, so_far = run.trainer(seed=0), Progress()
    learn(stopped, so_far, batches[:half])
    CheckpointDir(tmp_path, keep=1).save(payload_of(stopped, so_far), stopped.train_step, so_far.env_steps)
    loaded = CheckpointDir(tmp_path, keep=1).load()
    assert loaded is not None
    resumed, progress = run.trainer(seed=1), Progress()
    restore(dict(loaded.payload), str(loaded.path), resumed, progress)
    learn(resumed, progress, batches[half:])

    updates = run.learner.get("num_epochs", 1) * run.learner.get("num_batches_per_epoch", 1)
    assert resumed.train_step == UPDATES * updates
    assert progress.env_steps == UPDATES * 32
    assert (resumed.coefficients.rates.policy != 0.01) == (name in MOVING_RATES)
    assert_same(payload_of(resumed, progress), payload_of(unbroken, whole))
    # They end with learned weights: neither those they began with, nor those that were saved.
    ended = dict(resumed.model.named_parameters())
    for earlier in (run.trainer(seed=0), stopped):
        assert not any(bool((parameter == ended[key]).all()) for key, parameter in earlier.model.named_parameters())
