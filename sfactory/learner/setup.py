"""What a learner process is given when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sfactory.config.schema import AlgoConfig, CheckpointConfig, LearnerConfig, ModelConfig, OptimConfig, RunConfig
from sfactory.layout import Layout
from sfactory.messages import ToActor, ToLearner, ToMain
from sfactory.shared.channel import Channel
from sfactory.shared.control import Control, LearnerCommands
from sfactory.shared.slots import SlotTable
from sfactory.shared.status import StatusBoard
from sfactory.shared.trajectories import TrajectoryBuffer
from sfactory.shared.weights import SharedWeights
from sfactory.spec import EnvSpec


@dataclass(frozen=True)
class Limits:
    """When training is over: trained env steps, or seconds of training."""

    env_steps: int
    seconds: float

    @staticmethod
    def of(run: RunConfig, env_frameskip: int) -> Limits:
        """The limits of a run; frames are converted to env steps, rounded up."""
        frames = -(-run.train_for_frames // env_frameskip)
        return Limits(min(run.train_for_env_steps, frames), run.train_for_seconds)

    def reached(self, env_steps: int, seconds: float) -> bool:
        """True if training is over at this point."""
        return env_steps >= self.env_steps or seconds >= self.seconds


@dataclass(frozen=True)
class LearnerSetup:
    """Everything a learner process works with.

    checkpoint_dir: None where nothing is saved (benchmarks). orders: commands from main during the run; None without a
    population. trains: False for a policy that acts with its saved weights and does not learn.
    after_train_step: module:function, see ``Hooks``.
    """

    policy: int
    seed: int
    device: str
    threads: int
    stage: Literal["sample", "learn", "full"]
    checkpoint_dir: str | None
    limits: Limits
    spec: EnvSpec
    layout: Layout
    model: ModelConfig
    algo: AlgoConfig
    optim: OptimConfig
    learner: LearnerConfig
    checkpoint: CheckpointConfig
    trajectories: TrajectoryBuffer
    table: SlotTable
    control: Control
    status: StatusBoard
    weights: SharedWeights
    inbox: Channel[ToLearner]
    to_actors: list[Channel[ToActor]]
    to_main: Channel[ToMain]
    trains: bool = True
    orders: LearnerCommands | None = None
    after_train_step: tuple[str, ...] = ()
