"""A policy acts with the weights that were published last, and waits for the first of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sfactory.inference.acting_policy import ActingPolicy
from sfactory.inference.cuda_graphs import FixedShapes
from sfactory.model.flat_state import FlatState
from sfactory.shared.control import Control, Stop
from sfactory.shared.weights import SharedWeights
from tests.support.parts import TINY, VECTOR, tiny_model
from tests.support.recording import OperationRecorder

OBS = {"obs": torch.tensor([[0.1, -0.2, 0.3], [1.0, 2.0, 3.0]])}
NO_MEMORY = torch.zeros(2, 0)


class Learner:
    """A model, and a policy that follows its published weights."""

    def __init__(self) -> None:
        self.model = tiny_model(seed=5)
        self._flat = FlatState(self.model)
        self.weights = SharedWeights(self._flat.block.numel())
        self.policy = ActingPolicy(VECTOR, TINY, self.weights, torch.device("cpu"))

    def publish(self, version: int) -> None:
        self.weights.publish(self._flat.to_host(), version)

    def change(self) -> None:
        """All values grow by 1."""
        with torch.no_grad():
            self.model.value_head.linear.bias.add_(1.0)

    def acted_value(self) -> torch.Tensor:
        return self.policy.act(OBS, NO_MEMORY).value


def test_the_first_weights_are_waited_for_and_used() -> None:
    learner = Learner()
    learner.policy.refresh()
    assert learner.policy.version == -1

    learner.publish(3)
    assert learner.policy.wait_for_weights(Control(1))

    assert learner.policy.version == 3
    torch.testing.assert_close(learner.acted_value(), learner.model(OBS).value)


def test_the_newest_weights_are_used_after_a_refresh_and_not_before() -> None:
    learner = Learner()
    learner.publish(0)
    learner.policy.refresh()
    old = learner.acted_value()

    for version in (4, 8):
        learner.change()
        assert torch.equal(learner.acted_value(), old), "the policy does not share the learner's memory"
        learner.publish(version)
    assert torch.equal(learner.acted_value(), old)
    assert learner.policy.version == 0
    learner.policy.refresh()

    torch.testing.assert_close(learner.acted_value(), old + 2.0)
    assert learner.policy.version == 8


def test_a_stop_ends_the_wait_for_weights() -> None:
    learner, control = Learner(), Control(1)
    control.order_stop(Stop.SAVE)

    assert not learner.policy.wait_for_weights(control)


def test_an_env_that_seeds_torch_in_every_reset_does_not_repeat_the_policy_s_choices() -> None:
    learner = Learner()
    learner.publish(0)
    learner.policy.refresh()
    obs, no_memory = {"obs": torch.zeros(64, 3)}, torch.zeros(64, 0)

    choices = []
    for _ in range(2):
        torch.manual_seed(0)
        choices.append(learner.policy.act(obs, no_memory).actions["action"].clone())

    assert not torch.equal(*choices)


def test_passes_of_all_padded_sizes_are_recorded_at_once_the_largest_first() -> None:
    learner = Learner()
    learner.publish(0)
    learner.policy.refresh()
    recorder = OperationRecorder()

    learner.policy.prepare(2, 3)  # without graphs there is nothing to prepare
    learner.policy.recorder = recorder
    shapes = FixedShapes(learner.policy._act, recorder)
    learner.policy._act = shapes.act
    learner.policy.prepare(2, 3)
    assert [*shapes._passes] == [6, 4, 2]

    learner.acted_value()
    assert recorder.recorded == 3


def test_a_policy_on_a_gpu_waits_for_the_last_copy_of_weights_before_their_memory_is_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learner, happened = Learner(), list[str]()

    class Event:
        def synchronize(self) -> None:
            happened.append("wait")

        def record(self, stream: object) -> None:
            happened.append("record")

    learner.policy._adopted = Event()  # type: ignore[assignment]
    read = learner.weights.read_into

    def read_into(view: npt.NDArray[np.uint8]) -> tuple[int, int]:
        happened.append("read")
        return read(view)

    monkeypatch.setattr(learner.weights, "read_into", read_into)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    for version in (0, 1):
        learner.publish(version)
        learner.policy.refresh()

    assert happened == 2 * ["wait", "read", "record"]
