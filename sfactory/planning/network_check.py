"""Checks networks of the user's own before any process starts: shapes, gradients, independent rows, memory."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import gymnasium.spaces as spaces
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfactory.config.flags import assigned
from sfactory.config.schema import ModelConfig
from sfactory.errors import ConfigError, named, raised_at
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.custom import own_parts, refusal, spaces_by_path
from sfactory.model.distributions import num_params
from sfactory.model.precision import torch_dtype
from sfactory.spec import EnvSpec, TensorSpec

_ROWS, _STEPS, _RESET_AT, _HELD_AT = 3, 5, 2, 3
_MOST_VALUES = 2**24  # bounds beyond these are those of a dtype, and say nothing of the values that an env shows
_CHANGES = "changes its observations in place, which others read, too: write x = x * 2, and not x *= 2 or x.mul_(2)"
_RANDOM = (
    "keeps random numbers outside of its state, so that each process, and a policy that is loaded, has others: keep "
    "them as nn.Parameter(..., requires_grad=False), or by register_buffer without persistent=False"
)
_UNLOADABLE = (
    "has a state that cannot be loaded where it is made again, as for a checkpoint: make all parameters and buffers in "
    "__init__"
)
_CLOSE = 1e-3  # of two ways to compute the same in float32


class _Problem(Exception):
    """What is wrong with a part."""


class _Part(NamedTuple):
    """A network of the user's own under test.

    size: of its output. step: output [B, size] and state of step t for some rows and the state before it. unroll:
    outputs [T, B, size] of all steps and the state after them, given is_first and held [T, B]; None without memory.
    """

    module: nn.Module
    size: int
    state_size: int
    step: Callable[[int, slice, Tensor], tuple[Tensor, Tensor]]
    unroll: Callable[..., tuple[Tensor, Tensor]] | None


def checked_model(spec: EnvSpec, config: ModelConfig) -> ActorCritic:
    """The model with its parts of the user's own, on the CPU. Raises ConfigError, which shows the form of a part."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ActorCritic(spec, config)
        obs = _observations(spec, () if model.obs_normalizer is None else model.obs_normalizer.keys)
        if model.obs_normalizer is not None:
            obs = model.obs_normalizer.forward(obs)
        for tower, name in itertools.product(_towers(model), own_parts(config)):
            read = tower.read(obs) if spec.reads_apart else obs
            given = copy.deepcopy(read)
            try:
                _check(_part(name, tower, given, spec), bool(spec.agents))
                _require(_equal(given, read), _CHANGES)
                copy.deepcopy(model)  # as for acting
            except _Problem as problem:
                raise refusal(name, config, str(problem) if _equal(given, read) else _CHANGES) from None
            except Exception as error:  # the user's code may raise anything
                if not _equal(given, read):  # the cause, as gradients need what was there
                    raise refusal(name, config, _CHANGES) from error
                there = f"; obs has {', '.join(map(repr, tower.seen(read)))}" if isinstance(error, KeyError) else ""
                raise refusal(name, config, f"raised {named(error)}{raised_at(error)}{there}") from error
        _require_same_elsewhere(model, obs, config)
    if model.state_size and not config.use_rnn:
        raise ConfigError(
            [f"{assigned('model', config.model)} has a memory (state_size {model.state_size}): add --use_rnn=True"]
        )
    model.zero_grad(set_to_none=True)
    return model


def _towers(model: ActorCritic) -> list[Any]:
    """The tower, and that of a critic that reads something else."""
    return [model.tower, model.critic_tower] if model.spec.reads_apart else [model.tower]


def _require_same_elsewhere(model: ActorCritic, obs: dict[str, Tensor], config: ModelConfig) -> None:
    """Raise ConfigError if a part of the user's own computes something else where another process makes it, and loads
    its state, or if that cannot be loaded."""
    torch.manual_seed(1)
    other = ActorCritic(model.spec, config)
    for (here, there), name in itertools.product(zip(_towers(model), _towers(other), strict=True), own_parts(config)):
        try:
            getattr(there, name).load_state_dict(getattr(here, name).state_dict())
        except RuntimeError as error:
            raise refusal(name, config, f"{_UNLOADABLE}: {named(error)}") from error
        read = here.read(obs) if model.spec.reads_apart else obs
        found = []
        for tower in (here, there):
            torch.manual_seed(0)  # of inputs
            found.append(_outputs_of_two_steps(_part(name, tower, read, model.spec)))
        if not _close(*found):
            raise refusal(name, config, _RANDOM)


