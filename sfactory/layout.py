"""Room: every size that follows from configuration and env. In: config sections. Out: ``Layout``.

Derived sizes are computed here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sfactory.config.schema import LearnerConfig, SamplingConfig

Inference = Literal["central", "local"]


def choose_inference(wanted: Literal["central", "local", "auto"], on_gpu: bool) -> Inference:
    """Resolve ``auto``: central where policy workers have a GPU, local where actors' CPUs must do it anyway."""
    if wanted == "auto":
        return "central" if on_gpu else "local"
    return wanted


@dataclass(frozen=True)
class Layout:
    """Sizes of a run. T = rollout, N = rows (envs) of a split, B = rows of a minibatch."""

    inference: Inference
    num_policies: int
    num_actors: int
    policy_workers: int  # per policy; 0 with local inference
    splits: int  # per actor
    rows: int  # N: envs of one split
    rollout: int  # T
    slots_per_actor: int
    minibatch_rows: int  # B
    dataset_rows: int
    datasets: int  # staging areas of the learner

    @staticmethod
    def plan(sampling: SamplingConfig, learner: LearnerConfig, inference: Inference) -> Layout:
        """Compute all sizes; the configuration was checked before, so nothing here can fail."""
        # With local inference no split ever waits for another process, so one wide split is best.
        splits = 1 if inference == "local" else sampling.worker_num_splits
        minibatch_rows = learner.batch_size // sampling.rollout
        return Layout(
            inference=inference,
            num_policies=1,
            num_actors=sampling.num_workers,
            policy_workers=0 if inference == "local" else sampling.policy_workers_per_policy,
            splits=splits,
            rows=sampling.num_envs_per_worker // splits,
            rollout=sampling.rollout,
            slots_per_actor=splits * sampling.min_traj_buffers_per_worker,
            minibatch_rows=minibatch_rows,
            dataset_rows=minibatch_rows * learner.num_batches_per_epoch,
            datasets=learner.num_batches_to_accumulate if learner.train_in_background_thread else 1,
        )

    @property
    def num_slots(self) -> int:
        """Slots of all actors."""
        return self.num_actors * self.slots_per_actor

    @property
    def actor_names(self) -> list[str]:
        """Process names of the actors."""
        return [actor_name(actor) for actor in range(self.num_actors)]

    @property
    def policy_worker_names(self) -> list[str]:
        """Process names of the policy workers."""
        return [policy_name(p, i) for p in range(self.num_policies) for i in range(self.policy_workers)]

    @property
    def learner_names(self) -> list[str]:
        """Process names of the learners."""
        return [learner_name(policy) for policy in range(self.num_policies)]

    @property
    def process_names(self) -> list[str]:
        """All child processes, learners first (they have most to do before the first step)."""
        return [*self.learner_names, *self.policy_worker_names, *self.actor_names]


def actor_name(actor: int) -> str:
    """Name of an actor's process, as the kernel shows it."""
    return f"sf-actor-{actor}"


def policy_name(policy: int, worker: int) -> str:
    """Name of a policy worker's process."""
    return f"sf-policy-{policy}-{worker}"


def learner_name(policy: int) -> str:
    """Name of a learner's process."""
    return f"sf-learner-{policy}"
