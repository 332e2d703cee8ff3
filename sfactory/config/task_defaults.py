"""Defaults of flags by kind of task, which the env's observations and actions decide, and on a GPU.

They were found by measuring over the tasks of docs/task_defaults.md. An env family knows its envs better, so they hold
only where no family makes the env, and only for flags that were not set. On a GPU families keep all that they set;
what changes nothing but the time of an update is switched on for them, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sfactory.config.flags import config_with, values_of
from sfactory.config.population_rules import decided
from sfactory.config.resolve import DEFAULT, Resolved
from sfactory.config.run_rules import LARGEST_BATCH, fitted
from sfactory.config.schema import Config, Kind
from sfactory.config.trust import NETWORKS
from sfactory.config.validation import find_problems

_SLOW_US = 5000.0
_ENVS_OF_GPU = 32  # a forward pass on a GPU takes about as long for twice as many rows
_ROWS_OF_GPU = 8  # of a request, at least
_LARGEST_ON_GPU = 16  # of images, which a GPU computes the faster the more there are
_GPU = "gpu"  # the source of values that hold there

_PPO: Mapping[str, object] = {
    "num_envs_per_worker": 16,
    "rollout": 64,
    "batch_size": 256,
    "num_batches_per_epoch": 8,
    "num_epochs": 6,
    # With several passes the learner is the bottleneck, and data that waits for it would be three datasets old.
    "num_batches_to_accumulate": 0,
    "with_vtrace": False,
    "shuffle_minibatches": True,
    "learning_rate": 5e-4,
    "ppo_clip_ratio": 0.2,
    "exploration_loss_coeff": 0.01,
    "max_grad_norm": 0.5,
}
# By kind: vector observations with discrete actions; observations that are choices alone; Box actions; images.
TASK_DEFAULTS: Mapping[Kind, Mapping[str, object]] = {
    "vector": _PPO,
    # What is learned in one state says nothing of the others, so that each has to be explored.
    "table": {**_PPO, "exploration_loss_coeff": 0.05},
    # With a deviation by state, which becomes small where it has learned something, BipedalWalker learns nothing.
    "continuous": {**_PPO, "exploration_loss_coeff": 0.0, "adaptive_stddev": False},
    "images": {**_PPO, "num_epochs": 2},  # with six, convolutions fit the data of each round, and learn less
}


def depends_on_step_time(resolved: Resolved) -> bool:
    """Whether a default depends on how long an env step takes; never in serial mode, which has to be repeatable."""
    unset = resolved.sources["num_envs_per_worker"] == DEFAULT
    return unset and not resolved.config.run.serial_mode and resolved.awaits_kind


def with_task_defaults(
    resolved: Resolved, kind: Kind, step_us: float | None, on_gpu: bool = False, agents: int = 1
) -> Resolved:
    """The config with the defaults of ``kind`` where the schema's would hold; their source is "task: <kind>".

    A default that would clash with another flag is left out, with those of its kind that the clash names. step_us:
    microseconds of an env step, if known; envs that are slow are heavy, too, so there are not more of them. on_gpu:
    actions may be chosen on a GPU. agents: of one env.
    """
    sources, config = resolved.sources, resolved.config
    chosen = {name: value for name, value in TASK_DEFAULTS[kind].items() if sources[name] == DEFAULT}
    if "num_envs_per_worker" in chosen and on_gpu and config.sampling.inference != "local":
        chosen["num_envs_per_worker"] = max(_ENVS_OF_GPU, _ROWS_OF_GPU * config.sampling.worker_num_splits)
    if step_us is not None and step_us >= _SLOW_US:
        chosen.pop("num_envs_per_worker", None)
    before = values_of(config)
    if "batch_size" in chosen:
        largest = _LARGEST_ON_GPU if on_gpu and kind == "images" else LARGEST_BATCH
        if "num_envs_per_worker" in chosen:
            chosen["num_envs_per_worker"] = _envs_of_a_dataset(before | chosen, largest, agents)
        chosen["batch_size"] = _batch_size(before | chosen, largest, agents)
    chosen |= fitted(before | chosen, {name for name, source in sources.items() if source == DEFAULT})
    wanted = config.sampling.inference
    meant = decided(config, ("central" if on_gpu else "local") if wanted == "auto" else wanted, agents)
    while chosen:
        problems = find_problems(config_with(config, {**chosen, **meant}), chosen=resolved.given)
        clashing = chosen.keys() & {name for problem in problems for name in problem.flags}
        if not clashing:
            break
        chosen = {name: value for name, value in chosen.items() if name not in clashing}
    return resolved.replaced(chosen, f"task: {kind}")


def why_not_recorded(config: Config) -> str:
    """Why ``--cuda_graphs`` cannot replay updates, which learners then compute kernel by kernel; "" if it can."""
    own = next((part for part in NETWORKS if getattr(config.model, part)), None)
    if own is not None:  # it may choose, or count, on the host, which a graph would repeat for ever
        return f"--{own} is not built in"
    if config.algo.use_cpc or config.algo.rnd:
        return "--use_cpc and --rnd draw random numbers of their own"
    if config.optim.optimizer not in ("adam", "adamw"):  # torch's fused optimizers
        return f"--optimizer={config.optim.optimizer} computes with rates on the host"
    return ""


def with_gpu_defaults(resolved: Resolved, kind: Kind) -> Resolved:
    """The config of a run with its learner on a GPU, with values for flags that were not set; their source is "gpu".

    CUDA graphs compute what kernels one by one do. They are left out in serial mode, and where hooks may want
    gradients, which graphs do not leave. bfloat16 rounds, so it is not for env families: their settings were measured
    without it.
    """
    sources, config = resolved.sources, resolved.config
    chosen: dict[str, object] = {}
    plain = not config.run.serial_mode and not config.hooks.after_train_step
    if sources["cuda_graphs"] == DEFAULT and plain and not why_not_recorded(config):
        chosen["cuda_graphs"] = True
    if sources["amp"] == DEFAULT and kind == "images" and resolved.awaits_kind:
        chosen["amp"] = "auto"
    return resolved.replaced(chosen, _GPU) if chosen and config.run.task_defaults else resolved


def _envs_of_a_dataset(values: Mapping[str, Any], largest: int, agents: int) -> int:
    """Envs of an actor: so few that what all collect at a time fits the ``largest`` dataset, see ``_batch_size``."""
    rows = largest * values["batch_size"] * values["num_batches_per_epoch"] // values["rollout"]
    of_actor = rows * values["num_policies"] // (max(1, values["num_workers"]) * agents)
    splits = values["worker_num_splits"]
    return int(min(values["num_envs_per_worker"], max(splits, of_actor // splits * splits)))


def _batch_size(values: Mapping[str, Any], largest: int, agents: int) -> int:
    """Minibatches so large that a dataset is what a policy gets of a round of collection; ``largest``: times its own.

    Of a smaller dataset the rest would wait, and be learned from when it is many updates old. With a larger one, actors
    would not all wait while the learner trains, and it would have fewer threads.
    """
    rows = values["num_workers"] * values["num_envs_per_worker"] * agents / values["num_policies"]
    wanted = math.ceil(rows / values["num_batches_per_epoch"]) * values["rollout"]
    return int(min(max(values["batch_size"], wanted), values["batch_size"] * largest))
