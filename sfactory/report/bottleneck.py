"""Measures how busy processes are, names the bottleneck, and suggests flags that make the run faster.

A flag is suggested only if it is not set already, no rule forbids it, and the machine has the hardware for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sfactory.clock import now
from sfactory.config.env_families import find_family, flag_that_stays_one
from sfactory.config.schema import Config
from sfactory.config.task_defaults import why_not_recorded
from sfactory.layout import ACTORS, LEARNERS, POLICY_WORKERS
from sfactory.model.precision import cpu_has_bf16
from sfactory.planning.plan import Plan
from sfactory.shared.status import StatusBoard

# Kinds of processes by their names, and rings by the kind of process that they need and by their readers.
KINDS = {"actor": ACTORS, "policy": POLICY_WORKERS, "learner": LEARNERS}
_RINGS = {
    "replies": ("policy", ACTORS),  # with local inference actors get no replies
    "requests": ("policy", POLICY_WORKERS),
    "trajectories": ("learner", LEARNERS),
}
_STATISTICS = ("count", "mean", "std", "min", "p10", "p50", "p90", "max")
_SATURATED = 0.9  # a kind of process with at least this busy share is the bottleneck


def depth_statistics(histogram: npt.NDArray[np.int64]) -> dict[str, float | None]:
    """Statistics of the depths 0, 1, ... in ``histogram`` ([D] int64, how often each was seen); all None if it is 0."""
    count = int(histogram.sum())
    if not count:
        return dict.fromkeys(_STATISTICS)
    depths = np.arange(len(histogram))
    seen = depths[histogram > 0]
    mean = float((depths * histogram).sum() / count)
    variance = float(((depths - mean) ** 2 * histogram).sum() / count)
    percentiles = np.searchsorted(np.cumsum(histogram), np.array((0.1, 0.5, 0.9)) * count)
    found = (count, mean, variance**0.5, float(seen[0]), *map(float, percentiles), float(seen[-1]))
    return dict(zip(_STATISTICS, found, strict=True))


@dataclass(frozen=True)
class Load:
    """Busy and waiting shares of the measured time, by kind of process, and ring depths of one time window.

    rings: statistics of the number of messages that readers found; 0 is not counted. For datasets: how many were ready
    when the learner needed one, 0 included.
    bound_by: the kind of process that limits throughput, "cores", or "none"; None if nothing was measured.
    idle_cores: cores that no busy process occupies. lost_cores: for which busy processes waited, and which this run,
    by the times of its processes, did not fill itself: other programs had them.
    """

    busy: dict[str, float]
    waiting: dict[str, float]
    rings: dict[str, dict[str, float | None]]
    bound_by: str | None
    idle_cores: float = 0.0
    lost_cores: float = 0.0

    def scalars(self) -> dict[str, float | None]:
        """``load/<kind>_busy``, ``load/<kind>_waiting`` and ``ring/<what>_<statistic>``."""
        row: dict[str, float | None] = {f"load/{kind}_busy": share for kind, share in self.busy.items()}
        row |= {f"load/{kind}_waiting": share for kind, share in self.waiting.items()}
        for what, statistics in self.rings.items():
            row |= {f"ring/{what}_{name}": value for name, value in statistics.items()}
        return row


class LoadMeter:
    """Measures the load between two calls of ``take``."""

    def __init__(self, status: StatusBoard, cores: int) -> None:
        """``cores``: how many the run may use."""
        self._status, self._cores = status, cores
        self._kinds = {kind: prefix for kind, prefix in KINDS.items() if status.values("pid", prefix)}
        self._rings = {what: prefix for what, (kind, prefix) in _RINGS.items() if kind in self._kinds}
        self._at = now()
        self._times, self._depths, self._queued_s = self._read_times(), self._read_depths(), self._read_queued()

    def take(self) -> Load:
        """The load since the last call."""
        at, times, depths, queued_s = now(), self._read_times(), self._read_depths(), self._read_queued()
        seconds = max(at - self._at, 1e-9)
        busy, waiting, in_use = dict[str, float](), dict[str, float](), dict[str, float]()
        for kind in self._kinds:
            # A reading between two time stamps may be off by a microsecond, hence the maximum.
            spent = np.maximum((times[kind] - self._times[kind]).sum(axis=0), 0.0)
            busy[kind], waiting[kind] = (spent / (spent.sum() or 1.0)).tolist()
            in_use[kind] = float(spent[0]) / seconds
        rings = {what: depth_statistics(depths[what] - self._depths[what]) for what in depths}
        queued = max(0.0, queued_s - self._queued_s) / seconds
        self._at, self._times, self._depths, self._queued_s = at, times, depths, queued_s
        left = self._cores - sum(in_use.values())
        lost = max(0.0, min(queued, left + queued))  # who waits for a core counts as busy
        return Load(busy, waiting, rings, self._bound_by(busy, in_use), max(0.0, left), lost)

    def _bound_by(self, busy: dict[str, float], in_use: dict[str, float]) -> str | None:
        """in_use: cores occupied by each kind of process."""
        if not any(busy.values()):
            return None
        if sum(in_use.values()) >= _SATURATED * max(self._cores, 1):
            # A process that waits for a core counts as busy too, so cores are the shortage.
            most = max(in_use, key=lambda kind: in_use[kind])
            fills_them = len(self._times[most]) >= self._cores
            return most if busy[most] >= _SATURATED and fills_them else "cores"
        most = max(busy, key=lambda kind: busy[kind])
        return most if busy[most] >= _SATURATED else "none"

    def _read_times(self) -> dict[str, npt.NDArray[np.float64]]:
        """Busy and waiting seconds of each process ([N, 2] float64), by kind."""
        return {kind: np.array(self._status.times(prefix, now())) for kind, prefix in self._kinds.items()}

    def _read_queued(self) -> float:
        """Seconds for which the main threads of all processes could have run and had no core, as the kernel counts."""
        total = 0
        for pid in [pid for prefix in self._kinds.values() for pid in self._status.values("pid", prefix)]:
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended, or the kernel does not count
                total += int(Path(f"/proc/{int(pid)}/schedstat").read_text().split()[1])
        return total / 1e9

    def _read_depths(self) -> dict[str, npt.NDArray[np.int64]]:
        depths = {what: self._status.histogram("depths", prefix) for what, prefix in self._rings.items()}
        return depths | {"datasets": self._status.histogram("ready", LEARNERS)}


_WIDE = 256  # rows; a larger batch of observations makes a forward pass hardly cheaper per row
_MUCH = 0.5  # of a core: less may be a moment in which the run's own processes share one
_SOME = 0.25  # an additional process needs at least this much of an idle core


class Advisor:
    """Suggests flags that would make a run or benchmark with this config and plan faster."""

    def __init__(self, config: Config, plan: Plan) -> None:
        self._sampling, self._learner, self._model = config.sampling, config.learner, config.model
        self._stage, self._layout, self._spec = config.benchmark.stage, plan.layout, plan.spec
        self._on_gpu = plan.device != "cpu"
        self._stays_one = flag_that_stays_one(find_family(config.run.env))
        self._records_updates = not why_not_recorded(config)
        self._acts_in_actors = plan.layout.inference == "local" and config.benchmark.stage != "env"
        self._cores, self._actor_cores = plan.cores.count, plan.cores.count - plan.cores.kept
        layout, cores = plan.layout, plan.cores
        own = self._learner.learner_num_threads
        self._math_threads = own or cores.learner_threads(layout.local_actors, layout.num_policies)
        self._useful_threads = min(cores.count, cores.learner_use)

    def advice(self, load: Load) -> str | None:
        """One line: the bottleneck of ``load`` and the flags that would help; None if nothing was measured."""
        if load.bound_by is None:
            return None
        # A busy learner occupies a core with each of its math threads.
        threads = 1 if self._on_gpu or self._stage in ("env", "sample") else self._math_threads
        idle_cores = load.idle_cores - (threads - 1) * load.busy.get("learner", 0.0)
        lost_cores = load.lost_cores - (threads - 1) * load.busy.get("learner", 0.0)
        # Among many processes, some always wait for one another's cores.
        if lost_cores >= _MUCH * max(1.0, self._cores / 4) and load.idle_cores < 1:
            return (
                f"bound by cores: other programs hold about {lost_cores:.1f} of the {self._cores} cores that this run "
                "may use; it is faster without them"
            )
        also = " and choosing their actions" if self._acts_in_actors else ""
        meaning, flags = {
            "actor": (f"stepping environments{also} sets the pace", self._for_actors(idle_cores)),
            "policy": ("choosing actions sets the pace", self._for_policies(idle_cores)),
            "learner": ("learning sets the pace", self._for_learners(idle_cores)),
            "cores": ("all cores are busy", self._for_cores()),
        }.get(load.bound_by, ("processes wait for one another", self._for_waiting()))
        kind = "none of them" if load.bound_by == "none" else load.bound_by
        return f"bound by {kind}: {meaning}; {'; '.join(flags) or 'no flag is known to help'}"

    def _for_actors(self, idle_cores: float) -> Iterator[str]:
        actors, learner_cores = self._sampling.num_workers, self._learner.learner_cores
        more = min(actors + max(1, int(idle_cores)), self._actor_cores)
        if idle_cores >= _SOME and more > actors:
            yield f"--num_workers={more} uses idle cores"
        elif idle_cores >= 1 and learner_cores:
            yield f"--learner_cores below {learner_cores} leaves more cores to actors"
        if self._acts_in_actors:
            if self._on_gpu:
                yield "--inference=central chooses actions on the GPU"
            yield from self._wider()
            yield from self._reduced_precision(on_gpu=False)
        if idle_cores < _SOME:
            yield "more cores, or cheaper environments, would help"

    def _for_policies(self, idle_cores: float) -> Iterator[str]:
        sampling = self._sampling
        workers = sampling.policy_workers_per_policy
        if not self._on_gpu:
            yield from self._local()
        elif not self._model.cuda_graphs:
            yield "--cuda_graphs=True replays recorded passes"
        if workers < sampling.num_workers and (self._on_gpu or idle_cores >= _SOME):
            yield f"--policy_workers_per_policy={workers + 1} shares the work"
        yield from self._wider()
        yield from self._reduced_precision(self._on_gpu)

    def _for_learners(self, idle_cores: float) -> Iterator[str]:
        learner = self._learner
        more = min(self._useful_threads, self._math_threads + max(0, round(idle_cores)))
        if not self._on_gpu and more > self._math_threads:
            yield f"--learner_num_threads={more} uses idle cores"
        if self._on_gpu and self._records_updates and not self._model.cuda_graphs:
            yield "--cuda_graphs=True replays recorded updates"
        yield from self._reduced_precision(self._on_gpu)
        if not self._layout.slots_until_trained and not learner.train_in_background_thread and self._stage == "full":
            yield "--train_in_background_thread=True assembles batches meanwhile"
        yield from self._fewer_epochs()
        yield f"a --batch_size above {learner.batch_size} makes fewer updates of as many steps"

    def _fewer_epochs(self) -> Iterator[str]:
        if (epochs := self._learner.num_epochs) > 1:
            yield f"--num_epochs below {epochs} costs less, and learns less from each step"

    def _for_cores(self) -> Iterator[str]:
        sampling = self._sampling
        if sampling.num_workers > self._cores:
            yield f"--num_workers={self._cores} avoids competing for cores"
        if self._layout.inference == "central" and not self._on_gpu:
            yield from self._local()
        if self._acts_in_actors and self._on_gpu:
            yield "--inference=central chooses actions on the GPU"
        yield from self._wider()
        if self._acts_in_actors or not self._on_gpu:
            yield from self._reduced_precision(on_gpu=False)
        if self._stage == "full" and not self._on_gpu:
            yield from self._fewer_epochs()
        yield "more cores would help"

    def _for_waiting(self) -> Iterator[str]:
        sampling, layout = self._sampling, self._layout
        if layout.slots_until_trained:
            flag = "--async_rl=True" if not sampling.async_rl else "--num_batches_to_accumulate=2"
            yield f"{flag} continues sampling while the learner trains"
        if layout.inference == "central" and layout.splits == 1 and not self._stays_one:
            even = "" if sampling.num_envs_per_worker % 2 == 0 else " with an even --num_envs_per_worker"
            yield f"--worker_num_splits=2{even} steps one group while the other waits for actions"
        if sampling.max_sample_requests_in_flight_per_worker:
            yield "--max_sample_requests_in_flight_per_worker=0 never delays an actor"
        if self._stage == "full" and not layout.slots_until_trained:
            if not self._learner.train_in_background_thread:
                yield "--train_in_background_thread=True assembles batches while others are learned from"
            elif self._learner.num_batches_to_accumulate == 1:
                yield "--num_batches_to_accumulate=2 assembles a batch while another is learned from"
            elif self._acts_in_actors:
                slots = sampling.min_traj_buffers_per_worker + 1
                yield f"--min_traj_buffers_per_worker={slots} lets actors run further ahead, with more policy lag"
        yield from self._wider()

    def _local(self) -> Iterator[str]:
        alone = "" if self._sampling.policy_workers_per_policy == 1 else " --policy_workers_per_policy=1"
        yield f"--inference=local{alone} sends no messages"

    def _wider(self) -> Iterator[str]:
        if self._layout.rows < _WIDE and self._stage != "env" and self._stays_one != "num_envs_per_worker":
            yield f"a --num_envs_per_worker above {self._sampling.num_envs_per_worker} chooses more actions at once"

    def _reduced_precision(self, on_gpu: bool) -> Iterator[str]:
        """Reduced precision; it pays only for images, where nearly all time is spent in multiplications."""
        has_images = any(leaf.is_image for _, leaf in self._spec.obs)
        if self._model.amp != "off" or not has_images or self._stage == "env":
            return
        if on_gpu:
            yield "--amp=auto uses reduced precision where the GPU supports it"
        elif cpu_has_bf16():
            yield "--amp=bf16 uses reduced precision, which this processor supports"
