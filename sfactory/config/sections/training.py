"""Flags of the learner, the loss and the optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sfactory.config.field import How, Mutable, flag


@dataclass(frozen=True)
class LearnerConfig:
    """How trajectories become minibatches and gradients' timing."""

    batch_size: int = flag(
        1024,
        "agent steps in a minibatch; a multiple of rollout, to which defaults are rounded",
        ge=1,
        mutable=Mutable(0.25, 4.0, How.DOUBLE, on="pbt_optimize_batch_size", relative=True),
    )
    num_batches_per_epoch: int = flag(1, "minibatches per dataset", ge=1)
    num_epochs: int = flag(1, "passes over each dataset", ge=1, mutable=Mutable(1, 16))
    shuffle_minibatches: bool = flag(
        False, "draw new minibatches in each epoch: single steps with GAE and no memory, whole trajectories otherwise"
    )
    torch_compile: bool = flag(
        False,
        "the learner computes the loss of a minibatch by torch.compile, for small minibatches: some 20 s at the "
        "start, then fewer operations; on a CPU it needs a C++ compiler",
    )
    early_stop_loss_change: float = flag(
        1e-6, "stop the epochs over a dataset if an epoch changes the mean policy loss by less than this", ge=0
    )
    early_stop_kl: float = flag(
        0.0, "stop the epochs over a dataset if an epoch's mean KL(behavior || policy) exceeds this; 0 is off", ge=0
    )
    recurrence: int = flag(
        -1, "steps that gradients flow back through the memory; a divisor of rollout; -1: the whole rollout", ge=-1
    )
    num_batches_to_accumulate: int = flag(
        2,
        "datasets that the learner holds, with the one it learns from (on a GPU in addition to num_gpu_slots), before"
        " collection has to wait; 0: trajectories are returned only after training, so collection pauses meanwhile",
        ge=0,
    )
    minibatch_ring_size: int = flag(
        1,
        "datasets in a ring: each pass over one is followed by a pass over the next; 1 makes all num_epochs passes "
        "over one dataset before the next; num_batches_to_accumulate must hold them and one more for each of "
        "num_batchers",
        ge=1,
        le=64,
    )
    ring_warmup: int = flag(
        0,
        "passes over the first dataset; each later one gets one more, up to num_epochs; 0: always num_epochs, as it "
        "must be where the learner holds one dataset at a time",
        ge=0,
    )
    ring_nonblocking: bool = flag(
        False, "with a ring of several datasets: if no new dataset is ready, pass over an old one instead of waiting"
    )
    replay_proportion: float = flag(
        0.0, "mean number of replayed trajectories for each new one; they take rows of a dataset; 0 is off", ge=0, le=64
    )
    replay_slots: int = flag(0, "trajectories of one env that are kept for replay; a new one replaces the oldest", ge=0)
    replay_include_new: bool = flag(
        False, "trajectories may be replayed in the dataset that they are new in; False: only in later ones"
    )
    max_replay_lag: int = flag(
        10_000, "mask replayed steps this many updates older than the learner's policy; new steps: max_policy_lag", ge=1
    )
    learner_queue_policy: Literal["block", "drop_oldest"] = flag(
        "block",
        "what happens while num_batches_to_accumulate datasets wait: block pauses collection; drop_oldest drops the "
        "oldest waiting one, counts its steps, and keeps collecting (needs 3 datasets or more)",
    )
    learner_starvation_timeout_sec: float = flag(
        300.0,
        "seconds that the learner waits for data before it logs the state of queues, slots and actors; the run stops "
        "if all actors have started and none has finished a step meanwhile; 0: never",
        ge=0,
    )
    max_policy_lag: int = flag(
        1000,
        "mask steps of policies that are this many updates older than the learner's when it begins a dataset",
        ge=1,
    )
    train_in_background_thread: bool = flag(
        True,
        "train in a separate thread while the next batch is assembled; no effect where collection waits for training "
        "(async_rl=False or num_batches_to_accumulate=0)",
    )
    learner_main_loop_num_cores: int = flag(1, "learner's threads that copy trajectories into batches", ge=1, le=64)
    num_batchers: int = flag(
        1, "threads that assemble a dataset each, up to num_workers; num_batches_to_accumulate holds all", ge=1, le=16
    )
    num_gpu_slots: int = flag(
        2, "datasets on the device; with 2, one is loaded while the other trains; no effect on a CPU", ge=1, le=16
    )
    num_loader_threads: int = flag(1, "threads that load datasets into the device; no effect on a CPU", ge=1, le=16)
    publish_interval: int = flag(
        1, "updates (optimizer steps) between publications of the weights, checked after each pass over a dataset", ge=1
    )
    sync_every: int = flag(
        1,
        "with several ranks: updates that each makes by itself before all take over the mean of their "
        "weights, at the end of a dataset; for slow networks, which no rank waits for; 1: all make every update "
        "together",
        ge=1,
    )
    sync_momentum: float = flag(
        0.0, "with sync_every: momentum of the means of weights over ranks (DiLoCo's outer momentum)", ge=0.0, lt=1.0
    )
    microbatch_size: int = flag(
        0,
        "agent steps of one backward pass: a smaller divisor of batch_size (with V-trace or a memory a multiple of "
        "rollout); gradients add up to exactly those of the whole minibatch, in less memory; 0: the whole minibatch "
        "at once",
        ge=0,
    )
    max_bad_steps: int = flag(
        10, "skipped updates in a row (loss or gradient not finite) after which the run saves the batch and stops", ge=1
    )
    learner_cores: int = flag(0, "cores that actors are not pinned to, reserved for the learner; 0: none", ge=0)
    learner_num_threads: int = flag(
        0,
        "CPU threads of the learner's math; 0: cores without an actor, or all cores where all actors wait for "
        "training, as far as minibatches are large enough to use them, and 1 in serial mode",
        ge=0,
    )

    @property
    def device_datasets(self) -> int:
        """How many datasets a GPU holds in a run with a training thread."""
        return max(self.num_gpu_slots, self.minibatch_ring_size)


