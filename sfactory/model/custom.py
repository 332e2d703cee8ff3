"""Makes networks of the user's own, plain ``nn.Module`` classes that the flags encoder, core, decoder and model name.

SIGNATURES shows what each must have; docs/own_agent.md has complete examples. A name without a colon is one of the
entry-point group ``sfactory.models`` of installed packages.
"""

from __future__ import annotations

import inspect
import operator
import os
from collections.abc import Collection, Mapping
from typing import Any

import gymnasium.spaces as spaces
import numpy as np
from torch import nn
from torch.nn.parameter import is_lazy

from sfactory.config.flags import assigned
from sfactory.config.import_strings import Unresolved, find_registered
from sfactory.config.schema import ModelConfig
from sfactory.config.trust import NETWORKS
from sfactory.errors import ConfigError, named, raised_at
from sfactory.plain_spaces import space_of_plain
from sfactory.spec import OBS_KEY, key_of, leaves
from sfactory.tensor_spec import ObsSpec, TensorSpec

ENTRY_POINTS = "sfactory.models"

SIGNATURES: Mapping[str, str] = {
    "encoder": """\
class MyEncoder(nn.Module):
    out_size: int
    def __init__(self, observation_space: gymnasium.spaces.Space, **model_kwargs): ...
    def forward(self, obs: dict[str, Tensor]) -> Tensor: ...  # {path: [B, ...]} -> [B, out_size]""",
    "core": """\
class MyCore(nn.Module):
    out_size: int
    state_size: int  # numbers of memory per row; zeros at the start of an episode
    def __init__(self, in_size: int, **model_kwargs): ...
    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]: ...
        # [B, in_size], [B, state_size] -> [B, out_size], [B, state_size]
    def sequence(self, x, state, is_first, held=None) -> tuple[Tensor, Tensor]: ...
        # [T, B, in_size], [B, state_size], [T, B] bool: zero the state before the step,
        # [T, B] bool or None: keep the state in the step -> [T, B, out_size], [B, state_size]""",
    "decoder": """\
class MyDecoder(nn.Module):
    out_size: int
    def __init__(self, in_size: int, **model_kwargs): ...
    def forward(self, x: Tensor) -> Tensor: ...  # [B, in_size] -> [B, out_size]""",
    "model": """\
class MyModel(nn.Module):
    state_size: int = 0  # numbers of memory per row; zeros at the start of an episode
    def __init__(self, observation_space: gymnasium.spaces.Space, num_outputs: int, **model_kwargs): ...
    def forward(self, obs: dict[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor, Tensor]: ...
        # {path: [B, ...]}, [B, state_size] -> [B, num_outputs] parameters of the policy, [B] value, [B, state_size]
    def unroll(self, obs, state, is_first, held=None) -> tuple[Tensor, Tensor, Tensor]: ...
        # only with memory: {path: [T, B, ...]}, [B, state_size], [T, B] bool, [T, B] bool or None
        # -> [T, B, num_outputs], [T, B], [B, state_size]""",
}


# The attributes that a part must have, and the least that they can be.
_SIZES: Mapping[str, Mapping[str, int]] = {
    "encoder": {"out_size": 1},
    "core": {"out_size": 1, "state_size": 0},
    "decoder": {"out_size": 1},
    "model": {"state_size": 0},
}


def own_parts(config: ModelConfig) -> dict[str, str]:
    """The names that the flags give to networks of the user's own, by part."""
    return {part: name for part in NETWORKS if (name := getattr(config, part))}


def make_part(part: str, config: ModelConfig, *arguments: Any) -> nn.Module:
    """The module that flag ``part`` names, made of ``arguments`` and keywords. Raises ConfigError with the cause."""
    made = _call(part, config, arguments)
    if not isinstance(made, nn.Module):
        raise refusal(part, config, f"returned a {type(made).__name__}, which is no torch.nn.Module")
    if problem := _flaw(part, made):
        raise refusal(part, config, problem)
    return made


def _flaw(part: str, made: nn.Module) -> str:
    """What is wrong with the sizes and weights of a module; "" if nothing is. Sizes of numpy become ints."""
    if "_modules" not in vars(made):
        return "does not call super().__init__() in its __init__"
    for size, least in _SIZES[part].items():
        value: Any = getattr(made, size, 0 if part == "model" else None)
        if not isinstance(value, int):
            try:
                value = operator.index(value)
                setattr(made, size, value)
            except (AttributeError, TypeError):
                theirs = " (features_dim is Stable-Baselines3's name of it)" if hasattr(made, "features_dim") else ""
                return f"has no attribute {size}, which must be an int{theirs if size == 'out_size' else ''}"
        if value < least:
            return f"has {size} = {value}, which must be at least {least}"
    for name, weight in made.state_dict(keep_vars=True).items():
        if is_lazy(weight):
            return f"has the lazy weight {name!r}, whose size is not known when it is made: give the layer its sizes"
        if weight.requires_grad and weight.is_complex():
            return (
                f"has the complex weight {name!r}, which optimizers do not take: keep its real and imaginary parts "
                "(torch.view_as_real), and compute with torch.view_as_complex"
            )
    return ""


