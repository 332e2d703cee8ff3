"""The loops of a learner: from slots that are ready to published weights and checkpoints.

Batchers assemble datasets, loaders bring them to the device unless it is the CPU, and one thread trains: see
``DatasetQueue``. With synchronous collection or ``--train_in_background_thread=False`` one thread assembles and trains
in turn. The main thread waits, and saves at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import torch

from sfactory.clock import BLOCK_S, Awake, now
from sfactory.errors import RankLost, SFactoryError, Starved, named
from sfactory.layout import ACTORS
from sfactory.learner.batcher import Batcher, Inbox
from sfactory.learner.dataset_queue import DatasetQueue
from sfactory.learner.diagnostics import Starvation
from sfactory.learner.learner import Learner
from sfactory.learner.replay import Replay
from sfactory.learner.setup import LearnerSetup
from sfactory.learner.staging import CopyThreads, DeviceSlot, Staging
from sfactory.learner.training_loop import TrainingLoop
from sfactory.process.threads import Threads
from sfactory.ranks.ranks import ALONE, Ranks
from sfactory.seeds import Branch, seed_at
from sfactory.shared.control import Stop
from sfactory.shared.status import State, StatusRow, Stopwatch
from sfactory.system.gpu import require_device_memory, use_device

_log = logging.getLogger(__name__)


class LearnerWorker:
    """Assembles datasets and has a ``Learner`` learn from them, until a limit or a stop.

    starvation: how long training waits for a dataset; begun again after each ``learn``.

    The status board shows as busy the thread that trains. A worker that assembles and trains in turn waits only for
    slots that were not announced yet.
    """

    def __init__(self, setup: LearnerSetup, learner: Learner, row: StatusRow) -> None:
        shared, policy, config = setup.shared, setup.policy, setup.config.learner
        self.setup, self._shared, self._learner, self._row = setup, shared, learner, row
        self._watch = Stopwatch(row)
        self._copying = CopyThreads(config.learner_main_loop_num_cores)
        self._inbox = Inbox(policy, shared, row, several=config.num_batchers > 1)
        self._replay: Replay | None = None
        if config.replay_proportion:
            # A resumed run draws other rows, as its actors act otherwise.
            seed = seed_at(setup.seed, Branch.REPLAY, policy, learner.trainer.train_step)
            self._replay = Replay(config.replay_proportion, config.replay_slots, config.replay_include_new, seed)
        self._batcher = self._make_batcher()
        one_of = policy if shared.layout.num_policies > 1 else None
        timeout, port = config.learner_starvation_timeout_sec, setup.config.sampling.remote_actors_port
        self.starvation = Starvation(timeout, shared.status, shared.table, one_of, port)
        self._own_area: Staging | None = None
        self._dataset_queue: DatasetQueue | None = None

    def over(self) -> bool:
        """True once nothing more is to be learned. Training time begins with the first env step of any actor."""
        self._start_clock()
        return self._learner.must_stop or self._learner.over

    @property
    def _is_outdated(self) -> bool:
        """Whether datasets are assembled for another batch size than the one in force, which a command has changed."""
        return self._learner.trainer.learner.batch_size != self.setup.config.learner.batch_size

    def rebuild(self) -> None:
        """Assemble datasets for the batch size in force, once no loop runs; drop, and count, what was begun before."""
        if self._dataset_queue is not None:
            self._dataset_queue.drop_rest()
            self._dataset_queue = None
        if self._own_area is not None:
            self._count_dropped(self._own_area.valid_steps)
            self._own_area = None
        self._batcher.trained()
        config = replace(self.setup.config, learner=self._learner.trainer.learner)
        self.setup = replace(self.setup, config=config)

    def start(self, threads: Threads) -> None:
        """Start the loops; they end at a limit, at a stop, if one of them fails, or if the worker is outdated."""
        setup, stage = self.setup, self.setup.config.benchmark.stage
        if stage == "sample" or not setup.trains:
            threads.start("rings", self.drain)
        elif stage == "learn":
            threads.start("rings", self._learn_again_and_again)
        elif setup.config.learner.train_in_background_thread and not setup.layout.slots_until_trained:
            self._start_dataset_queue(threads)
        else:
            threads.start("rings", self._take_turns)

    def drain(self) -> None:
        """``discard``, and execute commands, until a stop is ordered."""
        while not self._shared.control.stopping:
            self.discard(BLOCK_S)
            self._learner.execute_command()

    def discard(self, timeout: float) -> None:
        """Free announced slots although nothing more is learned, so that others are not held up."""
        self._wait(self._inbox.receive, timeout)  # no batcher is left, nor the thread that reads for them
        self._batcher.discard()

    def assemble(self, timeout: float) -> bool:
        """Copy announced slots, blocking up to ``timeout`` seconds for the first; True once a dataset is complete."""
        if self._is_outdated:
            self.rebuild()
        self._wait(self._inbox.wait, timeout)
        return self._batcher.advance(self._area(), 0)

    def learn(self) -> None:
        """Learn from the complete dataset, and begin a new one."""
        area = self._area()
        self._learner.learn(area)
        if self._learner.trainer.averaging is not None:
            self._learner.may_open(False)  # where collection waits, it goes on with the mean, if one is due
        area.clear()
        self._batcher.trained()

    def _take_turns(self) -> None:
        while not self.over():
            is_ready = self.assemble(BLOCK_S)
            if self._learner.may_open(is_ready):
                self.learn()
                self.starvation.begin()  # the time of learning is not waiting time
            elif not is_ready:
                self._learner.execute_command()
                self.starvation.look()

    def _learn_again_and_again(self) -> None:
        """From one dataset, as if it were a new one each time; takes in nothing more. On a GPU it is loaded once."""
        area, slot = self._area(), next(iter(self._device_slots(1)), None)
        while not self.over():
            if not area.full and self.assemble(BLOCK_S) and slot is not None:
                slot.load(area)
                slot.before_reading()
            if area.full:
                columns = area if slot is None else slot
                columns.scalars["policy_version"].fill_(self._learner.trainer.train_step)
                self._watch.lap()
                self._learner.learn(columns)

    def _start_dataset_queue(self, threads: Threads) -> None:
        setup, config = self.setup, self.setup.config.learner
        slots = self._device_slots(self._slots_of_a_run())
        areas = [self._staging() for _ in range(setup.layout.datasets)]
        queue = DatasetQueue(areas, slots, config.learner_queue_policy == "drop_oldest", self._count_dropped)
        self._dataset_queue = queue
        training = TrainingLoop(self._learner, queue, self._row, self._watch, self.starvation)
        threads.start("train", lambda: training.run(lambda: self._learner.must_stop or self._cannot_go_on(threads)))
        for number in range(config.num_loader_threads if slots else 0):
            threads.start(f"load-{number}", lambda: self._load(queue, threads))
        if config.num_batchers > 1:
            threads.start("inbox", lambda: self._read_for_batchers(threads))
        for number in range(config.num_batchers):
            threads.start(f"batch-{number}", lambda: self._batch(queue, threads))

    def _read_for_batchers(self, threads: Threads) -> None:
        while not self._wants_no_more(threads):
            self._inbox.receive(BLOCK_S)

    def _batch(self, dataset_queue: DatasetQueue, threads: Threads) -> None:
        """Fill areas of the queue."""
        batcher = self._make_batcher()
        while not self._wants_no_more(threads):
            area = dataset_queue.area_to_fill(BLOCK_S)
            if area is None:
                continue
            since = now()
            if batcher.fill(area, lambda: self._wants_no_more(threads)):
                self._start_clock()
                self._learner.timings.add("dequeue", now() - since)
                dataset_queue.submit(area)
            else:
                dataset_queue.give_up(area)

    def _load(self, dataset_queue: DatasetQueue, threads: Threads) -> None:
        """Bring full areas to the device."""
        while not self._wants_no_more(threads):
            found = dataset_queue.next_load(BLOCK_S)
            if found is not None:
                with self._learner.timings.stretch("load"):
                    dataset_queue.load(*found)

    def _cannot_go_on(self, threads: Threads) -> bool:
        return threads.failed or self._is_outdated

    def _wants_no_more(self, threads: Threads) -> bool:
        """Whether the threads that feed training are to end."""
        return self._learner.wants_no_more or self._shared.control.stopping or self._cannot_go_on(threads)

    def _count_dropped(self, steps: int) -> None:
        self._row.add("dropped_steps", steps)

    def _start_clock(self) -> None:
        sampling_since = [at for at in self._shared.status.values("first_step_at", ACTORS) if at]
        if sampling_since:
            self._learner.progress.start_clock(min(sampling_since))

    def _area(self) -> Staging:
        """The only staging area of a worker that assembles and trains in turn."""
        if self._own_area is None:
            self._own_area = self._staging()
        return self._own_area

    def _staging(self) -> Staging:
        setup, pin = self.setup, self.setup.device != "cpu"
        return Staging(setup.spec, setup.layout, pin, self._copying, self._replay is not None, setup.policy)

    def _device_slots(self, count: int) -> list[DeviceSlot]:
        """Where loaders bring ``count`` datasets to; none where the device reads the memory of the host.

        Raises ResourceError if the device has no room for them.
        """
        setup, device, replay = self.setup, torch.device(self.setup.device), self._replay is not None
        if device.type == "cpu":
            return []
        need = count * DeviceSlot.bytes_of(setup.spec, setup.layout, replay)
        fewer = "--num_gpu_slots, " if count > 1 else ""
        lower = f"{fewer}--batch_size or --num_batches_per_epoch"
        require_device_memory(need, device, f"{count} datasets (--num_gpu_slots)", lower)
        return [DeviceSlot(setup.spec, setup.layout, device, replay) for _ in range(count)]

    def _slots_of_a_run(self) -> int:
        """How many datasets the device holds in a run."""
        ring, count = self.setup.config.learner.minibatch_ring_size, self.setup.config.learner.num_gpu_slots
        if self.setup.device != "cpu" and 1 < ring >= count:
            _log.warning(
                f"--minibatch_ring_size={ring} takes all of --num_gpu_slots={count}: nothing is loaded during "
                f"training; --num_gpu_slots={ring + 1} loads one dataset meanwhile"
            )
        return self.setup.config.learner.device_datasets

    def _make_batcher(self) -> Batcher:
        return Batcher(self._inbox, self.setup.layout.slots_until_trained, self._replay)

    def _wait(self, receive: Callable[[float], None], timeout: float) -> None:
        self._watch.before_wait()
        receive(timeout)
        self._watch.after_wait()


def run_learner(setup: LearnerSetup, row: StatusRow) -> None:
    """The main function of a learner process, from the checkpoint that it loads to the last one that it saves."""
    torch.manual_seed(seed_at(setup.seed, Branch.LEARNER, setup.policy))
    torch.set_num_threads(setup.threads)
    use_device(setup.device)
    try:
        ranks = _ranks_of(setup)
    except RankLost:
        if setup.shared.control.stopping:  # nothing was learned
            return
        raise
    try:
        _train(setup, row, ranks)
    except BaseException as failure:
        ranks.tell_failure(failure.headline if isinstance(failure, SFactoryError) else named(failure))
        raise


def _ranks_of(setup: LearnerSetup) -> Ranks:
    if setup.place.world == 1:
        return ALONE
    from sfactory.ranks.distributed import DistributedRanks

    device, timeout_s = torch.device(setup.device), setup.config.run.rank_timeout_sec
    return DistributedRanks(setup.place, device, timeout_s, lambda: setup.shared.control.stopping)


def _train(setup: LearnerSetup, row: StatusRow, ranks: Ranks) -> None:
    control = setup.shared.control
    learner = Learner(setup, row, ranks)
    learner.begin()
    if not setup.trains:
        learner.checkpointer.save_first()
    row.set("state", State.RUNNING if setup.trains else State.DONE)
    worker, awake = LearnerWorker(setup, learner, row), Awake()
    learner.progress.awake = awake

    def over() -> bool:
        awake.look()
        return worker.over()

    while True:
        threads = Threads(setup.device)  # see NOTE [Saving waits for no ring]
        worker.start(threads)
        try:
            threads.wait(over)
        except (RankLost, Starved):  # raised between updates, which are whole
            learner.finish(save=control.stop is not Stop.NOW)
            raise
        if worker.over():
            break
        worker.rebuild()
    learner.finish(save=control.stop is not Stop.NOW)
    threads.leave()
    if setup.layout.num_policies > 1 and not control.stopping:
        others = Threads(setup.device)
        others.start("rings", worker.drain)
        others.wait(lambda: control.stopping)
