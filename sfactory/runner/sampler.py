"""Samples without a learner: ``sfactory.sampler`` gives trajectories to a program, which learns from them itself.

Actors, policy workers, slots and weights are those of a run. The program is in the place of the learner: it takes
batches, and sets the weights to act with.

NOTE [Statistics of a sampler]: those of observations learn from each batch that is handed out, in a copy beside the
model. ``set_weights`` puts them into the model, which acts with them from there on. So a batch is learned from with the
statistics with which it was acted, see docs/decisions/0012-normalisation.md.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from sfactory.clock import BLOCK_S
from sfactory.config.flags import assigned, value_of
from sfactory.config.rule import Refused, refuse_each
from sfactory.config.schema import Config
from sfactory.errors import ConfigError, SFactoryError
from sfactory.layout import Layout
from sfactory.learner.batcher import Batcher, Inbox
from sfactory.learner.initial_weights import load_initial_weights
from sfactory.learner.learner import Publisher
from sfactory.learner.staging import HELD, RUN_STEP, Staging
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.model.torch_state import OwnTorchState
from sfactory.planning.plan import Plan
from sfactory.process.signals import Interrupts, handlers_are_heard
from sfactory.process.spawn import Spawner
from sfactory.report.collector import ReportCollector
from sfactory.runner.serial import SerialSampling, processes_of_envs_end
from sfactory.seeds import Branch, seed_at
from sfactory.shared.objects import SharedObjects
from sfactory.shared.status import State
from sfactory.spec import EnvSpec
from sfactory.supervise.hang_detection import WorkerHangs
from sfactory.supervise.process_group import ProcessGroup, Workload
from sfactory.supervise.restarts import RestartBudget, WorkerReplacement
from sfactory.supervise.supervisor import Supervisor


class Trajectories(NamedTuple):
    """B rows of T steps, time-major, on the CPU; valid until the next batch is asked for. See NOTE [Row life].

    obs: {path: [T+1, B, ...]} as the network reads them. actions: {key: [T, B] int64 or [T, B, size] float32}.
    rewards, log_probs, values: [T, B] float32 - raw rewards, and what was recorded when acting.
    terminated, truncated: [T, B] bool. After a truncation obs[t+1] is the last of the episode, and step t+1 is no step.
    valid: [T, B] bool - an env took the step. is_first: [T+1, B] bool - obs is the first of an episode.
    policy_version: [T, B] int64 - of the weights that acted. rnn_states: [K+1, B, S] float32 - before each chunk of
    ``--recurrence`` steps, and after the last one. held: [T, B] bool - the agent was inactive, and its memory stays the
    same; None where agents are always active.
    """

    obs: dict[str, Tensor]
    actions: dict[str, Tensor]
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    log_probs: Tensor
    values: Tensor
    policy_version: Tensor
    is_first: Tensor
    rnn_states: Tensor
    held: Tensor | None


class Outputs(NamedTuple):
    """Of the present model for a batch, with gradients. log_probs, entropy: [T, B]. values: [T+1, B]."""

    log_probs: Tensor
    values: Tensor
    entropy: Tensor


class Reports(Protocol):
    """What takes the reports of workers: a ReportCollector, or what passes them on."""

    reading_since: float

    def start(self) -> None:
        """Begin to read them in the background, if it does that."""

    def poll(self) -> None:
        """Read all that have come."""

    def stop(self) -> None:
        """Read the last ones."""


class Parts(NamedTuple):
    """What workers are made of."""

    config: Config
    plan: Plan
    shared: SharedObjects
    spawner: Spawner
    seed: int
    reports: Reports


class Sampler:
    """Iterates over batches of trajectories without an end. Its parts are those of a run with one policy.

    model: an ActorCritic on the CPU: learn it in place and call ``set_weights``, or set those of a copy. The statistics
    by which it normalizes observations are the sampler's, see NOTE [Statistics of a sampler].
    version: how often weights were set. reports: statistics of finished episodes.
    """

    def __init__(self, config: Config, plan: Plan, spawner: Spawner, seed: int) -> None:
        """Starts the workers. Raises ConfigError for what a sampler does not do, and as ``initial_weights``."""
        _require_sampling_alone(config, plan)
        with OwnTorchState(), torch.random.fork_rng(devices=()):
            torch.manual_seed(seed_at(seed, Branch.LEARNER, 0))
            self.model = ActorCritic(plan.spec, config.model)
        load_initial_weights(self.model, config, policy=0, spec=plan.spec)
        layout = dataclasses.replace(plan.layout, evaluators=0)
        shared = SharedObjects(plan.spec, layout, plan.weight_bytes)
        self._statistics, self._has_given = copy.deepcopy(self.model.obs_normalizer), False
        self._publisher = Publisher(FlatState(self.model), shared.weights[0], 1)
        self._publisher.publish(0)
        self._closed = False
        self._row = shared.status.row(layout.learner_names[0])
        self._row.set("state", State.RUNNING)
        self._batcher = Batcher(Inbox(0, shared, self._row), layout.slots_until_trained)
        self._area = _Rows(plan.spec, layout)
        self.reports = ReportCollector(config, shared.actors_to_main, shared.learners_to_main, shared.status)
        parts = Parts(config, plan, shared, spawner, seed, self.reports)
        self._workers: _TurnsHere | Processes = _TurnsHere(parts) if config.run.serial_mode else Processes(parts)

    def __iter__(self) -> Iterator[Trajectories]:
        return self

    def __next__(self) -> Trajectories:
        """The next batch of ``batch_size`` steps. Slots of the last one are free from now.

        Raises SFactoryError if the workers cannot continue, as after an exception in serial mode, or are closed.
        """
        if self._closed:
            raise SFactoryError("the sampler is closed")
        self._area.clear()
        self._batcher.trained()
        with self._workers.at_work():
            self._workers.turn()
            while not self._batcher.advance(self._area, self._workers.wait_s):
                self._workers.turn()
        batch, self._has_given = self._area.trajectories(), True
        self._row.add("run_env_steps", self._area.env_steps())  # which envs with a curriculum are shown
        if self._statistics is not None:
            self._statistics.update({path: leaf[:-1] for path, leaf in batch.obs.items()}, batch.valid)
        return batch

    @property
    def version(self) -> int:
        """How often weights were set: the policy version of those that act by now."""
        return self._publisher.version

    @property
    def episode_return_mean(self) -> float | None:
        """Of the last ``--stats_avg`` finished episodes; None before the first."""
        return self.reports.episodes.returns.mean

    def set_weights(self, weights: Mapping[str, Tensor] | None = None) -> None:
        """Act with ``weights``, a state_dict of such a model; None: with those of ``model`` as they are.

        Statistics of observations are taken over before the first batch alone; after it ``model`` gets the sampler's.
        Raises DivergedError if one is not finite, and RuntimeError from torch if they do not fit.
        """
        if weights is not None:
            self.model.load_state_dict(weights)
        if self._statistics is not None and self.model.obs_normalizer is not None:
            source, target = self.model.obs_normalizer, self._statistics
            if self._has_given:
                source, target = target, source
            target.load_state_dict(source.state_dict())
        self._publisher.publish(self.version + 1)

    def forward(self, batch: Trajectories) -> Outputs:
        """What ``model`` gives for a batch, with gradients: log-probabilities of its actions, values, entropy."""
        steps, rows = batch.rewards.shape
        recurrence = steps // (len(batch.rnn_states) - 1)
        unrolled = self.model.unroll(batch.obs, batch.rnn_states[:-1], batch.is_first, recurrence, batch.held)
        distribution = self.model.distribution(unrolled.dist_params)
        taken = {key: action.flatten(0, 1) for key, action in batch.actions.items()}
        log_probs, entropy = distribution.log_prob(taken), distribution.entropy()
        values = self.model.value_head.denormalize(unrolled.values)
        return Outputs(log_probs.view(steps, rows), values, entropy.view(steps, rows))

    def close(self) -> None:
        """End all workers, and free what was shared with them."""
        if self._closed:
            return
        self._closed = True
        try:
            self._workers.close()
        finally:
            del self._workers, self._batcher, self._row
            gc.collect()  # cycles of references hold it


class _Rows(Staging):
    """A staging area with truncations, which our own learner does not need."""

    def __init__(self, spec: EnvSpec, layout: Layout) -> None:
        super().__init__(spec, layout, pin=False)
        self.scalars["truncated"] = torch.zeros_like(self.scalars["terminated"])
        self._scalar_views["truncated"] = self.scalars["truncated"].numpy()

    def env_steps(self) -> int:
        """Of all rows; the agents of an env share each."""
        valid = self.scalars["valid"]
        return int((valid & self.scalars[RUN_STEP] if RUN_STEP in self.scalars else valid).sum())

    def trajectories(self) -> Trajectories:
        """Views of the rows."""
        of = self.scalars
        return Trajectories(
            obs=self.obs,
            actions=self.actions,
            rewards=of["reward"],
            terminated=of["terminated"],
            truncated=of["truncated"],
            valid=of["valid"],
            log_probs=of["log_prob"],
            values=of["value"],
            policy_version=of["policy_version"],
            is_first=self.is_first,
            rnn_states=self.rnn_states,
            held=of.get(HELD),
        )


class _TurnsHere:
    """Envs and policy live in this process, and work while a batch is awaited."""

    wait_s = 0.0  # how long to wait for slots between two turns

    def __init__(self, parts: Parts) -> None:
        self._reports = parts.reports
        self._left_by = ""  # the type of the exception that has ended a block of turns
        self._sampling = SerialSampling(parts.config, parts.shared, parts.seed, 0, parts.plan.device)
        with handlers_are_heard(), contextlib.ExitStack() as stack:
            self._started = stack.enter_context(processes_of_envs_end(parts.spawner))
            stack.enter_context(self._sampling.envs)
            self._sampling.make()
            self._started.pause()
            self._opened = stack.pop_all()

    def turn(self) -> None:
        """Let the workers work; raises the fault that ends them."""
        self._sampling.turn()
        self._reports.poll()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """A block of turns. What the program starts between such blocks is no process of an env, and goes on.

        Raises SFactoryError if an exception has left one: a slot may be half filled, and no turn would complete it.
        """
        if self._left_by:
            raise SFactoryError(
                f"the sampler cannot go on, as {self._left_by} has left its envs within a step: open another one"
            )
        self._started.resume()
        try:
            with handlers_are_heard():
                yield
        except BaseException as error:
            self._left_by = type(error).__name__
            raise
        finally:
            self._started.pause()

    def close(self) -> None:
        """End the workers, and close their envs."""
        self._started.resume()
        with handlers_are_heard():
            self._opened.close()


class Processes:
    """Actors and policy workers as processes, which are supervised while a batch is awaited."""

    wait_s = BLOCK_S

    def __init__(self, parts: Parts) -> None:
        config, plan, shared, spawner, seed, reports = parts
        workload = Workload(config, seed, 0, plan.device, plan.cores, [None])
        self._group = group = ProcessGroup(spawner, shared, workload)
        self._reports, self._interrupts = reports, Interrupts()  # signals are the program's own
        budget = RestartBudget("max_worker_restarts", config.sampling.max_worker_restarts)
        step_s, reset_s = config.sampling.step_timeout_seconds, config.sampling.reset_timeout_seconds
        self._supervisor = Supervisor(
            *(group, shared.control, shared.status, self._interrupts, reset_s, False),
            replacement=WorkerReplacement(group, shared, budget),
            hangs=WorkerHangs(group, step_s, reset_s, lambda: reports.reading_since),
        )
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            group.start(learners=False)
            reports.start()
            stack.pop_all()

    def turn(self) -> None:
        """See _TurnsHere."""
        goes_on = self._supervisor.turn(0.0)
        if self._supervisor.failure is not None:
            raise self._supervisor.failure
        if not goes_on:
            raise SFactoryError("the processes of the sampler have ended")

    def at_work(self) -> contextlib.AbstractContextManager[None]:
        """See _TurnsHere."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """See _TurnsHere. Processes that do not end by themselves are killed after some seconds."""
        try:
            self._supervisor.stop()
        finally:
            self._group.kill()
            self._reports.stop()
            self._interrupts.restore()


_BEGINS = "begins with the weights of a run by init_from=RUN:POLICY:KIND, and resumes none"
_NOT_SAMPLED: tuple[Refused, ...] = (
    ("observers", bool, "reports to the program alone"),
    ("after_train_step", bool, "has no learner that would call it"),
    ("eval_interval_sec", bool, "evaluates nothing"),
    ("with_pbt", bool, "joins no population"),
    ("benchmark", bool, "measures nothing"),
    ("autotune", bool, "tunes nothing"),
    ("restart_behavior", "resume".__eq__, _BEGINS),
    ("load_checkpoint_kind", "latest".__ne__, _BEGINS),
)


_RULES = refuse_each(_NOT_SAMPLED, lambda config: True, "a sampler {why}; leave it out")


def _require_sampling_alone(config: Config, plan: Plan) -> None:
    """Raise ConfigError for runs in which there is more to do than to sample for one learner."""
    found = ((name, rule.find(config)) for rule in _RULES for name in rule.flags)
    problems = [f"{assigned(name, value_of(config, name))}: {text}" for name, text in found if text is not None]
    if plan.layout.num_policies > 1:
        problems.append(f"{assigned('num_policies', plan.layout.num_policies)}: a sampler has one policy; leave it out")
    if plan.layout.opponents:
        problems.append("--opponent_pool: a sampler has no past versions to play against; leave it out")
    if plan.layout.resident:
        problems.append(f"--env={config.run.env}: a TensorEnv needs no sampler: step it where the network is")
    if problems:
        raise ConfigError(problems)
