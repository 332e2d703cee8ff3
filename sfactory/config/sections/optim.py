"""Room: flags: the optimizer and its rates. In: nothing. Out: ``OptimConfig``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sfactory.config.flag import flag
from sfactory.config.mutable import How, Mutable


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer, and the schedules of its rates."""

    optimizer: Literal["adam", "adamw", "rmsprop", "lamb", "muon"] = flag(
        "adam",
        "kind of optimizer; lamb and muon come with the extra sfactory[optimizers]; muon steps matrices, and Adam all "
        "else",
    )
    learning_rate: float = flag(1e-4, "the optimizer's learning rate", gt=0, mutable=Mutable(1e-7, 0.1, on="with_pbt"))
    lr_schedule: str = flag(
        "constant",
        "constant; linear_decay, which falls to 0 at the limit of env steps or frames; kl_adaptive_minibatch or "
        "kl_adaptive_epoch, which keep the KL divergence of an update near lr_schedule_kl_threshold, looking at each "
        "minibatch or epoch; or points as 0:5e-4,20e6:1e-6 (trained env steps:rate), joined by straight lines, which "
        "replace learning_rate",
    )
    lr_schedule_kl_threshold: float = flag(0.008, "KL divergence that the kl_adaptive schedules aim at", gt=0)
    lr_adaptive_min: float = flag(1e-6, "lowest rate of the kl_adaptive schedules", gt=0)
    lr_adaptive_max: float = flag(1e-2, "highest rate of the kl_adaptive schedules", gt=0)
    separate_value_optimizer: bool = flag(
        False,
        "the critic has an optimizer of its own, of the same kind, with value_lr; needs "
        "actor_critic_share_weights=False",
    )
    value_lr: float = flag(
        5e-4, "learning rate of the critic's own optimizer; 0 freezes the critic", ge=0, mutable=Mutable(1e-7, 0.1)
    )
    value_lr_schedule: str = flag(
        "",
        "points as 0:5e-4,20e6:1e-6 (trained env steps:rate) for the critic's own optimizer, which replace value_lr; "
        "empty: value_lr throughout",
    )
    weight_decay: float = flag(
        0.0,
        "adamw, lamb, muon: weights shrink by rate x this in each step, apart from the gradient; 0 is off",
        ge=0,
        mutable=Mutable(1e-6, 1.0),
    )
    adam_eps: float = flag(
        1e-6, "Adam's epsilon, and that of adamw, lamb and muon's Adam", gt=0, mutable=Mutable(1e-10, 0.01)
    )
    adam_beta1: float = flag(
        0.9,
        "Adam's beta1, and that of adamw, lamb and muon's Adam",
        ge=0,
        lt=1,
        mutable=Mutable(0.5, 0.999, How.ONE_MINUS),
    )
    adam_beta2: float = flag(0.999, "Adam's beta2, and that of adamw, lamb and muon's Adam", ge=0, lt=1)
    rmsprop_alpha: float = flag(0.99, "RMSprop: decay of the running mean of squared gradients", ge=0, lt=1)
    rmsprop_momentum: float = flag(0.0, "RMSprop: momentum; 0 is off", ge=0, lt=1)
    rmsprop_eps: float = flag(0.01, "RMSprop: epsilon", gt=0)
    rmsprop_tf_style: bool = flag(
        False,
        "RMSprop as TensorFlow has it: epsilon under the root, and a running mean that begins at 1; False: as PyTorch "
        "has it, epsilon beside the root and a start at 0",
    )
    max_grad_norm: float = flag(
        4.0, "global gradient norm is clipped to this; 0 is off", ge=0, mutable=Mutable(0.01, 1000.0, on="with_pbt")
    )
