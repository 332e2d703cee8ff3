"""Searches the best settings one at a time, in the order of their usual effect, starting from the best so far.

The values of one setting form a ladder, which is climbed as long as each step is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from sfactory.errors import ConfigError, ResourceError, SFactoryError
from sfactory.layout import Inference

GAIN = 0.03  # minimum gain of a challenger
NOISE = 0.1  # differences up to this are measured twice
MOST_TRIALS = 20
_LAST_TRIALS = 2  # trials reserved for the final comparison
_LOOKS = 3  # maximum trials per challenger
_HOPELESS = 3  # give up after so many failed trials without a success
_BATCH_RUNGS = 3
_MOST_ENVS = 2**16  # per worker
_ENV_RUNGS = 16
_SPLITS = (1, 2, 4)

# Errors that may depend on the settings, such as too little memory.
_PASSED_OVER = (SFactoryError, OSError, MemoryError)
_REFUSALS = (ConfigError, ResourceError)


@dataclass(frozen=True)
class Settings:
    """One value for each flag that may be varied; field names are the flags' names."""

    inference: Inference
    num_workers: int
    num_envs_per_worker: int
    worker_num_splits: int
    learner_num_threads: int
    batch_size: int

    @property
    def envs(self) -> int:
        """Number of envs of all workers."""
        return self.num_workers * self.num_envs_per_worker


@dataclass(frozen=True)
class Tried:
    """The result of one trial. rate: env steps per second; None if the trial failed, see ``why``."""

    settings: Settings
    rate: float | None
    why: str = ""


@dataclass(frozen=True)
class Found:
    """The result of a search."""

    best: Settings
    rate: float
    gain: float | None  # speed relative to the start, measured one after the other; None if the start does not work
    trials: list[Tried]