def _outputs_of_two_steps(part: _Part) -> Tensor:
    """[2, B, size], without gradients."""
    start = torch.zeros(_ROWS, part.state_size)
    with torch.no_grad():
        first, state = part.step(0, slice(None), start)
        second, _ = part.step(1, slice(None), state if part.state_size else start)
    return torch.stack((first, second))


def _part(name: str, tower: Any, obs: dict[str, Tensor], spec: EnvSpec) -> _Part:
    """``obs``: what ``tower`` reads in all steps."""
    module = getattr(tower, name)
    none = torch.zeros(_ROWS, 0)

    def row(t: int, rows: slice) -> dict[str, Tensor]:
        return {path: leaf[t, rows] for path, leaf in obs.items()}

    if name == "encoder":
        return _Part(module, module.out_size, 0, lambda t, rows, _: (module(tower.seen(row(t, rows))), none), None)
    if name == "model":
        size = num_params(spec.actions) + 1

        def unroll_model(is_first: Tensor, held: Tensor | None) -> tuple[Tensor, Tensor]:
            found: tuple[Tensor, Tensor] = tower.sequence(obs, torch.zeros(_ROWS, tower.state_size), is_first, held)
            return found

        step = lambda t, rows, state: tower.step(row(t, rows), state)  # noqa: E731
        return _Part(module, size, tower.state_size, step, unroll_model if tower.state_size else None)
    inputs = torch.randn(_STEPS, _ROWS, tower.core_in_size if name == "core" else tower.memory_size)
    if name == "decoder":
        return _Part(module, module.out_size, 0, lambda t, rows, _: (module(inputs[t, rows]), none), None)

    def unroll_core(is_first: Tensor, held: Tensor | None) -> tuple[Tensor, Tensor]:
        more = () if held is None else (held,)
        outputs, state = module.sequence(inputs, torch.zeros(_ROWS, module.state_size), is_first, *more)
        return outputs, state

    step = lambda t, rows, state: module.step(inputs[t, rows], state)  # noqa: E731
    return _Part(module, module.out_size, module.state_size, step, unroll_core)


def _check(part: _Part, is_held: bool) -> None:
    every, some = slice(None), slice(0, _ROWS - 1)
    start = torch.zeros(_ROWS, part.state_size)
    output, state = part.step(0, every, start)
    _require_shape(output, (_ROWS, part.size), f"its output (out_size is {part.size})")
    if part.state_size:
        _require_shape(state, start.shape, "the state after a step")
    _require(bool(torch.isfinite(output).all()), "gives an output that holds NaN or infinity")
    _require(
        torch.equal(output, part.step(0, every, start)[0]),
        "gives another output for the same input: it must be deterministic (no dropout, no noise; of a "
        "pretrained part call .eval() in __init__, and it stays so)",
    )
    _require(
        _close(output[some], part.step(0, some, start[some])[0]),
        "gives a row another output when fewer rows are beside it: rows must not influence one another (no batch "
        "normalization over rows; of a pretrained part call .eval() in __init__, and it stays so)",
    )
    parameters = [parameter for parameter in part.module.parameters() if parameter.requires_grad]
    if parameters:
        _require(output.requires_grad, "passes no gradient to its parameters")
        torch.autograd.backward(output.sum())
        _require(any(parameter.grad is not None for parameter in parameters), "passes no gradient to its parameters")
    if part.unroll is not None:
        _check_memory(part, part.unroll, is_held)