def _call(part: str, config: ModelConfig, arguments: tuple[Any, ...]) -> object:
    kind, keywords = find_part(part, config), _keywords(part, config)
    try:
        return kind(*arguments, **keywords)
    except Exception as error:  # the user's code may raise anything
        where = raised_at(error) or _defined_at(kind)
        if keywords and isinstance(error, TypeError):
            where += f" ({assigned('model_kwargs', config.model_kwargs)})"
        raise refusal(part, config, f"raised {named(error)}{where} when it was made") from error


def _defined_at(kind: Any) -> str:
    """Where a class or function stands, as the end of a sentence; "" if that is not known."""
    try:
        return f" (defined at {os.path.relpath(inspect.getsourcefile(kind) or '')}:{inspect.getsourcelines(kind)[1]})"
    except (OSError, TypeError, ValueError):
        return ""


def refusal(part: str, config: ModelConfig, problem: str) -> ConfigError:
    """The error of a part with a problem; it shows the signature."""
    return ConfigError(
        [f"{assigned(part, getattr(config, part))}: {problem}; it must have the form\n{SIGNATURES[part]}"]
    )


def find_part(part: str, config: ModelConfig) -> Any:
    """The class or function that makes ``part``; raises ConfigError if there is none."""
    name = getattr(config, part)
    try:
        return find_registered(name, ENTRY_POINTS)
    except Unresolved as error:
        raise ConfigError([f"{assigned(part, name)}: {error}"]) from error.__cause__


def _keywords(part: str, config: ModelConfig) -> dict[str, Any]:
    """What ``--model_kwargs`` has for ``part``: all of it for the only part, else the entry of that name."""
    given, parts = dict(config.model_kwargs), own_parts(config)
    if len(parts) == 1 and not set(given) <= set(NETWORKS):
        return given
    keywords = given.get(part, {})
    if set(given) <= set(parts) and isinstance(keywords, Mapping):
        return dict(keywords)
    example = ", ".join(f'"{name}": {{...}}' for name in parts)
    raise ConfigError(
        [f"{assigned('model_kwargs', config.model_kwargs)}: write one object for each part: {{{example}}}"]
    )


def paths_seen(obs: ObsSpec) -> tuple[str, ...]:
    """Which observations encoders read, or a model of the user's own: no action masks, and not what the core reads."""
    return tuple(path for path, leaf in obs if not (leaf.is_mask or leaf.is_core_input))


def space_of(obs: ObsSpec, normalized: Collection[str], plain_spaces: tuple[Any, ...] = ()) -> spaces.Space[Any]:
    """The space of observations as networks see them: of one leaf, or a Dict by path, see ``paths_seen``.

    normalized: paths of the leaves that come normalized, as float32 without bounds. plain_spaces: see EnvSpec.
    """
    specs, of_env = dict(obs), spaces_by_path(plain_spaces)
    seen = {
        path: _leaf_space(TensorSpec(specs[path].shape, "float32"))
        if path in normalized
        else _leaf_space(specs[path], of_env.get(path))
        for path in paths_seen(obs)
    }
    return seen[OBS_KEY] if list(seen) == [OBS_KEY] else spaces.Dict(list(seen.items()))


def spaces_by_path(plain_spaces: tuple[Any, ...]) -> dict[str, spaces.Space[Any]]:
    """The env's spaces of observations, as far as its spec has them: that of an older version has none."""
    found = leaves(space_of_plain(plain_spaces[0])) if plain_spaces else ()
    return {key_of(path, OBS_KEY): leaf for path, leaf in found}


def _leaf_space(leaf: TensorSpec, of_env: spaces.Space[Any] | None = None) -> spaces.Space[Any]:
    """of_env: the space as the env has it, if that is known."""
    dtype = np.dtype(leaf.dtype)
    if isinstance(of_env, spaces.MultiBinary):
        return of_env
    if isinstance(of_env, spaces.Box) and dtype.kind == "f":
        return spaces.Box(of_env.low.astype(dtype), of_env.high.astype(dtype), leaf.shape, dtype.type)
    if leaf.sizes:
        first = np.resize(np.array(leaf.starts, object), leaf.shape)  # of any size, as 2**64 is
        last = first + np.resize(np.array(leaf.sizes, object), leaf.shape) - 1
        if leaf.categorical and not leaf.shape:
            return spaces.Discrete(leaf.sizes[0], start=leaf.starts[0])
        return spaces.Box(np.asarray(first, dtype), np.asarray(last, dtype), leaf.shape, dtype.type)
    if dtype.kind == "b":
        return spaces.MultiBinary(leaf.shape)
    low, high = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return spaces.Box(low, high, leaf.shape, dtype.type)
