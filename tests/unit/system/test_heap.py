"""Freed memory stays with the processes of a run: a minibatch faults in none of what the one before it has freed."""

from __future__ import annotations

import os
import subprocess
import sys

from sfactory.system.cores import NATIVE

# In a thread, as the learner learns. Each round takes the memory of some layers and frees it in the order it came.
ROUNDS, TENSORS = 10, 30
PAGES = ROUNDS * TENSORS * 8 * 2**20 // 4096
PROGRAM = f"""
import resource, threading, torch

def learn(rounds):
    for _ in range(rounds):
        layers = [torch.empty(2 * 2**20).fill_(1.0) for _ in range({TENSORS})]
        while layers:
            layers.pop(0)

def faults(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=learn, args=(rounds,))
    thread.start()
    thread.join()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

faults(1)
faults({ROUNDS})
"""


def faults_of_later_rounds(settings: dict[str, str]) -> int:
    clean = {name: value for name, value in os.environ.items() if name not in NATIVE}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**clean, **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return int(done.stdout.split()[-1])


def test_what_was_freed_is_used_again_without_a_fault() -> None:
    assert faults_of_later_rounds(NATIVE) < PAGES // 1000


def test_without_the_settings_of_a_run_much_of_it_is_faulted_in_each_time() -> None:
    assert faults_of_later_rounds({}) > PAGES // 10
