"""Room: every setting of a run, as frozen dataclass sections. In: nothing. Out: ``Config``.

The command line, the config file, ``--help`` and config.json are generated from the
fields below; a flag's name is the field's name, unique over all sections. Names and meanings are
Sample Factory's wherever it has the flag.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sfactory.cores import Cores

_META = "sfactory"


@dataclass(frozen=True)
class FlagInfo:
    """What is known of one flag beside its type and default: help text and the range it accepts."""

    help: str
    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None


def flag(
    default: Any,
    help: str,
    *,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
) -> Any:
    """Declare a config field: ``default``, ``help`` text and bounds (gt, ge, lt, le; NaN and inf are never legal)."""
    info = FlagInfo(help=help, gt=gt, ge=ge, lt=lt, le=le)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata={_META: info})
    return dataclasses.field(default=default, metadata={_META: info})


def flag_info(field: dataclasses.Field[Any]) -> FlagInfo:
    """The ``FlagInfo`` that ``flag`` attached to a dataclass field."""
    info = field.metadata[_META]
    assert isinstance(info, FlagInfo)
    return info


@dataclass(frozen=True)
class RunConfig:
    """What to train, where to keep it, and when to stop."""

    env: str = flag("", "environment: a Gymnasium id, a family name, or module:function")
    env_kwargs: Mapping[str, Any] = flag({}, "JSON object of keyword arguments for the environment's factory")
    experiment: str = flag("default_experiment", "name of the run; an existing run of that name is resumed")
    train_dir: str = flag("./train_dir", "directory that holds one folder per experiment")
    seed: int | None = flag(
        None, "seed of envs, inference and learner; drawn at random and recorded if not given", ge=0
    )
    restart_behavior: Literal["resume", "restart", "overwrite"] = flag(
        "resume",
        "an existing run of that name is resumed; restart: moved aside to NAME_oldNNNN; overwrite: moved aside, too, "
        "replacing what an earlier overwrite had moved (nothing else is ever deleted)",
    )
    serial_mode: bool = flag(
        False, "everything in one process, repeatable bit by bit on a CPU, for debugging and for small machines"
    )
    device: Literal["auto", "gpu", "cpu"] = flag(
        "auto", "where learner and central inference run; auto takes a GPU if there is one"
    )
    train_for_env_steps: int = flag(
        10_000_000_000, "stop after this many trained env steps (frameskip not counted)", gt=0
    )
    train_for_frames: int = flag(
        10_000_000_000, "stop after this many frames, which are env steps x env_frameskip", gt=0
    )
    train_for_seconds: float = flag(1e10, "stop after this many seconds of training (start-up not counted)", gt=0)


@dataclass(frozen=True)
class SamplingConfig:
    """How experience is collected."""

    num_workers: int = flag(Cores.available().count, "actor worker processes", ge=1, le=4096)
    num_envs_per_worker: int = flag(
        2, "environments stepped by each actor worker; a multiple of worker_num_splits", ge=1
    )
    worker_num_splits: int = flag(
        2,
        "groups of envs per worker: 2 steps one group while the other waits for actions; no effect with local "
        "inference",
        ge=1,
        le=64,
    )
    inference: Literal["central", "local", "auto"] = flag(
        "central",
        "central: policy workers serve all actors; local: each actor owns a CPU copy of the policy; auto: local, or "
        "central where there is a GPU and choosing an action costs an actor a quarter or more of an environment's step",
    )
    policy_workers_per_policy: int = flag(1, "inference processes per policy (central inference)", ge=1, le=64)
    async_rl: bool = flag(
        True,
        "collect while learning; False collects a dataset, learns from it, and so on, with a policy lag of exactly 0",
    )
    rollout: int = flag(32, "steps per trajectory", ge=1)
    min_traj_buffers_per_worker: int = flag(
        2,
        "trajectory slots for each split of a worker; more lets actors run further ahead; no effect where collection "
        "waits for training (async_rl=False or num_batches_to_accumulate=0)",
        ge=2,
        le=1024,
    )
    max_sample_requests_in_flight_per_worker: int = flag(
        0,
        "most trajectories of a worker that are being filled or wait for the learner; 0: as many as it has slots",
        ge=0,
    )
    decorrelate_experience_max_seconds: float = flag(
        0.0,
        "after its first trajectories worker i of N waits i/N of this time, so that workers are out of step; neither "
        "serial mode nor a benchmark waits",
        ge=0,
    )
    decorrelate_envs_on_one_worker: bool = flag(
        False, "env i of a worker begins with i x rollout random steps, which are not learned from"
    )
    env_frameskip: int = flag(
        1, "frames per env step; passed to envs that take it (Atari), accounting only for others", ge=1
    )
    set_workers_cpu_affinity: bool = flag(True, "pin actor workers to cores where workers do not outnumber cores")
    force_envs_single_thread: bool = flag(False, "limit the native thread pools of environments to one thread")
    default_niceness: int = flag(0, "niceness of the learner; policy workers add 2, actors add 10", ge=-20, le=9)
    actor_worker_gpus: tuple[int, ...] = flag(
        (), "GPUs that actor workers see, one each in turn, for environments that simulate or render there", ge=0
    )
    max_workers_starting: int = flag(
        0,
        "actor workers that make and reset their environments at the same time; 0: twice the cores, 8 at least",
        ge=0,
    )
    reset_timeout_seconds: float = flag(
        120.0,
        "bound on making an environment and on its first reset; a worker that exceeds it in a reset is replaced",
        gt=0,
    )


@dataclass(frozen=True)
class LearnerConfig:
    """How trajectories become minibatches and gradients' timing."""

    batch_size: int = flag(1024, "agent steps in one minibatch; a multiple of rollout", ge=1)
    num_batches_per_epoch: int = flag(1, "minibatches per dataset", ge=1)
    num_epochs: int = flag(1, "passes over each dataset", ge=1)
    shuffle_minibatches: bool = flag(
        False, "draw minibatches anew in each epoch: single steps with GAE and no memory, whole trajectories otherwise"
    )
    early_stop_loss_change: float = flag(
        1e-6,
        "epochs over a dataset end once the mean policy loss of one differs less than this from the one before",
        ge=0,
    )
    recurrence: int = flag(
        -1, "steps that gradients flow back through the memory; a divisor of rollout; -1: the whole rollout", ge=-1
    )
    num_batches_to_accumulate: int = flag(
        2,
        "datasets in the learner's hands, the one it learns from included, before collection is held back; 0: "
        "trajectories are given back only after training, so that collection comes to rest meanwhile",
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
    learner_num_threads: int = flag(
        0, "CPU threads of the learner's math; 0 lets the thread budget decide, and is 1 in serial mode", ge=0
    )


@dataclass(frozen=True)
class AlgoConfig:
    """The objective: targets, losses and their coefficients."""

    gamma: float = flag(0.99, "discount factor", ge=0.0, le=1.0)
    with_vtrace: bool = flag(True, "V-trace targets; False uses GAE")
    vtrace_rho: float = flag(1.0, "V-trace clip of the importance weight in the target", gt=0)
    vtrace_c: float = flag(1.0, "V-trace clip of the trace coefficient", gt=0)
    gae_lambda: float = flag(0.95, "lambda of GAE (when with_vtrace is False)", ge=0.0, le=1.0)
    policy_loss: Literal["ppo_clip", "pg"] = flag("ppo_clip", "clipped surrogate, or plain policy gradient")
    ppo_clip_ratio: float = flag(0.1, "ratio is clipped to [1/(1+e), 1+e]", gt=0)
    ppo_clip_value: float = flag(
        1.0, "range of the value clip around the behaviour value, in the unit of the network; 0 is off", ge=0
    )
    value_loss_coeff: float = flag(0.5, "weight of the value loss", ge=0)
    exploration_loss: Literal["entropy", "symmetric_kl", "none"] = flag(
        "entropy", "entropy: a bonus; symmetric_kl: a penalty on the distance to the uniform policy (discrete actions)"
    )
    exploration_loss_coeff: float = flag(0.003, "weight of the exploration term", ge=0)
    kl_loss_coeff: float = flag(0.0, "weight of a penalty on KL(policy || behavior policy); 0 is off", ge=0)
    normalize_advantages: bool = flag(True, "normalise advantages over the valid steps of a minibatch")
    reward_scale: float = flag(1.0, "rewards are multiplied by this for learning; reported returns are raw")
    reward_clip: float = flag(1000.0, "scaled rewards are clipped to [-c, c] for learning", gt=0)


@dataclass(frozen=True)
class OptimConfig:
    """The optimiser."""

    learning_rate: float = flag(1e-4, "Adam's learning rate", gt=0)
    lr_schedule: Literal["constant", "linear_decay", "kl_adaptive_minibatch", "kl_adaptive_epoch"] = flag(
        "constant",
        "linear_decay falls to 0 at the limit of env steps or frames; kl_adaptive_... keeps the KL divergence of an "
        "update near lr_schedule_kl_threshold, looking at each minibatch or epoch",
    )
    lr_schedule_kl_threshold: float = flag(0.008, "KL divergence that the kl_adaptive schedules aim at", gt=0)
    lr_adaptive_min: float = flag(1e-6, "lowest rate of the kl_adaptive schedules", gt=0)
    lr_adaptive_max: float = flag(1e-2, "highest rate of the kl_adaptive schedules", gt=0)
    adam_eps: float = flag(1e-6, "Adam's epsilon", gt=0)
    adam_beta1: float = flag(0.9, "Adam's beta1", ge=0, lt=1)
    adam_beta2: float = flag(0.999, "Adam's beta2", ge=0, lt=1)
    max_grad_norm: float = flag(4.0, "global gradient norm is clipped to this; 0 is off", ge=0)


@dataclass(frozen=True)
class ModelConfig:
    """The actor-critic network."""

    encoder_mlp_layers: tuple[int, ...] = flag((512, 512), "hidden layers of the MLP encoder", ge=1)
    encoder_conv_architecture: Literal["convnet_simple", "convnet_impala", "convnet_atari", "resnet_impala"] = flag(
        "convnet_simple", "convolutions for images (observations of three dimensions); resnet_impala takes any size"
    )
    encoder_conv_mlp_layers: tuple[int, ...] = flag((512,), "hidden layers that follow the convolutions", ge=1)
    use_rnn: bool = flag(False, "a recurrent core between encoder and heads gives the policy a memory")
    rnn_type: Literal["gru", "lstm"] = flag("gru", "kind of the recurrent core")
    rnn_size: int = flag(512, "hidden units of each recurrent layer", ge=1)
    rnn_num_layers: int = flag(1, "recurrent layers", ge=1, le=64)
    decoder_mlp_layers: tuple[int, ...] = flag((), "hidden layers between the core and the heads", ge=1)
    nonlinearity: Literal["elu", "relu", "tanh"] = flag("elu", "activation function")
    policy_initialization: Literal["orthogonal", "xavier_uniform", "torch_default"] = flag(
        "orthogonal", "initialisation of weights"
    )
    policy_init_gain: float = flag(1.0, "gain of the initialisation of hidden layers", gt=0)
    actor_critic_share_weights: bool = flag(True, "one network for actor and critic; False builds two")
    adaptive_stddev: bool = flag(True, "Box actions: standard deviation depends on the state")
    initial_stddev: float = flag(1.0, "Box actions: initial standard deviation", gt=0)
    continuous_tanh_scale: float = flag(
        0.0, "Box actions: means are c tanh(mean / c) with this c; 0 is off (needs adaptive_stddev=False)", ge=0
    )
    normalize_input: bool = flag(
        True, "observations are shifted and scaled to mean 0 and deviation 1 by their running statistics"
    )
    normalize_input_keys: tuple[str, ...] = flag((), "observations to normalise, by key; none given: all")
    normalize_returns: bool = flag(
        True, "the value function predicts returns shifted and scaled to mean 0 and deviation 1, with V-trace, too"
    )
    amp: Literal["off", "bf16", "fp16", "auto"] = flag(
        "off",
        "encoders and decoders compute in bfloat16 or float16; the first layer over plain numbers and all else, "
        "weights and checkpoints included, stay float32 (which a GPU then multiplies as TF32); auto: bf16 where the "
        "device has units for it",
    )
    cuda_graphs: bool = flag(
        False,
        "central inference on a GPU replays recorded passes over batches padded to a few sizes; no effect on a CPU",
    )
    obs_subtract_mean: float = flag(0.0, "observations that are not normalised are (obs - this) / obs_scale")
    obs_scale: float = flag(1.0, "observations that are not normalised are (obs - obs_subtract_mean) / this", gt=0)


@dataclass(frozen=True)
class CheckpointConfig:
    """What is saved, and when."""

    save_every_sec: float = flag(120.0, "seconds between checkpoints", gt=0)
    keep_checkpoints: int = flag(2, "latest checkpoints kept", ge=1)
    save_milestones_sec: float = flag(-1.0, "seconds between checkpoints that are kept for ever; -1 saves none", ge=-1)
    save_best_metric: str = flag(
        "reward", "what the best policy is best at: reward, true_objective, or the name of an extra episode statistic"
    )
    save_best_every_sec: float = flag(5.0, "least seconds between two saves of the best policy", ge=0)
    save_best_after: int = flag(100_000, "env steps before the best policy is saved at all", ge=0)
    load_checkpoint_kind: Literal["latest", "best", "milestone"] = flag(
        "latest", "checkpoint to go on from: the newest, the best policy, or the newest milestone"
    )


@dataclass(frozen=True)
class ReportConfig:
    """What is reported, and when."""

    stats_avg: int = flag(100, "episodes that reported means cover", ge=1)
    report_interval_sec: float = flag(5.0, "seconds between progress lines", gt=0)
    experiment_summaries_interval: float = flag(10.0, "seconds between TensorBoard and metrics.jsonl rows", gt=0)
    flush_summaries_interval: float = flag(30.0, "seconds between flushes of TensorBoard files", gt=0)
    with_tensorboard: bool = flag(True, "write TensorBoard event files")
    log_to_file: bool = flag(True, "write progress and messages to sf_log.txt in the run's folder, too")


@dataclass(frozen=True)
class BenchmarkConfig:
    """Measuring throughput instead of training to an end."""

    benchmark: bool = flag(False, "warm up, measure, print one JSON line, stop")
    benchmark_stage: Literal["env", "sample", "learn", "full"] = flag(
        "full",
        "with benchmark: what is measured: environments alone, sampling without training, training again and again on "
        "one dataset while nothing is sampled, or all of it together",
    )
    sampler_only: bool = flag(False, "with benchmark: the same as benchmark_stage=sample")
    benchmark_seconds: float = flag(30.0, "length of the measurement", gt=0)

    @property
    def stage(self) -> Literal["env", "sample", "learn", "full"]:
        """What is measured."""
        return "sample" if self.sampler_only else self.benchmark_stage


@dataclass(frozen=True)
class TuningConfig:
    """Finding fast settings before the run."""

    autotune: bool = flag(
        False,
        "find fast settings for this machine and environment by short measured trials, and keep them for the run: "
        "num_workers, num_envs_per_worker, worker_num_splits, inference and learner_num_threads, except those that the "
        "command line or the config file sets",
    )
    autotune_seconds: float = flag(3.0, "length of each trial's measurement, start-up and warm-up apart", ge=0.1, le=60)
    autotune_batch: bool = flag(
        False, "with autotune: try larger and smaller batch_size, too, which changes what is learned from each step"
    )


@dataclass(frozen=True)
class Config:
    """All sections. Rooms are handed the sections they need, never the whole."""

    run: RunConfig = dataclasses.field(default_factory=RunConfig)
    sampling: SamplingConfig = dataclasses.field(default_factory=SamplingConfig)
    learner: LearnerConfig = dataclasses.field(default_factory=LearnerConfig)
    algo: AlgoConfig = dataclasses.field(default_factory=AlgoConfig)
    optim: OptimConfig = dataclasses.field(default_factory=OptimConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    report: ReportConfig = dataclasses.field(default_factory=ReportConfig)
    benchmark: BenchmarkConfig = dataclasses.field(default_factory=BenchmarkConfig)
    tuning: TuningConfig = dataclasses.field(default_factory=TuningConfig)
