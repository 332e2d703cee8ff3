"""The acting policy as one function of tensors, from observations to the env's actions, for torch.export and ONNX."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sfactory.action_heads import ActionHead, BoxHead, DiscreteHead, heads_of
from sfactory.errors import ConfigError, named
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.custom import spaces_by_path
from sfactory.model.distributions import ActionDistribution
from sfactory.model.precision import torch_dtype
from sfactory.plain_spaces import space_of_plain
from sfactory.spec import ACTION_KEY, LAST_ACTION, EnvSpec, key_of, leaves
from sfactory.system.optional_packages import required

if TYPE_CHECKING:
    from torch.export import ExportedProgram

STATE, DIST_PARAMS = "rnn_state", "dist_params"
_ROWS = 2  # of the example: torch takes a single row for a constant


class ActionLeaf(NamedTuple):
    """One array of the env's action. name: of the output. heads: of its elements. stacked: if each element has a head,
    the shape that they have together; None: there is one head."""

    name: str
    heads: tuple[ActionHead, ...]
    stacked: tuple[int, ...] | None


def action_leaves(spec: EnvSpec) -> tuple[ActionLeaf, ...]:
    """The arrays that an action consists of: ``action``, or ``action/PATH`` for each leaf of a Dict or Tuple.

    The heads of a MultiDiscrete, MultiBinary or Box of integers become one array.
    """
    if not spec.plain_spaces:
        return _guessed_leaves(spec.actions)
    own = {head.key: head for head in spec.actions}
    found = []
    for path, space in leaves(space_of_plain(spec.plain_spaces[1])):
        key = key_of(path, ACTION_KEY)
        keys = [head.key for head in heads_of(key, space)]
        if not own.keys().isdisjoint(keys):  # not that of another kind of agents
            name = f"{ACTION_KEY}/{key}" if path else ACTION_KEY
            heads = tuple(own[each] for each in keys)
            found.append(ActionLeaf(name, heads, None if keys == [key] else space.shape))
    return tuple(found)


def _guessed_leaves(heads: Sequence[ActionHead]) -> tuple[ActionLeaf, ...]:
    """The same of a spec of an older version, which has no spaces: a Tuple in a Dict looks like a MultiDiscrete."""
    found: dict[str, list[ActionHead]] = {}
    stacked = set()
    for head in heads:
        leaf, _, place = head.key.rpartition("/")
        if isinstance(head, DiscreteHead) and leaf and place.isdecimal():
            stacked.add(leaf)
        else:
            leaf = head.key
        found.setdefault(leaf, []).append(head)
    return tuple(
        ActionLeaf(
            leaf if leaf == ACTION_KEY else f"{ACTION_KEY}/{leaf}", tuple(own), (len(own),) if leaf in stacked else None
        )
        for leaf, own in found.items()
    )


def distinct(name: str, taken: Collection[str]) -> str:
    """``name``, or if an observation has it, ``name`` with underscores at its end."""
    while name in taken:
        name += "_"
    return name


class ActingFunction(nn.Module):
    """Chooses the most probable action, with all that acting takes: normalisation, masks, memory, the unit of actions.

    ``forward`` takes and returns {name: [B, ...]}; any B will do.

    Inputs: the observations that the policy reads by their paths, in the shapes and dtypes of the env, action masks
    among them; with a memory ``rnn_state`` [B, S] float32, zeros at the start of an episode.
    Outputs: the leaves of the action, see ``action_leaves``, as the env takes them: choices as int64, boxes clipped, in
    their shape and dtype. ``dist_params`` [B, P] float32, see ActionDistribution, illegal choices with -1e30. With a
    memory ``next_rnn_state``, and if the core reads its last action, ``next_last_action``.

    inputs: {name: example [2, ...]}. outputs: names, in order.
    """

    def __init__(self, model: ActorCritic) -> None:
        super().__init__()
        # Without the critic, which would stand in the file.
        self.obs_normalizer, self.tower, self.policy_head = model.obs_normalizer, model.tower, model.policy_head
        self.action_mask, self._heads = model.action_mask, model.heads
        self._stored = {path: torch_dtype(leaf.dtype) for path, leaf in model.spec.obs}
        of_env = _dtypes_of_env(model.spec)
        obs = {path: torch.zeros(_ROWS, *leaf.shape, dtype=of_env[path]) for path, leaf in model.spec.obs}
        size = model.tower.state_size
        self._state = distinct(STATE, obs)
        self.inputs = {**obs, self._state: torch.zeros(_ROWS, size)} if size else obs
        self._leaves = [leaf._replace(name=distinct(leaf.name, self.inputs)) for leaf in action_leaves(model.spec)]
        self._params = distinct(DIST_PARAMS, self.inputs)
        fed_back = [self._state] if size else []
        fed_back += [path for path, leaf in model.spec.obs if leaf.is_core_input and path == LAST_ACTION]
        self._next = {name: distinct(f"next_{name}", self.inputs) for name in fed_back}
        self.outputs = [*(leaf.name for leaf in self._leaves), self._params, *self._next.values()]

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """See the class."""
        obs = {path: inputs[path].to(dtype) for path, dtype in self._stored.items()}
        rows = next(iter(obs.values())).shape[0]
        state = inputs[self._state] if self._state in self.inputs else torch.zeros(rows, 0)
        if self.obs_normalizer is not None:
            obs = self.obs_normalizer.forward(obs)
        features, state = self.tower.step(obs, state)
        params = self.policy_head.forward(features)
        if self.action_mask is not None:
            params = self.action_mask.forward(params, obs)
        chosen = ActionDistribution(self._heads, params).mode()
        outputs = {leaf.name: _of_env(leaf, chosen) for leaf in self._leaves} | {self._params: params}
        if self._state in self._next:
            outputs[self._next[self._state]] = state
        if LAST_ACTION in self._next:
            shown = [_shown(chosen[head.key], head) for head in self._heads]
            outputs[self._next[LAST_ACTION]] = torch.cat(shown, dim=1)
        return outputs


def _dtypes_of_env(spec: EnvSpec) -> dict[str, torch.dtype]:
    """By path, the dtype in which the env gives an observation; that in which it is stored where torch has no such
    one, or the spec is of an older version and has no spaces."""
    found = {path: torch_dtype(leaf.dtype) for path, leaf in spec.obs}
    for path, space in spaces_by_path(spec.plain_spaces).items():
        name = np.dtype(space.dtype).name
        if path in found and hasattr(torch, name):
            found[path] = torch_dtype(name)
    return found


def _shown(chosen: Tensor, head: ActionHead) -> Tensor:
    """[B, F] float32: the choice as one-hot, a box as the policy gave it, as PreviousSteps shows them to the core."""
    return (chosen.unsqueeze(1) == torch.arange(head.n)).float() if isinstance(head, DiscreteHead) else chosen


def _of_env(leaf: ActionLeaf, chosen: Mapping[str, Tensor]) -> Tensor:
    """A leaf of the action, [B, ...], as sfactory/env/actions.py gives it to the env."""
    parts = [
        _box(chosen[head.key], head) if isinstance(head, BoxHead) else chosen[head.key] + head.start
        for head in leaf.heads
    ]
    return parts[0] if leaf.stacked is None else torch.stack(parts, dim=1).reshape(-1, *leaf.stacked)


def _box(chosen: Tensor, head: BoxHead) -> Tensor:
    """[B, *shape] of ``chosen`` [B, size], which is in the policy's unit."""
    if head.squashed:
        chosen = torch.where(torch.tensor(head.bounded), torch.tanh(chosen), chosen)
    facts = head.low, head.high, head.center or (0.0,), head.scale or (1.0,)
    low, high, center, scale = (torch.tensor(fact, dtype=torch.float64) for fact in facts)
    dtype = torch_dtype(head.dtype)
    action = (chosen.double().clamp(low, high) * scale + center).to(dtype)
    # Rounding may lead beyond the bounds by a little.
    action = action.clamp((low * scale + center).to(dtype), (high * scale + center).to(dtype))
    return action.reshape(-1, *head.shape)


