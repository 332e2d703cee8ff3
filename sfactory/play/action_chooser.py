"""Chooses actions with a policy: observations as an env gives them go in, actions as it takes them come out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium.spaces as spaces
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfactory.actor.previous_steps import PreviousSteps
from sfactory.env.actions import action_reader, block_reader
from sfactory.env.conversion import BlockWriter, Flaw, ObsWriter, value_flaw
from sfactory.model.actor_critic import Acted
from sfactory.model.torch_state import OwnTorchState
from sfactory.spec import EnvSpec


class ActingModel(Protocol):
    """What chooses actions: see ActorCritic."""

    def act(self, obs: dict[str, Tensor], state: Tensor, deterministic: bool = False) -> Acted:
        """Actions for obs {key: [B, ...]} and state [B, S], and the state after them."""

    def fresh_state(self, rows: int) -> Tensor:
        """[rows, S]: the state at the start of an episode."""

    def draw_privately(self) -> None:
        """Draw actions by a generator of its own, seeded by torch's global one."""


class Chosen(NamedTuple):
    """actions: of each row, as the env takes them. rows: {key: [B, ...]} - the same as stored. state: [B, S]."""

    actions: Any
    rows: dict[str, npt.NDArray[Any]]
    state: Tensor


class ActionChooser:
    """Chooses the actions of B rows on the CPU. writer: of their observations."""

    def __init__(
        self,
        model: ActingModel,
        spec: EnvSpec,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        size: int,
        *,
        in_batches: bool = False,
        prefix: str = "",
    ) -> None:
        """Spaces are those of a row. in_batches: observations and actions are batches, as of a vector env, instead of
        sequences. prefix: of the keys of actions that ``action_space`` is for."""
        self._model = model
        self.writer = (BlockWriter if in_batches else ObsWriter)(spec, observation_space)
        self._read = (block_reader if in_batches else action_reader)(action_space, spec.actions, prefix)
        self._rows = {key: np.zeros((size, *tensor.shape), tensor.dtype) for key, tensor in spec.obs}
        self._obs = {key: torch.from_numpy(row) for key, row in self._rows.items()}
        may_wait = spec.agents and not spec.in_turns  # with a mask that allows nothing
        self._unplayed = range(size) if may_wait else range(0)
        # Not integers whose space allows all values of their dtype, such as images: they have been read as they are.
        self._checked = [
            (key, leaf)
            for key, leaf in spec.obs
            if not leaf.is_core_input
            and (not may_wait if leaf.is_mask else leaf.limits or np.dtype(leaf.dtype).kind == "f")
        ]

    @np.errstate(all="ignore")  # whatever an env has set
    def read(self, observations: Any, previous: PreviousSteps | None = None) -> dict[str, Tensor]:
        """{path: [B, ...]}: what the model reads, until the next call. Raises BadObservation for what does not fit.

        previous: what a core also reads.
        """
        self.writer.write(observations, self._rows)
        if previous is not None:
            previous.write(self._rows)
        return self._obs

    def flaws(self, observations: Any, unplayed: Sequence[int] = ()) -> dict[int, Flaw]:
        """By row, what is wrong with the values of the observations that ``read`` has read last.

        unplayed: rows in which a mask need allow nothing.
        """
        for key, leaf in self._checked:
            rows = self._rows[key]
            if value_flaw(np.delete(rows, unplayed, axis=0) if leaf.is_mask else rows, leaf):
                return self.writer.flaws(observations, len(rows), self._unplayed or unplayed)
        return {}

    def act(self, obs: dict[str, Tensor], state: Tensor, deterministic: bool = False) -> Chosen:
        """Choose for what ``read`` has returned."""
        with OwnTorchState(), torch.inference_mode():
            acted = self._model.act(obs, state, deterministic)
            after = acted.state.clone()  # it may be a view of the observations, which the next ``read`` overwrites
        rows = {key: action.numpy() for key, action in acted.actions.items()}
        with np.errstate(all="ignore"):
            return Chosen(self._read(rows), rows, after)
