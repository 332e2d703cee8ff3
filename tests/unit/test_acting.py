"""A policy acts with the weights that were published last, and writes beside an observation what it did there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sfactory.inference import acting
from sfactory.inference.acting import ActingPolicy, NoWeights
from sfactory.model.flat_state import FlatState
from sfactory.shared.control import Control, Stop
from sfactory.shared.trajectories import TrajectoryBuffer
from sfactory.shared.weights import SharedWeights
from tests.support.parts import TINY, VECTOR, small_layout, tiny_model

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
            self.model.value_head.bias.add_(1.0)
        self.publish(version)


OBS = {"obs": torch.tensor([[0.1, -0.2, 0.3], [1.0, 2.0, 3.0]])}


def test_before_the_first_publication_there_is_no_version() -> None:
    learner = Learner()

    learner.policy.refresh()

    assert learner.policy.version == -1


def test_values_are_those_of_the_published_weights() -> None:
    learner = Learner()
    learner.publish(3)

    assert learner.policy.wait_for_weights(Control(1))

    assert learner.policy.version == 3
    torch.testing.assert_close(learner.policy.act(OBS).value, learner.model.value(OBS))


def test_weights_are_adopted_at_a_refresh_and_only_there() -> None:
    learner = Learner()
    learner.publish(0)
    learner.policy.refresh()
    old = learner.policy.act(OBS).value

    learner.publish_changed(1)
    assert torch.equal(learner.policy.act(OBS).value, old)
    assert learner.policy.version == 0
    learner.policy.refresh()

    torch.testing.assert_close(learner.policy.act(OBS).value, old + 1.0)
    assert learner.policy.version == 1


def test_only_the_newest_of_several_publications_is_adopted() -> None:
    learner = Learner()
    for version in (4, 8, 12):
        learner.publish_changed(version)

    learner.policy.refresh()

    assert learner.policy.version == 12
    torch.testing.assert_close(learner.policy.act(OBS).value, learner.model.value(OBS))


def test_the_actor_does_not_share_the_learners_memory() -> None:
    learner = Learner()
    learner.publish(0)
    learner.policy.refresh()
    before = learner.policy.act(OBS).value

    with torch.no_grad():
        learner.model.value_head.bias.add_(1.0)

    assert torch.equal(learner.policy.act(OBS).value, before)


def test_acting_in_a_slot_writes_one_row_of_it() -> None:
    learner = Learner()
    learner.publish(6)
    learner.policy.refresh()
    slot = TrajectoryBuffer(VECTOR, small_layout(rows=50)).slot(1)
    slot.obs["obs"][...] = np.random.default_rng(0).normal(size=slot.obs["obs"].shape)

    learner.policy.act_in_slot(slot, 2)

    obs, actions = torch.from_numpy(slot.obs["obs"][2]), torch.from_numpy(slot.actions["action"][2])
    with torch.no_grad():
        due = learner.model.evaluate({"obs": obs}, {"action": actions})
    torch.testing.assert_close(torch.from_numpy(slot.log_prob[2]), due.log_prob)
    torch.testing.assert_close(torch.from_numpy(slot.value[2]), due.value)
    assert set(actions.tolist()) == {0, 1}
    assert (slot.policy_version[2] == 6).all()
    for t in (0, 1, 3):
        assert not slot.log_prob[t].any()
        assert not slot.actions["action"][t].any()


def test_waiting_for_weights_ends_when_a_stop_is_ordered() -> None:
    learner, control = Learner(), Control(1)
    control.order_stop(Stop.SAVE)

    assert not learner.policy.wait_for_weights(control)


def test_waiting_for_weights_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting, "_FIRST_WEIGHTS_S", 0.01)

    with pytest.raises(NoWeights, match="published no weights within"):
        Learner().policy.wait_for_weights(Control(1))
