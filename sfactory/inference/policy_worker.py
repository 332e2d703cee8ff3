"""Room: central inference. In: requests of its actors. Out: actions in their slots, and a reply each.

get requests -> refresh weights -> one forward pass over all of them -> put replies. Requests that arrive
during a pass make up the next batch, so batches grow by themselves when the policy is the bottleneck. Nothing is done
for an actor that has died: its slots are another's by now, see NOTE [Lives].

Room: where a policy is to act. In: a request, its slot. Out: the rows that are this policy's.

Room: requests of several splits as one batch. In: places. Out: obs on the device; replies in slots.

Room: the memory of several splits as one batch. In: places. Out: states before the step; states after it, kept.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sfactory.clock import BLOCK_S
from sfactory.config.schema import ModelConfig
from sfactory.inference.acting_policy import ActingPolicy, ObsRows
from sfactory.layout import Layout
from sfactory.messages import ActReply, ActRequest, ToActor, ToPolicy
from sfactory.model.actor_critic import Acted
from sfactory.model.precision import torch_dtype
from sfactory.seeds import Branch, seed_at
from sfactory.shared.channel import Channel
from sfactory.shared.control import Control
from sfactory.shared.status import State, StatusRow, Stopwatch
from sfactory.shared.trajectories import RnnStates, RowsOf, Slot, TrajectoryBuffer
from sfactory.shared.weights import SharedWeights
from sfactory.spec import EnvSpec


class Place(NamedTuple):
    """One step of one split. rows: those in which the policy acts, as a slice if these are all; width: how many."""

    request: ActRequest
    slot: Slot
    rows: RowsOf
    width: int

    @staticmethod
    def of(request: ActRequest, slot: Slot, policy: int) -> Place:
        """Where ``policy`` is asked to act."""
        rows = slot.rows_of(policy, request.t)
        return Place(request, slot, rows, slot.value.shape[1] if isinstance(rows, slice) else len(rows))


class Gather:
    """Reusable host memory for up to ``max_rows`` observations, and the copies to and from slots."""

    def __init__(self, spec: EnvSpec, max_rows: int, device: torch.device) -> None:
        self._device, self._rows = device, ObsRows()
        on_gpu = device.type != "cpu"
        self._staging = {
            key: torch.empty((max_rows, *tensor.shape), dtype=torch_dtype(tensor.dtype), pin_memory=on_gpu)
            for key, tensor in spec.obs
        }
        self._views = {key: tensor.numpy() for key, tensor in self._staging.items()}

    def obs(self, places: Sequence[Place]) -> dict[str, Tensor]:
        """{key: [B, ...]} on the device: the rows of all places, one after the other."""
        if len(places) == 1 and self._device.type == "cpu" and isinstance(places[0].rows, slice):
            return self._rows.row(places[0].slot, places[0].request.t)
        end = 0
        for request, slot, rows, width in places:
            start, end = end, end + width
            for key, block in slot.obs.items():
                self._views[key][start:end] = block[request.t, rows]
        return {key: staged[:end].to(self._device, non_blocking=True) for key, staged in self._staging.items()}

    def scatter(self, places: Sequence[Place], acted: Acted, version: int) -> None:
        """Write actions, log-probs, values and the policy version into the rows. ``acted``: on the host."""
        actions = {key: tensor.numpy() for key, tensor in acted.actions.items()}
        log_prob, value = acted.log_prob.numpy(), acted.value.numpy()
        end = 0
        for request, slot, rows, width in places:
            start, end, t = end, end + width, request.t
            for key, block in slot.actions.items():
                block[t, rows] = actions[key][start:end]
            slot.log_prob[t, rows] = log_prob[start:end]
            slot.value[t, rows] = value[start:end]
            slot.policy_version[t, rows] = version


class StateGather:
    """States to and from RnnStates (NOTE [State phases]), recorded in slots where the learner will need them."""

    def __init__(self, states: RnnStates, layout: Layout, device: torch.device) -> None:
        self._states, self._device = states, device
        self._recurrence, self._rollout = layout.recurrence, layout.rollout
        rows = layout.num_splits * layout.rows
        self._staging = torch.zeros((rows, layout.state_size), pin_memory=device.type != "cpu")
        self._view = self._staging.numpy()
        self._no_states = torch.zeros((rows, 0), device=device)
        self._remembers = layout.state_size > 0

    def before(self, places: Sequence[Place]) -> Tensor:
        """[B, S] on the device: the state before each row, zeros where it starts an episode."""
        if not self._remembers:
            return self._no_states[: sum(place.width for place in places)]
        end = 0
        for request, slot, rows, width in places:
            start, end, t = end, end + width, request.t
            states = self._view[start:end]
            states[:] = self._states.of(request.phase, request.actor, request.split)[rows]
            states[slot.is_first[t, rows]] = 0.0
            if t % self._recurrence == 0:
                slot.rnn_states[t // self._recurrence, rows] = states
        return self._staging[:end].to(self._device, non_blocking=True)

    def after(self, places: Sequence[Place], state: Tensor) -> None:
        """Keep ``state`` [B, S] on the host, the one after each row."""
        if not self._remembers:
            return
        after, end = state.numpy(), 0
        for request, slot, rows, width in places:
            start, end = end, end + width
            self._states.of(1 - request.phase, request.actor, request.split)[rows] = after[start:end]
            if request.t + 1 == self._rollout:
                slot.rnn_states[-1, rows] = after[start:end]


@dataclass(frozen=True)
class PolicySetup:
    """Everything a policy worker works with. ``to_actors``: inboxes of all actors, by index."""

    policy: int
    worker: int
    generation: int
    seed: int
    device: str
    spec: EnvSpec
    layout: Layout
    model: ModelConfig
    trajectories: TrajectoryBuffer
    states: RnnStates
    control: Control
    weights: SharedWeights
    inbox: Channel[ToPolicy]
    to_actors: list[Channel[ToActor]]


class PolicyWorker:
    """Answers requests with one forward pass for all that are waiting."""

    def __init__(self, setup: PolicySetup, policy: ActingPolicy, row: StatusRow) -> None:
        layout = setup.layout
        rows = layout.num_actors * layout.splits * layout.rows
        self._setup, self._policy, self._row = setup, policy, row
        self._watch = Stopwatch(row)
        self._slots = setup.trajectories.slots()
        self._gather = Gather(setup.spec, rows, policy.device)
        self._states = StateGather(setup.states, layout, policy.device)

    def run(self) -> None:
        """Work until a stop is ordered."""
        while not self._setup.control.stopping:
            self.turn(BLOCK_S)

    def turn(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for requests, and answer all that are there."""
        setup, policy, gather, states = self._setup, self._policy, self._gather, self._states
        requests = self._requests(timeout)
        if not requests:
            return
        self._row.count_depth(len(requests))
        policy.refresh()
        while True:
            places = [Place.of(request, self._slots[request.slot], setup.policy) for request in requests]
            acted = policy.act(gather.obs(places), states.before(places)).on_host()
            living = self._of_the_living(requests)
            if len(living) == len(requests):
                break
            if not living:
                return
            requests = living  # an actor has died meanwhile: choose again for the others
        gather.scatter(places, acted, policy.version)
        states.after(places, acted.state)
        self._row.enter_ring()
        for request in requests:
            setup.to_actors[request.actor].put(ActReply(request.split, request.t, setup.policy), request.incarnation)
        self._row.leave_ring()

    def _requests(self, timeout: float) -> Sequence[ActRequest]:
        """All that are waiting, once there is one."""
        inbox = self._setup.inbox
        self._watch.before_wait()
        requests = inbox.get(timeout)
        if requests:
            # Where cores are scarce, whoever is about to ask waits for this one; a pass for two costs little more than
            # a pass for one. Where nobody waits for the core, this returns at once.
            os.sched_yield()
            requests = self._of_the_living([*requests, *inbox.get(0)])
        self._watch.after_wait()
        return requests

    def _of_the_living(self, requests: Sequence[ActRequest]) -> list[ActRequest]:
        """Those that were made in the present life of their actor."""
        to_actors = self._setup.to_actors
        return [request for request in requests if request.incarnation == to_actors[request.actor].incarnation]


def run_policy_worker(setup: PolicySetup, row: StatusRow) -> None:
    """A policy worker's life, from birth to stop."""
    place = setup.policy, setup.worker, setup.generation
    incarnation = setup.inbox.incarnation  # a later one draws other actions than the one before has drawn
    torch.manual_seed(seed_at(setup.seed, Branch.INFERENCE, *place, *([incarnation] if incarnation else [])))
    torch.set_num_threads(1)
    policy = ActingPolicy(setup.spec, setup.model, setup.weights, torch.device(setup.device))
    if not policy.wait_for_weights(setup.control):
        return
    row.set("state", State.RUNNING)
    PolicyWorker(setup, policy, row).run()
