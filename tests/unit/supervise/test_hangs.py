"""Who stands still is asked where and killed, by the time that main was awake; a lost ring ends the generation."""

from __future__ import annotations

import pytest

from sfactory.errors import RingsLost
from sfactory.shared.status import State, StatusBoard, StatusRow, Stopwatch
from sfactory.supervise import hang_detection as room
from sfactory.supervise.hang_detection import WorkerHangs

ACTOR, POLICY, LEARNER = "sf-actor-0", "sf-policy-0-0", "sf-learner-0"
STEP_S, RESET_S = 60.0, 200.0


class Process:
    """Stands for a process that may be killed."""

    killed = False

    def kill(self) -> None:
        """Be killed."""
        self.killed = True


class Stack:
    """Stands for a file that a process writes its stack to."""

    over = True

    def request(self, process: Process) -> Stack:
        """It answers at once."""
        return self

    def read(self) -> str:
        """Its answer."""
        return "File env.py, line 7 in step"


class Worker:
    """A child as main knows it."""

    def __init__(self, name: str, row: StatusRow) -> None:
        self.name, self.row, self.process, self.stack = name, row, Process(), Stack()

    def where(self) -> str:
        """As Child.where."""
        return f"{self.name} hung here:\n{self.stack.read()}"


class Scene:
    """Workers in their loops, under a clock that is moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = 1000.0
        for module in ("sfactory.clock", "sfactory.shared.status"):
            monkeypatch.setattr(f"{module}.now", lambda: self.at)
        board = StatusBoard([ACTOR, POLICY, LEARNER])
        self.workers = {name: Worker(name, board.row(name)) for name in board.names}
        self.watches = {name: Stopwatch(worker.row) for name, worker in self.workers.items()}
        for worker in self.workers.values():
            worker.row.set("state", State.RUNNING)
        self.reading_since = 0.0
        self.hangs = WorkerHangs(self, STEP_S, RESET_S, lambda: self.reading_since)  # type: ignore[arg-type]

    def running(self) -> list[Worker]:
        """As Crew.running."""
        return [worker for worker in self.workers.values() if not worker.process.killed]

    def row(self, name: str) -> StatusRow:
        return self.workers[name].row

    def rest(self, *names: str) -> None:
        """These wait, as they should."""
        for name in names:
            self.watches[name].before_wait()

    def wait(self, seconds: float, alive: tuple[str, ...] = ()) -> RingsLost | None:
        """Let time pass, main looking at every beat, those who are ``alive`` stamping theirs."""
        lost = None
        for _ in range(int(4 * seconds)):
            self.at += 0.25
            for name in alive:
                self.watches[name].after_wait()
                self.watches[name].before_wait()
            lost = lost or self.hangs.look()
        return lost

    def killed(self) -> list[str]:
        return [name for name, worker in self.workers.items() if worker.process.killed]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_one_step_that_takes_too_long_is_ended_and_shown(scene: Scene) -> None:
    scene.rest(POLICY, LEARNER)
    assert scene.wait(STEP_S - 1, alive=(POLICY,)) is None
    assert scene.killed() == []

    scene.wait(4, alive=(POLICY,))

    assert scene.killed() == [ACTOR]
    told = scene.hangs.where(ACTOR)
    assert told is not None
    assert told.splitlines()[-1] == f"{ACTOR} took longer than --step_timeout_seconds=60 for one step"
    assert "env.py, line 7 in step" in told


def test_pieces_of_work_are_judged_one_by_one(scene: Scene) -> None:
    scene.rest(POLICY, LEARNER)
    for _ in range(5):
        scene.wait(STEP_S - 5, alive=(POLICY,))
        scene.watches[ACTOR].lap()

    assert scene.killed() == []


def test_a_reset_has_its_own_limit(scene: Scene) -> None:
    scene.rest(POLICY, LEARNER)
    scene.row(ACTOR).set("resetting", 1)
    scene.wait(RESET_S - 1, alive=(POLICY,))
    assert scene.killed() == []

    scene.wait(4, alive=(POLICY,))

    assert scene.killed() == [ACTOR]
    assert "--reset_timeout_seconds=200 for one environment's reset" in str(scene.hangs.where(ACTOR))


def test_who_does_not_come_back_from_a_wait_is_ended_and_who_does_is_not(scene: Scene) -> None:
    scene.rest(ACTOR, POLICY, LEARNER)

    scene.wait(15, alive=(ACTOR,))

    assert scene.killed() == [POLICY]  # a learner's wait is its own affair
    assert "did not come back from a wait for 10 s" in str(scene.hangs.where(POLICY))


def test_time_in_which_main_was_stopped_counts_for_nothing(scene: Scene) -> None:
    scene.rest(ACTOR, POLICY, LEARNER)
    for _ in range(3):
        scene.at += 3600.0
        scene.hangs.look()

    assert scene.killed() == []


def test_a_main_that_is_slow_at_every_beat_still_judges(scene: Scene) -> None:
    scene.rest(ACTOR, POLICY, LEARNER)
    for _ in range(9):
        scene.at += 3.0
        scene.hangs.look()

    assert scene.killed() == [ACTOR, POLICY]


@pytest.mark.parametrize("name", [ACTOR, LEARNER])
def test_who_is_stuck_at_a_shared_ring_tells_that_all_need_new_ones(scene: Scene, name: str) -> None:
    scene.rest(*[other for other in (ACTOR, POLICY, LEARNER) if other != name])
    scene.row(name).enter_ring()

    lost = scene.wait(13, alive=tuple(other for other in (ACTOR, POLICY) if other != name))

    assert lost is not None
    assert f"{name} uses a ring that is locked" in str(lost)
    assert scene.killed() == []


def test_a_policy_worker_that_is_stuck_at_the_ring_of_an_actor_is_ended(scene: Scene) -> None:
    scene.rest(ACTOR, LEARNER)
    scene.row(POLICY).enter_ring()

    assert scene.wait(13, alive=(ACTOR,)) is None

    assert scene.killed() == [POLICY]


def test_main_notices_that_its_own_ring_is_locked(scene: Scene) -> None:
    scene.rest(ACTOR, POLICY, LEARNER)
    scene.reading_since = scene.at

    lost = scene.wait(13, alive=(ACTOR, POLICY))

    assert "sf-main uses a ring that is locked" in str(lost)


def test_who_has_not_come_to_its_loop_is_let_be(scene: Scene) -> None:
    scene.rest(POLICY, LEARNER)
    scene.row(ACTOR).set("loop_since", 0.0)

    scene.wait(3 * STEP_S, alive=(POLICY,))

    assert scene.killed() == []
    assert room._RING_S < STEP_S
