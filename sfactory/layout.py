"""Computes every size that follows from configuration and env: ``Layout``.

Derived sizes are computed here and nowhere else, and so are the names of processes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from sfactory.config.population_rules import agents_by_pattern
from sfactory.config.schema import EvaluationConfig, LearnerConfig, PopulationConfig, SamplingConfig

Inference = Literal["central", "local"]
Mapping = Literal["split", "env", "agent", "names", "function"]

# What the names of processes of one kind begin with.
ACTORS = "sf-actor-"
GATEWAY = f"{ACTORS}remote"  # the actor that gets its trajectories from other machines
POLICY_WORKERS = "sf-policy-"
LEARNERS = "sf-learner-"
EVALUATORS = "sf-eval-"

_LITTLE = 0.25  # of an env's step: what choosing its action may cost an actor, so that the GPU is the learner's alone


class ActingCost(NamedTuple):
    """Microseconds of an actor's core for one agent's step: of its env's step, and of a forward pass of the policy."""

    env_step_us: float
    forward_us: float


class Choice(NamedTuple):
    """Where inference happens. why: what decided, for people to read; "" where the flag did."""

    inference: Inference
    why: str = ""


def choose_inference(
    wanted: Literal["central", "local", "auto"], on_gpu: bool, cost: ActingCost | None = None
) -> Choice:
    """Resolve ``auto``: local where actors' cores must choose actions anyway, or where that costs them little.

    cost: where it is unknown, as of a vector env, a GPU is worth its messages.
    """
    if wanted != "auto":
        return Choice(wanted)
    if not on_gpu:
        return Choice("local", "without a GPU the same cores choose actions either way, and local sends no messages")
    if cost is None:
        return Choice("central", "policy workers have a GPU, and what actors would pay instead is not known")
    cheap = cost.forward_us < _LITTLE * cost.env_step_us
    figures = (
        f"on an actor's core a step of the environment costs {cost.env_step_us:.3g} us and choosing its action "
        f"{cost.forward_us:.3g} us"
    )
    return Choice("local" if cheap else "central", f"{figures}, {'less' if cheap else 'no less'} than a quarter of it")


