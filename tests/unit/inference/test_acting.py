"""A policy acts with the weights that were published last, and waits for the first of them."""

from __future__ import annotations

import torch

from sfactory.inference.acting_policy import ActingPolicy
from sfactory.model.flat_state import FlatState
from sfactory.shared.control import Control, Stop
from sfactory.shared.weights import SharedWeights
from tests.support.parts import TINY, VECTOR, tiny_model

CPU = torch.device("cpu")


class Learner:
    """What publishes: a model and its weights' place."""

    def __init__(self) -> None:
        self.model = tiny_model(seed=5)
        self.flat = FlatState(self.model)
        self.weights = SharedWeights(self.flat.block.numel())
        self.policy = ActingPolicy(VECTOR, TINY, self.weights, CPU)

    def publish(self, version: int) -> None:
        self.weights.publish(self.flat.to_host(), version)

    def publish_changed(self, version: int) -> None:
        with torch.no_grad():
            self.model.value_head.linear.bias.add_(1.0)
        self.publish(version)


OBS = {"obs": torch.tensor([[0.1, -0.2, 0.3], [1.0, 2.0, 3.0]])}
NO_MEMORY = torch.zeros(2, 0)


def test_before_the_first_publication_there_is_no_version() -> None:
    learner = Learner()

    learner.policy.refresh()

    assert learner.policy.version == -1


def test_values_are_those_of_the_published_weights() -> None:
    learner = Learner()
    learner.publish(3)

    assert learner.policy.wait_for_weights(Control(1))

    assert learner.policy.version == 3
    torch.testing.assert_close(learner.policy.act(OBS, NO_MEMORY).value, learner.model(OBS).value)


def test_weights_are_adopted_at_a_refresh_and_only_there() -> None:
    learner = Learner()
    learner.publish(0)
    learner.policy.refresh()
    old = learner.policy.act(OBS, NO_MEMORY).value

    learner.publish_changed(1)
    assert torch.equal(learner.policy.act(OBS, NO_MEMORY).value, old)
    assert learner.policy.version == 0
    learner.policy.refresh()

    torch.testing.assert_close(learner.policy.act(OBS, NO_MEMORY).value, old + 1.0)
    assert learner.policy.version == 1


def test_only_the_newest_of_several_publications_is_adopted() -> None:
    learner = Learner()
    for version in (4, 8, 12):
        learner.publish_changed(version)

    learner.policy.refresh()

    assert learner.policy.version == 12
    torch.testing.assert_close(learner.policy.act(OBS, NO_MEMORY).value, learner.model(OBS).value)


def test_the_actor_does_not_share_the_learners_memory() -> None:
    learner = Learner()
    learner.publish(0)
    learner.policy.refresh()
    before = learner.policy.act(OBS, NO_MEMORY).value

    with torch.no_grad():
        learner.model.value_head.linear.bias.add_(1.0)

    assert torch.equal(learner.policy.act(OBS, NO_MEMORY).value, before)


def test_waiting_for_weights_ends_when_a_stop_is_ordered() -> None:
    learner, control = Learner(), Control(1)
    control.order_stop(Stop.SAVE)

    assert not learner.policy.wait_for_weights(control)
