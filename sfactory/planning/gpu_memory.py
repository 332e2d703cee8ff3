"""Counts the GPU memory that a run takes at least, and refuses one that has no room before any process starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from sfactory.config.population_rules import learning_policies
from sfactory.config.schema import Config
from sfactory.errors import ResourceError
from sfactory.layout import Layout
from sfactory.learner.optimizers import least_moments
from sfactory.learner.staging import DeviceSlot
from sfactory.spec import EnvSpec
from sfactory.system.gpu import total_memory

_MIB = 2**20
_CONTEXT = 256 * _MIB  # at least; on large cards twice as much


class Part(NamedTuple):
    """bytes: what all policies of one GPU take for ``what``. lower: the flags that make it less."""

    what: str
    bytes: int
    lower: str


def require_gpu_memory(
    config: Config, layout: Layout, spec: EnvSpec, device: str, weight_bytes: int, update_bytes: int
) -> None:
    """Raise ResourceError if a GPU of the run is too small for what is certain to be there at the same time.

    weight_bytes: of a policy. update_bytes: that a minibatch, or microbatch, keeps for its backward pass in float32.
    What is free is known to a learner alone, see ``require_device_memory``: to ask takes a CUDA context.
    """
    total = None if device == "cpu" else total_memory(device)
    if total is None:
        return
    gpus, sizes = torch.cuda.device_count(), (weight_bytes, update_bytes)
    learning = set() if config.benchmark.stage == "sample" else {*learning_policies(config)}
    shares = [range(first, layout.num_policies, gpus) for first in range(gpus)]  # of policies, as in ``device_of``
    needs = [list(_parts(config, layout, spec, len(share), len(learning & {*share}), *sizes)) for share in shares]
    parts = max(needs, key=_total)
    need = _total(parts)
    if need <= total:
        return
    shown = ", ".join(f"{part.what} {part.bytes / _MIB:,.0f}" for part in parts if part.bytes >= _MIB)
    raise ResourceError(
        f"the run needs at least {need / _MIB:,.0f} MiB of memory on {device} ({shown}), which has "
        f"{total / _MIB:,.0f}; lower {max(parts, key=lambda part: part.bytes).lower}, or use --device=cpu"
    )


def _total(parts: Iterable[Part]) -> int:
    return sum(part.bytes for part in parts)


def _parts(
    config: Config, layout: Layout, spec: EnvSpec, policies: int, learning: int, weight_bytes: int, update_bytes: int
) -> Iterator[Part]:
    """What ``policies`` policies take on one GPU, of which ``learning`` learn."""
    # In a resident run also the weights that were last published are there.
    learner, acting = config.learner, 2 if layout.resident else layout.policy_workers
    one_process = config.run.serial_mode or layout.resident
    contexts = 1 if one_process else policies * (1 + acting)
    yield Part(
        "CUDA contexts", contexts * _CONTEXT, "--num_policies or --policy_workers_per_policy, use --inference=local"
    )
    slots = 1
    if learner.train_in_background_thread and not layout.slots_until_trained and not one_process:
        slots = learner.device_datasets
    size = DeviceSlot.bytes_of(spec, layout, replay=bool(learner.replay_proportion))
    yield Part("datasets", learning * slots * size, "--num_gpu_slots, --batch_size or --num_batches_per_epoch")
    copies = policies * (1 + acting) + learning * (1 + least_moments(config.optim))  # 1: gradients
    yield Part("weights", copies * weight_bytes, "the size of the network or --num_policies")
    kept = update_bytes if config.model.amp == "off" else update_bytes // 2
    yield Part("minibatches", learning * kept, "--microbatch_size (a divisor of --batch_size) or --batch_size")
