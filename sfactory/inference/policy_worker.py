"""Runs central inference: answers the requests of all actors with batched forward passes.

Each turn: get requests, refresh weights, run one forward pass for all requests, write actions into the slots, send
replies. Requests that arrive during a pass form the next batch, so batches grow when inference is the bottleneck.
Requests of dead actors are ignored, because a replacement now uses their slots, see NOTE [Incarnations].
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sfactory.clock import BLOCK_S
from sfactory.config.schema import Config
from sfactory.inference.acting_policy import ActingPolicy, ObsRows
from sfactory.layout import Layout
from sfactory.messages import ActReply, ActRequest, ToPolicy
from sfactory.model.actor_critic import Acted
from sfactory.model.precision import time_convolutions, torch_dtype
from sfactory.seeds import Branch, seed_at
from sfactory.shared.channel import Channel
from sfactory.shared.objects import SharedObjects
from sfactory.shared.status import State, StatusRow, Stopwatch
from sfactory.shared.trajectories import NOBODY, RnnStates, RowsOf, Slot
from sfactory.shared.weights import SharedWeights
from sfactory.spec import EnvSpec
from sfactory.system.cuda_graphs import Recorder
from sfactory.system.gpu import use_device

_yield_core = getattr(os, "sched_yield", lambda: None)  # Windows lacks it


class RequestedRows(NamedTuple):
    """One step of one split. rows: those in which the policy acts, a slice if all; batch: where they are in a batch."""

    request: ActRequest
    slot: Slot
    rows: RowsOf
    batch: slice


def requested_rows_of(requests: Sequence[ActRequest], slots: Sequence[Slot], policy: int) -> list[RequestedRows]:
    """The rows of ``requests`` in which ``policy`` acts, one after the other in a batch; [] if it acts in none."""
    requested, end = list[RequestedRows](), 0
    for request in requests:
        slot = slots[request.slot]
        rows = slot.rows_of(policy, request.t)
        start, end = end, end + (slot.value.shape[1] if isinstance(rows, slice) else len(rows))
        if end > start:
            requested.append(RequestedRows(request, slot, rows, slice(start, end)))
    return requested


class Gather:
    """Copies observations from slots and results to slots, with reusable host memory for ``max_rows`` rows."""

    def __init__(self, spec: EnvSpec, max_rows: int, device: torch.device) -> None:
        self._device, self._rows = device, ObsRows()
        on_gpu = device.type != "cpu"
        self._staging = {
            key: torch.empty((max_rows, *tensor.shape), dtype=torch_dtype(tensor.dtype), pin_memory=on_gpu)
            for key, tensor in spec.obs
        }
        self._views = {key: tensor.numpy() for key, tensor in self._staging.items()}

    def obs(self, requested: Sequence[RequestedRows]) -> dict[str, Tensor]:
        """{key: [B, ...]} on the device: the requested rows, concatenated."""
        if len(requested) == 1 and self._device.type == "cpu" and isinstance(requested[0].rows, slice):
            return self._rows.row(requested[0].slot, requested[0].request.t)
        for request, slot, rows, batch in requested:
            for key, view in self._views.items():
                view[batch] = slot.obs[key][request.t, rows]
        size = requested[-1].batch.stop
        return {key: staged[:size].to(self._device, non_blocking=True) for key, staged in self._staging.items()}

    def scatter(self, requested: Sequence[RequestedRows], acted: Acted, version: int) -> None:
        """Write actions, log-probs, values and policy version into the rows. ``acted`` must be on the host."""
        actions = {key: tensor.numpy() for key, tensor in acted.actions.items()}
        log_prob, value = acted.log_prob.numpy(), acted.value.numpy()
        for request, slot, rows, batch in requested:
            t = request.t
            for key, chosen in actions.items():
                slot.actions[key][t, rows] = chosen[batch]
            slot.log_prob[t, rows] = log_prob[batch]
            slot.value[t, rows] = value[batch]
            slot.policy_version[t, rows] = version


class StateGather:
    """Copies states from and to RnnStates (see NOTE [State phases]), and into slots where the learner needs them."""

    def __init__(self, states: RnnStates, layout: Layout, device: torch.device) -> None:
        self._states, self._device = states, device
        self._recurrence, self._rollout = layout.recurrence, layout.rollout
        rows = layout.num_splits * layout.rows
        self._staging = torch.zeros((rows, layout.state_size), pin_memory=device.type != "cpu")
        self._view = self._staging.numpy()
        self._no_states = torch.zeros((rows, 0), device=device)
        self._remembers = layout.state_size > 0

    def before(self, requested: Sequence[RequestedRows]) -> Tensor:
        """[B, S] on the device: the state before the step of each row, zeros at the start of an episode."""
        size = requested[-1].batch.stop
        if not self._remembers:
            return self._no_states[:size]
        for request, slot, rows, batch in requested:
            states, t = self._view[batch], request.t
            states[:] = self._states.of(request.phase, request.actor, request.split)[rows]
            states[slot.is_first[t, rows]] = 0.0
            if t % self._recurrence == 0:
                slot.rnn_states[t // self._recurrence, rows] = states
        return self._staging[:size].to(self._device, non_blocking=True)

    def after(self, requested: Sequence[RequestedRows], state: Tensor) -> None:
        """Store ``state`` [B, S] (on the host), the state after the step of each row."""
        if not self._remembers:
            return
        after = state.numpy()
        for request, slot, rows, batch in requested:
            self._states.of(1 - request.phase, request.actor, request.split)[rows] = after[batch]
            if request.t + 1 == self._rollout:
                slot.rnn_states[-1, rows] = after[batch]


@dataclass(frozen=True)
class PolicySetup:
    """All inputs of a policy worker, the same for all its incarnations. ``generation``: see ActorSetup."""

    config: Config
    shared: SharedObjects
    worker: int  # its number, from 0, over policies
    seed: int
    generation: int
    device: str

    @property
    def policy(self) -> int:
        """The policy that it serves."""
        return self.worker // self.shared.layout.policy_workers

    @property
    def whole_splits(self) -> int:
        """Splits of which it chooses the actions of all rows; 0 if policies share the rows of splits."""
        layout = self.shared.layout
        if layout.num_policies > 1 and layout.mapping != "split":
            return 0
        number = self.worker % layout.policy_workers
        return sum(
            actor % layout.policy_workers == number and layout.policy_of_split(actor, split) == self.policy
            for actor in range(layout.num_actors)
            for split in range(layout.splits)
        )

    @property
    def inbox(self) -> Channel[ToPolicy]:
        """The channel that it reads."""
        return self.shared.to_policies[self.worker]

    def make_policy(self) -> ActingPolicy:
        """Make the policy, without weights yet."""
        if self.config.model.cuda_graphs:  # without graphs there are as many shapes as numbers of requests
            time_convolutions(self.config, torch.device(self.device))
        return self._acting_with(self.shared.weights[self.policy])

    def make_opponents(self, recorder: Recorder | None) -> list[ActingPolicy]:
        """Make its past versions, without weights yet: the policies from 1 on; none without a pool.

        recorder: see ActingPolicy. With a stream for each version, each would keep a workspace of libraries.
        """
        pool = self.shared.opponents
        return [] if pool is None else [self._acting_with(weights, recorder) for weights in pool.weights]

    def _acting_with(self, weights: SharedWeights, recorder: Recorder | None = None) -> ActingPolicy:
        spec, device = self.shared.spec_of(self.policy), torch.device(self.device)
        return ActingPolicy(spec, self.config.model, weights, device, recorder)


class PolicyWorker:
    """Answers all waiting requests with one forward pass, and one more for each past version that acts in them."""

    def __init__(self, setup: PolicySetup, policy: ActingPolicy, row: StatusRow) -> None:
        shared = setup.shared
        rows = shared.layout.num_splits * shared.layout.rows
        self._index, self._policy, self._row = setup.policy, policy, row
        self._opponents = setup.make_opponents(policy.recorder)
        self._inbox, self._to_actors = setup.inbox, shared.to_actors
        self._watch = Stopwatch(row)
        self._slots = shared.trajectories.slots()
        self._gather = Gather(shared.spec_of(setup.policy), rows, policy.device)
        self._states = StateGather(shared.states, shared.layout, policy.device)

    def turn(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for requests, and answer all that have arrived."""
        index, gather, states = self._index, self._gather, self._states
        requests = self._requests(timeout)
        if not requests:
            return
        self._row.count_depth(len(requests))
        while True:
            acts = [
                (policy, requested, policy.act(gather.obs(requested), states.before(requested)).on_host())
                for policy, requested in self._by_policy(requests)
            ]
            living = self._from_living_actors(requests)
            if len(living) == len(requests):
                break
            if not living:
                return
            requests = living  # an actor died during the pass: run it again for the others
        for policy, requested, acted in acts:
            gather.scatter(requested, acted, policy.version)
            states.after(requested, acted.state)
        self._row.enter_ring()
        for request in requests:
            self._to_actors[request.actor].put(ActReply(request.split, request.t, index), request.incarnation)
        self._row.leave_ring()

    def _by_policy(self, requests: Sequence[ActRequest]) -> Iterator[tuple[ActingPolicy, list[RequestedRows]]]:
        """The rows of ``requests`` by who acts in them, with the newest weights."""
        slots, acting = self._slots, [self._index]
        if self._opponents:
            rows = [slots[request.slot].policy_id[request.t] for request in requests]  # type: ignore[index]
            acting = sorted({policy for row in rows for policy in row.tolist()} - {NOBODY})
        for index in acting:
            policy = self._opponents[index - 1] if self._opponents and index else self._policy
            policy.refresh()
            if requested := requested_rows_of(requests, slots, index):
                yield policy, requested

    def _requests(self, timeout: float) -> Sequence[ActRequest]:
        """Wait for a request; return all waiting requests."""
        inbox = self._inbox
        self._watch.before_wait()
        requests = inbox.get(timeout)
        if requests:
            # With few cores, an actor that is about to send a request may be waiting for this core. A pass for two
            # requests costs little more than for one. If no process waits for the core, this returns at once.
            _yield_core()
            requests = self._from_living_actors([*requests, *inbox.get(0)])
        self._watch.after_wait()
        return requests

    def _from_living_actors(self, requests: Sequence[ActRequest]) -> list[ActRequest]:
        """Drop requests of earlier incarnations of their actor."""
        to_actors = self._to_actors
        return [request for request in requests if request.incarnation == to_actors[request.actor].incarnation]


def run_policy_worker(setup: PolicySetup, row: StatusRow) -> None:
    """Run a policy worker from start to stop."""
    place = *divmod(setup.worker, setup.shared.layout.policy_workers), setup.generation
    incarnation = setup.inbox.incarnation  # a replacement must draw other random actions than its predecessor
    torch.manual_seed(seed_at(setup.seed, Branch.INFERENCE, *place, *([incarnation] if incarnation else [])))
    torch.set_num_threads(1)
    use_device(setup.device)
    policy, control = setup.make_policy(), setup.shared.control
    if not policy.wait_for_weights(control):
        return
    policy.prepare(setup.shared.layout.rows, setup.whole_splits)
    row.set("state", State.RUNNING)
    worker = PolicyWorker(setup, policy, row)
    while not control.stopping:
        worker.turn(BLOCK_S)
