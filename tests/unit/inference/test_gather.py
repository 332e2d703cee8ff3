"""Requests become one batch in the order they came, and each answer is written where it was requested."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sfactory.action_heads import BoxHead, DiscreteHead
from sfactory.inference.policy_worker import Gather, RequestedRows, requested_rows_of
from sfactory.messages import ActRequest
from sfactory.model.actor_critic import Acted
from sfactory.shared.trajectories import Slot, TrajectoryBuffer
from sfactory.spec import EnvSpec, TensorSpec
from tests.support.parts import small_layout

N, LATE = 3, 2**40 + 1
SPEC = EnvSpec(
    obs=(("image", TensorSpec((2, 2), "uint8")), ("number", TensorSpec((), "int64"))),
    actions=(DiscreteHead("jump", 9), BoxHead("arm", (2,), "float32", (-1.0, -1.0), (1.0, 1.0))),
)
REQUESTS = [ActRequest(1, 0, 3, 2, 0, 0), ActRequest(0, 0, 0, 0, 0, 0), ActRequest(0, 1, 1, 3, 0, 0)]


def make() -> tuple[Gather, list[Slot]]:
    slots = TrajectoryBuffer(SPEC, small_layout(rows=N, rollout=4)).slots()
    rng = np.random.default_rng(0)
    for slot in slots:
        slot.obs["image"][...] = rng.integers(0, 256, slot.obs["image"].shape)
        slot.obs["number"][...] = rng.integers(0, 1000, slot.obs["number"].shape)
    return Gather(SPEC, max_rows=4 * N, device=torch.device("cpu")), slots


def places(slots: list[Slot], requests: list[ActRequest] = REQUESTS) -> list[RequestedRows]:
    return requested_rows_of(requests, slots, 0)


def answers(rows: int) -> Acted:
    numbers = torch.arange(rows)
    actions = {"jump": numbers, "arm": torch.stack((numbers, -numbers), dim=1).float()}
    return Acted(actions, log_prob=numbers * 0.5, value=numbers * 10.0, state=torch.zeros(rows, 0))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_observations_are_concatenated_in_the_order_of_requests(count: int) -> None:
    gather, slots = make()
    gather.obs(places(slots))  # a larger batch before leaves nothing behind

    obs = gather.obs(places(slots, REQUESTS[:count]))

    for key in ("image", "number"):
        due = np.concatenate([slots[request.slot].obs[key][request.t] for request in REQUESTS[:count]])
        assert np.array_equal(obs[key].numpy(), due)
        assert obs[key].dtype == getattr(torch, str(due.dtype))


def test_answers_are_written_to_the_requested_rows_and_nowhere_else() -> None:
    gather, slots = make()
    images = [slot.obs["image"].copy() for slot in slots]

    gather.obs(places(slots))
    gather.scatter(places(slots), answers(3 * N), version=LATE)

    requested = {(request.slot, request.t): index * N for index, request in enumerate(REQUESTS)}
    for index, slot in enumerate(slots):
        assert np.array_equal(slot.obs["image"], images[index])
        for t in range(4):
            start = requested.get((index, t))
            numbers = np.arange(N) + start if start is not None else np.zeros(N)
            assert slot.actions["jump"][t].tolist() == numbers.tolist()
            assert slot.actions["arm"][t].tolist() == np.stack((numbers, -numbers), axis=1).tolist()
            assert slot.log_prob[t].tolist() == (0.5 * numbers).tolist()
            assert slot.value[t].tolist() == (10 * numbers).tolist()
            assert slot.policy_version[t].tolist() == [LATE if start is not None else 0] * N


def test_a_policy_that_shares_a_row_gets_and_answers_its_own_columns() -> None:
    gather, slots = make()
    ids = np.zeros((4, N), np.int16)
    ids[2] = [1, 0, 1]
    slots[3].policy_id = ids
    own = requested_rows_of(REQUESTS[:1], slots, 1)

    obs = gather.obs(own)
    gather.scatter(own, answers(2), version=5)

    assert own[0].batch == slice(0, 2)
    assert np.array_equal(obs["number"].numpy(), slots[3].obs["number"][2, [0, 2]])
    assert slots[3].policy_version[2].tolist() == [5, 0, 5]
    assert slots[3].value[2].tolist() == [0.0, 0.0, 10.0]