def traced(function: ActingFunction, flag: str) -> ExportedProgram:
    """The function as torch.export has it, for any number of rows. Raises ConfigError, which blames ``flag``."""
    batch = torch.export.Dim("batch")
    shapes = {name: {0: batch} for name in function.inputs}
    try:
        with torch.no_grad():
            return torch.export.export(function, (function.inputs,), dynamic_shapes=(shapes,))
    except Exception as error:  # a network of the user's own may do anything
        raise ConfigError([f"{flag}: torch.export cannot follow this network: {named(error)}"]) from error


def torch_export_bytes(function: ActingFunction, facts: Mapping[str, str], flag: str) -> bytes:
    """A file for ``torch.export.load``, with ``facts`` as the extra file sfactory.json."""
    buffer = io.BytesIO()
    torch.export.save(traced(function, flag), buffer, extra_files={"sfactory.json": json.dumps(facts)})
    return buffer.getvalue()


@contextlib.contextmanager
def _without_remarks() -> Iterator[None]:
    """Leave out what torch and onnxscript print about their own steps; what fails is raised."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(disabled)


def onnx_bytes(function: ActingFunction, facts: Mapping[str, str], flag: str) -> bytes:
    """An ONNX model, with ``facts`` as its metadata. Raises ConfigError if a package is missing, and as ``traced``."""
    for package in ("onnx", "onnxscript"):
        required(package, flag, "onnx")
    graph = traced(function, flag)
    with _without_remarks():
        program = torch.onnx.export(
            graph, input_names=list(function.inputs), output_names=function.outputs, dynamo=True, verbose=False
        )
    assert program is not None
    program.model.metadata_props.update(facts)
    data: bytes = program.model_proto.SerializeToString()
    return data
