"""Describes an MLP policy as arrays, which sfactory/exporting/numpy_policy.py acts with."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from sfactory.action_heads import BoxHead, DiscreteHead
from sfactory.config.schema import ModelConfig
from sfactory.errors import ConfigError
from sfactory.exporting.acting_function import DIST_PARAMS, action_leaves, distinct
from sfactory.model.actor_critic import ActorCritic, PolicyHead
from sfactory.model.custom import own_parts
from sfactory.model.distributions import IMPOSSIBLE, first_columns, num_params
from sfactory.model.encoders import ChoiceEncoder, MLPEncoder, MultiEncoder
from sfactory.model.layers import NormedLinear
from sfactory.model.normalizer import WIDE
from sfactory.model.precision import Linear, torch_dtype

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


def npz_bytes(model: ActorCritic, config: ModelConfig, facts: Mapping[str, str], flag: str) -> bytes:
    """A compressed .npz of plain arrays. Raises ConfigError, which blames ``flag``, for what is no MLP."""
    if problem := _problem(model, config):
        raise ConfigError([f"{flag}: acts by MLPs alone, and this policy {problem}; --format=onnx takes it"])
    arrays: Arrays = {}
    network = {
        "activation": config.nonlinearity,
        "encoders": _encoders(model, config, arrays),
        "decoder_layers": _add_layers("decoder", model.tower.decoder, arrays),
        "tanh_bound": config.continuous_tanh_scale if model.policy_head.log_stddev is not None else 0.0,
        "masks": [path for path, _ in model.spec.masks],
        "impossible": IMPOSSIBLE,
        "actions": _actions(model, arrays),
        "dist_params": distinct(DIST_PARAMS, dict(model.spec.obs)),
    }
    _add_head(model, arrays)
    buffer = io.BytesIO()
    contents: dict[str, Any] = {
        "about": np.array(json.dumps(facts)),
        "network": np.array(json.dumps(network)),
        **arrays,
    }
    np.savez_compressed(buffer, **contents)
    return buffer.getvalue()


def _problem(model: ActorCritic, config: ModelConfig) -> str:
    """Why NumPy cannot compute the policy; "" if it can."""
    if parts := own_parts(config):
        return f"has a network of your own ({', '.join(parts)})"
    if model.state_size:
        return "has a memory"
    parts_of = _parts(model.tower.encoder)
    return "" if all(isinstance(part, MLPEncoder) for part in parts_of) else "reads images or sets of entities"


def _parts(encoder: nn.Module) -> tuple[nn.Module, ...]:
    return tuple(encoder.parts) if isinstance(encoder, MultiEncoder) else (encoder,)


def _encoders(model: ActorCritic, config: ModelConfig, arrays: Arrays) -> dict[str, dict[str, Any]]:
    """The description of each MLP over observations, by name; its arrays are added."""
    found: dict[str, dict[str, Any]] = {}
    for number, encoder in enumerate(_parts(model.tower.encoder)):
        assert isinstance(encoder, MLPEncoder)
        name, leaves = f"encoder{number}", list[dict[str, Any]]()
        for index, (path, size, choice) in enumerate(encoder.leaves):
            if choice is None:
                clip = _add_numbers(f"{name}/{index}", path, model, config, arrays)
                leaves.append({"path": path, "is_choice": False, "clip": clip})
            else:
                width = _add_choices(f"{name}/{index}", choice, size, arrays)
                leaves.append({"path": path, "is_choice": True, "width": width})
        found[name] = {"leaves": leaves, "layers": _add_layers(name, encoder.layers, arrays)}
    return found


def _add_choices(name: str, choice: ChoiceEncoder, size: int, arrays: Arrays) -> int | None:
    """The width of the one-hot vectors; None if rows of a table stand for choices."""
    arrays |= {f"{name}/{part}": _numpy(getattr(choice, part)) for part in ("starts", "last", "offsets")}
    if choice.table is None:
        return size
    arrays[f"{name}/table"] = _numpy(choice.table.weight)
    return None


def _add_numbers(name: str, path: str, model: ActorCritic, config: ModelConfig, arrays: Arrays) -> float | None:
    """The bound of normalised numbers; None if there is none."""
    zeros: Array = np.zeros(1, np.float32)
    center, shift, scale = np.array([config.obs_subtract_mean]), zeros, np.array([1.0 / config.obs_scale], np.float32)
    clip: float | None = None
    if model.normalizes(path):
        assert model.obs_normalizer is not None
        normalizer = model.obs_normalizer.by_key[path]
        scale, clip = _numpy(normalizer.scale), normalizer.clip
        # As RunningNormalizer.forward.
        is_wide = torch_dtype(dict(model.spec.obs)[path].dtype) in WIDE
        center, shift = (_numpy(normalizer.mean), zeros) if is_wide else (zeros, _numpy(normalizer.shift))
    arrays |= {f"{name}/center": center, f"{name}/shift": shift, f"{name}/scale": scale}
    return clip


def _add_layers(name: str, layers: nn.Module, arrays: Arrays) -> int:
    """How many layers there are."""
    count = 0
    for layer in layers.children():
        assert isinstance(layer, Linear)
        own = f"{name}/layer{count}"
        arrays |= {f"{own}/weight": _numpy(layer.multiplied_with()), f"{own}/bias": _numpy(layer.bias)}
        if isinstance(layer, NormedLinear):
            arrays |= {f"{own}/gain": _numpy(layer.gain), f"{own}/shift": _numpy(layer.shift)}
        count += 1
    return count


def _add_head(model: ActorCritic, arrays: Arrays) -> None:
    """One linear layer to all parameters; log standard deviations that do not depend on features are biases."""
    head = model.policy_head
    assert isinstance(head, PolicyHead)
    is_mean, is_fixed = [], []
    for kind in model.heads:
        means = kind.size if isinstance(kind, BoxHead) else 0
        others = num_params((kind,)) - means
        is_mean += [True] * means + [False] * others
        is_fixed += [False] * means + [means > 0 and head.log_stddev is not None] * others
    fixed = np.array(is_fixed, bool)
    weight = np.zeros((fixed.size, head.linear.in_features), np.float32)
    bias = np.zeros(fixed.size, np.float32)
    weight[~fixed], bias[~fixed] = _numpy(head.linear.weight), _numpy(head.linear.bias)
    if head.log_stddev is not None:
        bias[fixed] = _numpy(head.log_stddev)
    arrays |= {"policy/weight": weight, "policy/bias": bias, "policy/is_mean": np.array(is_mean, bool)}
    if model.action_mask is not None:
        arrays["policy/masked"] = _numpy(model.action_mask.columns)


def _actions(model: ActorCritic, arrays: Arrays) -> dict[str, dict[str, Any]]:
    """The leaves of the action, by their names; the facts of boxes are added."""
    first = first_columns(model.heads)
    leaves: dict[str, dict[str, Any]] = {}
    for leaf in action_leaves(model.spec):
        name = distinct(leaf.name, dict(model.spec.obs))
        choices = [(first[head.key], head.n, head.start) for head in leaf.heads if isinstance(head, DiscreteHead)]
        if choices:
            leaves[name] = {"is_choice": True, "choices": choices, "stacked": leaf.stacked}
            continue
        (box,) = leaf.heads
        assert isinstance(box, BoxHead)
        place = first[box.key]
        leaves[name] = {"is_choice": False, "first": place, "shape": box.shape, "dtype": box.dtype}
        facts = {"low": box.low, "high": box.high, "center": box.center or (0.0,), "scale": box.scale or (1.0,)}
        arrays |= {f"action{place}/{fact}": np.array(values) for fact, values in facts.items()}
        arrays[f"action{place}/squashed"] = np.array(box.bounded) & box.squashed
    return leaves


def _numpy(tensor: Tensor) -> Array:
    array: Array = tensor.detach().cpu().numpy()
    return array
