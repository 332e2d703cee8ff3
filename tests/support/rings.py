"""Rings as processes leave them that are killed at the worst moment."""

from __future__ import annotations

import ctypes
from typing import Any

from faster_fifo import Queue

from sfactory.shared.channel import Channel

# Of faster-fifo's Queue struct on x86-64: six sizes, two attributes, the mutex, two conditions and their counts.
_QUEUE_BYTES = 208
_MUTEX_AT = 56


def lock_for_ever(channel: Channel[Any]) -> None:
    """Take the lock of the ring and never give it back, as a process does that is killed within a put."""
    queue: Queue = channel._queues[channel.incarnation]
    assert len(queue.queue_obj_buffer) == _QUEUE_BYTES, "another layout: find the mutex again"
    address = ctypes.addressof(ctypes.c_char.from_buffer(queue.queue_obj_buffer, _MUTEX_AT))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.pthread_mutex_lock(ctypes.c_void_p(address)) == 0
