"""Allocates all objects that the processes of a run share."""

from __future__ import annotations

import copy
import gc
import logging
from typing import cast
from weakref import WeakSet

from sfactory.layout import Layout
from sfactory.messages import (
    MAX_REPORT_BYTES,
    TO_ACTOR,
    TO_LEARNER,
    TO_MAIN,
    TO_POLICY,
    ToActor,
    ToLearner,
    ToMain,
    ToPolicy,
)
from sfactory.shared.channel import Channel, Incarnations
from sfactory.shared.control import Control, LearnerCommands, SharedRewardShaping
from sfactory.shared.opponents import OpponentPool
from sfactory.shared.slots import SlotTable
from sfactory.shared.status import FailureBoard, State, StatusBoard
from sfactory.shared.trajectories import RnnStates, TrajectoryBuffer
from sfactory.shared.weights import EvalWeights, SharedWeights
from sfactory.spec import EnvSpec

_log = logging.getLogger(__name__)

_SPARE = 8  # messages of headroom in every ring
_REPORTS_UNDER_WAY = 64
_TRAJECTORIES: WeakSet[TrajectoryBuffer] = WeakSet()  # all that this process has allocated and not freed


class SharedObjects:
    """Allocated once, before any child is started. Capacities: see NOTE [Who may block].

    opponents: past versions of policy 0; None without a pool.
    weights, to_learners, learners_to_main: by policy. candidate: weights that evaluators play; None without evaluators.
    learner_commands: commands to learners during the run.
    reward_shaping: of each policy, set by main; None if main does not set it.
    sends_episodes: whether actors send each episode with an EpisodeEnd.
    """

    def __init__(self, spec: EnvSpec, layout: Layout, weight_bytes: int, shaped: bool = False) -> None:
        """``shaped``: main sets the reward shaping of each policy."""
        if _TRAJECTORIES:  # of an earlier run or trial, which cycles of references may hold although it is over
            gc.collect()
        self.spec, self.layout = spec, layout
        self.trajectories = TrajectoryBuffer(spec, layout)
        _TRAJECTORIES.add(self.trajectories)
        self.table = SlotTable(layout.num_actors, layout.splits, layout.slots_per_split, layout.num_policies)
        self.states = RnnStates(layout)
        self.learner_commands = LearnerCommands(layout.num_policies)
        self.reward_shaping = SharedRewardShaping(layout.num_policies) if shaped else None
        self.sends_episodes = False
        self.control = Control(layout.num_policies)
        self.weights = [SharedWeights(weight_bytes, policy) for policy in range(layout.num_policies)]
        self.opponents = OpponentPool(layout.opponents, weight_bytes, layout.num_actors) if layout.opponents else None
        played = layout.evaluators, layout.evaluated
        self.candidate = EvalWeights(weight_bytes, *played) if layout.evaluators else None
        self.status = StatusBoard(layout.process_names)
        self.failures = FailureBoard(layout.process_names)
        # To an actor at most: a reply per split from each policy that may play it, and two wake-ups per slot (one sent,
        # one unread). To the others twice the messages of all actors, since a replacement repeats some of them.
        per_actor = layout.num_policies * (layout.splits + 2 * layout.slots_per_actor) + _SPARE
        incarnations = Incarnations(layout.actor_names + layout.policy_worker_names)
        self.to_actors: list[Channel[ToActor]] = [
            Channel(name, TO_ACTOR, per_actor, incarnations=incarnations) for name in layout.actor_names
        ]
        requests = 2 * layout.num_actors * layout.splits + _SPARE
        self.to_policies: list[Channel[ToPolicy]] = [
            Channel(name, TO_POLICY, requests, incarnations=incarnations) for name in layout.policy_worker_names
        ]
        self.to_learners: list[Channel[ToLearner]] = [
            Channel(name, TO_LEARNER, 2 * layout.num_slots + _SPARE) for name in layout.learner_names
        ]
        self.actors_to_main: Channel[ToMain] = Channel("sf-main", TO_MAIN, _REPORTS_UNDER_WAY, MAX_REPORT_BYTES)
        # One for each learner: see NOTE [Saving waits for no ring].
        self.learners_to_main: list[Channel[ToMain]] = [
            Channel("sf-main", TO_MAIN, _REPORTS_UNDER_WAY) for _ in layout.learner_names
        ]

    def spec_of(self, policy: int) -> EnvSpec:
        """What ``policy`` sees and does."""
        return self.spec.part(self.layout.kinds[policy]) if self.layout.kinds else self.spec

    def for_actor(self, actor: int) -> SharedObjects:
        """A copy for one actor, without the inboxes of the others: to send those of hundreds takes seconds."""
        view = copy.copy(self)
        others = [None] * len(self.to_actors)
        view.to_actors = cast(list[Channel[ToActor]], [*others[:actor], self.to_actors[actor], *others[actor + 1 :]])
        return view

    def settle_steps(self, actor: int) -> None:
        """Once ``actor`` is dead: its env steps are those in its slots. It may have died before it reported the last.

        These are one step of one split at most; a larger difference is a defect and is logged.
        """
        if self.layout.agents > 1:
            return  # the table counts agents' steps, so the reported env steps stand
        name, counted = self.layout.actor_names[actor], self.table.steps_of(actor)
        row = self.status.row(name)
        reported = int(row.get("env_steps"))
        if not 0 <= counted - reported <= self.layout.rows:
            _log.error("%s: %d env steps lie in its slots, %d were reported", name, counted, reported)
        row.set("env_steps", counted)

    def has_learned_enough(self, policy: int) -> bool:
        """Whether the learner of ``policy`` has reached its limit, or does not learn."""
        return self.status.row(self.layout.learner_names[policy]).get("state") == State.DONE

    def others_have_learned(self, policy: int) -> bool:
        """Whether a learner of another policy has learned anything in this session."""
        others = [name for name in self.layout.learner_names if name != self.layout.learner_names[policy]]
        return any(self.status.row(name).get("datasets") for name in others)

    def inbox_of(self, name: str) -> Channel[ToActor] | Channel[ToPolicy]:
        """The channel that the actor or policy worker called ``name`` reads."""
        inboxes: list[Channel[ToActor] | Channel[ToPolicy]] = [*self.to_actors, *self.to_policies]
        return next(inbox for inbox in inboxes if inbox.reader == name)
