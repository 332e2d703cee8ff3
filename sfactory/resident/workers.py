"""The workers of a run with a ``TensorEnv``: one collects a rollout in its turn, one learns once a dataset is full."""

from __future__ import annotations

import torch

from sfactory.actor.episode_stats import EXTRA_STATS, EpisodeRecorder, EpisodeTracker, ExtraStatsTracker
from sfactory.actor.setup import ActorSetup
from sfactory.env.tensor_env import TensorEnv
from sfactory.errors import EnvFaults
from sfactory.inference.acting_policy import ActingPolicy
from sfactory.learner.learner import Learner, Publisher
from sfactory.learner.learner_process import LearnerWorker
from sfactory.learner.setup import LearnerSetup
from sfactory.resident.collector import Collector
from sfactory.resident.dataset import DataChecks, ResidentDataset, Rollout
from sfactory.resident.episodes import Ended, EpisodeSums
from sfactory.seeds import Branch
from sfactory.shared.status import State, StatusRow, Stopwatch


class ResidentLearner(LearnerWorker):
    """Learns from ``dataset`` once it is full."""

    def __init__(self, setup: LearnerSetup, learner: Learner, row: StatusRow) -> None:
        super().__init__(setup, learner, row)
        self.dataset = ResidentDataset(setup.spec, setup.layout, torch.device(setup.device))

    def assemble(self, timeout: float) -> bool:
        """Whether the dataset is full."""
        return self.dataset.full

    def learn(self) -> None:
        """Learn from the dataset, which may then be filled again."""
        self._row.add("received_steps", self.dataset.valid_steps)
        self._learner.learn(self.dataset)
        self.dataset.clear()


class ResidentActor:
    """Fills ``dataset`` with rollouts of one env, and sends statistics; the only actor of its run."""

    def __init__(
        self, setup: ActorSetup, env: TensorEnv, publisher: Publisher, dataset: ResidentDataset, row: StatusRow
    ) -> None:
        """``publisher``: of the weights to act with, on the device of the env."""
        shared, spec = setup.shared, setup.shared.spec
        torch.manual_seed(setup.seed_of(Branch.ACTING))  # after the env was made, which may have seeded it
        policy = ActingPolicy(spec, setup.config.model, None, env.device)
        self._policy, self._publisher, self._publications = policy, publisher, 0
        self._dataset, self._row, self._actor = dataset, row, setup.actor
        self._collector = Collector(env, spec, policy, shared.layout)
        self._collector.begin(dataset, setup.seed_of(Branch.ENV, 0))
        self._checks, self._sums = DataChecks(spec, env.device), EpisodeSums(env.num_envs, env.device)
        self._episodes, self._extras = EpisodeTracker(env.num_envs), ExtraStatsTracker()
        if shared.sends_episodes:
            self._episodes.recorder = self._extras.recorder = EpisodeRecorder(0, spec.num_agents)
        self._control, self._to_main = shared.control, shared.actors_to_main
        self._watch = Stopwatch(row)
        row.set("state", State.RUNNING)

    def turn(self, timeout: float) -> None:
        """Collect one rollout with the newest weights, unless the dataset is full. Waits for no message.

        Raises EnvFaults if the env, or the policy, gave numbers that cannot be learned from.
        """
        if self._dataset.full:
            return
        if self._publisher.publications > self._publications:
            self._publications = self._publisher.publications
            self._policy.adopt(self._publisher.copy, self._publisher.version)
        self._watch.lap()
        rollout = self._collector.collect(self._dataset, lambda: self._control.stopping)
        if rollout is not None:
            self._count(rollout)
            self.report()

    def report(self) -> None:
        """Send finished episodes to main, extra statistics first; what has no room goes with the next report."""
        put = self._to_main.try_put
        if self._extras.send(self._actor, put):
            self._episodes.send(self._actor, put)

    def _count(self, rollout: Rollout) -> None:
        """Check and count a rollout; here the host waits for the device."""
        scalars, rows = self._dataset.scalars, rollout.rows
        steps, bad = self._checks.read(self._dataset, rollout)
        if any(bad):
            found = self._checks.described(bad, self._dataset, rollout)
            raise EnvFaults(
                f"a rollout of {rollout.stepped.numel()} steps has {found}; nothing was learned from it: correct the "
                "env, or, if actions were the first, lower --learning_rate; the run resumes from its last checkpoint"
            )
        self._row.count_env_steps(steps)
        self._dataset.valid_steps += steps
        self._keep(self._sums.add(scalars["reward"][:, rows], rollout.stepped, rollout.ended, rollout.stats))

    def _keep(self, ended: Ended) -> None:
        if not ended.stats:
            self._episodes.add_finished(0, ended.rows, ended.returns, ended.lengths)
        # One by one: a recorder keeps the statistics of one episode for each row, and a row may have ended several.
        for place, row in enumerate(ended.rows if ended.stats else ()):
            stats = {name: values[place] for name, values in ended.stats.items()}
            self._extras.add({EXTRA_STATS: stats}, row)
            self._episodes.add_finished(0, [row], [ended.returns[place]], [ended.lengths[place]])
        self._row.add("finished_episodes", len(ended.rows))