@dataclass
class Search:
    """Varies the settings named in ``free`` (fields of Settings), beginning with ``start``."""

    start: Settings
    free: Collection[str]
    cores: int
    measure: Callable[[Settings], float]  # env steps per second; see _PASSED_OVER for errors
    learner_threads: Callable[[Settings], int]  # that the learner gets where Settings say 0
    tell: Callable[[Tried], None] = lambda tried: None  # called with each trial
    out_of_time: Callable[[], bool] = lambda: False  # once it returns True, no new settings are tried
    trials: list[Tried] = field(default_factory=list)
    _best: Settings | None = field(default=None, init=False)
    _best_rate: float = field(default=0.0, init=False)
    _spent: int = field(default=0, init=False)  # number of trials that took time
    _first_error: BaseException | None = field(default=None, init=False)

    def run(self) -> Found:
        """Run the search; raises the first error if no settings could be measured."""
        self._wins(self.start)
        self._climb("batch_size", _doublings(self._now.batch_size, _BATCH_RUNGS))
        self._climb("num_envs_per_worker", self._env_counts())
        # Not a ladder, in which the next step would reveal a wrong measurement: always measure twice.
        other: Inference = "local" if self._now.inference == "central" else "central"
        if "inference" in self.free and self._wins(replace(self._now, inference=other), twice=True):
            self._climb("num_envs_per_worker", self._env_counts())
        self._climb("num_workers", self._worker_counts())
        if self._now.inference == "central":
            self._climb("worker_num_splits", [n for n in _SPLITS if self._now.num_envs_per_worker % n == 0])
        self._climb("learner_num_threads", [self.cores, *_powers(1, self.cores)])
        gain = self._compare_with_start()
        if self._best is None:
            assert self._first_error is not None
            raise self._first_error
        return Found(self._best, self._best_rate, gain, self.trials)

    @property
    def _now(self) -> Settings:
        return self._best or self.start

    def _climb(self, name: str, values: Collection[int]) -> None:
        """If ``name`` is free, try the larger values as long as each is faster, otherwise the smaller ones."""
        if name not in self.free:
            return
        origin = self._now
        now = getattr(origin, name)
        if name == "learner_num_threads" and not now:
            now = self.learner_threads(origin)
        above = sorted({value for value in values if value > now})
        below = sorted({value for value in values if value < now}, reverse=True)
        before = self._best
        for ladder in (above, below):
            for value in ladder:
                if not self._wins(self._with(origin, name, value)):
                    break
            if self._best is not before:
                return

    def _wins(self, challenger: Settings, twice: bool = False) -> bool:
        """Measure ``challenger``, make it the best if it gains enough; False also if no trials or time are left."""
        if self._spent > MOST_TRIALS - _LAST_TRIALS - _LOOKS or (self._best is not None and self.out_of_time()):
            return False
        rate = self._try(challenger)
        if rate is None:
            return False
        best = self._best
        if best is not None and (twice or abs(rate / self._best_rate - 1.0) <= NOISE):
            # The machine may have changed.
            self._best_rate = self._try(best) or self._best_rate
            if rate > (1.0 + GAIN) * self._best_rate:
                rate = self._try(challenger) or 0.0
        if best is not None and rate <= (1.0 + GAIN) * self._best_rate:
            return False
        self._best, self._best_rate = challenger, rate
        return True

    def _try(self, settings: Settings) -> float | None:
        rate, why, spent = None, "", 1
        try:
            rate = self.measure(settings)
        except _PASSED_OVER as error:
            self._first_error = self._first_error or error.with_traceback(None)  # frames hold the trial's memory
            why, spent = _in_one_line(error), 0 if isinstance(error, _REFUSALS) else 1
        self._spent += spent
        self.trials.append(Tried(settings, rate, why))
        self.tell(self.trials[-1])
        if self._best is None and rate is None and self._spent >= _HOPELESS:
            assert self._first_error is not None
            raise self._first_error
        return rate

    def _compare_with_start(self) -> float | None:
        """Compare start and best again, one after the other; returns the gain, None if the start does not work."""
        best = self._best
        if best is None or best == self.start:
            return 1.0
        if self.trials[0].rate is None:
            return None
        start_rate, best_rate = self._try(self.start), self._try(best)
        if start_rate is None:
            return None
        if best_rate is None or best_rate <= start_rate:
            self._best, self._best_rate = self.start, start_rate
            return 1.0
        self._best_rate = best_rate
        return best_rate / start_rate

    def _with(self, origin: Settings, name: str, value: int) -> Settings:
        """``origin`` with another value; other numbers of workers share the envs, if these are free."""
        values: dict[str, Any] = {name: value}
        if name == "num_workers" and "num_envs_per_worker" in self.free:
            splits = origin.worker_num_splits
            values["num_envs_per_worker"] = max(splits, origin.envs // value // splits * splits)
        return replace(origin, **values)

    def _env_counts(self) -> list[int]:
        now = self._now
        counts = _doublings(now.num_envs_per_worker, _ENV_RUNGS)
        return [count for count in counts if count <= _MOST_ENVS and count % now.worker_num_splits == 0]

    def _worker_counts(self) -> list[int]:
        doubled = _powers(2 * self._now.num_workers, 2 * self.cores)
        return [count for count in (1, self.cores // 2, self.cores, 2 * self.cores, *doubled) if count]


def _doublings(value: int, rungs: int) -> list[int]:
    """``value`` doubled and halved up to ``rungs`` times, as long as the results are integers."""
    halves = [value >> rung for rung in range(1, rungs + 1) if value % (1 << rung) == 0]
    return [*halves, *(value << rung for rung in range(1, rungs + 1))]


def _powers(first: int, below: int) -> list[int]:
    """``first``, doubled as long as it is less than ``below``."""
    values: list[int] = []
    while first < below:
        values.append(first)
        first *= 2
    return values


def _in_one_line(error: BaseException) -> str:
    """A one-line summary: the first problem of a ConfigError, else the last line of the error text."""
    if isinstance(error, ConfigError):
        return error.problems[0]
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
