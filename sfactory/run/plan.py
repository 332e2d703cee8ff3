"""Room: from configuration to sizes and devices, before any worker starts. In: Config, EnvSpec. Out: Plan."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sfactory.config.schema import Config
from sfactory.cores import Cores
from sfactory.errors import ConfigError
from sfactory.layout import Layout, choose_inference
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import flat_bytes
from sfactory.run.resources import raise_file_limit, require_memory
from sfactory.shared.trajectories import TrajectoryBuffer
from sfactory.spec import EnvSpec


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before processes start."""

    spec: EnvSpec
    layout: Layout
    device: str
    cores: Cores
    weight_bytes: int


def choose_device(wanted: str) -> str:
    """Torch's name of the device; raises ConfigError if a GPU is wanted and there is none."""
    has_gpu = torch.cuda.is_available()
    if wanted == "gpu" and not has_gpu:
        raise ConfigError(["--device=gpu: torch finds no CUDA device here; use --device=cpu or --device=auto"])
    return "cuda:0" if has_gpu and wanted != "cpu" else "cpu"


def _planned_bytes(spec: EnvSpec, layout: Layout, weight_bytes: int) -> int:
    """Memory that is allocated at once: slots, the learner's staging areas, published weights."""
    slots = TrajectoryBuffer.bytes_needed(spec, layout)
    per_row = slots / (layout.num_slots * layout.rows)
    return slots + int(per_row * layout.dataset_rows * layout.datasets) + 2 * weight_bytes


def plan_run(config: Config, spec: EnvSpec) -> Plan:
    """Decide sizes and devices; raises ConfigError or ResourceError."""
    device = choose_device(config.run.device)
    inference = choose_inference(config.sampling.inference, device != "cpu")
    layout = Layout.plan(config.sampling, config.learner, inference)
    with torch.device("meta"):
        weight_bytes = flat_bytes(ActorCritic(spec, config.model))
    require_memory(_planned_bytes(spec, layout, weight_bytes))
    raise_file_limit()
    return Plan(spec, layout, device, Cores.available(), weight_bytes)
