"""Computes a result in a thread that may be left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_Result = TypeVar("_Result")


def in_background(name: str, work: Callable[[], _Result]) -> Future[_Result]:
    """What ``work`` will return or raise in a daemon thread: one that is stuck ends with the process."""
    future = Future[_Result]()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as failure:  # raised again in the thread that asks for the result
            future.set_exception(failure)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
