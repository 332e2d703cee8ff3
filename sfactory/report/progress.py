"""The state of a run at one moment, and its words in a line of progress."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from sfactory.messages import PolicyLag
from sfactory.process.command import return_text

# Statistics shown in progress lines; metrics rows have all of them.
_SHOWN = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "grad_norm", "learning_rate")


@dataclass(frozen=True)
class Progress:
    """The current state of training: rates per second, None for unknown values; busy, bound_by: see bottleneck.Load.

    returns: mean return by policy, if there are several. learning: of each policy that learns, if there are several,
    the env steps that it has been trained on, and how many a second. env_faults: number of env failures by kind. For
    the live view alone: slots: number of slots by state; queues: mean number of messages that readers found; memory_mb:
    resident memory by kind of process, and the total; pure_fps: env steps per second of pure simulation, where that is
    known.
    """

    env_steps: int
    train_seconds: float
    updates: int
    fps_10s: float | None = None
    fps_60s: float | None = None
    sample_fps: float | None = None
    return_mean: float | None = None
    true_objective_mean: float | None = None
    best_return_mean: float | None = None
    length_mean: float | None = None
    returns: Sequence[float | None] = ()
    learning: Sequence[tuple[int, float | None]] = ()
    lag: PolicyLag = field(default_factory=PolicyLag)
    losses: Mapping[str, float] = field(default_factory=dict)
    busy: Mapping[str, float] = field(default_factory=dict)
    bound_by: str | None = None
    env_faults: Mapping[str, int] = field(default_factory=dict)
    slots: Mapping[str, int] = field(default_factory=dict)
    queues: Mapping[str, float | None] = field(default_factory=dict)
    memory_mb: Mapping[str, float] = field(default_factory=dict)
    pure_fps: float | None = None

    @property
    def least_env_steps(self) -> int:
        """Env steps of the policy that has the fewest: limits hold for each."""
        return min((env_steps for env_steps, _ in self.learning), default=self.env_steps)

    def seconds_until(self, env_steps: int) -> float | None:
        """Seconds until each policy that learns has so many; None if unknown."""
        speeds = self.learning or [(self.env_steps, self.fps_60s or self.fps_10s)]
        left = [(env_steps - steps) / fps if fps else None for steps, fps in speeds if steps < env_steps]
        return None if None in left else max((each for each in left if each is not None), default=0.0)

    @property
    def objective_mean(self) -> float | None:
        """The mean of the true objective, if it is not the return."""
        return None if self.true_objective_mean == self.return_mean else self.true_objective_mean


def line_of(progress: Progress, seconds_left: float | None) -> str:
    """Progress as ``key=value`` pairs; a dash for unknown values."""
    objective = progress.objective_mean
    pairs = {
        "env_steps": str(progress.env_steps),
        "fps_10s": _text(progress.fps_10s, 0),
        "fps_60s": _text(progress.fps_60s, 0),
        "sample_fps": _text(progress.sample_fps, 0),
        "return": return_text(progress.return_mean),
        **({} if objective is None else {"true_objective": return_text(objective)}),
        "best": return_text(progress.best_return_mean),
        **({"returns": ",".join(map(return_text, progress.returns))} if progress.returns else {}),
        "length": _text(progress.length_mean, 1),
        "lag": "/".join(_text(value, 1) for value in (progress.lag.min, progress.lag.mean, progress.lag.max)),
        "updates": str(progress.updates),
        **{name: f"{value:.4g}" for name, value in progress.losses.items() if name in _SHOWN and not math.isnan(value)},
        **({"busy": ",".join(f"{kind}:{share:.2f}" for kind, share in progress.busy.items())} if progress.busy else {}),
        **({} if progress.bound_by is None else {"bound_by": progress.bound_by}),
        **{name: str(count) for name, count in progress.env_faults.items() if count},
        "left": duration(seconds_left),
    }
    return " ".join(f"{key}={value}" for key, value in pairs.items())


def _text(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def duration(seconds: float | None) -> str:
    """``1:02:03``; a dash if it is unknown."""
    # Longer than a timedelta can hold counts as unknown.
    if seconds is None or seconds > timedelta.max.total_seconds():
        return "-"
    return str(timedelta(seconds=int(seconds)))
