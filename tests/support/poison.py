"""Hooks that make gradients or weights infinite or NaN."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sfactory.learner.hooks import LearnerFacts

SPOIL_AT = 20  # updates
_MARK = "spoiled"


def gradient_once(learner: LearnerFacts, stats: Mapping[str, float]) -> None:
    """One gradient is infinite."""
    parameter = _to_be_spoiled(learner)
    if parameter is not None:
        handle = parameter.register_hook(lambda gradient: _last(gradient))

        def _last(gradient: Tensor) -> Tensor:
            handle.remove()
            return gradient * torch.inf


def gradients_for_ever(learner: LearnerFacts, stats: Mapping[str, float]) -> None:
    """All gradients are infinite from some update on."""
    parameter = _to_be_spoiled(learner)
    if parameter is not None:
        parameter.register_hook(lambda gradient: gradient * torch.inf)


def a_weight(learner: LearnerFacts, stats: Mapping[str, float]) -> None:
    """A weight is NaN, as if a gradient had spoiled it."""
    parameter = _to_be_spoiled(learner)
    if parameter is not None:
        with torch.no_grad():
            parameter.view(-1)[0] = torch.nan


def a_weight_of_the_first_policy(learner: LearnerFacts, stats: Mapping[str, float]) -> None:
    """As ``a_weight``, of policy 0 alone."""
    if learner.policy == 0:
        a_weight(learner, stats)


def _to_be_spoiled(learner: LearnerFacts) -> nn.Parameter | None:
    """The first parameter of the model, the first time that there have been enough updates."""
    parameter = next(learner.model.parameters())
    if learner.train_step < SPOIL_AT or hasattr(parameter, _MARK):
        return None
    setattr(parameter, _MARK, True)
    return parameter
