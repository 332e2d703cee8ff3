"""Room: flags: how trajectories become minibatches, and what waits for what. In: nothing. Out: ``LearnerConfig``.

Room: flags: the objective. In: nothing. Out: ``AlgoConfig``.

Room: flags: the optimizer and its rates. In: nothing. Out: ``OptimConfig``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sfactory.config.field import How, Mutable, flag


@dataclass(frozen=True)
class LearnerConfig:
    """How trajectories become minibatches and gradients' timing."""

    batch_size: int = flag(
        1024,
        "agent steps in one minibatch; a multiple of rollout",
        ge=1,
        mutable=Mutable(0.25, 4.0, How.DOUBLE, on="pbt_optimize_batch_size", relative=True),
    )
    num_batches_per_epoch: int = flag(1, "minibatches per dataset", ge=1)
    num_epochs: int = flag(1, "passes over each dataset", ge=1, mutable=Mutable(1, 16))
    shuffle_minibatches: bool = flag(
        False, "draw minibatches anew in each epoch: single steps with GAE and no memory, whole trajectories otherwise"
    )
    early_stop_loss_change: float = flag(
        1e-6,
        "epochs over a dataset end once the mean policy loss of one differs less than this from the one before",
        ge=0,
    )
    early_stop_kl: float = flag(
        0.0,
        "epochs over a dataset end once the policy has moved this far, in mean KL(behavior policy || policy) over one "
        "epoch; 0 is off",
        ge=0,
    )
    recurrence: int = flag(
        -1, "steps that gradients flow back through the memory; a divisor of rollout; -1: the whole rollout", ge=-1
    )
    num_batches_to_accumulate: int = flag(
        2,
        "datasets in the learner's hands, the one it learns from included (on a GPU those in num_gpu_slots come on "
        "top), before collection is held back; 0: trajectories are given back only after training, so that collection "
        "comes to rest meanwhile",
        ge=0,
    )
    minibatch_ring_size: int = flag(
        1,
        "datasets that are turned over: each pass over one is followed by a pass over the next; 1 makes all num_epochs "
        "passes over one dataset before the next; num_batches_to_accumulate holds them, and one more for each of "
        "num_batchers",
        ge=1,
        le=64,
    )
    ring_warmup: int = flag(
        0,
        "passes over the first dataset of all; each that follows gets one more, up to num_epochs; 0: num_epochs from "
        "the start",
        ge=0,
    )
    ring_nonblocking: bool = flag(
        False,
        "with a ring of several datasets: where a new one is due and none is there yet, one at hand gets its next pass "
        "instead of being waited with",
    )
    replay_proportion: float = flag(
        0.0,
        "trajectories learned from again for each new one, in the mean, which take their share of the rows of a "
        "dataset; 0 is off",
        ge=0,
        le=64,
    )
    replay_slots: int = flag(
        0, "trajectories of one env kept to be replayed; the oldest makes room for a new one", ge=0
    )
    replay_include_new: bool = flag(
        False, "what has just been copied may be replayed beside itself; False: from the next trajectories on"
    )
    max_replay_lag: int = flag(
        10_000,
        "replayed steps whose policy is this many updates older than the learner are masked; max_policy_lag holds for "
        "new steps alone",
        ge=1,
    )
    learner_queue_policy: Literal["block", "drop_oldest"] = flag(
        "block",
        "where num_batches_to_accumulate datasets wait: block holds collection back; drop_oldest gives up the oldest "
        "that waits, counts its steps, and keeps collecting, for which it takes 3 of them or more",
    )
    learner_starvation_timeout_sec: float = flag(
        300.0,
        "seconds for which the learner waits in vain before the state of queues, slots and actors is told; the run "
        "stops if every actor has begun and none has ended a step meanwhile; 0: never",
        ge=0,
    )
    max_policy_lag: int = flag(1000, "steps whose policy is this many updates older than the learner are masked", ge=1)
    train_in_background_thread: bool = flag(
        True,
        "train in a thread of its own while the next batch is assembled; no effect where collection waits for training "
        "(async_rl=False or num_batches_to_accumulate=0)",
    )
    learner_main_loop_num_cores: int = flag(
        1, "threads of the learner that copy trajectories into batches", ge=1, le=64
    )
    num_batchers: int = flag(
        1,
        "threads that assemble datasets, each one of its own, all of which num_batches_to_accumulate holds; at most "
        "num_workers",
        ge=1,
        le=16,
    )
    num_gpu_slots: int = flag(
        2,
        "datasets that the device holds, so that one is loaded while another is learned from; 1: one after the "
        "other; no effect on a CPU",
        ge=1,
        le=16,
    )
    num_loader_threads: int = flag(
        1, "threads that load datasets into the device's slots; no effect on a CPU", ge=1, le=16
    )
    publish_interval: int = flag(
        1,
        "updates (optimizer steps) between two publications of the weights to whoever acts, looked at after each pass "
        "over a dataset",
        ge=1,
    )
    microbatch_size: int = flag(
        0,
        "agent steps of one backward pass, a divisor of batch_size below it (and with V-trace or a memory a multiple "
        "of rollout): gradients add up to exactly those of the whole minibatch, in less memory; 0: the whole minibatch "
        "at once",
        ge=0,
    )
    max_bad_steps: int = flag(
        10,
        "updates in a row whose loss or gradient is not finite, all skipped, before the run stops and saves the batch",
        ge=1,
    )
    learner_cores: int = flag(
        0, "cores that actor workers are not pinned to, so that they are the learner's; 0: none is kept free", ge=0
    )
    learner_num_threads: int = flag(
        0, "CPU threads of the learner's math; 0 lets the thread budget decide, and is 1 in serial mode", ge=0
    )


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
