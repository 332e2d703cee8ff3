"""Room: flags: what is reported, and when. In: nothing. Out: ``ReportConfig``."""

from __future__ import annotations

from dataclasses import dataclass

from sfactory.config.flag import flag


@dataclass(frozen=True)
class ReportConfig:
    """What is reported, and when."""

    stats_avg: int = flag(100, "episodes that reported means cover", ge=1)
    report_interval_sec: float = flag(5.0, "seconds between progress lines", gt=0)
    experiment_summaries_interval: float = flag(10.0, "seconds between TensorBoard and metrics.jsonl rows", gt=0)
    flush_summaries_interval: float = flag(30.0, "seconds between flushes of TensorBoard files", gt=0)
    with_tensorboard: bool = flag(True, "write TensorBoard event files")
    log_to_file: bool = flag(True, "write progress and messages to sf_log.txt in the run's folder, too")
