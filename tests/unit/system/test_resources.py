"""A run that cannot have its memory is refused with need and have, before anything starts."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest

from sfactory.config.flags import config_of
from sfactory.errors import ResourceError
from sfactory.planning.plan import plan_run, plan_sizes
from sfactory.system import resources
from sfactory.system.cores import Cores
from sfactory.system.resources import (
    available_memory,
    handles_needed,
    pinnable,
    raise_file_limit,
    require_cores,
    require_handles,
    require_memory,
    warn_of_few_cores,
    warn_of_niceness,
)
from tests.support.parts import VECTOR

GIB = 2**30


def test_this_machine_has_memory() -> None:
    have = available_memory()

    assert have is not None
    assert 0 < have < 2**50


def test_what_fits_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "available_memory", lambda: 10 * GIB)

    require_memory(9 * GIB)


def test_what_would_take_most_of_it_is_refused_with_need_and_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "available_memory", lambda: 10 * GIB)

    with pytest.raises(ResourceError, match=r"9,728 MiB of memory, and 10,240 MiB are free; lower --num_workers"):
        require_memory(9 * GIB + GIB // 2)


@pytest.mark.parametrize(
    ("kept", "have", "words"),
    [(4, 4, "needs 5 cores"), (9, 4, "needs 10 cores"), (4, 4, "this run has 4 "), (4, 4, "at most 3"), (1, 1, "at 0")],
)
def test_cores_for_the_learner_that_leave_none_to_actors_are_refused_with_need_and_have(
    kept: int, have: int, words: str
) -> None:
    with pytest.raises(ResourceError, match=words):
        require_cores(kept, have)


@pytest.mark.parametrize(("kept", "have"), [(0, 1), (3, 4)])
def test_cores_for_the_learner_that_leave_some_pass(kept: int, have: int) -> None:
    require_cores(kept, have)


def test_a_plan_keeps_cores_for_the_learner_or_refuses() -> None:
    have = Cores.available().count
    flags = {"env": "any", "device": "cpu", "encoder_mlp_layers": (8,)}

    with pytest.raises(ResourceError, match=f"--learner_cores={have} needs {have + 1} cores"):
        plan_run(config_of({**flags, "learner_cores": have}), VECTOR)

    for flag in ("serial_mode", "set_workers_cpu_affinity"):  # where nobody is pinned nothing is kept
        assert (
            plan_run(config_of({**flags, "learner_cores": have, flag: flag == "serial_mode"}), VECTOR).cores.kept == 0
        )
    assert plan_run(config_of({**flags, "learner_cores": have - 1}), VECTOR).cores.kept == have - 1


def test_where_nothing_is_known_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "available_memory", lambda: None)

    require_memory(2**60)


@pytest.fixture
def file_limits() -> Iterator[None]:
    """Puts the limits of open files back as they were. Only the soft one can be: a test must not lower the other."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("file_limits")
def test_the_limit_of_open_files_is_raised_to_the_hard_one() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))

    raise_file_limit()

    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


@pytest.mark.usefixtures("file_limits")
def test_more_children_than_files_can_be_had_for_are_refused_with_need_and_have() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))

    require_handles(34)
    with pytest.raises(ResourceError, match="35 child processes needs 204 open files, and 200 are allowed"):
        require_handles(35)
    plan_with(num_workers=2)
    with pytest.raises(ResourceError, match=f"needs {handles_needed(202)} open files, and 200 are allowed"):
        plan_with(num_workers=200)
    plan_with(num_workers=200, serial_mode=True)  # which starts none


@pytest.mark.parametrize(("quota", "told"), [(None, "quota: none"), (0.5, "quota: 0.5 cores")])
def test_processes_that_can_only_take_turns_are_warned_about(
    quota: float | None, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_few_cores(Cores((3,) if quota is None else (3, 5), quota), 4)

    (record,) = caplog.records
    assert "this run has one core (affinity mask: 3" in record.getMessage()
    assert told in record.getMessage()
    assert "its 4 processes take turns" in record.getMessage()


def test_two_cores_are_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_few_cores(Cores((3, 5), 1.5), 40)

    assert caplog.records == []


def test_a_kernel_that_pins_nobody_is_warned_about_once_and_nobody_is_pinned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse_to_pin(pid: int, mask: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse_to_pin)

    cores = pinnable(Cores((0, 1), None))

    assert cores.cores_of_actor(0, num_actors=1) is None
    (record,) = caplog.records
    assert record.getMessage() == "--set_workers_cpu_affinity is left out: [Errno 1] Operation not permitted"


def test_looking_whether_processes_can_be_pinned_does_not_pin_main() -> None:
    before = os.sched_getaffinity(0)

    assert pinnable(Cores.available()) == Cores.available()
    assert os.sched_getaffinity(0) == before


def refuse(_: int) -> int:
    raise PermissionError(1, "Operation not permitted")


def plan_with(**flags: object) -> None:
    plan_run(config_of({"env": "any", "device": "cpu", "encoder_mlp_layers": (8,), **flags}), VECTOR)


def test_a_niceness_that_may_not_be_had_is_warned_about_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "nice", refuse)

    plan_with(default_niceness=-5)

    (warning,) = [record.getMessage() for record in caplog.records if "niceness" in record.getMessage()]
    assert "--default_niceness=-5 is left out" in warning
    assert "Operation not permitted" in warning


@pytest.mark.parametrize("flags", [{"default_niceness": 0}, {"default_niceness": -5, "serial_mode": True}])
def test_where_no_process_is_to_be_less_nice_than_main_nothing_is_warned_about(
    flags: dict[str, object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "nice", refuse)

    plan_with(**flags)

    assert "niceness" not in caplog.text


def test_looking_for_the_right_to_niceness_does_not_change_that_of_main() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)

    warn_of_niceness(-3)

    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_trajectories_kept_for_replay_are_planned_for() -> None:
    flags = {"env": "any", "num_workers": 1, "inference": "local", "device": "cpu", "replay_proportion": 1.0}
    fits, exceeds = (config_of({**flags, "replay_slots": slots}) for slots in (100, 10**12))

    plan_sizes(fits, VECTOR)
    with pytest.raises(ResourceError, match="--replay_slots"):
        plan_sizes(exceeds, VECTOR)
