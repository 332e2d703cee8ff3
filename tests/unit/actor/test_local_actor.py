"""A local actor writes actions, log-probs and values into its slots, and records RNN states where chunks begin."""

from __future__ import annotations

import numpy as np
import torch

from sfactory.actor.local_actor import SlotActing
from sfactory.inference.acting_policy import ActingPolicy
from sfactory.model.actor_critic import Acted
from sfactory.model.flat_state import FlatState
from sfactory.shared.trajectories import TrajectoryBuffer
from sfactory.shared.weights import SharedWeights
from tests.support.parts import TINY, VECTOR, evaluate, small_layout, tiny_model


def test_acting_in_a_slot_writes_one_row_of_it() -> None:
    model = tiny_model(seed=5)
    flat = FlatState(model)
    weights = SharedWeights(flat.block.numel())
    weights.publish(flat.to_host(), 2**40 + 1)
    policy = ActingPolicy(VECTOR, TINY, weights, torch.device("cpu"))
    policy.refresh()
    slot = TrajectoryBuffer(VECTOR, small_layout(rows=50)).slot(1)
    slot.obs["obs"][...] = np.random.default_rng(0).normal(size=slot.obs["obs"].shape)

    SlotActing([policy], recurrence=4).act(slot, 2, torch.zeros(50, 0))

    obs, actions = torch.from_numpy(slot.obs["obs"][2]), torch.from_numpy(slot.actions["action"][2])
    with torch.no_grad():
        due = evaluate(model, {"obs": obs}, {"action": actions})
    torch.testing.assert_close(torch.from_numpy(slot.log_prob[2]), due.log_prob)
    torch.testing.assert_close(torch.from_numpy(slot.value[2]), due.value)
    assert set(actions.tolist()) == {0, 1}
    assert (slot.policy_version[2] == 2**40 + 1).all()
    for t in (0, 1, 3):
        assert not slot.log_prob[t].any()
        assert not slot.actions["action"][t].any()


class StepCounter:
    """A policy that adds 1 to its state in each step."""

    state_size, version = 3, 0

    def act(self, obs: dict[str, torch.Tensor], state: torch.Tensor) -> Acted:
        zeros = torch.zeros(len(state))
        return Acted({"action": zeros.long()}, zeros, zeros, state + 1.0)


def test_memory_is_zeroed_where_an_episode_starts_and_recorded_where_a_chunk_begins() -> None:
    slot = TrajectoryBuffer(VECTOR, small_layout(rows=3, rollout=4, recurrence=2, state_size=3)).slot(0)
    slot.is_first[2] = [True, False, True]
    acting = SlotActing([StepCounter()], recurrence=2)  # type: ignore[list-item]

    state = torch.zeros(3, 3)
    for t in range(4):
        state = acting.act(slot, t, state)

    assert state[:, 0].tolist() == [2.0, 4.0, 2.0]
    assert slot.rnn_states[:, :, 0].tolist() == [[0.0, 0.0, 0.0], [0.0, 2.0, 0.0], [2.0, 4.0, 2.0]]


class LastSeen(StepCounter):
    """A policy that remembers the last observation, as the tensor that it was given."""

    def act(self, obs: dict[str, torch.Tensor], state: torch.Tensor) -> Acted:
        return super().act(obs, state)._replace(state=obs["obs"])


def test_memory_that_is_an_observation_outlives_the_slot() -> None:
    slot = TrajectoryBuffer(VECTOR, small_layout(rows=3, rollout=2, recurrence=2, state_size=3)).slot(0)
    slot.obs["obs"][1] = 7.0
    acting = SlotActing([LastSeen()], recurrence=2)  # type: ignore[list-item]

    state = torch.zeros(3, 3)
    for t in range(2):
        state = acting.act(slot, t, state)
    slot.obs["obs"][1] = 0.0  # of the next rollout

    assert state.tolist() == [[7.0] * 3] * 3
