"""Measures what a launch, a wait, a copy and a publication cost on a device: a step of gpu_check.py.

python scripts/gpu_facts.py facts gpu
python scripts/gpu_facts.py publication cpu
"""

from __future__ import annotations

import argparse
import json
import mmap
import sys
import time
from collections.abc import Callable
from pathlib import Path

# Python adds the folder of a script, not the one above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from gymnasium import spaces

from sfactory.config.schema import ModelConfig
from sfactory.inference.acting_policy import ActingPolicy
from sfactory.learner.learner import Publisher
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.shared.weights import SharedWeights
from sfactory.spec import EnvSpec
from sfactory.system.cores import Cores

_BYTES = 2**26  # of a measured copy


def microseconds(work: Callable[[], object], times: int) -> float:
    """Mean time of a call of ``work`` on the host. The device has nothing to do before."""
    work()
    synchronize()
    since = time.perf_counter()
    for _ in range(times):
        work()
    return round(1e6 * (time.perf_counter() - since) / times, 2)


def synchronize() -> None:
    """Wait for the GPU, if any."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def gigabytes_per_second(to: torch.Tensor, of: torch.Tensor) -> float:
    """Speed of copies of _BYTES."""

    def copies() -> None:
        for _ in range(20):
            to.copy_(of, non_blocking=True)
        synchronize()

    return round(20 * _BYTES / 1e3 / microseconds(copies, 1), 2)


def facts(device: str) -> dict[str, object]:
    """What a launch, a wait and a copy cost, and whether shared memory can be registered with CUDA."""
    found: dict[str, object] = {
        "cores": Cores.available().count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    if device != "cpu":
        card = torch.cuda.get_device_properties(0)
        found |= {
            "card": card.name,
            "gib": round(card.total_memory / 2**30, 1),
            "compute": f"{card.major}.{card.minor}",
        }
    x = torch.zeros(1, device=device)
    found["launch_us"], found["wait_us"] = microseconds(lambda: x.add_(1), 5000), microseconds(lambda: x.item(), 1000)
    shared = torch.from_numpy(np.frombuffer(mmap.mmap(-1, _BYTES), np.uint8))
    shared.fill_(1)
    of = torch.empty(_BYTES, dtype=torch.uint8, pin_memory=device != "cpu")
    to = torch.empty(_BYTES, dtype=torch.uint8, device=device)
    found["to_device_gb_s"], found["to_host_gb_s"] = gigabytes_per_second(to, of), gigabytes_per_second(of, to)
    found["unpinned_to_device_gb_s"] = gigabytes_per_second(to, shared)
    if device != "cpu":
        found["register"] = str(torch.cuda.cudart().cudaHostRegister(shared.data_ptr(), _BYTES, 0))  # type: ignore[no-untyped-call]
        found["registered_to_device_gb_s"] = gigabytes_per_second(to, shared)
        free, total = torch.cuda.mem_get_info()
        found["context_mib"] = (total - free - torch.cuda.memory_reserved()) >> 20
    return found


def publication(device: str) -> dict[str, object]:
    """Milliseconds in which a learner publishes the weights of a Nature CNN, and a policy worker reads them."""
    config = ModelConfig(encoder_conv_architecture="convnet_atari", normalize_input=False)
    pixels = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    spec = EnvSpec.of_spaces(pixels, spaces.Discrete(4)).for_model(config)
    flat = FlatState(ActorCritic(spec, config).to(device))
    weights = SharedWeights(flat.block.numel())
    publisher = Publisher(flat, weights, 1)
    publish_us = microseconds(lambda: publisher.publish(1), 100)
    policy = ActingPolicy(spec, config, weights, torch.device(device))

    def both() -> None:
        publisher.publish(1)
        policy.refresh()

    both_us = microseconds(both, 100)
    return {"mib": weights.nbytes / 2**20, "publish_ms": publish_us / 1e3, "refresh_ms": (both_us - publish_us) / 1e3}


def main() -> None:
    """Print the facts as one line of JSON."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("facts", "publication"))
    parser.add_argument("device", choices=("cpu", "gpu"))
    options = parser.parse_args()
    measure = facts if options.what == "facts" else publication
    print(json.dumps(measure(options.device.replace("gpu", "cuda"))))


if __name__ == "__main__":
    main()
