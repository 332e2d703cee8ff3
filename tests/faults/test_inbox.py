"""What befalls the ring of a learner: a thread that dies of a message ends the run, and so does a ring that is full."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sfactory.errors import ExitCode
from tests.support.hooks import MOMENT
from tests.support.long import LONG, long
from tests.support.process_states import wait_until_all_work
from tests.support.processes import eventually
from tests.support.resume import assert_resumes
from tests.support.trainer import RunTrainer, within

pytestmark = pytest.mark.faults

ENDLESS = 1_000_000_000
SPOILS = "tests.faults.bad_envs:SpoilsInbox"
LOUD_S = 5.0  # from the fault to the end of who meets it, on an idle machine


@pytest.fixture
def order(tmp_path: Path) -> Path:
    """The file by which a test orders the fault."""
    return tmp_path / "order"


# With one batcher the thread that assembles reads the ring, with several one reads for all of them.
@pytest.mark.parametrize(("batchers", "loop"), [(1, "_batch"), long(2, "_read_for_batchers")])
def test_a_thread_of_the_learner_that_dies_ends_the_run_with_its_traceback_and_the_run_can_be_resumed(
    run_trainer: RunTrainer, order: Path, batchers: int, loop: str
) -> None:
    run = run_trainer(
        env=SPOILS,
        env_kwargs={"how": "poison", "order": str(order)},
        num_batchers=batchers,
        num_batches_to_accumulate=4,
        train_for_env_steps=ENDLESS,
    )
    run.wait_until_training()

    order.touch()
    run.wait_until(Path(f"{order}.done").exists)

    run.assert_ended(ExitCode.LEARNER, within(LOUD_S))
    assert "sf-learner-0 failed: IndexError" in run.last_stderr_line
    assert f"in {loop}\n" in run.stderr, run.report("no traceback of the thread")
    assert run.result()["env_steps"] >= run.saved_env_steps() > 0
    assert (
        f" saved={run.saved_env_steps()} " in run.last_stderr_line or run.result()["env_steps"] == run.saved_env_steps()
    )
    order.unlink()
    assert_resumes(run, run_trainer)


@LONG
def test_a_full_ring_of_work_ends_the_run_by_the_name_of_its_reader_and_what_it_took_is_saved(
    run_trainer: RunTrainer, order: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    still = Path(f"{order}.still")
    monkeypatch.setenv(MOMENT, str(order))
    # One thread reads the ring and trains in turn, so that a hook that stands still keeps it from reading. Meanwhile
    # there are more slots to be filled than actors fill before they meet the ring.
    run = run_trainer(
        env=SPOILS,
        env_kwargs={"how": "flood", "order": str(order)},
        after_train_step="tests.support.hooks:stand_still",
        train_in_background_thread=False,
        min_traj_buffers_per_worker=64,
        train_for_env_steps=ENDLESS,
    )
    wait_until_all_work(run)
    actors = {run.pid_of(f"sf-actor-{actor}") for actor in range(2)}

    still.touch()
    run.wait_until(Path(f"{order}.done").exists)
    loud = eventually(lambda: not actors <= set(run.processes().values()), within(LOUD_S))
    still.unlink()

    assert loud, run.report("no actor has met the full ring")
    run.assert_ended(ExitCode.FAULTS)
    assert re.search(r"sf-actor-\d failed: .*ChannelFull: the ring of sf-learner-0 is full", run.last_stderr_line)
    assert "its reader stopped reading" in run.last_stderr_line
    assert run.result()["env_steps"] == run.saved_env_steps() > 0
    row = run.metrics()[-1]
    known = row["perf/received_steps"] + row["perf/held_steps"] + row["perf/discarded_steps"]
    assert row["perf/sampled_env_steps"] == known > 0
    order.unlink()
    assert_resumes(run, run_trainer)
