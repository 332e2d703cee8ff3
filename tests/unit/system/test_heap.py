"""Freed memory stays in the processes of a run: a minibatch does not fault in what the previous one freed."""

from __future__ import annotations

import os
import subprocess
import sys

from sfactory.system.cores import NATIVE

# In a thread, as in the learner. Each round allocates the memory of some layers and frees it in the same order.
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


def faults_of_later_rounds(variables: dict[str, str]) -> int:
    clean = {name: value for name, value in os.environ.items() if name not in NATIVE}
    command, env = [sys.executable, "-c", PROGRAM], {**clean, **variables}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    return int(done.stdout.split()[-1])


def test_freed_memory_is_reused_without_page_faults_only_with_the_settings_of_a_run() -> None:
    assert faults_of_later_rounds(NATIVE) < PAGES // 1000
    assert faults_of_later_rounds({}) > PAGES // 10
