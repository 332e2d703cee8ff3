"""Room: settings of native libraries, read when a process begins. In: a process. Out: the same for its children.

Benchmarks of a part of the work give them to the processes that they start, too.
"""

from __future__ import annotations

import os

NATIVE = {
    # One native thread per process; the learner raises its own number.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # Memory of freed tensors stays in the heap (the highest threshold glibc takes): given back to the kernel, it
    # would be faulted in again, page by page, with every minibatch. See docs/performance.md.
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    # One heap for all threads: that of a thread lies in pieces of 64 MiB, each given back as soon as it is empty.
    "MALLOC_ARENA_MAX": "1",
    # In huge pages where the kernel and glibc (2.35 or later) know them: one fault for 2 MiB instead of one for 4 KiB.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def set_for_children() -> None:
    """Children find them in their environment, before numpy and torch are imported. A user's own values win."""
    for variable, value in NATIVE.items():
        os.environ.setdefault(variable, value)
