"""Measures how many bytes one or more batchers of a learner assemble per second; writes a JSON.

    python scripts/batchers.py --out docs/performance/batchers.json

The batchers assemble datasets from slots that are filled again at once; datasets are dropped when they are full. More
batchers help only if training waits for datasets although cores are idle: see ``perf/load_wait_ms`` and the line
``bound by`` of a run.
"""

from __future__ import annotations

import argparse
import sys
import threading
from functools import partial
from pathlib import Path

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.record import machine, table, write_json
from scripts.rounds import alternating, medians, ratio
from sfactory.action_heads import DiscreteHead
from sfactory.clock import BLOCK_S, now
from sfactory.config.flags import config_of
from sfactory.layout import Layout
from sfactory.learner.batcher import Batcher, Inbox
from sfactory.learner.staging import Staging
from sfactory.messages import SlotFreed, TrajectoryReady
from sfactory.shared.objects import SharedObjects
from sfactory.spec import EnvSpec, TensorSpec

BATCHERS = (1, 2)
ROLLOUT = 32
# What is observed, and envs of a worker and steps of a dataset that suit it.
SUBJECTS = {
    "4 numbers": (TensorSpec((4,), "float32"), 512, 16_384),
    "4 images of 84x84": (TensorSpec((4, 84, 84), "uint8"), 16, 1_024),
}


class FullInbox:
    """A learner's inbox with full slots, and areas to assemble them in. ``actors``: those that fill a slot again."""

    def __init__(self, obs: TensorSpec, envs: int, steps: int, batchers: int) -> None:
        spec = EnvSpec(obs=(("obs", obs),), actions=(DiscreteHead("action", 4),))
        sizes = {"num_workers": 2, "num_envs_per_worker": envs, "worker_num_splits": 1, "rollout": ROLLOUT}
        flags = {"env": "any", **sizes, "batch_size": steps, "num_batches_to_accumulate": 1 + batchers}
        config = config_of({**flags, "num_batchers": batchers})
        layout = Layout.plan(config.sampling, config.learner, "central")
        shared = SharedObjects(spec, layout, weight_bytes=8)
        self.trajectories, self.table = shared.trajectories, shared.table
        self.ring, self.to_actors = shared.to_learners[0], shared.to_actors
        self.inbox = Inbox(0, shared, shared.status.row("sf-learner-0"), several=batchers > 1)
        self.areas = [Staging(spec, layout, pin=False) for _ in range(batchers)]
        self.bytes_of_area = sum(view.nbytes for view in self.areas[0].views())
        self.ended, self.datasets = threading.Event(), [0] * batchers
        for slot in range(layout.num_slots):
            self._fill(slot)

    def _fill(self, index: int) -> None:
        self.table.begin(index)
        self.trajectories.slot(index).valid.fill(True)
        self.table.publish(index, 0)
        self.ring.put(TrajectoryReady(self.table.owner(index), index))

    def actors(self) -> None:
        """Fill every freed slot again at once."""
        while not self.ended.is_set():
            for channel in self.to_actors:
                for message in channel.get(0.001):
                    if isinstance(message, SlotFreed):
                        self._fill(message.slot)

    def read(self) -> None:
        """Read for several batchers."""
        while not self.ended.is_set():
            self.inbox.receive(BLOCK_S)

    def batch(self, number: int) -> None:
        """Assemble one dataset after another."""
        assembler = Batcher(self.inbox, slots_until_trained=False)
        while assembler.fill(self.areas[number], self.ended.is_set):
            self.datasets[number] += 1


def measure(name: str, batchers: int, seconds: float) -> float:
    """GB assembled in a second."""
    hall = FullInbox(*SUBJECTS[name], batchers)
    loops = [hall.actors, *([hall.read] if batchers > 1 else [])]
    loops += [partial(hall.batch, number) for number in range(batchers)]
    threads = [threading.Thread(target=loop, daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    threading.Event().wait(seconds / 4)  # memory is touched for the first time
    before, since = sum(hall.datasets), now()
    threading.Event().wait(seconds)
    rate = (sum(hall.datasets) - before) * hall.bytes_of_area / (now() - since) / 1e9
    hall.ended.set()
    for thread in threads:
        thread.join(10 * BLOCK_S)
    return rate


def main() -> int:
    """Measure all in alternating rounds; print the table of docs/performance.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each measurement")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found, rows = {}, []
    for name in SUBJECTS:
        systems = {str(count): partial(measure, name, count, given.seconds) for count in BATCHERS}
        rates = alternating(systems, given.rounds, lambda rate: f"{rate:.2f} GB/s")
        one, two = (dict(enumerate(rates[str(count)])) for count in BATCHERS)
        gain = ratio(two, one)
        assert gain is not None
        found[name] = {"gb_per_second": rates, "two_over_one": gain.to_json()}
        middle = medians(rates)
        rows.append([name, f"{middle['1']:.2f} GB/s", f"{middle['2']:.2f} GB/s", gain.as_times()])
    write_json(given.out, {**machine(), "seconds": given.seconds, "observations": found})
    print(table(["observation", "1 batcher", "2 batchers", "2 over 1"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