@dataclass(frozen=True)
class Layout:
    """Sizes of a run. T = rollout, N = rows of a split, S = state_size, A = agents of an env.

    NOTE [Rows of agents]: every agent of an env is a row. Row ``env * A + agent`` of a split is agent ``agent`` of its
    env ``env``, both from 0; an env that is its own agent is a row.

    NOTE [Collection waits]: with ``slots_until_trained`` the learner frees slots only after it has learned from them
    and published. Every split owns as many slots as a dataset takes of it, so collection pauses while the learner
    trains. If a dataset takes all slots exactly (async_rl=False, see ``rounds_misfit``), the policy lag is 0: no
    action is chosen between the last row of a dataset and the weights that are learned from it.
    """

    inference: Inference
    num_policies: int
    num_actors: int
    policy_workers: int  # per policy; 0 with local inference
    splits: int  # per actor
    rows: int  # N: envs of one split, times A
    rollout: int  # T
    slots_per_split: int
    slots_until_trained: bool  # slots are freed after training instead of after the copy
    recurrence: int  # steps between two recorded states
    state_size: int  # S: memory of one row; 0 without memory
    dataset_rows: int
    datasets: int  # staging areas of the learner
    evaluators: int = 0  # see num_evaluators
    mapping: Mapping = "split"  # who plays which row, if there are several policies
    agents: int = 1  # A
    kinds: tuple[str, ...] = ()  # by policy, the kind of agents that it plays, if there are several kinds
    opponents: int = 0  # past versions that policy 0 plays against
    resident: bool = False  # a TensorEnv is stepped on the learner's device: there are no slots
    remote: bool = False  # the last actor is the gateway, which has no envs: see sfactory/remote/gateway.py
    rank: int = 0  # of ``world`` ranks, each with actors of its own
    world: int = 1

    @staticmethod
    def plan(
        sampling: SamplingConfig,
        learner: LearnerConfig,
        inference: Inference,
        state_size: int = 0,
        evaluators: int = 0,
        population: PopulationConfig | None = None,
        agents: int = 1,
        resident: bool = False,
    ) -> Layout:
        """Compute all sizes; the configuration was checked before, so nothing here can fail."""
        population = population or PopulationConfig()
        policies, remote = population.num_policies, sampling.remote_actors_port > 0
        actors = sampling.num_workers + remote
        splits = _splits(sampling, inference, population)
        mapping = choose_mapping(population, actors * splits, agents)
        dataset_rows = learner.batch_size // sampling.rollout * learner.num_batches_per_epoch
        rows = sampling.num_envs_per_worker // splits * agents
        until_trained = not sampling.async_rl or learner.num_batches_to_accumulate == 0
        if resident:
            slots = 0
        elif until_trained:
            # With several policies each has splits of its own, equally many (see the rules of populations). A gateway
            # does not count beside others: there may be no remote actor, and the others must fill a dataset.
            slots = _slots_of_a_dataset(dataset_rows, rows, (sampling.num_workers or 1) * splits // policies)
        else:
            slots = sampling.min_traj_buffers_per_worker
        background = learner.train_in_background_thread and not until_trained
        return Layout(
            inference=inference,
            num_policies=policies,
            mapping=mapping,
            num_actors=actors,
            policy_workers=0 if inference == "local" else sampling.policy_workers_per_policy,
            splits=splits,
            rows=rows,
            rollout=sampling.rollout,
            slots_per_split=slots,
            slots_until_trained=until_trained,
            recurrence=sampling.rollout if learner.recurrence == -1 else learner.recurrence,
            state_size=state_size,
            dataset_rows=dataset_rows,
            datasets=learner.num_batches_to_accumulate if background else 1,
            evaluators=evaluators,
            agents=agents,
            opponents=population.opponent_pool,
            resident=resident,
            remote=remote,
        )

    def with_batches(self, learner: LearnerConfig) -> Layout:
        """The sizes of a learner that has its own batch sizes."""
        return replace(self, dataset_rows=learner.batch_size // self.rollout * learner.num_batches_per_epoch)

    def policy_of_split(self, actor: int, split: int) -> int:
        """The policy that plays a split, where each split has one policy."""
        return (actor * self.splits + split) % self.num_policies

    @property
    def evaluated(self) -> int:
        """Policies that evaluators play: where agents have policies of their own, all of them."""
        return self.num_policies if self.mapping in ("names", "function") else 1

    @property
    def shared_weights(self) -> int:
        """How many weights are in shared memory: those of policies and opponents, and those that evaluators play."""
        opponents = self.opponents + 1 if self.opponents else 0
        return self.num_policies + opponents + (self.evaluated if self.evaluators else 0)

    @property
    def envs(self) -> int:
        """Envs of one split."""
        return self.rows // self.agents

    @property
    def slots_per_actor(self) -> int:
        """Slots of all splits of an actor."""
        return self.splits * self.slots_per_split

    @property
    def all_wait(self) -> bool:
        """Whether all actors wait while the only learner trains, as a dataset takes all slots."""
        takes_all = self.num_slots * self.rows == self.dataset_rows
        return self.slots_until_trained and self.num_policies == 1 and takes_all

    def env_index(self, actor: int) -> int:
        """The number of the first env of an actor among all training envs of the run, those of other ranks included."""
        return (self.rank * self.num_actors + actor) * self.splits * self.envs

    def env_index_of_evaluator(self, evaluator: int) -> int:
        """The number of an evaluator's env: these follow those of training. Only the first rank has evaluators."""
        return self.world * self.num_splits * self.envs + evaluator

    @property
    def local_actors(self) -> int:
        """Actors that step envs here."""
        return self.num_actors - self.remote

    @property
    def num_splits(self) -> int:
        """Splits of all actors."""
        return self.num_actors * self.splits

    @property
    def num_slots(self) -> int:
        """Slots of all actors."""
        return self.num_actors * self.slots_per_actor

    @property
    def actor_names(self) -> list[str]:
        """Process names of the actors."""
        return [*map(actor_name, range(self.local_actors)), *[GATEWAY] * self.remote]

    @property
    def policy_worker_names(self) -> list[str]:
        """Process names of the policy workers."""
        return [f"{POLICY_WORKERS}{p}-{i}" for p in range(self.num_policies) for i in range(self.policy_workers)]

    @property
    def learner_names(self) -> list[str]:
        """Process names of the learners."""
        return [learner_name(policy) for policy in range(self.num_policies)]

    @property
    def evaluator_names(self) -> list[str]:
        """Process names of the evaluators."""
        return [evaluator_name(evaluator) for evaluator in range(self.evaluators)]

    @property
    def process_names(self) -> list[str]:
        """All child processes, learners first (they have most to do before the first step)."""
        return [*self.learner_names, *self.policy_worker_names, *self.actor_names, *self.evaluator_names]


def choose_mapping(population: PopulationConfig, splits: int, agents: int) -> Mapping:
    """Resolve ``--policy_mapping``. auto: as wide as can be, and mixed within an env where that is wanted."""
    wanted = population.policy_mapping
    if wanted == "auto":
        if agents > 1 and population.pbt_mix_policies_in_one_env:
            return "agent"
        return "split" if splits >= population.num_policies else "env"
    if agents_by_pattern(wanted):
        return "names"
    return wanted if wanted in ("split", "env", "agent") else "function"  # type: ignore[return-value]


def _splits(sampling: SamplingConfig, inference: Inference, population: PopulationConfig) -> int:
    """Splits of an actor. Local inference waits for no other process, so it needs only as many as policies need.

    Where that is possible, all policies get equally many.
    """
    if inference == "central":
        return sampling.worker_num_splits
    envs, actors, policies = sampling.num_envs_per_worker, max(1, sampling.num_workers), population.num_policies
    if population.policy_mapping not in ("auto", "split"):
        return 1
    least = -(-policies // actors)
    equal = (each for each in range(least, envs + 1) if envs % each == 0 and actors * each % policies == 0)
    return next(equal, least if envs % least == 0 else 1)


def num_evaluators(evaluation: EvaluationConfig) -> int:
    """Number of evaluators: 0 without an interval, and no more than there are episodes."""
    return min(evaluation.eval_workers, evaluation.eval_episodes) if evaluation.eval_interval_sec > 0 else 0


def episodes_of(evaluator: int, evaluators: int, episodes: int) -> int:
    """How many of an evaluation's episodes are ``evaluator``'s; shares differ by one at most."""
    return episodes // evaluators + (evaluator < episodes % evaluators)


def _slots_of_a_dataset(dataset_rows: int, rows: int, splits: int) -> int:
    """Slots that each of ``splits`` splits needs so that ``dataset_rows`` can always be had from all of them.

    A slot of which only a part has gone into a dataset stays taken, with at most rows - 1 rows in that part.
    """
    needed = dataset_rows if dataset_rows % rows == 0 else dataset_rows + rows - 1
    return -(-needed // (rows * splits))


def actor_name(actor: int) -> str:
    """Name of an actor's process, as the kernel shows it."""
    return f"{ACTORS}{actor}"


def learner_name(policy: int) -> str:
    """Name of a learner's process."""
    return f"{LEARNERS}{policy}"


def evaluator_name(evaluator: int) -> str:
    """Name of an evaluator's process."""
    return f"{EVALUATORS}{evaluator}"


def is_actor(name: str) -> bool:
    """Whether the process called ``name`` is an actor."""
    return name.startswith(ACTORS)


def is_policy_worker(name: str) -> bool:
    """Whether the process called ``name`` is a policy worker."""
    return name.startswith(POLICY_WORKERS)


def is_learner(name: str) -> bool:
    """Whether the process called ``name`` is a learner."""
    return name.startswith(LEARNERS)


def is_evaluator(name: str) -> bool:
    """Whether the process called ``name`` is an evaluator."""
    return name.startswith(EVALUATORS)
