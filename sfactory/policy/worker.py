"""Room: central inference. In: requests of its actors. Out: actions in their slots, and a reply each.

get requests -> refresh weights -> one forward pass over all of them -> put replies. Requests that arrive
during a pass make up the next batch, so batches grow by themselves when the policy is the bottleneck. Nothing is done
for an actor that has died: its slots are another's by now, see NOTE [Lives].
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sfactory.clock import BLOCK_S
from sfactory.config.schema import ModelConfig
from sfactory.inference.acting import ActingPolicy
from sfactory.layout import Layout
from sfactory.messages import ActReply, ActRequest, ToActor, ToPolicy
from sfactory.policy.gather import Gather
from sfactory.policy.place import Place
from sfactory.policy.state_gather import StateGather
from sfactory.seeds import Branch, seed_at
from sfactory.shared.channel import Channel
from sfactory.shared.control import Control
from sfactory.shared.rnn_states import RnnStates
from sfactory.shared.status import State, StatusRow, Stopwatch
from sfactory.shared.trajectories import TrajectoryBuffer
from sfactory.shared.weights import SharedWeights
from sfactory.spec import EnvSpec


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
            setup.to_actors[request.actor].put(ActReply(request.split, request.t, setup.policy), request.life)
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
        return [request for request in requests if request.life == to_actors[request.actor].life]


def run_policy_worker(setup: PolicySetup, row: StatusRow) -> None:
    """A policy worker's life, from birth to stop."""
    place = setup.policy, setup.worker, setup.generation
    life = setup.inbox.life  # a later one draws other actions than the one before has drawn
    torch.manual_seed(seed_at(setup.seed, Branch.INFERENCE, *place, *([life] if life else [])))
    torch.set_num_threads(1)
    policy = ActingPolicy(setup.spec, setup.model, setup.weights, torch.device(setup.device))
    if not policy.wait_for_weights(setup.control):
        return
    row.set("state", State.RUNNING)
    PolicyWorker(setup, policy, row).run()
