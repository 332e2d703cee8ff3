"""Exports a saved policy: as weights, as a function for other programs, and onto the Hugging Face Hub.

Exported weights hold no code, and reading them needs nothing of sfactory (docs/security.md).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from keyword import iskeyword
from pathlib import Path

from sfactory import __version__, atomic
from sfactory.config.commands import ENDINGS, ExportConfig
from sfactory.config.flags import assigned
from sfactory.env.lifecycle import close_env
from sfactory.errors import CannotSaveError, ConfigError
from sfactory.experiment.saved_policy import AGENT_FLAGS, ENV_FLAGS, SavedPolicy, require_same_env
from sfactory.exporting import numpy_policy
from sfactory.exporting.acting_function import ActingFunction, onnx_bytes, torch_export_bytes
from sfactory.exporting.hub import push_to_hub
from sfactory.exporting.model_card import model_card
from sfactory.exporting.numpy_arrays import npz_bytes
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.torch_state import OwnTorchState
from sfactory.spec import EnvSpec
from sfactory.system.optional_packages import required

EXPORT_VERSION = "1"


def export(config: ExportConfig) -> str:
    """Export a saved policy as ``config`` says; returns the line of JSON for stdout.

    Only for a checkpoint of an older version is the env made. Raises ConfigError if a package is missing, the policy
    has no such form or the file cannot be a new one, CheckpointError if the weights do not fit the env, CannotSaveError
    if the file cannot be written or uploaded, and the errors of ``SavedPolicy.load`` and ``SavedPolicy.env_factory``.
    """
    saved = SavedPolicy.load(config)
    require_same_env(saved.config, config.env)
    if config.format == "safetensors":
        required("safetensors.torch", "--format=safetensors", "safetensors")
    paths = _new_files(config)
    spec = saved.state.spec or _spec_of_env(saved, config)
    model = saved.model(spec)
    facts = _metadata(saved, spec)
    with OwnTorchState():
        data = _bytes_of(model, saved, facts, config)
    result: dict[str, object] = {
        "file": str(paths[0]) if paths else None,
        "format": config.format,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "tensors": len(model.state_dict()),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "env": saved.config.run.env,
        "policy": config.policy_index,
        "checkpoint": str(saved.checkpoint),
        "checkpoint_env_steps": saved.state.env_steps,
    }
    if len(paths) > 1:
        result["module"] = str(paths[1])
    if config.format != "safetensors":
        function = ActingFunction(model)
        result |= {"inputs": list(function.inputs), "outputs": function.outputs}
    if config.push_to_hub:
        result["pushed_to"] = push_to_hub(config.push_to_hub, data, model_card(saved, config.push_to_hub))
    # Last, as a file that is there already would have the same command refused after an upload that failed.
    contents = [data, Path(numpy_policy.__file__).read_bytes()]
    try:
        for path, content in zip(paths, contents, strict=False):
            atomic.write_bytes(path, content)
    except OSError as error:
        raise CannotSaveError(f"{path} could not be written: {error}; check the free space and the rights") from error
    return json.dumps(result)


def _bytes_of(model: ActorCritic, saved: SavedPolicy, facts: dict[str, str], config: ExportConfig) -> bytes:
    flag = f"--format={config.format}"
    if config.format == "numpy":
        return npz_bytes(model, saved.config.model, facts, flag)
    if config.format != "safetensors":
        write = onnx_bytes if config.format == "onnx" else torch_export_bytes
        return write(ActingFunction(model), facts, flag)
    # Copies: safetensors refuses tensors that share memory.
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}
    package = required("safetensors.torch", flag, "safetensors")
    data: bytes = package.save(tensors, metadata={"format": "pt", **facts})
    return data


def _spec_of_env(saved: SavedPolicy, config: ExportConfig) -> EnvSpec:
    env = saved.env_factory(config).either()
    try:
        return saved.spec_of(env)
    finally:
        close_env(env, f"--env={saved.config.run.env}")


def _metadata(saved: SavedPolicy, spec: EnvSpec) -> dict[str, str]:
    """Describes the policy. Formats have text alone, so nested values are JSON."""
    run = saved.config.run
    return {
        "sfactory_export": EXPORT_VERSION,
        "sfactory_version": __version__,
        "env": run.env,
        "env_kwargs": json.dumps(dict(run.env_kwargs)),
        "env_wrappers": json.dumps(saved.config.wrappers.used),
        "env_sampling": json.dumps({name: getattr(saved.config.sampling, name) for name in ENV_FLAGS}),
        "env_spec": json.dumps(spec.plain()),
        "env_agents": json.dumps({name: getattr(saved.config.population, name) for name in AGENT_FLAGS}),
        "model_config": json.dumps(dataclasses.asdict(saved.config.model)),
        "policy": str(saved.wanted.policy_index),
        "env_steps": str(saved.state.env_steps),
        "checkpoint": saved.checkpoint.name,
    }


def _new_files(config: ExportConfig) -> list[Path]:
    """The files to write, none of which exists yet: the export, and of arrays the module that acts with them."""
    if config.push_to_hub and not config.out:
        return []
    path = Path(config.out or config.experiment + ENDINGS[config.format])
    paths = [path, path.with_name(f"{_module_name(path.stem)}.py")] if config.format == "numpy" else [path]
    for new in paths:
        if new.exists() or new.is_symlink():
            problem = f"{new} exists already and is not overwritten; give another name"
            raise ConfigError([f"{assigned('out', str(path))}: {problem}"])
    if not path.parent.is_dir():
        raise ConfigError(
            [f"{assigned('out', str(path))}: there is no folder {path.parent}; create it, or give another"]
        )
    return paths


def _module_name(text: str) -> str:
    """``text`` as the name of a module, which ``import`` takes."""
    name = "".join(letter if f"_{letter}".isidentifier() else "_" for letter in text)
    return f"{name}_" if iskeyword(name) else name if name.isidentifier() else f"_{name}"
