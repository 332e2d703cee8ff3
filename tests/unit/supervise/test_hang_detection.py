"""A process that hangs is asked for its stack and killed, by time in which main was awake."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import pytest

from sfactory.errors import ProcessesLost
from sfactory.shared.status import State, StatusBoard
from sfactory.supervise.hang_detection import BenchmarkHangs, WorkerHangs
from tests.support.child import Child
from tests.support.long import long

ACTOR, POLICY, LEARNER, EVALUATOR = "sf-actor-0", "sf-policy-0-0", "sf-learner-0", "sf-eval-0"
STEP_S, RESET_S = 60.0, 200.0


class Scene:
    """Workers in their loops, under a clock that the test moves. All but ``busy`` wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
        """``more``: names of other workers."""
        self.at = 1000.0
        for module in ("sfactory.clock", "sfactory.shared.status"):
            monkeypatch.setattr(f"{module}.now", lambda: self.at)
        board = StatusBoard([ACTOR, POLICY, LEARNER, *more])
        self.workers = {name: Child(name, board.row(name)) for name in board.names}
        for worker in self.workers.values():
            worker.row.set("state", State.RUNNING)
        self.reading_since = 0.0
        self.hangs = WorkerHangs(self, STEP_S, RESET_S, lambda: self.reading_since)  # type: ignore[arg-type]

    def running(self) -> list[Child]:
        return [worker for worker in self.workers.values() if not worker.killed]

    def let_wait(self, *names: str) -> None:
        for name in names:
            self.workers[name].watch.before_wait()

    def pass_time(self, seconds: float, *alive: str) -> ProcessesLost | None:
        """Main looks at every beat; those who are ``alive`` come back from their waits."""
        lost = None
        for _ in range(int(4 * seconds)):
            self.at += 0.25
            for name in alive:
                self.workers[name].watch.after_wait()
                self.workers[name].watch.before_wait()
            lost = lost or self.hangs.look()
        return lost

    def killed(self) -> list[str]:
        return [name for name, worker in self.workers.items() if worker.killed]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


@pytest.mark.parametrize(
    ("resetting", "limit_s", "reason"),
    [
        (0, STEP_S, "--step_timeout_seconds=60 for one step"),
        (1, RESET_S, "--reset_timeout_seconds=200 for one environment's reset"),
    ],
)
def test_work_that_takes_too_long_is_ended_and_shown(scene: Scene, resetting: int, limit_s: float, reason: str) -> None:
    scene.let_wait(POLICY, LEARNER)
    scene.workers[ACTOR].row.set("resetting", resetting)
    assert scene.pass_time(limit_s - 1, POLICY) is None
    assert scene.killed() == []

    scene.pass_time(4, POLICY)

    assert scene.killed() == [ACTOR]
    assert scene.hangs.where(ACTOR) == (
        f"{ACTOR} hung here:\nFile env.py, line 7 in step\n{ACTOR} took longer than {reason}"
    )


@pytest.mark.parametrize(
    ("resetting", "limit_s", "reason"), [(0, STEP_S, "--step_timeout_seconds"), (1, RESET_S, "--reset_timeout_seconds")]
)
def test_an_evaluator_that_hangs_is_ended(
    monkeypatch: pytest.MonkeyPatch, resetting: int, limit_s: float, reason: str
) -> None:
    scene = Scene(monkeypatch, EVALUATOR)
    scene.let_wait(ACTOR, POLICY, LEARNER)
    scene.workers[EVALUATOR].row.set("resetting", resetting)
    scene.pass_time(limit_s - 1, ACTOR, POLICY)
    assert scene.killed() == []

    scene.pass_time(4, ACTOR, POLICY)

    assert scene.killed() == [EVALUATOR]
    assert f"took longer than {reason}" in str(scene.hangs.where(EVALUATOR))


def test_an_evaluator_that_does_not_come_back_from_a_wait_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, EVALUATOR)
    scene.let_wait(ACTOR, POLICY, LEARNER, EVALUATOR)

    scene.pass_time(15, ACTOR, POLICY)

    assert scene.killed() == [EVALUATOR]


def test_pieces_of_work_are_judged_one_by_one(scene: Scene) -> None:
    scene.let_wait(POLICY, LEARNER)
    for _ in range(5):
        scene.pass_time(STEP_S - 5, POLICY)
        scene.workers[ACTOR].watch.lap()

    assert scene.killed() == []


def test_a_worker_that_does_not_come_back_from_a_wait_is_ended(scene: Scene) -> None:
    scene.let_wait(ACTOR, POLICY, LEARNER)

    scene.pass_time(15, ACTOR)

    assert scene.killed() == [POLICY]  # a learner may wait as long as it wants
    assert "did not leave a ring for 10 s: it is locked by a process that was killed" in str(scene.hangs.where(POLICY))