_IMPORTANCE = Mutable(0.1, 10.0)


@dataclass(frozen=True)
class AlgoConfig:
    """The objective: targets, losses and their coefficients."""

    gamma: float = flag(
        0.99, "discount factor", ge=0.0, le=1.0, mutable=Mutable(0.5, 0.99999, How.ONE_MINUS, on="pbt_optimize_gamma")
    )
    with_vtrace: bool = flag(True, "V-trace targets; False uses GAE")
    vtrace_rho: float | None = flag(
        1.0, "V-trace: clip for the importance weight of a target's own step; none: no clip", gt=0, mutable=_IMPORTANCE
    )
    vtrace_pg_rho: float | None = flag(
        1.0,
        "V-trace: clip for the importance weight of advantages, where vtrace_adv_weighting gives them one; none: no "
        "clip",
        gt=0,
        mutable=_IMPORTANCE,
    )
    vtrace_c: float | None = flag(
        1.0, "V-trace: clip for the weight that brings later steps to targets; none: no clip", gt=0, mutable=_IMPORTANCE
    )
    vtrace_lambda: float = flag(
        1.0,
        "V-trace: factor of that weight, like GAE's: 0 looks one step ahead, 1 to the end",
        ge=0.0,
        le=1.0,
        mutable=Mutable(0.5, 1.0, How.UNIFORM),
    )
    vtrace_adv_weighting: Literal["auto", "rho", "none"] = flag(
        "auto",
        "V-trace: whether advantages are multiplied by the importance weight clipped by vtrace_pg_rho; auto: rho with"
        " policy_loss=pg, none with ppo_clip, which has an importance weight already",
    )
    vtrace_drop_last_ts: bool = flag(
        False, "V-trace: only bootstrap from the last step of a rollout; for comparisons with software that does so"
    )
    gae_lambda: float = flag(
        0.95,
        "lambda of GAE: for targets without V-trace (with_vtrace=False), and for those of RND in any case",
        ge=0.0,
        le=1.0,
        mutable=Mutable(0.5, 0.999, How.ONE_MINUS),
    )
    policy_loss: Literal["ppo_clip", "pg"] = flag("ppo_clip", "ppo_clip: clipped surrogate; pg: plain policy gradient")
    ppo_clip_ratio: float = flag(
        0.1, "the ratio is clipped to [1/(1+e), 1+e] with this e", gt=0, mutable=Mutable(0.01, 1.0, on="with_pbt")
    )
    ppo_clip_low: float = flag(
        0.0,
        "lower end of the range that the ratio is clipped to; 0: 1/(1+e) with ppo_clip_ratio e; the clip_range=0.2 of "
        "Stable-Baselines3 is 0.8",
        ge=0,
        lt=1,
    )
    ppo_clip_value: float = flag(
        1.0,
        "value clip around the behavior value, in the network's unit; 0 is off",
        ge=0,
        mutable=Mutable(0.01, 100.0, on="with_pbt"),
    )
    value_loss_coeff: float = flag(0.5, "weight of the value loss", ge=0, mutable=Mutable(0.001, 100.0, on="with_pbt"))
    exploration_loss: Literal["entropy", "symmetric_kl", "none"] = flag(
        "entropy", "entropy is a bonus; symmetric_kl penalizes the distance to the uniform policy (discrete actions)"
    )
    exploration_loss_coeff: float = flag(
        0.003, "weight of the exploration term", ge=0, mutable=Mutable(1e-6, 1.0, on="with_pbt")
    )
    exploration_loss_coeff_schedule: str = flag(
        "",
        "linear_decay: exploration_loss_coeff falls to 0 at the limit of env steps or frames; linear_decay:0.6:0.9: "
        "it falls from 60% of the limit on, to 0 at 90%; points as 0:0.01,1e6:0 (trained env steps:weight) replace it, "
        "linear in between; empty: exploration_loss_coeff throughout",
    )
    kl_loss_coeff: float = flag(
        0.0, "weight of a penalty on KL(policy || behavior policy); 0 is off", ge=0, mutable=Mutable(1e-4, 100.0)
    )
    kl_target: float = flag(
        0.0,
        "KL divergence that kl_loss_coeff, then only an initial value, is adapted to: multiplied by 1.5 above twice "
        "this, halved below half of it, within 1e-4 and 100; 0: kl_loss_coeff is constant",
        ge=0,
    )
    use_target_net: bool = flag(
        False,
        "a slowly moving copy of the network gives V-trace's importance weights and the reference of ppo_clip's "
        "ratio; values come from the present network",
    )
    target_update_interval: int = flag(4, "updates (optimizer steps) between two updates of the target network", ge=1)
    target_tau: float = flag(
        1.0, "share of the policy's weights in each update of the target network; 1 copies them", gt=0.0, le=1.0
    )
    target_worker_clip: float = flag(2.0, "with a target network: clip for behavior policy / target policy", gt=0)
    loss_reduction: Literal["mean", "sum"] = flag(
        "mean", "losses are means over the valid steps of a minibatch, or sums, which need a far smaller rate"
    )
    normalize_advantages: bool = flag(True, "normalize advantages over the valid steps of a minibatch")
    reward_scale: float = flag(1.0, "factor of rewards in learning; reported returns are raw")
    reward_clip: float | None = flag(
        None,
        "scaled rewards are clipped to [-c, c] with this c in learning, so larger ones count the same; the metric "
        "train/reward_clipped is the share; none: not clipped",
        gt=0,
    )
    aux_loss_coeff: float = flag(0.1, "weight of the auxiliary loss", ge=0, mutable=Mutable(1e-4, 10.0))
    use_cpc: bool = flag(
        False, "CPC|A, an auxiliary loss: from memory and actions, tell apart observations of later steps and others"
    )
    cpc_forward_steps: int = flag(8, "CPC|A: maximum steps to look ahead", ge=1)
    cpc_time_subsample: int = flag(6, "CPC|A: steps of a rollout, drawn for each loss, that predictions start at", ge=1)
    cpc_forward_subsample: int = flag(2, "CPC|A: number of the steps ahead that are drawn to be predicted", ge=1)
    rnd: bool = flag(
        False,
        "random network distillation: a bonus for new observations, with a value head of its own; the bonus is counted "
        "apart from the return",
    )
    rnd_coeff: float = flag(
        0.5, "RND: weight of intrinsic advantages beside those of the reward", ge=0, mutable=Mutable(1e-3, 100.0)
    )
    rnd_gamma: float = flag(0.99, "RND: discount factor of the bonus, which goes on over ends of episodes", ge=0, lt=1)
    rnd_share: float = flag(
        0.25,
        "RND: share of a minibatch's steps that the predictor learns from; less keeps the bonus longer",
        gt=0,
        le=1,
    )
    rnd_first_only: bool = flag(
        True, "RND: within a rollout, an observation earns the bonus only the first time that it is seen in its episode"
    )

    @property
    def weights_advantages(self) -> bool:
        """Whether V-trace multiplies advantages by importance weights."""
        # PPO's surrogate contains the ratio already: by default only those of the policy gradient carry the weight.
        weighting = self.vtrace_adv_weighting
        return self.policy_loss == "pg" if weighting == "auto" else weighting == "rho"

    @property
    def uses_gae(self) -> bool:
        """Whether any targets are GAE's: those of the policy without V-trace, and those of RND."""
        return self.rnd or not self.with_vtrace


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer, and the schedules of its rates."""

    freeze: tuple[str, ...] = flag(
        (), "parts of the policy that are not learned: normalizer, encoder, core, decoder, policy, value, model"
    )
    freeze_until: int = flag(0, "env steps until which they are frozen; 0: for ever", ge=0)

    optimizer: Literal["adam", "adamw", "rmsprop", "lamb", "muon"] = flag(
        "adam", "type; lamb and muon need the extra sfactory[optimizers]; muon steps matrices, Adam all other weights"
    )
    learning_rate: float = flag(1e-4, "the optimizer's learning rate", gt=0, mutable=Mutable(1e-7, 0.1, on="with_pbt"))
    lr_schedule: str = flag(
        "constant",
        "schedule of the learning rate: constant; linear_decay, which falls to 0 at the limit of env steps or frames,"
        " or linear_decay:0.6:0.9, from 60% of the limit on and to 0 at 90%;"
        " kl_adaptive_minibatch or kl_adaptive_epoch, which keep the KL divergence of each minibatch's or epoch's "
        "update near lr_schedule_kl_threshold; or points as 0:5e-4,20e6:1e-6 (trained env steps:rate), linear in "
        "between, which replace learning_rate",
    )
    lr_schedule_kl_threshold: float = flag(0.008, "target KL divergence of the kl_adaptive schedules", gt=0)
    lr_adaptive_min: float = flag(1e-6, "lowest rate of the kl_adaptive schedules", gt=0)
    lr_adaptive_max: float = flag(1e-2, "highest rate of the kl_adaptive schedules", gt=0)
    separate_value_optimizer: bool = flag(
        False,
        "train the critic with its own optimizer (same type, rate value_lr); needs actor_critic_share_weights=False",
    )
    value_lr: float = flag(
        5e-4, "learning rate of the critic's own optimizer; 0 freezes the critic", ge=0, mutable=Mutable(1e-7, 0.1)
    )
    value_lr_schedule: str = flag(
        "", "points as 0:5e-4,20e6:1e-6 (trained env steps:rate) that replace value_lr; empty: value_lr throughout"
    )
    weight_decay: float = flag(
        0.0, "adamw, lamb, muon: each step shrinks weights by rate x this; 0 is off", ge=0, mutable=Mutable(1e-6, 1.0)
    )
    adam_eps: float = flag(1e-6, "epsilon of Adam, adamw, lamb and muon's Adam", gt=0, mutable=Mutable(1e-10, 0.01))
    adam_beta1: float = flag(
        0.9, "beta1 of Adam, adamw, lamb and muon's Adam", ge=0, lt=1, mutable=Mutable(0.5, 0.999, How.ONE_MINUS)
    )
    adam_beta2: float = flag(0.999, "beta2 of Adam, adamw, lamb and muon's Adam", ge=0, lt=1)
    rmsprop_alpha: float = flag(0.99, "RMSprop: decay of the running mean of squared gradients", ge=0, lt=1)
    rmsprop_momentum: float = flag(0.0, "RMSprop: momentum; 0 is off", ge=0, lt=1)
    rmsprop_eps: float = flag(0.01, "RMSprop: epsilon", gt=0)
    rmsprop_tf_style: bool = flag(
        False,
        "RMSprop as in TensorFlow: epsilon under the root, and a running mean that starts at 1; False: as in PyTorch,"
        " epsilon added to the root and a start at 0",
    )
    max_grad_norm: float = flag(
        4.0, "global gradient norm is clipped to this; 0 is off", ge=0, mutable=Mutable(0.01, 1000.0, on="with_pbt")
    )
