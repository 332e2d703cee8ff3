"""Exports the weights of a saved policy as a safetensors file, and reads such a file.

An exported file holds no code, and reading its weights needs nothing of sfactory (docs/security.md).
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sfactory import __version__, atomic
from sfactory.config.commands import ExportConfig, PolicyFlags
from sfactory.config.flags import all_flags, assigned, coerce, config_of
from sfactory.env.lifecycle import close_env
from sfactory.errors import CannotSaveError, CheckpointError, ConfigError, named
from sfactory.experiment.saved_policy import SavedPolicy, require_trusted_networks
from sfactory.learner.checkpointing import SavedState
from sfactory.packages import install_command
from sfactory.spec import EnvSpec

EXPORT_VERSION = "1"


_OF_ENV = ("env_frameskip", "info_action_mask")  # flags of sampling that make the env what it is


def export(config: ExportConfig) -> str:
    """Write the weights of a saved policy to ``config.out``; returns the line of JSON for stdout.

    Only for a checkpoint of an older version is the env made. Raises ConfigError if the package is missing or the file
    cannot be a new one, CheckpointError if the weights do not fit the env, CannotSaveError if the file cannot be
    written, and the errors of ``SavedPolicy.load`` and ``SavedPolicy.env_factory``.
    """
    saved, policy = SavedPolicy.load(config), config.policy_index
    package = _safetensors("safetensors.torch")
    path = _new_file(config.out)
    spec = saved.state.spec or _spec_of_env(saved, config)
    model = saved.model(spec)
    # Copies: safetensors refuses tensors that share memory.
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}
    data: bytes = package.save(tensors, metadata=_metadata(saved, spec, policy))
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
        "checkpoint_env_steps": saved.state.env_steps,
    }
    return json.dumps(result)


def read_export(path: Path, trust_run_dir: bool) -> SavedPolicy:
    """The policy in a file of ``export``. Raises ConfigError as that, and CheckpointError for another file."""
    package = _safetensors("safetensors")
    try:
        with package.safe_open(path, framework="pt") as file:
            facts: Mapping[str, str] = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        if facts["sfactory_export"] != EXPORT_VERSION:
            raise ValueError(f"it has the version {facts['sfactory_export']}, and this sfactory reads {EXPORT_VERSION}")
        values = {"env": facts["env"], "env_kwargs": json.loads(facts["env_kwargs"])}
        for name in ("env_wrappers", "env_sampling", "model_config"):
            values |= json.loads(facts.get(name, "{}"))
        config = config_of({name: coerce(all_flags()[name], value) for name, value in values.items()})
        spec = EnvSpec.of_plain(json.loads(facts["env_spec"]))
        steps, policy = int(facts["env_steps"]), int(facts["policy"])
    except Exception as error:  # the package has an exception of its own, and a damaged file may raise any
        raise CheckpointError(f"{path} is no file that python -m sfactory.export wrote: {named(error)}") from error
    require_trusted_networks(config, path, trust_run_dir)
    state = SavedState(weights, spec, 0, steps, steps, steps, 0.0, "reward", 0.0)
    wanted = PolicyFlags(policy_index=policy, trust_run_dir=trust_run_dir)
    return SavedPolicy(config, path, state, path, wanted)


def _safetensors(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        problem = f"weights are exported with the package safetensors, which cannot be imported ({error}); run: "
        raise ConfigError([problem + install_command("safetensors")]) from error


def _spec_of_env(saved: SavedPolicy, config: ExportConfig) -> EnvSpec:
    env = saved.env_factory(config).either()
    try:
        return saved.spec_of(env)
    finally:
        close_env(env, f"--env={saved.config.run.env}")


def _metadata(saved: SavedPolicy, spec: EnvSpec, policy: int) -> dict[str, str]:
    """Describes the weights. The format has text alone, so nested values are JSON."""
    run = saved.config.run
    return {
        "format": "pt",
        "sfactory_export": EXPORT_VERSION,
        "sfactory_version": __version__,
        "env": run.env,
        "env_kwargs": json.dumps(dict(run.env_kwargs)),
        "env_wrappers": json.dumps(saved.config.wrappers.used),
        "env_sampling": json.dumps({name: getattr(saved.config.sampling, name) for name in _OF_ENV}),
        "env_spec": json.dumps(spec.plain()),
        "model_config": json.dumps(dataclasses.asdict(saved.config.model)),
        "policy": str(policy),
        "env_steps": str(saved.state.env_steps),
        "checkpoint": saved.checkpoint.name,
    }


def _new_file(out: str) -> Path:
    path = Path(out)
    if path.exists() or path.is_symlink():
        raise ConfigError([f"{assigned('out', out)}: exists already and is not overwritten; give another name"])
    if not path.parent.is_dir():
        raise ConfigError([f"{assigned('out', out)}: there is no folder {path.parent}; create it, or give another"])
    return path
