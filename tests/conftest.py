"""What all tests share: the fixture that starts whole training runs and leaves none behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sfactory.process.signals import FOR_MAIN
from tests.support.trainer import RunTrainer, TrainerRun


@pytest.fixture
def run_trainer(tmp_path: Path) -> Iterator[RunTrainer]:
    """Starts ``python -m sfactory.train`` with cheap settings and the flags given; ends what still runs after the test.

    Runs with the same ``experiment`` ("run" by default) share a run directory: the second one resumes the first.
    """
    runs: list[TrainerRun] = []

    def start(under: Sequence[str] = (), /, **flags: object) -> TrainerRun:
        run = TrainerRun(flags, tmp_path, under)
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.close()


@pytest.fixture(autouse=True, scope="session")
def interruptible() -> None:
    """Undo an ignored SIGINT (a shell's background job has that), which every process started here would inherit."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def signals_as_found() -> Iterator[None]:
    """Have signals do after a test what they did before it: a context that was interrupted leaves them ignored, for a
    process that is about to end, and what later tests start would inherit that."""
    found = {signum: signal.getsignal(signum) for signum in FOR_MAIN}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    for signum, handler in found.items():
        if handler is not None:  # one that was not set by Python cannot be set again
            signal.signal(signum, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