@pytest.mark.parametrize(("beat_s", "beats", "killed"), [(3600.0, 3, []), (3.0, 9, [ACTOR, POLICY])])
def test_time_counts_while_main_is_slow_but_not_while_it_is_stopped(
    scene: Scene, beat_s: float, beats: int, killed: list[str]
) -> None:
    scene.let_wait(ACTOR, POLICY, LEARNER)
    for _ in range(beats):
        scene.at += beat_s
        scene.hangs.look()

    assert scene.killed() == killed


@pytest.mark.parametrize(
    ("stuck", "killed", "is_lost"), [(ACTOR, [], True), (LEARNER, [], True), (POLICY, [POLICY], False)]
)
def test_only_a_policy_worker_can_be_replaced_if_it_is_stuck_at_a_ring(
    scene: Scene, stuck: str, killed: list[str], is_lost: bool
) -> None:
    scene.let_wait(*{ACTOR, POLICY, LEARNER} - {stuck})
    scene.workers[stuck].row.enter_ring()

    lost = scene.pass_time(13, *{ACTOR, POLICY} - {stuck})

    assert scene.killed() == killed
    assert (lost is not None) == is_lost
    assert not is_lost or f"{stuck} did not leave a ring for 10 s: it is locked by a process that was" in str(lost)


def test_main_notices_that_its_own_ring_is_locked(scene: Scene) -> None:
    scene.let_wait(ACTOR, POLICY, LEARNER)
    scene.reading_since = scene.at

    assert "sf-main did not leave a ring for 10 s: it is locked by a proc" in str(scene.pass_time(13, ACTOR, POLICY))


def test_a_stopped_process_is_not_taken_for_a_killed_one_by_those_at_its_ring(scene: Scene) -> None:
    scene.let_wait(ACTOR, POLICY, LEARNER)
    scene.workers[POLICY].is_stopped = True
    scene.workers[LEARNER].row.enter_ring()

    lost = scene.pass_time(13, ACTOR, POLICY)
    scene.workers[LEARNER].row.leave_ring()
    scene.pass_time(13, ACTOR)

    assert f"{LEARNER} did not leave a ring for 10 s: it is locked by {POLICY}, which is stopped (by SIG" in str(lost)
    assert str(scene.hangs.where(POLICY)).endswith(f"\n{POLICY} did not leave a ring for 10 s")  # its own doing


def test_a_measurement_does_not_end_because_all_processes_were_stopped(scene: Scene) -> None:
    scene.workers[ACTOR].row.begin_work()
    hangs = BenchmarkHangs(scene, "CartPole-v1", RESET_S)  # type: ignore[arg-type]

    for seconds in (1.0, 3600.0, *[1.0] * 10):
        scene.at += seconds
        assert hangs.look() is None


def test_a_worker_that_has_not_come_to_its_loop_is_not_judged(scene: Scene) -> None:
    scene.let_wait(POLICY, LEARNER)
    scene.workers[ACTOR].row.set("loop_since", 0.0)

    scene.pass_time(3 * STEP_S, POLICY)

    assert scene.killed() == []


# Progress is shown every 0.1 s for a second, as by an actor's one long turn; then none, at first while that is known.
SERIAL_RUN = """
import sys, time
from sfactory.shared.status import StatusBoard
from sfactory.supervise import hang_detection
from sfactory.system.streams import open_standard_streams

open_standard_streams()
hang_detection.STALL_S, hang_detection._LOOK_S = 0.5, 0.05
board = StatusBoard(["sf-actor-0"])
row = board.row("sf-actor-0")
with hang_detection.SerialHangWatch(board) as watch:
    for _ in range(10):
        time.sleep(0.1)
        row.{progress}
    with watch.paused():
        time.sleep(1.5)
    print("nothing was due", file=sys.stderr, flush=True)
    time.sleep(1.5)
    assert watch.awake.seconds > 2
"""


@pytest.mark.parametrize("progress", ["count_env_steps(1)", long("begin_work()"), long("beat()")])
def test_a_serial_run_shows_its_stacks_once_progress_ends_that_is_due(progress: str) -> None:
    program = SERIAL_RUN.format(progress=progress)
    for _ in range(3):  # a busy machine may hold up any one run for half a second
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
        before, _, after = ended.stderr.partition("nothing was due")
        if "Timeout" not in before:
            break

    assert "Timeout" not in before
    assert "Timeout" in after
    assert 'File "<string>"' in after


@pytest.mark.long
def test_a_serial_run_ends_although_its_stacks_are_not_read() -> None:
    reader, writer = os.pipe()
    os.write(writer, bytes(fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)))
    program = SERIAL_RUN.format(progress="beat()")

    try:
        subprocess.run([sys.executable, "-c", program], stderr=writer, timeout=60, check=True)
    finally:
        os.close(reader)
        os.close(writer)
