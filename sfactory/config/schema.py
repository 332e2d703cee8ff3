"""Joins all settings of a run, as frozen dataclass sections, into ``Config``.

The command line, config files, ``--help`` and config.json are generated from the fields of the sections. A flag's name
is its field's name, unique over all sections. Names and meanings are those of Sample Factory where it has the flag.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from sfactory.config.sections.model import AUTO, BY_RANK, CORE_INPUTS, LAYOUTS, PARTS, ModelConfig, keys_and_layouts
from sfactory.config.sections.population import PopulationConfig
from sfactory.config.sections.run import (
    BenchmarkConfig,
    CheckpointConfig,
    EvaluationConfig,
    HooksConfig,
    ReportConfig,
    RunConfig,
    TuningConfig,
)
from sfactory.config.sections.sampling import SamplingConfig, WrapperConfig
from sfactory.config.sections.training import AlgoConfig, LearnerConfig, OptimConfig

__all__ = [
    "AUTO",
    "BY_RANK",
    "CORE_INPUTS",
    "LAYOUTS",
    "PARTS",
    "AlgoConfig",
    "BenchmarkConfig",
    "CheckpointConfig",
    "Config",
    "EvaluationConfig",
    "HooksConfig",
    "Kind",
    "LearnerConfig",
    "ModelConfig",
    "OptimConfig",
    "PopulationConfig",
    "ReportConfig",
    "RunConfig",
    "SamplingConfig",
    "TuningConfig",
    "WrapperConfig",
    "keys_and_layouts",
]

Kind = Literal["vector", "table", "continuous", "images"]  # of task: of EnvSpec, for the defaults of flags


@dataclass(frozen=True)
class Config:
    """All sections."""

    run: RunConfig = dataclasses.field(default_factory=RunConfig)
    sampling: SamplingConfig = dataclasses.field(default_factory=SamplingConfig)
    wrappers: WrapperConfig = dataclasses.field(default_factory=WrapperConfig)
    learner: LearnerConfig = dataclasses.field(default_factory=LearnerConfig)
    algo: AlgoConfig = dataclasses.field(default_factory=AlgoConfig)
    optim: OptimConfig = dataclasses.field(default_factory=OptimConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    population: PopulationConfig = dataclasses.field(default_factory=PopulationConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    report: ReportConfig = dataclasses.field(default_factory=ReportConfig)
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    hooks: HooksConfig = dataclasses.field(default_factory=HooksConfig)
    benchmark: BenchmarkConfig = dataclasses.field(default_factory=BenchmarkConfig)
    tuning: TuningConfig = dataclasses.field(default_factory=TuningConfig)

    @property
    def frames_per_step(self) -> int:
        """Frames of one env step."""
        return self.sampling.env_frameskip * self.wrappers.action_repeat
