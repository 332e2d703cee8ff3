"""Room: where the time goes. In: the status board. Out: shares of busy and waiting time, depths of rings, a verdict.

Everything is read from counters that processes keep for themselves, so looking takes no lock of theirs.

Room: what would make a run faster. In: its configuration and plan, and who sets the pace. Out: one line of advice.

A flag is named only where it is not set that way already, where no rule forbids it, and where the machine has what it
needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from sfactory.clock import now
from sfactory.config.schema import Config, LearnerConfig, ModelConfig, SamplingConfig
from sfactory.layout import ACTORS, LEARNERS, POLICY_WORKERS, Layout
from sfactory.model.precision import cpu_has_bf16
from sfactory.planning.plan import Plan
from sfactory.shared.status import StatusBoard, Times
from sfactory.spec import EnvSpec

# Kinds of processes, and what comes to them through their rings.
KINDS = {"actor": ACTORS, "policy": POLICY_WORKERS, "learner": LEARNERS}
_RINGS = {"replies": ACTORS, "requests": POLICY_WORKERS, "trajectories": LEARNERS}
_SATURATED = 0.9  # a kind that is busy for this share of the time sets the pace


@dataclass(frozen=True)
class Depth:
    """How many messages a reader found in its ring whenever it found any, over a window.

    Of datasets: how many were ready whenever the learner wanted one, none included.
    """

    count: int
    mean: float
    std: float
    min: float
    p10: float
    p50: float
    p90: float
    max: float

    @staticmethod
    def of(histogram: npt.NDArray[np.int64]) -> Depth | None:
        """Statistics of depths 0, 1, ... by how often each was seen; None if none was."""
        count = int(histogram.sum())
        if not count:
            return None
        depths = np.arange(len(histogram))
        seen = depths[histogram > 0]
        mean = float((depths * histogram).sum() / count)
        variance = float(((depths - mean) ** 2 * histogram).sum() / count)
        below = np.cumsum(histogram)
        p10, p50, p90 = (float(np.searchsorted(below, share * count)) for share in (0.1, 0.5, 0.9))
        return Depth(count, mean, variance**0.5, float(seen[0]), p10, p50, p90, float(seen[-1]))


@dataclass(frozen=True)
class Load:
    """Of one window: shares of time by kind of process, queues by what comes through them, a verdict.

    busy, waiting: of the time in which processes of that kind told how they spend it; they add up to 1.
    bound_by: the kind of process that sets the pace, "cores", or "nobody"; None if nothing was measured.
    idle_cores: what busy processes leave over of all cores, where each keeps one busy.
    """

    busy: dict[str, float]
    waiting: dict[str, float]
    rings: dict[str, Depth | None]
    bound_by: str | None
    idle_cores: float = 0.0

    def scalars(self) -> dict[str, float | None]:
        """``load/<kind>_busy``, ``load/<kind>_waiting`` and ``ring/<what>_<statistic>``."""
        row: dict[str, float | None] = {f"load/{kind}_busy": share for kind, share in self.busy.items()}
        row |= {f"load/{kind}_waiting": share for kind, share in self.waiting.items()}
        for what, depth in self.rings.items():
            for statistic in Depth.__dataclass_fields__:
                row[f"ring/{what}_{statistic}"] = None if depth is None else getattr(depth, statistic)
        return row


class LoadMeter:
    """Measures window after window, each from one ``take`` to the next."""

    def __init__(self, status: StatusBoard, cores: int) -> None:
        """``cores``: how many processes can run at once."""
        self._status, self._cores = status, cores
        self._kinds = {kind: prefix for kind, prefix in KINDS.items() if status.values("pid", prefix)}
        self._rings = {what: prefix for what, prefix in _RINGS.items() if prefix in self._kinds.values()}
        if "policy" not in self._kinds:
            self._rings.pop("replies")  # actors with a policy of their own are answered by nobody
        self._queues = (*self._rings, "datasets")
        self._at = now()
        self._times, self._depths = self._read_times(), self._read_depths()

    def take(self) -> Load:
        """The load since the last call."""
        at, times, depths = now(), self._read_times(), self._read_depths()
        seconds = max(at - self._at, 1e-9)
        spent = {kind: _spent(self._times[kind], times[kind]) for kind in self._kinds}
        busy = {kind: _share(of.busy, of) for kind, of in spent.items()}
        waiting = {kind: _share(of.waiting, of) for kind, of in spent.items()}
        rings = {what: Depth.of(depths[what] - self._depths[what]) for what in self._queues}
        self._at, self._times, self._depths = at, times, depths
        in_use = {kind: of.busy / seconds for kind, of in spent.items()}
        idle = max(0.0, self._cores - sum(in_use.values()))
        return Load(busy, waiting, rings, self._bound_by(busy, in_use), idle)

    def _bound_by(self, busy: dict[str, float], in_use: dict[str, float]) -> str | None:
        """in_use: cores that processes of a kind keep busy."""
        if not any(busy.values()):
            return None
        if sum(in_use.values()) >= _SATURATED * max(self._cores, 1):
            # Every process that is ready to run counts as busy, so the cores are what is short.
            most = max(in_use, key=lambda kind: in_use[kind])
            fills_them = len(self._times[most]) >= self._cores
            return most if busy[most] >= _SATURATED and fills_them else "cores"
        most = max(busy, key=lambda kind: busy[kind])
        return most if busy[most] >= _SATURATED else "nobody"

    def _read_times(self) -> dict[str, list[Times]]:
        return {kind: self._status.times(prefix, now()) for kind, prefix in self._kinds.items()}

    def _read_depths(self) -> dict[str, npt.NDArray[np.int64]]:
        depths = {what: self._status.depths(prefix) for what, prefix in self._rings.items()}
        return depths | {"datasets": self._status.ready(LEARNERS)}


def _spent(before: list[Times], after: list[Times]) -> Times:
    """What all processes of a kind have spent between two looks."""
    busy = sum(b.busy - a.busy for a, b in zip(before, after, strict=True))
    waiting = sum(b.waiting - a.waiting for a, b in zip(before, after, strict=True))
    # A look between two marks may be wrong by the microsecond that it takes.
    return Times(max(0.0, busy), max(0.0, waiting))


def _share(seconds: float, spent: Times) -> float:
    total = spent.busy + spent.waiting
    return seconds / total if total else 0.0


_WIDE = 256  # rows, from where on a wider batch of observations makes a forward pass hardly cheaper per row
_IMAGE = 3  # dimensions
_SOME = 0.25  # so much of a core has to be idle for one more process to gain by it


@dataclass(frozen=True)
class Advisor:
    """Says which flags would help this run. ``math_threads``: the learner's. ``actor_cores``: where actors may be."""

    sampling: SamplingConfig
    learner: LearnerConfig
    model: ModelConfig
    stage: Literal["env", "sample", "learn", "full"]
    layout: Layout
    spec: EnvSpec
    on_gpu: bool
    cores: int
    actor_cores: int
    math_threads: int

    @staticmethod
    def of(config: Config, plan: Plan) -> Advisor:
        """The advisor of a run, or of a benchmark of one."""
        return Advisor(
            sampling=config.sampling,
            learner=config.learner,
            model=config.model,
            stage=config.benchmark.stage,
            layout=plan.layout,
            spec=plan.spec,
            on_gpu=plan.device != "cpu",
            cores=plan.cores.count,
            actor_cores=plan.cores.count - plan.cores.kept,
            math_threads=config.learner.learner_num_threads or plan.cores.learner_threads(plan.layout.num_actors),
        )

    def advice(self, load: Load) -> str | None:
        """What the verdict of ``load`` means, and which flags would help; None if there is no verdict."""
        if load.bound_by is None:
            return None
        meaning, flags = self._of_verdict(load.bound_by, self._idle_cores(load))
        if not flags:
            flags = ["no flag is known to help"]
        return f"bound by {load.bound_by}: {meaning}; {'; '.join(flags)}"

    def _idle_cores(self, load: Load) -> float:
        """Cores that nobody uses, the learner's threads counted as far as it is busy."""
        more_threads = 0 if self.on_gpu or self.stage in ("env", "sample") else self.math_threads - 1
        return load.idle_cores - more_threads * load.busy.get("learner", 0.0)

    def _of_verdict(self, bound_by: str, idle_cores: float) -> tuple[str, list[str]]:
        match bound_by:
            case "actor":
                also = " and choosing their actions" if self._acts_in_actors else ""
                return f"stepping environments{also} sets the pace", list(self._for_actors(idle_cores))
            case "policy":
                return "choosing actions sets the pace", list(self._for_policies(idle_cores))
            case "learner":
                return "learning sets the pace", list(self._for_learners(idle_cores))
            case "cores":
                return "all cores are busy", list(self._for_cores())
            case _:
                return "processes wait for one another", list(self._for_waiting())

    def _for_actors(self, idle_cores: float) -> Iterator[str]:
        actors, learner_cores = self.sampling.num_workers, self.learner.learner_cores
        more = min(actors + max(1, int(idle_cores)), self.actor_cores)
        if idle_cores >= _SOME and more > actors:
            yield f"--num_workers={more} uses idle cores"
        elif idle_cores >= 1 and learner_cores:
            yield f"--learner_cores below {learner_cores} leaves more cores to actors"
        if self._acts_in_actors:
            if self.on_gpu:
                yield "--inference=central has the GPU choose actions"
            yield from self._wider()
            yield from self._short_format(on_gpu=False)
        if idle_cores < _SOME:
            yield "more cores, or cheaper environments, would help"

    def _for_policies(self, idle_cores: float) -> Iterator[str]:
        sampling = self.sampling
        workers = sampling.policy_workers_per_policy
        if self.on_gpu:
            if not self.model.cuda_graphs:
                yield "--cuda_graphs=True replays recorded passes"
        else:
            yield from self._local()
        if workers < sampling.num_workers and (self.on_gpu or idle_cores >= _SOME):
            yield f"--policy_workers_per_policy={workers + 1} shares the work"
        yield from self._wider()
        yield from self._short_format(self.on_gpu)

    def _for_learners(self, idle_cores: float) -> Iterator[str]:
        learner = self.learner
        more = min(self.cores, self.math_threads + max(0, round(idle_cores)))
        if not self.on_gpu and more > self.math_threads:
            yield f"--learner_num_threads={more} uses idle cores"
        yield from self._short_format(self.on_gpu)
        if not self.layout.slots_until_trained and not learner.train_in_background_thread and self.stage == "full":
            yield "--train_in_background_thread=True assembles batches meanwhile"
        yield from self._fewer_passes()
        yield f"a --batch_size above {learner.batch_size} makes fewer updates of as many steps"

    def _fewer_passes(self) -> Iterator[str]:
        epochs = self.learner.num_epochs
        if epochs > 1:
            yield f"--num_epochs below {epochs} costs less, and learns less from each step"

    def _for_cores(self) -> Iterator[str]:
        sampling = self.sampling
        if sampling.num_workers > self.cores:
            yield f"--num_workers={self.cores} takes nothing away"
        if self.layout.inference == "central" and not self.on_gpu:
            yield from self._local()
        if self._acts_in_actors and self.on_gpu:
            yield "--inference=central has the GPU choose actions"
        yield from self._wider()
        if self._acts_in_actors or not self.on_gpu:
            yield from self._short_format(on_gpu=False)
        if self.stage == "full" and not self.on_gpu:
            yield from self._fewer_passes()
        yield "more cores would help"

    def _for_waiting(self) -> Iterator[str]:
        sampling, layout = self.sampling, self.layout
        if layout.slots_until_trained:
            flag = "--async_rl=True" if not sampling.async_rl else "--num_batches_to_accumulate=2"
            yield f"{flag} lets collection go on while the learner trains"
        if layout.inference == "central" and layout.splits == 1:
            even = "" if sampling.num_envs_per_worker % 2 == 0 else " with an even --num_envs_per_worker"
            yield f"--worker_num_splits=2{even} steps one group while the other waits for actions"
        if sampling.max_sample_requests_in_flight_per_worker:
            yield "--max_sample_requests_in_flight_per_worker=0 holds no actor up"
        if self.stage == "full" and not layout.slots_until_trained:
            yield from self._ahead()
        yield from self._wider()

    def _ahead(self) -> Iterator[str]:
        """What lets actors and learner run further ahead of each other, at the price of policy lag."""
        learner, slots = self.learner, self.sampling.min_traj_buffers_per_worker
        if not learner.train_in_background_thread:
            yield "--train_in_background_thread=True assembles batches while others are learned from"
        elif learner.num_batches_to_accumulate == 1:
            yield "--num_batches_to_accumulate=2 assembles a batch while another is learned from"
        elif self._acts_in_actors:
            yield f"--min_traj_buffers_per_worker={slots + 1} lets actors run further ahead, with more policy lag"

    @property
    def _acts_in_actors(self) -> bool:
        return self.layout.inference == "local" and self.stage != "env"

    def _local(self) -> Iterator[str]:
        alone = "" if self.sampling.policy_workers_per_policy == 1 else " --policy_workers_per_policy=1"
        yield f"--inference=local{alone} sends no messages"

    def _wider(self) -> Iterator[str]:
        if self.layout.rows < _WIDE and self.stage != "env":
            yield f"a --num_envs_per_worker above {self.sampling.num_envs_per_worker} chooses more actions at once"

    def _short_format(self, on_gpu: bool) -> Iterator[str]:
        """A short number format, where there are units for it and images: for them nearly all is multiplication."""
        has_images = any(len(tensor.shape) == _IMAGE for _, tensor in self.spec.obs)
        if self.model.amp != "off" or not has_images or self.stage == "env":
            return
        if on_gpu:
            yield "--amp=auto computes in a short format where the GPU has units for it"
        elif cpu_has_bf16():
            yield "--amp=bf16 computes in a short format, for which this processor has units"
