"""What all tests share: the order of files, the depth of fuzzing, one thread, and the fixture that starts runs."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from sfactory.process.signals import FOR_MAIN
from tests.support.gpu import GPU_TESTS_ON
from tests.support.trainer import RunTrainer, TrainerRun

# The folders with the slowest files come first, so that no worker is left with one of them at the end.
SLOWEST_FIRST = ("learning", "faults", "flow")
FEWER, FEWEST = 10, 5  # examples are this many times fewer than a test asks for, but at least so many

settings.register_profile("default", deadline=None, max_examples=25)
settings.register_profile("long", deadline=None, max_examples=200)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
settings.load_profile(PROFILE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow folders first; but for the profile "long", fewer examples than a test's own settings ask for."""
    items.sort(key=lambda item: not item.path.parent.name.startswith(SLOWEST_FIRST))
    for item in items:
        if item.path.parent.name == "faults":
            item.add_marker("faults")
        if item.path.parent.name == "gpu":
            item.add_marker("gpu")
        on = GPU_TESTS_ON if item.path.parent.name == "gpu" else "cuda"
        if on == "cuda" and item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="torch finds no CUDA device here"))
    for item in items if PROFILE != "long" else ():
        test = getattr(item, "function", None)
        own = getattr(test, "_hypothesis_internal_use_settings", None)
        if own is not None and not hasattr(test, "scaled"):
            fewer = min(own.max_examples, max(own.max_examples // FEWER, FEWEST))
            test._hypothesis_internal_use_settings = settings(own, max_examples=fewer)  # type: ignore[union-attr]
            test.scaled = True  # type: ignore[union-attr]


def pytest_collection_finish() -> None:
    """Leave modules and tests out of collections of garbage: one that looks at all of them takes 0.3 s."""
    gc.collect()
    gc.freeze()


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
def one_thread() -> None:
    """Tensors of a few hundred numbers gain nothing by a second thread, and on a busy machine they wait long for it."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def interruptible() -> None:
    """Undo ignored signals (a shell's background job, nohup), which every process started here would inherit."""
    for signum in FOR_MAIN:
        if signal.getsignal(signum) == signal.SIG_IGN:
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(autouse=True)
def signals_as_found() -> Iterator[None]:
    """Restore the handlers of signals after a test: an interrupted context leaves signals ignored."""
    found = {signum: signal.getsignal(signum) for signum in FOR_MAIN}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    for signum, handler in found.items():
        if handler is not None:  # one that was not set by Python cannot be set again
            signal.signal(signum, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@pytest.fixture(autouse=True)
def environment_as_found(signals_as_found: None) -> Iterator[None]:
    """Restore the variables of the environment after a test: workers that run in this process set some of them."""
    found = dict(os.environ)
    yield
    for name in os.environ.keys() - found.keys() - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    os.environ.update({name: value for name, value in found.items() if name != "PYTEST_CURRENT_TEST"})
