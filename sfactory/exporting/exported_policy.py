"""Reads the policy of an exported file, to be played."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sfactory import atomic
from sfactory.config.commands import PolicyFlags
from sfactory.config.enjoy import EnjoyConfig
from sfactory.config.flags import all_flags, coerce, config_of, strict_json
from sfactory.config.saved_config import NOT_RESUMED
from sfactory.config.schema import ModelConfig
from sfactory.errors import CheckpointError, named
from sfactory.experiment.saved_policy import SavedPolicy, require_trusted_networks, require_valid
from sfactory.exporting.hub import load_from_hub
from sfactory.learner.checkpointing import SavedState
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.custom import own_parts
from sfactory.spec import EnvSpec
from sfactory.system.optional_packages import required


def policy_to_play(config: EnjoyConfig) -> SavedPolicy:
    """The policy that the flags name: of a run, of a file, or of the Hugging Face Hub.

    Raises the errors of ``SavedPolicy.load``, ``load_from_hub`` and ``read_export``.
    """
    if config.experiment:
        return SavedPolicy.load(config)
    path = load_from_hub(config.load_from_hub) if config.load_from_hub else Path(config.policy_file)
    return read_export(path, config.trust_run_dir)


def read_export(path: Path, trusted: bool) -> SavedPolicy:
    """The policy of a file that ``sfactory.export`` wrote as safetensors.

    trusted: the networks that it names may be imported. Raises ConfigError if the package safetensors is missing, or
    they are not trusted, and CheckpointError if the file is none that this version can read.
    """
    package = required("safetensors", f"playing {path}", "safetensors")
    try:
        with package.safe_open(path, "pt") as file:
            facts: Mapping[str, str] = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        config = config_of(_values(facts))
        spec = EnvSpec.of_plain(atomic.parse_json(facts["env_spec"]))  # which has infinite bounds, too
        env_steps, policy = int(facts["env_steps"]), int(facts["policy"])
    except Exception as error:  # of safetensors, and of all that a file may lack
        raise CheckpointError(
            f"{path} is not a policy that sfactory.export wrote as safetensors: {named(error)}"
        ) from error
    require_valid(config, path)
    require_trusted_networks(config, path, trusted)
    if not own_parts(config.model):
        _check_sizes(path, weights, spec, config.model)
    counts = dict.fromkeys(("env_steps", "agent_steps", "run_env_steps"), env_steps)
    state = SavedState(weights, spec, 0, train_seconds=0.0, best_metric="reward", best_objective=0.0, **counts)
    wanted = PolicyFlags(policy_index=policy, trust_run_dir=trusted)
    return SavedPolicy(config, path, state, path, wanted)


def _check_sizes(path: Path, weights: Mapping[str, torch.Tensor], spec: EnvSpec, config: ModelConfig) -> None:
    """Raise CheckpointError if the network that the description asks for has other sizes; no memory is taken for it."""
    damaged = f"{path}: its weights are not those of the network that it describes: it is damaged"
    try:
        with torch.device("meta"):
            described = {name: tensor.shape for name, tensor in ActorCritic(spec, config).state_dict().items()}
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{damaged} ({named(error)})") from error
    if described != {name: tensor.shape for name, tensor in weights.items()}:
        raise CheckpointError(damaged)


def _values(facts: Mapping[str, str]) -> dict[str, Any]:
    """The flags that the description sets, by name."""
    plain: dict[str, Any] = {"env": facts["env"], "env_kwargs": strict_json(facts["env_kwargs"])}
    # Files of older versions lack env_agents.
    for group in ("env_wrappers", "env_sampling", "model_config", *({"env_agents"} & facts.keys())):
        values: Any = strict_json(facts[group])
        plain |= values
    return {name: coerce(all_flags()[name], value) for name, value in plain.items() if name not in NOT_RESUMED}