def _check_memory(part: _Part, unroll: Callable[..., tuple[Tensor, Tensor]], is_held: bool) -> None:
    """All steps at once must equal one step after the other, with a reset, and with a held state."""
    is_first = torch.zeros(_STEPS, _ROWS, dtype=torch.bool)
    is_first[_RESET_AT, 0] = True
    held = torch.zeros(_STEPS, _ROWS, dtype=torch.bool)
    held[_HELD_AT, 1] = is_held
    outputs, last = unroll(is_first, held if is_held else None)
    _require_shape(outputs, (_STEPS, _ROWS, part.size), "the output of all steps")
    _require_shape(last, (_ROWS, part.state_size), "the state after all steps")
    state = torch.zeros(_ROWS, part.state_size)
    for t in range(_STEPS):
        state = torch.where(is_first[t].unsqueeze(-1), 0.0, state)
        output, after = part.step(t, slice(None), state)
        acts = ~held[t]
        _require(
            _close(output[acts], outputs[t, acts]),
            f"gives other outputs for all steps at once than for one after the other (in step {t}; the state is reset "
            f"before step {_RESET_AT}" + (f", and kept in step {_HELD_AT})" if is_held else ")"),
        )
        state = torch.where(held[t].unsqueeze(-1), state, after)
    _require(_close(state, last), "gives another state after all steps at once than after one after the other")


def _equal(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    return all(torch.equal(leaf, others[path]) for path, leaf in some.items())


def _close(some: Tensor, other: Tensor) -> bool:
    """Whether two ways to compute the same agree. Of sums of large numbers that cancel out, errors remain."""
    largest = float(other.detach().abs().max()) if other.numel() else 0.0
    return torch.allclose(some.double(), other.double(), _CLOSE, max(_CLOSE, 1e-5 * largest))


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise _Problem(problem)


def _require_shape(output: object, shape: tuple[int, ...] | torch.Size, what: str) -> None:
    if not isinstance(output, Tensor):
        raise _Problem(f"{what} is a {type(output).__name__}, which is no tensor")
    _require(output.shape == shape, f"{what} has the shape {tuple(output.shape)}, and must have {tuple(shape)}")
    _require(output.is_floating_point(), f"{what} has the dtype {output.dtype}, and must hold real numbers")


def _observations(spec: EnvSpec, normalized: Collection[str]) -> dict[str, Tensor]:
    """Random ones of all steps, of the env's space where they are not ``normalized``: {path: [T, B, ...]}. Masks allow
    everything."""
    random = np.random.default_rng(0)
    boxes = spaces_by_path(spec.plain_spaces)
    obs = {}
    for path, leaf in spec.obs:
        shape = (_STEPS, _ROWS, *leaf.shape)
        if leaf.is_mask:
            values: Any = np.ones(shape)
        elif leaf.sizes:
            first, sizes = _few_values(leaf)
            values = np.resize(first, leaf.shape) + random.integers(np.resize(sizes, leaf.shape), size=shape)
        elif not leaf.dtype.startswith("float"):
            values = random.integers(2, size=shape)
        else:
            values = random.standard_normal(shape)
            box = boxes.get(path)
            if isinstance(box, spaces.Box) and path not in normalized:
                values = _within(box, values, random.random(shape))
        obs[path] = torch.from_numpy(np.asarray(values)).to(torch_dtype(leaf.dtype))
    return obs


def _few_values(leaf: TensorSpec) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The first of the integers of a leaf, and their number: as in its space; of very many 0 and 1, or two others."""
    starts, sizes = np.broadcast_arrays(np.array(leaf.starts, object), np.array(leaf.sizes, object))  # 2**64 fits
    many = sizes > _MOST_VALUES
    first = np.where(many, np.minimum(np.maximum(starts, 0), starts + sizes - 2), starts)
    return first.astype(np.int64), np.where(many, 2, sizes).astype(np.int64)


def _within(box: spaces.Box, normal: npt.NDArray[Any], uniform: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Numbers in a space: uniform between two bounds, and normal on the side of one, or without any."""
    low, high = box.low.astype(np.float64), box.high.astype(np.float64)
    has_low, has_high = np.abs(low) < _MOST_VALUES, np.abs(high) < _MOST_VALUES
    least, most = np.where(has_low, low, 0.0), np.where(has_high, high, 0.0)
    one_sided = np.where(has_low, least + np.abs(normal), np.where(has_high, most - np.abs(normal), normal))
    return np.where(has_low & has_high, least + (most - least) * uniform, one_sided)
