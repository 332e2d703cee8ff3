"""Room: the loops of a learner. In: READY slots. Out: published weights and checkpoints.

Beside sampling, batchers assemble datasets, loaders bring them to the device if it is not the CPU, and one thread
trains: see ``DatasetQueue``. With synchronous collection or ``--train_in_background_thread=False`` one thread
assembles and trains in turn. The main thread waits, and saves at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import torch

from sfactory.clock import BLOCK_S, now
from sfactory.layout import ACTORS
from sfactory.learner.batcher import Batcher, Inbox
from sfactory.learner.dataset_queue import DatasetQueue
from sfactory.learner.diagnostics import Starvation
from sfactory.learner.learner import Learner
from sfactory.learner.replay import Replay
from sfactory.learner.setup import LearnerSetup
from sfactory.learner.staging import CopyThreads, DeviceSlot, Staging
from sfactory.learner.threads import Threads
from sfactory.learner.training_loop import TrainingLoop
from sfactory.seeds import Branch, seed_at
from sfactory.shared.control import Stop
from sfactory.shared.status import State, StatusRow, Stopwatch

_log = logging.getLogger(__name__)


class LearnerWorker:
    """Assembles datasets and has them learned from, until a limit or a stop.

    Busy, as the status board tells it, is the thread that trains: one that assembles beside it counts for nothing, and
    what it takes too long for is time that the training thread waits. A learner that does both in turn waits only for
    slots that were not announced yet.
    """

    def __init__(self, setup: LearnerSetup, learning: Learner, row: StatusRow, inbox: Inbox | None = None) -> None:
        """``inbox``: of one that this one takes over from, see ``resized``."""
        self._setup, self._learning, self._row = setup, learning, row
        self._watch = Stopwatch(row)
        self._own_area: Staging | None = None
        self._copying = CopyThreads(setup.learner.learner_main_loop_num_cores)
        self._shared_inbox = setup.learner.num_batchers > 1
        self._inbox = inbox or Inbox(
            setup.policy, setup.trajectories, setup.table, setup.inbox, setup.to_actors, row, self._shared_inbox
        )
        self._replay = self._make_replay()
        self._assembler = self._make_assembler()
        policy = setup.policy if setup.layout.num_policies > 1 else None
        timeout_s = setup.learner.learner_starvation_timeout_sec
        self._starvation = Starvation(timeout_s, setup.status, setup.table, policy)
        self._dataset_queue: DatasetQueue | None = None
        self._dropped_before = int(row.get("dropped_steps"))  # by one that this one takes over from

    def start(self, threads: Threads) -> None:
        """Start the loops; they end at a limit, a stop, or the failure of another."""
        setup = self._setup
        if setup.stage == "sample" or not setup.trains:
            threads.start("rings", self.drain)
        elif setup.stage == "learn":
            threads.start("rings", self._learn_again_and_again)
        elif setup.learner.train_in_background_thread and not setup.layout.slots_until_trained:
            self._start_dataset_queue(threads)
        else:
            threads.start("rings", self._take_turns)

    @property
    def trains(self) -> bool:
        """Whether there is anything to learn."""
        return self._setup.trains

    def discard(self, timeout: float) -> None:
        """Nothing more is learned: free what comes all the same, so that others are not held up."""
        self._wait(self._inbox.receive, timeout)  # no batcher is there any more, and no thread that reads for them
        self._assembler.discard()

    def assemble(self, timeout: float) -> bool:
        """Take in what has come, blocking up to ``timeout`` seconds for it; True once a dataset is complete."""
        self._wait(self._assembler.receive, timeout)
        return self._assembler.advance(self._area(), 0)

    def learn(self) -> None:
        """Learn from the complete dataset, and begin a new one.

        If its size was changed while it was assembled it is dropped, and counted.
        """
        area = self._area()
        if self._learning.learner.batch_size == self._setup.learner.batch_size:
            self._learning.learn(area)
        else:
            self._row.add("dropped_steps", area.valid_steps)
        area.clear()
        self._assembler.trained()
        self._resize()

    def obey(self) -> None:
        """While no dataset is complete: carry out what main has ordered, if it has ordered anything."""
        self._learning.obey()
        if not self._area().filled:
            self._resize()

    @property
    def is_outgrown(self) -> bool:
        """Whether batches are to have another size from now on, or there are to be more passes over them, or fewer."""
        wanted, mine = self._learning.learner, self._setup.learner
        return (wanted.batch_size, wanted.num_epochs) != (mine.batch_size, mine.num_epochs)

    def is_finished(self) -> bool:
        """Whether its threads are to end: nothing more is to be learned, or in other sizes.

        A thread that does all in turn changes its sizes by itself.
        """
        return self.over() or (self._dataset_queue is not None and self.is_outgrown)

    def resized(self) -> LearnerWorker:
        """One that goes on with the sizes in force, once the threads of this one have ended.

        What this one had taken in and not learned from is dropped, and counted.
        """
        if self._dataset_queue is not None:
            self._dataset_queue.drop_rest()
            self._count_dropped(self._dataset_queue)
        return LearnerWorker(self._new_setup(), self._learning, self._row, self._inbox)

    def _resize(self) -> None:
        """Assemble in the sizes in force from now on."""
        if self.is_outgrown:
            self._setup, self._own_area = self._new_setup(), None

    def _new_setup(self) -> LearnerSetup:
        learner = self._learning.learner
        return replace(self._setup, learner=learner, layout=self._setup.layout.with_batches(learner))

    def over(self) -> bool:
        """True once nothing more is to be learned. Training time begins with the first env step of any actor."""
        self._start_clock()
        return self._setup.control.stopping or self._learning.over

    def _start_clock(self) -> None:
        sampling_since = [at for at in self._setup.status.values("first_step_at", ACTORS) if at]
        if sampling_since:
            self._learning.progress.start_clock(min(sampling_since))

    def _area(self) -> Staging:
        """The one staging area of a learner that trains between assembling."""
        if self._own_area is None:
            self._own_area = self._staging()
        return self._own_area

    def _staging(self) -> Staging:
        setup, pin = self._setup, self._setup.device != "cpu"
        replay = self._replay is not None
        return Staging(setup.spec, setup.layout, pin, self._copying, replay, setup.policy)

    def _make_replay(self) -> Replay | None:
        config, setup = self._setup.learner, self._setup
        if not config.replay_proportion:
            return None
        # Another session draws other rows, as its actors act otherwise.
        seed = seed_at(setup.seed, Branch.REPLAY, setup.policy, self._learning.train_step)
        return Replay(config.replay_proportion, config.replay_slots, config.replay_include_new, seed)

    def _make_assembler(self) -> Batcher:
        return Batcher(self._inbox, self._setup.layout.slots_until_trained, self._replay)

    def _take_turns(self) -> None:
        while not self.over():
            if self.assemble(BLOCK_S):
                self.learn()
                self._starvation.begin()  # the time of learning is none of waiting
            else:
                self.obey()
                self._starvation.look()

    def _start_dataset_queue(self, threads: Threads) -> None:
        setup, config = self._setup, self._setup.learner
        slots = self._device_slots()
        areas = [self._staging() for _ in range(setup.layout.datasets)]
        self._dataset_queue = dataset_queue = DatasetQueue(
            areas, slots, drop_oldest=config.learner_queue_policy == "drop_oldest"
        )
        passes = TrainingLoop(self._learning, dataset_queue, config, self._row, self._watch, self._starvation)
        threads.start("train", lambda: passes.run(lambda: setup.control.stopping or threads.failed or self.is_outgrown))
        for number in range(config.num_loader_threads if slots else 0):
            threads.start(f"load-{number}", lambda: self._load(dataset_queue, threads))
        if self._shared_inbox:
            threads.start("inbox", lambda: self._read_for_batchers(threads))
        for number in range(config.num_batchers):
            threads.start(f"batch-{number}", lambda: self._batch(dataset_queue, threads))

    def _device_slots(self) -> list[DeviceSlot]:
        """Where loaders bring datasets to; none where the device reads the memory of the host."""
        setup, config = self._setup, self._setup.learner
        device = torch.device(setup.device)
        if device.type == "cpu":
            return []
        ring, count = config.minibatch_ring_size, config.num_gpu_slots
        if 1 < ring >= count:
            _log.warning(
                "--minibatch_ring_size=%d takes all of --num_gpu_slots=%d: nothing is loaded while it is learned from; "
                "--num_gpu_slots=%d loads one dataset meanwhile",
                ring,
                count,
                ring + 1,
            )
        return [DeviceSlot(setup.spec, setup.layout, device, self._replay is not None) for _ in range(max(count, ring))]

    def _read_for_batchers(self, threads: Threads) -> None:
        while not self._ended(threads):
            self._inbox.receive(BLOCK_S)

    def _batch(self, dataset_queue: DatasetQueue, threads: Threads) -> None:
        """Fill areas of the belt."""
        assembler = self._make_assembler()

        def give_up() -> bool:
            self._start_clock()
            return self._ended(threads)

        while not give_up():
            area = dataset_queue.area_to_fill(BLOCK_S)
            if area is None:
                continue
            since = now()
            if assembler.fill(area, give_up):
                self._learning.timings.add("dequeue", now() - since)
                dataset_queue.submit(area)
            else:
                dataset_queue.give_up(area)
            self._count_dropped(dataset_queue)

    def _count_dropped(self, dataset_queue: DatasetQueue) -> None:
        self._row.set("dropped_steps", self._dropped_before + dataset_queue.dropped_steps)

    def _load(self, dataset_queue: DatasetQueue, threads: Threads) -> None:
        """Bring full areas to the device."""
        while not self._ended(threads):
            slot = dataset_queue.slot_to_load(BLOCK_S)
            while slot is not None and not self._ended(threads):
                area = dataset_queue.area_to_load(BLOCK_S)
                if area is not None:
                    since = now()
                    dataset_queue.load(area, slot)
                    self._learning.timings.add("load", now() - since)
                    break

    def _ended(self, threads: Threads) -> bool:
        """Whether threads that feed training are to end."""
        ended = self._setup.control.stopping or self._learning.wants_no_more or threads.failed
        return ended or self.is_outgrown

    def _learn_again_and_again(self) -> None:
        """From one dataset, as if it were a new one each time; nothing more is taken in."""
        area = self._area()
        while not self.over():
            if area.full or self.assemble(BLOCK_S):
                area.scalars["policy_version"].fill_(self._learning.train_step)
                self._watch.lap()
                self._learning.learn(area)

    def drain(self) -> None:
        """``discard`` until a stop is ordered."""
        while not self._setup.control.stopping:
            self.discard(BLOCK_S)

    def _wait(self, receive: Callable[[float], None], timeout: float) -> None:
        self._watch.before_wait()
        receive(timeout)
        self._watch.after_wait()


def run_learner(setup: LearnerSetup, row: StatusRow) -> None:
    """A learner's life, from birth to the last checkpoint."""
    torch.manual_seed(seed_at(setup.seed, Branch.LEARNER, setup.policy))
    torch.set_num_threads(setup.threads)
    learning = Learner(setup, row)
    learning.begin()
    if not setup.trains:
        learning.checkpointer.save_first()
    row.set("state", State.RUNNING if setup.trains else State.DONE)
    worker = LearnerWorker(setup, learning, row)
    threads = Threads()  # see NOTE [Who saves waits on no ring]
    worker.start(threads)
    threads.wait(worker.is_finished)
    while worker.is_outgrown and not worker.over():
        worker, threads = worker.resized(), Threads()
        worker.start(threads)
        threads.wait(worker.is_finished)
    learning.finish(save=setup.control.stop is not Stop.NOW)
    threads.leave()
    if setup.layout.num_policies > 1 and not setup.control.stopping:
        others = Threads()
        others.start("rings", worker.drain)
        others.wait(lambda: setup.control.stopping)
