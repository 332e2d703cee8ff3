"""Replays updates as CUDA graphs: forward pass, loss, backward pass, clipping and the optimizers' step as one launch.

NOTE [Recorded update]: a graph computes with the memory it was recorded with. Minibatches are therefore copied into
inputs of the graph, and rates and coefficients are tensors. All that an update changes (weights, moments, statistics,
loss scale, target network) is changed in place; where it is replaced, as by ``GradientStep.load``, graphs are dropped.
What a host decides (which settings, which pass, which weights get gradients) is the same in all replays of a graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sfactory.learner.coefficients import InForce
from sfactory.learner.gradient_step import Rates
from sfactory.learner.minibatches import Minibatch, Selection
from sfactory.system.cuda_graphs import WARM_UPS, Recorder, first_cause

_log = logging.getLogger(__name__)

Update = Callable[[Minibatch, InForce, bool], Tensor]


class _Numbers:
    """The numbers of an update as tensors on ``device``."""

    def __init__(self, device: torch.device) -> None:
        self._tensors = torch.zeros(4, device=device).unbind()
        self._values = [0.0] * 4

    def hold(self, numbers: InForce) -> InForce:
        """The same numbers as tensors, which the next call overwrites. Waits for nothing."""
        policy, value, exploration, kl = numbers.rates.policy, numbers.rates.value, numbers.exploration, numbers.kl
        held: list[Tensor | None] = []
        for place, (tensor, number) in enumerate(zip(self._tensors, (policy, value, exploration, kl), strict=True)):
            held.append(None if number is None else tensor)
            if number is not None and number != self._values[place]:
                self._values[place] = float(number)
                tensor.fill_(number)
        rate, value_rate, exploration_tensor, kl_tensor = held
        assert rate is not None
        assert exploration_tensor is not None
        return InForce(Rates(rate, value_rate), exploration_tensor, kl_tensor)


@dataclass
class _Kind:
    """Updates that differ in numbers alone. updates: made before it was recorded. replay: once it is."""

    inputs: Minibatch
    updates: int = 0
    replay: Callable[[], Tensor] | None = None


class RecordedUpdates:
    """Makes updates, by graphs where it can, see NOTE [Recorded update].

    The first updates of a kind warm up: they compute kernel by kernel, and count as all others. If recording fails, the
    cause is logged once, and all updates are computed kernel by kernel.
    """

    def __init__(self, update: Update, recorder: Recorder, device: torch.device) -> None:
        """``update``: of a minibatch, numbers, and whether it observes returns; waits for nothing."""
        self._update = update
        self._recorder: Recorder | None = recorder
        self._numbers = _Numbers(device)
        self._kinds: dict[Hashable, _Kind] = {}
        self._settings: Hashable = None

    def run(self, rows: Selection, numbers: InForce, observes: bool, settings: Hashable) -> Tensor:
        """Learn from a minibatch, ``rows``; the result of ``update``. ``settings``: other ones drop all graphs."""
        recorder = self._recorder
        if recorder is None:
            return self._update(rows.minibatch(), numbers, observes)
        if settings != self._settings:
            self._settings = settings
            if self._kinds:
                self._kinds.clear()
                recorder.use_other_memory()
        key = observes, numbers.kl is None, rows.whole.targets is None, rows.shapes()
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind(rows.memory())
        rows.write_to(kind.inputs)
        work = partial(self._update, kind.inputs, self._numbers.hold(numbers), observes)
        if kind.replay is None and kind.updates >= WARM_UPS:
            try:
                kind.replay = recorder.record(work)
            except RuntimeError as error:
                self._give_up(error)
                return work()
        if kind.replay is None:
            kind.updates += 1
            return recorder.warm_up(work)
        return kind.replay().clone()

    def _give_up(self, error: BaseException) -> None:
        cause = first_cause(error)
        _log.warning("--cuda_graphs: updates are computed kernel by kernel, since recording one failed: %s", cause)
        self._recorder = None
        self._kinds.clear()
