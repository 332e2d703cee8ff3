"""Room: weights for others. In: a saved policy. Out: a safetensors file: numbers by name, and text that says of what.

Such a file holds no code and needs nothing of sfactory's to be read
(docs/decisions/0029-weights-for-others.md).
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from sfactory import __version__, atomic
from sfactory.config.flags import assigned
from sfactory.config.schema import Config
from sfactory.env.agents import AgentsEnv
from sfactory.env.close import close_env
from sfactory.errors import CannotSaveError, ConfigError
from sfactory.runtime.saved_policy import SavedPolicy
from sfactory.spec import EnvSpec

FORMAT_VERSION = "1"


def export(saved: SavedPolicy, policy: int, out: str) -> str:
    """Write the weights of ``saved`` to ``out``; the line for stdout.

    Raises ConfigError if the package is missing or ``out`` cannot be a new file, CheckpointError if the weights do not
    fit the env as it is now, and CannotSaveError if the file cannot be written.
    """
    package = _package()
    path = _new_file(out)
    spec = _spec_of(saved)
    model = saved.model(spec)
    # Copies: what lies in one piece of memory with something else is refused there.
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}
    data: bytes = package.save(tensors, metadata=metadata_of(saved, spec, policy))
    try:
        atomic.write_bytes(path, data)
    except OSError as error:
        raise CannotSaveError(f"{path} could not be written: {error}; check the free space and the rights") from error
    result = {
        "file": str(path),
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "tensors": len(tensors),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "env": saved.config.run.env,
        "policy": policy,
        "checkpoint": str(saved.checkpoint),
        "checkpoint_env_steps": saved.env_steps,
    }
    return json.dumps(result)


def metadata_of(saved: SavedPolicy, spec: EnvSpec, policy: int) -> dict[str, str]:
    """What the file says of its weights; the format has text alone, so what is more is JSON."""
    config = saved.config
    return {
        "format": "pt",
        "sfactory_export": FORMAT_VERSION,
        "sfactory_version": __version__,
        "env": config.run.env,
        "env_kwargs": json.dumps(dict(config.run.env_kwargs)),
        "env_spec": json.dumps(_spec_facts(spec)),
        "model_config": json.dumps(_model_facts(config)),
        "policy": str(policy),
        "env_steps": str(saved.env_steps),
        "checkpoint": saved.checkpoint.name,
    }


def _spec_facts(spec: EnvSpec) -> Mapping[str, object]:
    return {
        "obs": {key: dataclasses.asdict(tensor) for key, tensor in spec.obs},
        "actions": [{"kind": type(head).__name__, **dataclasses.asdict(head)} for head in spec.actions],
    }


def _model_facts(config: Config) -> Mapping[str, object]:
    return dataclasses.asdict(config.model)


def _spec_of(saved: SavedPolicy) -> EnvSpec:
    """What the env of the run looks like; it is made for that, and closed."""
    env = saved.env_factory.either()
    try:
        if isinstance(env, AgentsEnv):
            return env.spec
        return EnvSpec.of_spaces(env.observation_space, env.action_space)
    finally:
        close_env(env, f"--env={saved.config.run.env}")


def _package() -> ModuleType:
    try:
        return importlib.import_module("safetensors.torch")
    except ImportError as error:
        raise ConfigError(
            [
                f"weights are exported with the package safetensors, which cannot be imported ({error}); install it: "
                "pip install 'sfactory[safetensors]'"
            ]
        ) from error


def _new_file(out: str) -> Path:
    path = Path(out)
    if path.exists() or path.is_symlink():
        raise ConfigError([f"{assigned('out', out)}: is there already, and nothing is written over; give another name"])
    if not path.parent.is_dir():
        raise ConfigError([f"{assigned('out', out)}: there is no folder {path.parent}; make it, or give another"])
    return path
