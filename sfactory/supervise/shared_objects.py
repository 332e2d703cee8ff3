"""Allocates all shared objects of a run and creates the setup of each child process from them."""

from __future__ import annotations

import logging

from sfactory.actor.setup import ActorSetup
from sfactory.config.population_rules import learning_policies
from sfactory.config.schema import Config
from sfactory.env.factory import EnvFactory
from sfactory.inference.policy_worker import PolicySetup
from sfactory.layout import Layout, episodes_of
from sfactory.learner.coefficients import standing_still
from sfactory.learner.setup import LearnerSetup, Limits
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
from sfactory.play.evaluator import EvaluatorSetup
from sfactory.shared.channel import Channel, Incarnations
from sfactory.shared.control import Control, LearnerCommands, SharedRewardShaping
from sfactory.shared.slots import SlotTable
from sfactory.shared.status import FailureBoard, State, StatusBoard
from sfactory.shared.trajectories import RnnStates, TrajectoryBuffer
from sfactory.shared.weights import EvalWeights, SharedWeights
from sfactory.spec import EnvSpec

_log = logging.getLogger(__name__)

_SPARE = 8  # messages of headroom in every ring
_REPORTS_UNDER_WAY = 64


class SharedObjects:
    """Allocates everything once, before any child is started. Capacities: see NOTE [Who may block]."""

    def __init__(self, spec: EnvSpec, layout: Layout, weight_bytes: int, shaped: bool = False) -> None:
        """``shaped``: main sets the reward shaping of each policy."""
        self.spec, self.layout = spec, layout
        self.trajectories = TrajectoryBuffer(spec, layout)
        self.table = SlotTable(layout.num_actors, layout.splits, layout.slots_per_split, layout.num_policies)
        self.states = RnnStates(layout)
        self.orders = LearnerCommands(layout.num_policies) if layout.num_policies > 1 else None
        self.schemes = SharedRewardShaping(layout.num_policies) if shaped else None
        self.control = Control(layout.num_policies)
        self.weights = [SharedWeights(weight_bytes, policy) for policy in range(layout.num_policies)]
        self.candidate = EvalWeights(weight_bytes, layout.evaluators) if layout.evaluators else None
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

    def inbox_of(self, name: str) -> Channel[ToActor] | Channel[ToPolicy]:
        """The channel that the actor or policy worker called ``name`` reads."""
        inboxes: list[Channel[ToActor] | Channel[ToPolicy]] = [*self.to_actors, *self.to_policies]
        return next(inbox for inbox in inboxes if inbox.reader == name)

    def actor(self, actor: int, config: Config, seed: int, generation: int, attempt: int = 0) -> ActorSetup:
        """The setup of actor ``actor``."""
        return ActorSetup(
            actor=actor,
            generation=generation,
            attempt=attempt,
            seed=seed,
            run=config.run,
            sampling=config.sampling,
            population=config.population,
            decorrelates=not config.benchmark.benchmark,
            factory=EnvFactory.of(config.run, config.sampling),
            spec=self.spec,
            layout=self.layout,
            trajectories=self.trajectories,
            table=self.table,
            states=self.states,
            control=self.control,
            weights=tuple(self.weights),
            inbox=self.to_actors[actor],
            to_policies=self._policy_workers_of(actor),
            to_learners=tuple(self.to_learners),
            to_main=self.actors_to_main,
            reward_shaping=self.schemes,
            frozen_policies=tuple(sorted(set(range(self.layout.num_policies)) - set(learning_policies(config)))),
        )

    def _policy_workers_of(self, actor: int) -> tuple[Channel[ToPolicy], ...]:
        """Of each policy, the worker that serves ``actor``; none with local inference."""
        workers = self.layout.policy_workers
        if not workers:
            return ()
        return tuple(self.to_policies[policy * workers + actor % workers] for policy in range(self.layout.num_policies))

    def policy_worker(
        self, policy: int, worker: int, config: Config, seed: int, generation: int, device: str
    ) -> PolicySetup:
        """The setup of worker ``worker`` of ``policy``, the same for all its incarnations."""
        return PolicySetup(
            policy=policy,
            worker=worker,
            generation=generation,
            seed=seed,
            device=device,
            spec=self.spec,
            layout=self.layout,
            model=config.model,
            trajectories=self.trajectories,
            states=self.states,
            control=self.control,
            weights=self.weights[policy],
            inbox=self.to_policies[policy * self.layout.policy_workers + worker],
            to_actors=self.to_actors,
        )

    def learner(
        self, policy: int, config: Config, seed: int, device: str, threads: int, checkpoint_dir: str | None
    ) -> LearnerSetup:
        """The setup of the learner of ``policy``."""
        benchmark, stage = config.benchmark.benchmark, config.benchmark.stage
        assert stage != "env", "without a learner"
        return LearnerSetup(
            policy=policy,
            seed=seed,
            device=device,
            threads=threads,
            stage=stage,
            checkpoint_dir=checkpoint_dir,
            limits=_NO_LIMITS if benchmark else Limits.of(config.run, config.sampling.env_frameskip),
            spec=self.spec,
            layout=self.layout.with_batches(config.learner),
            model=config.model,
            algo=config.algo,
            # Learning the same data again and again would diverge; a rate of 0 costs as much.
            optim=standing_still(config.optim) if stage == "learn" else config.optim,
            learner=config.learner,
            checkpoint=config.checkpoint,
            orders=self.orders,
            trains=policy in learning_policies(config),
            trajectories=self.trajectories,
            table=self.table,
            control=self.control,
            status=self.status,
            weights=self.weights[policy],
            inbox=self.to_learners[policy],
            to_actors=self.to_actors,
            to_main=self.learners_to_main[policy],
            after_train_step=() if benchmark else config.hooks.after_train_step,
        )

    def evaluator(self, evaluator: int, config: Config, seed: int, generation: int) -> EvaluatorSetup:
        """The setup of evaluator ``evaluator``."""
        assert self.candidate is not None, "without evaluators"
        return EvaluatorSetup(
            evaluator=evaluator,
            episodes=episodes_of(evaluator, self.layout.evaluators, config.evaluation.eval_episodes),
            generation=generation,
            seed=seed,
            evaluation=config.evaluation,
            sampling=config.sampling,
            model=config.model,
            factory=EnvFactory.of(config.run, config.sampling),
            spec=self.spec,
            control=self.control,
            weights=self.weights[0],
            candidate=self.candidate,
            to_main=self.actors_to_main,
        )


_NO_LIMITS = Limits(env_steps=2**62, seconds=float("inf"))
