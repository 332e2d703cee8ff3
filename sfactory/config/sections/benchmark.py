"""Room: flags: measuring instead of training. In: nothing. Out: ``BenchmarkConfig``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sfactory.config.flag import flag


@dataclass(frozen=True)
class BenchmarkConfig:
    """Measuring throughput instead of training to an end."""

    benchmark: bool = flag(False, "warm up, measure, print one JSON line, stop")
    benchmark_stage: Literal["env", "sample", "learn", "full"] = flag(
        "full",
        "with benchmark: what is measured: environments alone, sampling without training, training again and again on "
        "one dataset while nothing is sampled, or all of it together",
    )
    sampler_only: bool = flag(False, "with benchmark: the same as benchmark_stage=sample")
    benchmark_seconds: float = flag(30.0, "length of the measurement", gt=0)

    @property
    def stage(self) -> Literal["env", "sample", "learn", "full"]:
        """What is measured."""
        return "sample" if self.sampler_only else self.benchmark_stage
