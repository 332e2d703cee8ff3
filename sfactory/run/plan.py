"""Room: from configuration to sizes and devices, before any worker starts. In: Config, EnvSpec. Out: Plan."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sfactory.config.flags import assigned
from sfactory.config.schema import Config
from sfactory.cores import Cores
from sfactory.errors import ConfigError
from sfactory.layout import Layout, choose_inference
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.distributions import require_discrete
from sfactory.model.flat_state import flat_bytes
from sfactory.model.normalizer import UnknownKeys
from sfactory.run.resources import raise_file_limit, require_memory, warn_of_niceness
from sfactory.shared.rnn_states import RnnStates
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
    """Memory that is allocated at once: slots, states, the learner's staging areas, published weights."""
    slots = TrajectoryBuffer.bytes_needed(spec, layout)
    per_row = slots / (layout.num_slots * layout.rows)
    return (
        slots + int(per_row * layout.dataset_rows * layout.datasets) + 2 * weight_bytes + RnnStates.bytes_needed(layout)
    )


def _blueprint(config: Config, spec: EnvSpec) -> ActorCritic:
    """The model without memory for its weights; raises ConfigError for flags that do not suit the env."""
    if config.algo.exploration_loss == "symmetric_kl":
        try:
            require_discrete(spec.actions)
        except ValueError as error:
            raise ConfigError([f"--exploration_loss=symmetric_kl: {error} (--exploration_loss=entropy)"]) from None
    try:
        with torch.device("meta"):
            return ActorCritic(spec, config.model)
    except UnknownKeys as error:
        raise ConfigError([f"{assigned('normalize_input_keys', config.model.normalize_input_keys)}: {error}"]) from None


def plan_run(config: Config, spec: EnvSpec) -> Plan:
    """Decide sizes and devices; raises ConfigError or ResourceError."""
    device = choose_device(config.run.device)
    inference = choose_inference(config.sampling.inference, device != "cpu")
    model = _blueprint(config, spec)
    layout = Layout.plan(config.sampling, config.learner, inference, model.state_size)
    weight_bytes = flat_bytes(model)
    require_memory(_planned_bytes(spec, layout, weight_bytes))
    raise_file_limit()
    if not config.run.serial_mode:  # which has no processes to be nice
        warn_of_niceness(config.sampling.default_niceness)
    return Plan(spec, layout, device, Cores.available(), weight_bytes)
