"""Weights from elsewhere: of another run (``--init_from=RUN[:POLICY[:KIND]]``), of the first rank, or a mean."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from torch import Tensor

from sfactory.checkpoint.directory import CheckpointDir, Kind
from sfactory.checkpoint.file import packed, unpacked
from sfactory.config.flags import assigned, did_you_mean, values_of
from sfactory.config.saved_config import checkpoint_folder, read_config
from sfactory.config.schema import PARTS, Config, ModelConfig
from sfactory.errors import ConfigError
from sfactory.learner.checkpointing import Progress, SavedState, payload_of, restore
from sfactory.learner.train_stats import Learned
from sfactory.learner.trainer import Trainer
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.normalizer import RunningNormalizer
from sfactory.model.parts import part_of
from sfactory.ranks.ranks import Ranks
from sfactory.spec import EnvSpec
from sfactory.tensor_spec import other_places

_log = logging.getLogger(__name__)

# Statistics of the earlier run weigh no more than so many steps of this one, so that they adapt to its scales.
_KNOWN_ROWS = 100_000

# Flags that decide what weights of these parts compute, and need not change their shapes.
_READ = ("encoder", "model")
_MEANING: Mapping[str, tuple[str, ...]] = {
    "encoder": ("encoder",),
    "core": ("core",),
    "decoder": ("decoder",),
    "model": ("model",),
    "model_kwargs": ("encoder", "core", "decoder", "model"),
    "encoder_conv_architecture": ("encoder",),
    "encoder_entity_heads": ("encoder",),
    "rnn_type": ("core",),
    "core_inputs": ("core",),
    "nonlinearity": ("encoder", "decoder"),
    "normalize_input": _READ,
    "normalize_input_keys": _READ,
    "normalize_input_clip": _READ,
    "obs_layout": _READ,
    "obs_scale": ("encoder",),
    "obs_subtract_mean": ("encoder",),
    "normalize_actions": ("policy", "model"),
    "continuous_distribution": ("policy", "model"),
    "continuous_tanh_scale": ("policy",),
    "normalize_returns": ("value", "model"),
}
_OF_NETWORK = {each.name for each in dataclasses.fields(ModelConfig)} - {
    *("amp", "cuda_graphs", "policy_initialization", "policy_init_gain", "initial_stddev")
}

_SAME_NETWORK = "type those values for the network of that run"

_FORM = re.compile(r"(.+?)(?::(\d+)(?::(latest|best|milestone))?)?")

Shapes = Mapping[str, tuple[int, ...]]


class InitialWeights(NamedTuple):
    """Weights by name, and the checkpoint that they come from."""

    tensors: Mapping[str, Tensor]
    checkpoint: Path


def initial_weights(config: Config, shapes: Shapes, spec: EnvSpec | None = None) -> InitialWeights | None:
    """The weights that a new run begins with, on the CPU; None without ``init_from``. shapes: of all its weights.

    spec: what their network reads here, to warn of flags and observations by which they compute something else.
    Raises ConfigError if there is no such checkpoint, or if the chosen parts do not fit; CheckpointError if it cannot
    be read.
    """
    flag = config.checkpoint.init_from
    if not flag:
        return None
    named, form = assigned("init_from", flag), _FORM.fullmatch(flag)
    assert form is not None, "any text but the empty one has the form"
    run_dir = _run_dir(form[1], Path(config.run.train_dir), named)
    kind, name, policy = cast(Kind, form[3] or "latest"), form[1], int(form[2] or 0)
    folder, keep = checkpoint_folder(run_dir, policy), config.checkpoint.keep_checkpoints
    directory = CheckpointDir(
        folder, keep, lambda other: shlex.quote(assigned("init_from", f"{name}:{policy}:{other}"))
    )
    loaded = directory.load(kind)
    if loaded is None:
        raise ConfigError([f"{named}: {directory.path} holds no {kind} checkpoint"])
    state = SavedState.of(loaded.payload, loaded.path)
    saved = state.model
    wanted = config.checkpoint.init_parts or PARTS
    chosen = {name: saved[name] for name in saved if part_of(name) in wanted}
    differing = _differing(config, run_dir)
    if problem := _misfit(chosen, shapes, wanted, differing):
        raise ConfigError([f"{named}: {problem}"])
    if spec is not None:
        parts = {part_of(name) for name in chosen}
        decisive = [text for name, text in differing.items() if not parts.isdisjoint(_MEANING.get(name, ()))]
        if decisive:
            text = "%s may compute something else here: it was trained with %s; %s"
            _log.warning(text, loaded.path, ", ".join(decisive), _SAME_NETWORK)
        trained = None if parts.isdisjoint(("normalizer", *_READ)) else state.spec
        if trained and (text := other_places(loaded.path, trained.obs, spec.obs)):
            _log.warning("%s", text)
    return InitialWeights(chosen, loaded.path)


def _differing(config: Config, run_dir: Path) -> dict[str, str]:
    """The flags of the network that are others in the run of ``run_dir``, with both values; {} if that is not known."""
    with contextlib.suppress(ConfigError):  # of a damaged file: weights alone are needed
        saved, here = read_config(run_dir), values_of(config)
        there = {} if saved is None else saved.values
        return {
            name: f"{assigned(name, value)} (here {assigned(name, here[name])})"
            for name, value in there.items()
            if name in _OF_NETWORK and value != here[name]
        }
    return {}


def _run_dir(name: str, train_dir: Path, named: str) -> Path:
    for folder in (train_dir / name, Path(name)):
        if folder.is_dir():
            return folder
    near = did_you_mean(name, [path.name for path in train_dir.glob("*") if path.is_dir()])
    kinds = "; of RUN:POLICY:KIND, KIND is latest, best or milestone" if ":" in name else ""
    missing = f"there is no such run, neither {train_dir / name} nor {Path(name).absolute()}"
    raise ConfigError([f"{named}: {missing}{near}{kinds}"])


def _misfit(chosen: Mapping[str, Tensor], shapes: Shapes, wanted: tuple[str, ...], differing: Mapping[str, str]) -> str:
    """Why the weights of the ``wanted`` parts do not fit, and what to type; "" if they do."""
    bad: dict[str, str] = {}  # the first problem of each part
    for name in {**chosen, **{name: None for name in shapes if part_of(name) in wanted}}:
        here, there = shapes.get(name), tuple(chosen[name].shape) if name in chosen else None
        if here != there:
            bad.setdefault(part_of(name), f"{name} {_shape(there)} there and {_shape(here)} here")
    if not bad:
        return "" if chosen else "the checkpoint has none of the parts of --init_parts"
    fitting = [part for part in wanted if part not in bad and any(part_of(name) == part for name in chosen)]
    advice = [f"it was trained with {', '.join(differing.values())}; {_SAME_NETWORK}"] if differing else []
    if fitting:
        advice.append(f"{'or ' if advice else ''}use --init_parts {' '.join(fitting)}")
    return "; ".join([*bad.values(), *(advice or ["no part of it fits the network of this run"])])


def _shape(shape: tuple[int, ...] | None) -> str:
    return "is missing" if shape is None else f"has the shape {list(shape)}"


def begin_with_weights(trainer: Trainer, config: Config, policy: int) -> None:
    """Give a new policy the weights of ``init_from``, if any."""
    load_initial_weights(trainer.model, config, policy)
    if config.checkpoint.init_from and trainer.target is not None:
        trainer.target.copy()


def load_initial_weights(model: ActorCritic, config: Config, policy: int, spec: EnvSpec | None = None) -> None:
    """Give the model of a policy the weights of ``init_from``, if any. Warns and raises as ``initial_weights``."""
    state = model.state_dict()
    initial = initial_weights(config, {name: tuple(value.shape) for name, value in state.items()}, spec)
    if initial is None:
        return
    model.load_state_dict({**state, **initial.tensors})
    for part in model.modules():
        if isinstance(part, RunningNormalizer):
            part.count.clamp_(max=_KNOWN_ROWS)
    parts = {part_of(name): None for name in initial.tensors}
    _log.info("policy %d begins with the %s of %s", policy, ", ".join(parts), initial.checkpoint)


def share(trainer: Trainer, progress: Progress, ranks: Ranks) -> None:
    """Have all ranks begin with weights, moments and counts of rank 0. Raises RankLost."""
    if ranks.world == 1:
        return
    content = ranks.broadcast(b"" if ranks.rank else packed(payload_of(trainer, progress)))
    if ranks.rank:
        restore(unpacked(content), "the state of rank 0", trainer, progress)
    if trainer.averaging is not None:
        trainer.averaging.begin()
        trainer.averaging.train_step = trainer.train_step


def add_up(trainer: Trainer, progress: Progress, counts: Sequence[Sequence[int]]) -> None:
    """Take over the mean weights, and add up the steps. counts: of each rank, see Learner.give."""
    assert trainer.averaging is not None
    trainer.averaging.join()
    train_steps, agent_steps, env_steps, run_env_steps = zip(*counts, strict=True)
    trainer.train_step = trainer.averaging.train_step = max(train_steps)
    progress.add(Learned(fresh=sum(agent_steps), env_steps=sum(env_steps), run_steps=sum(run_env_steps)), Learned())
