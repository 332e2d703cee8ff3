"""Chooses legal actions without a policy, as the action masks among the observations say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sfactory.env.actions import action_reader
from sfactory.env.conversion import NO_LEGAL_ACTION, Array, ObsWriter, Rows, first_choices, has_legal_action
from sfactory.env.multi_agent import blank
from sfactory.errors import EnvError
from sfactory.spec import EnvSpec, masked_heads

if TYPE_CHECKING:
    from sfactory.env.factory import Env
    from sfactory.env.multi_agent import AgentsEnv


def legal_rows(spec: EnvSpec, rows: Rows, generator: np.random.Generator | None = None) -> dict[str, Array]:
    """Actions {key: [N, ...]} for observations {path: [N, ...]}; 0 where no mask says what is legal.

    Of the choices that a mask allows the first is taken, or one by ``generator``; the first if there is none.
    """
    size = len(next(iter(rows.values())))
    actions = {head.key: np.zeros((size, *head.tensor.shape), head.tensor.dtype) for head in spec.actions}
    for path, mask in spec.masks:
        legal, start = rows[path].reshape(size, -1) != 0, 0
        for head in masked_heads(path, spec.actions)[: len(mask.heads)]:
            weights = np.ones((size, head.n)) if generator is None else generator.random((size, head.n)) + 1.0
            actions[head.key][:] = (legal[:, start : start + head.n] * weights).argmax(axis=1)
            start += head.n
    return actions


class LegalActions:
    """Chooses actions of all agents of an env, see ``legal_rows``."""

    def __init__(self, spec: EnvSpec, env: Env | AgentsEnv, generator: np.random.Generator | None = None) -> None:
        self._spec, self._generator = spec, generator
        self._writer = ObsWriter(spec, env.observation_space)
        self._read = action_reader(env.action_space, spec.actions)
        self._blank = blank(env.observation_space)
        self._rows = {path: np.zeros((spec.num_agents, *leaf.shape), leaf.dtype) for path, leaf in spec.obs}

    @np.errstate(all="ignore")  # whatever the env has set
    def of(self, observations: Sequence[Any]) -> list[Any]:
        """One action per agent; an agent that shows None may do anything.

        Raises EnvError if a single agent may do nothing; of several that is one that waits.
        """
        if self._spec.masks:
            self._writer.write([self._blank if obs is None else obs for obs in observations], self._rows)
        for path, mask in () if self._spec.agents else self._spec.masks:
            if mask.heads and not has_legal_action(self._rows[path], first_choices(mask)).all():
                raise EnvError(f"observation {path!r} {NO_LEGAL_ACTION}, and the episode goes on")
        return self._read(legal_rows(self._spec, self._rows, self._generator))
