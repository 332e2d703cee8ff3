"""What a learner process is given when it starts."""

from __future__ import annotations

from dataclasses import dataclass

from sfactory.config.population_rules import learning_policies
from sfactory.config.schema import Config, OptimConfig, RunConfig
from sfactory.layout import Layout
from sfactory.learner.coefficients import standing_still
from sfactory.ranks.place import ONE_RANK, Place
from sfactory.shared.objects import SharedObjects
from sfactory.shared.weights import SharedWeights
from sfactory.spec import EnvSpec


@dataclass(frozen=True)
class Limits:
    """When training is over: trained env steps, or seconds of training."""

    env_steps: int
    seconds: float

    @staticmethod
    def of(run: RunConfig, frames_per_step: int) -> Limits:
        """The limits of a run."""
        return Limits(run.most_env_steps(frames_per_step), run.train_for_seconds)

    def reached(self, env_steps: int, seconds: float) -> bool:
        """True if training is over at this point."""
        return env_steps >= self.env_steps or seconds >= self.seconds


@dataclass(frozen=True)
class LearnerSetup:
    """All that a learner process works with.

    checkpoint_dir: None where nothing is saved: in benchmarks, and by ranks but the first.
    """

    config: Config
    shared: SharedObjects
    policy: int
    seed: int
    device: str
    threads: int
    checkpoint_dir: str | None
    place: Place = ONE_RANK

    @property
    def layout(self) -> Layout:
        """The layout of the run with the batch sizes of this learner."""
        return self.shared.layout.with_batches(self.config.learner)

    @property
    def spec(self) -> EnvSpec:
        """What the policy sees and does."""
        return self.shared.spec_of(self.policy)

    @property
    def weights(self) -> SharedWeights:
        """Those that it publishes."""
        return self.shared.weights[self.policy]

    @property
    def trains(self) -> bool:
        """False for a policy that acts with its saved weights and does not learn."""
        return self.policy in learning_policies(self.config)

    @property
    def limits(self) -> Limits:
        """When training is over; a benchmark ends by itself."""
        if self.config.benchmark.benchmark:
            return Limits(env_steps=2**62, seconds=float("inf"))
        return Limits.of(self.config.run, self.config.frames_per_step)

    @property
    def optim(self) -> OptimConfig:
        """The optimizer; rates of 0 in a benchmark that learns the same data again and again, which would diverge."""
        optim = self.config.optim
        return standing_still(optim) if self.config.benchmark.stage == "learn" else optim

    @property
    def after_train_step(self) -> tuple[str, ...]:
        """module:function, see ``Hooks``; none in a benchmark."""
        return () if self.config.benchmark.benchmark else self.config.hooks.after_train_step
