"""Learners of many settings, for comparisons of devices and of ways to compute an update."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig, LearnerConfig, ModelConfig, OptimConfig
from sfactory.learner.auxiliary import make_auxiliary
from sfactory.learner.trainer import Trainer
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.ranks.ranks import ALONE, Ranks
from sfactory.system.cuda_graphs import Recorder
from tests.support.gpu import spec_of

SMALL = {
    "encoder_mlp_layers": (16,),
    "encoder_conv_mlp_layers": (16,),
    "rnn_size": 8,
    "normalize_input": False,
    "normalize_returns": False,  # it moves weights, too
}
GAE, RNN = {"with_vtrace": False}, {"use_rnn": True}
RESULTS = "learner/train_stats.py on_host"
KL = "learner/trainer.py close"  # of a coefficient that adapts to it


class Case(NamedTuple):
    """Settings of one learner.

    waits: {"file function": waits for the device per dataset}, those for results only if there is not one a pass.
    draws: random numbers of the device.
    """

    name: str
    kind: str = "vector"
    dtype: torch.dtype = torch.float32
    agents: bool = False
    model: dict[str, Any] = {}  # noqa: RUF012 - never changed
    algo: dict[str, Any] = {}  # noqa: RUF012
    optim: dict[str, Any] = {}  # noqa: RUF012
    learner: dict[str, Any] = {}  # noqa: RUF012
    waits: dict[str, int] = {}  # noqa: RUF012
    draws: bool = False

    @property
    def steps(self) -> int:
        """Of a rollout."""
        return 8 if self.has_images else 16

    @property
    def rows(self) -> int:
        """Of a dataset."""
        return 4 if self.has_images else 8

    @property
    def has_images(self) -> bool:
        """Whether observations take most of the time."""
        return self.kind in ("images", "both")


CASES = (
    Case("MLP"),
    Case("MLP, parts normalized", model={"normalize_input": True, "normalize_returns": True}),
    Case("images", "images"),
    Case("images, bf16", "images", torch.bfloat16),
    Case("several inputs and actions", "both"),
    Case("several inputs and actions, fp16", "both", torch.float16),
    Case("several inputs and actions, ResNet", "both", model={"encoder_conv_architecture": "resnet_impala"}),
    Case("action masks", "masked"),
    Case("GRU", model=RNN),
    Case("LSTM", model={**RNN, "rnn_type": "lstm"}),
    Case("minGRU", model={**RNN, "rnn_type": "mingru"}),
    Case("LSTM, several agents", agents=True, model={**RNN, "rnn_type": "lstm"}),
    Case(
        "separate critic",
        model={"actor_critic_share_weights": False},
        optim={"separate_value_optimizer": True},
    ),
    Case("spectral norm", model={"use_spectral_norm": True}),
    Case("GAE", algo=GAE),
    Case(
        "GAE, shuffled",
        algo=GAE,
        learner={"num_batches_per_epoch": 4, "num_epochs": 2, "shuffle_minibatches": True, "batch_size": 32},
    ),
    Case("microbatches", learner={"microbatch_size": 32}),
    Case("target network", algo={"use_target_net": True}),
    Case("CPC", algo={"use_cpc": True}, model=RNN, draws=True),
    Case("RND", algo={**GAE, "rnd": True}, draws=True),
    Case("plain policy gradient", algo={"policy_loss": "pg"}),
    Case("symmetric KL", algo={"exploration_loss": "symmetric_kl"}),
    Case("KL target", algo={"kl_target": 0.01, "kl_loss_coeff": 0.1}, waits={KL: 1}),
    Case(
        "rate by the KL of minibatches",
        optim={"lr_schedule": "kl_adaptive_minibatch"},
        waits={RESULTS: 2},  # the next update has another rate
    ),
    Case(
        "rate by the KL of epochs",
        optim={"lr_schedule": "kl_adaptive_epoch"},
        learner={"num_batches_per_epoch": 4, "batch_size": 32},
    ),
    *(Case(name, optim={"optimizer": name}) for name in ("adamw", "rmsprop", "lamb", "muon")),
)


def learner_of(case: Case, device: torch.device, recorder: Recorder | None = None, ranks: Ranks = ALONE) -> Trainer:
    """A trainer with the same first weights on every device."""
    torch.manual_seed(5)
    pixels = {"obs_scale": 255.0} if case.has_images else {}
    config = ModelConfig(**{**SMALL, **pixels, **case.model})
    model, algo = ActorCritic(spec_of(case.kind, config), config, case.dtype), AlgoConfig(**case.algo)
    auxiliary = make_auxiliary(model, algo, config)
    model.to(device)
    FlatState(model)
    learner = LearnerConfig(**{"batch_size": case.steps * case.rows, **case.learner})
    optim, auxiliary = OptimConfig(**case.optim), None if auxiliary is None else auxiliary.to(device)
    beside: dict[str, Any] = {"auxiliary": auxiliary, "recorder": recorder, "ranks": ranks}
    return Trainer(model, algo, optim, learner, seed=1, policy=0, total_env_steps=10**9, **beside)


def weights_of(trainer: Trainer) -> Tensor:
    return torch.cat([weight.detach().double().cpu().flatten() for weight in trainer.model.parameters()])
