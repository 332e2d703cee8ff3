"""Room: flags: how trajectories become minibatches, and what waits for what. In: nothing. Out: ``LearnerConfig``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sfactory.config.flag import flag
from sfactory.config.mutable import How, Mutable


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
