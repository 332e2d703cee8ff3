"""A request that is answered a second time finds the memory as it was, and leaves it so. See NOTE [State phases]."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sfactory.config.flags import config_of
from sfactory.inference.acting_policy import ActingPolicy
from sfactory.inference.policy_worker import PolicyWorker
from sfactory.layout import Layout
from sfactory.messages import ActReply, ActRequest
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.supervise.shared_objects import SharedObjects
from tests.support.parts import VECTOR

T = 4
ROWS = 3
FLAGS: dict[str, Any] = {
    "env": "any",
    "num_workers": 2,
    "num_envs_per_worker": ROWS,
    "worker_num_splits": 1,
    "rollout": T,
    "recurrence": 2,
    "batch_size": T,
    "encoder_mlp_layers": (8,),
    "use_rnn": True,
    "rnn_size": 6,
}
# Rows of each step that start an episode.
STARTS = {0: [0, 1, 2], 2: [1], 3: [0]}
Array = npt.NDArray[Any]


class Desk:
    """A policy worker with the slot that actor 1 fills. Observations are the same in every desk of the same kind."""

    def __init__(self, rnn_type: str) -> None:
        config = config_of({**FLAGS, "rnn_type": rnn_type})
        torch.manual_seed(3)
        model = ActorCritic(VECTOR, config.model)
        flat = FlatState(model)
        layout = Layout.plan(config.sampling, config.learner, "central", model.state_size)
        self._shared = shared = SharedObjects(VECTOR, layout, flat.block.numel())
        shared.weights[0].publish(flat.to_host(), 0)
        setup = shared.policy_worker(0, 0, config, 1, 0, "cpu")
        policy = ActingPolicy(VECTOR, config.model, shared.weights[0], torch.device("cpu"))
        self._worker = PolicyWorker(setup, policy, shared.status.row("sf-policy-0-0"))
        self._index = shared.table.slots_of(1)[0]
        self.slot = shared.trajectories.slot(self._index)
        self.slot.obs["obs"][...] = np.random.default_rng(0).normal(size=self.slot.obs["obs"].shape)
        self.slot.is_first[...] = False
        for t, rows in STARTS.items():
            self.slot.is_first[t, rows] = True

    def ask(self, t: int, times: int = 1, at_once: bool = False) -> list[ActReply]:
        """Have the request of step ``t`` answered so many times, in one turn or in as many."""
        request = ActRequest(1, 0, self._index, t, t % 2, 0)
        for answer in range(1, times + 1):
            self._shared.to_policies[0].put(request)
            if answer == times or not at_once:
                self._worker.turn(1.0)
        return [message for message in self._shared.to_actors[1].get(0) if isinstance(message, ActReply)]

    def states(self) -> Array:
        """[2, N, S]: both states of the split."""
        return np.stack([self._shared.states.of(phase, 1, 0) for phase in (0, 1)])

    def memory(self) -> dict[str, Array]:
        """What depends on the memory alone: states, and values and states recorded in the slot."""
        return {
            "states": self.states(),
            "value": self.slot.value.copy(),
            "recorded": self.slot.rnn_states.copy(),
        }


def assert_same(found: dict[str, Array], due: dict[str, Array]) -> None:
    for name, array in due.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("at_once", [False, True], ids=["one after the other", "in one batch"])
@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_a_request_that_is_answered_twice_leaves_the_states_of_one_that_is_answered_once(
    rnn_type: str, at_once: bool
) -> None:
    once, twice = Desk(rnn_type), Desk(rnn_type)

    for t in range(T):
        assert once.ask(t) == [ActReply(0, t)]
        before = twice.states()
        assert twice.ask(t, times=2, at_once=at_once) == [ActReply(0, t)] * 2
        after = twice.states()

        # The one before the step is as it was; the other one is new.
        assert np.array_equal(after[t % 2], before[t % 2])
        assert np.abs(after[1 - t % 2] - before[1 - t % 2]).max() > 1e-3
        assert_same(twice.memory(), once.memory())


def test_states_of_other_splits_are_left_alone() -> None:
    desk = Desk("gru")

    desk.ask(0, times=2)

    others = np.stack([desk._shared.states.of(phase, 0, 0) for phase in (0, 1)])
    assert not others.any()
    assert desk.states()[1].any()


def test_a_request_of_the_wrong_phase_would_be_noticed() -> None:
    once, wrong = Desk("gru"), Desk("gru")
    for desk in (once, wrong):
        desk.ask(0)

    once.ask(1)
    wrong._shared.to_policies[0].put(ActRequest(1, 0, wrong._index, 1, 0, 0))
    wrong._worker.turn(1.0)

    assert np.abs(wrong.slot.value[1] - once.slot.value[1]).max() > 1e-3
