"""Room: flags: the objective. In: nothing. Out: ``AlgoConfig``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sfactory.config.flag import flag
from sfactory.config.mutable import How, Mutable

_IMPORTANCE = Mutable(0.1, 10.0)


@dataclass(frozen=True)
class AlgoConfig:
    """The objective: targets, losses and their coefficients."""

    gamma: float = flag(
        0.99,
        "discount factor",
        ge=0.0,
        le=1.0,
        mutable=Mutable(0.5, 0.99999, How.ONE_MINUS, on="pbt_optimize_gamma"),
    )
    with_vtrace: bool = flag(True, "V-trace targets; False uses GAE")
    vtrace_rho: float | None = flag(
        1.0,
        "V-trace: the importance weight in a target's own step is clipped to this; none: not clipped",
        gt=0,
        mutable=_IMPORTANCE,
    )
    vtrace_pg_rho: float | None = flag(
        1.0,
        "V-trace: the importance weight of the policy gradient is clipped to this; none: not clipped",
        gt=0,
        mutable=_IMPORTANCE,
    )
    vtrace_c: float | None = flag(
        1.0,
        "V-trace: the importance weight that carries what follows a step into its target is clipped to this; none: not "
        "clipped",
        gt=0,
        mutable=_IMPORTANCE,
    )
    vtrace_lambda: float = flag(
        1.0,
        "V-trace: factor on that weight, as lambda of GAE: 0 looks one step ahead, 1 to the end",
        ge=0.0,
        le=1.0,
        mutable=Mutable(0.5, 1.0, How.UNIFORM),
    )
    vtrace_adv_weighting: Literal["auto", "rho", "none"] = flag(
        "auto",
        "V-trace: whether advantages carry the importance weight clipped by vtrace_pg_rho; auto: rho with "
        "policy_loss=pg, none with ppo_clip, whose ratio is an importance weight already",
    )
    vtrace_drop_last_ts: bool = flag(
        False,
        "V-trace: learn from all but the last step of a rollout, whose value is what the others bootstrap from; only "
        "to compare with runs of software that does so",
    )
    gae_lambda: float = flag(
        0.95,
        "lambda of GAE (when with_vtrace is False)",
        ge=0.0,
        le=1.0,
        mutable=Mutable(0.5, 0.999, How.ONE_MINUS),
    )
    policy_loss: Literal["ppo_clip", "pg"] = flag("ppo_clip", "clipped surrogate, or plain policy gradient")
    ppo_clip_ratio: float = flag(
        0.1, "ratio is clipped to [1/(1+e), 1+e]", gt=0, mutable=Mutable(0.01, 1.0, on="with_pbt")
    )
    ppo_clip_value: float = flag(
        1.0,
        "range of the value clip around the behaviour value, in the unit of the network; 0 is off",
        ge=0,
        mutable=Mutable(0.01, 100.0, on="with_pbt"),
    )
    value_loss_coeff: float = flag(0.5, "weight of the value loss", ge=0, mutable=Mutable(0.001, 100.0, on="with_pbt"))
    exploration_loss: Literal["entropy", "symmetric_kl", "none"] = flag(
        "entropy", "entropy: a bonus; symmetric_kl: a penalty on the distance to the uniform policy (discrete actions)"
    )
    exploration_loss_coeff: float = flag(
        0.003, "weight of the exploration term", ge=0, mutable=Mutable(1e-6, 1.0, on="with_pbt")
    )
    exploration_loss_coeff_schedule: str = flag(
        "",
        "points as 0:0.01,1e6:0 between which that weight moves in straight lines, over trained env steps; empty: "
        "exploration_loss_coeff throughout",
    )
    kl_loss_coeff: float = flag(
        0.0, "weight of a penalty on KL(policy || behavior policy); 0 is off", ge=0, mutable=Mutable(1e-4, 100.0)
    )
    kl_target: float = flag(
        0.0,
        "KL divergence at which kl_loss_coeff, then only its start, is held: half as much again above twice this, "
        "halved below half of it, within 1e-4 and 100; 0: kl_loss_coeff stays as it is",
        ge=0,
    )
    use_target_net: bool = flag(
        False,
        "a slowly moving copy of the network gives the importance weights of V-trace, and the ratio of ppo_clip is "
        "taken to it; values are the present ones",
    )
    target_update_interval: int = flag(4, "updates (optimizer steps) between two updates of the target network", ge=1)
    target_tau: float = flag(
        1.0, "share of the policy's weights in an update of the target network; 1 copies them", gt=0.0, le=1.0
    )
    target_worker_clip: float = flag(
        2.0, "with a target network: behavior policy / target policy is clipped to [0, this]", gt=0
    )
    loss_reduction: Literal["mean", "sum"] = flag(
        "mean", "losses are means over the valid steps of a minibatch, or sums, which want a far smaller rate"
    )
    normalize_advantages: bool = flag(True, "normalise advantages over the valid steps of a minibatch")
    reward_scale: float = flag(1.0, "rewards are multiplied by this for learning; reported returns are raw")
    reward_clip: float = flag(1000.0, "scaled rewards are clipped to [-c, c] for learning", gt=0)
    aux_loss_coeff: float = flag(0.1, "weight of the auxiliary loss", ge=0, mutable=Mutable(1e-4, 10.0))
    use_cpc: bool = flag(
        False,
        "auxiliary loss CPC|A: from the memory and the actions taken, what is observed in later steps is told from "
        "what is not",
    )
    cpc_forward_steps: int = flag(8, "CPC|A: steps that are looked ahead at most", ge=1)
    cpc_time_subsample: int = flag(
        6, "CPC|A: steps of a rollout, drawn anew each time, that predictions begin at", ge=1
    )
    cpc_forward_subsample: int = flag(2, "CPC|A: of the steps looked ahead, how many are drawn to be predicted", ge=1)
