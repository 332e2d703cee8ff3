"""A run without enough memory, cores or open files is refused before it starts; missing permissions are warnings."""

from __future__ import annotations

import dataclasses
import os
import re
import resource
from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest

from sfactory.config.flags import config_of
from sfactory.config.schema import ModelConfig
from sfactory.errors import ResourceError
from sfactory.planning.plan import plan_run, plan_sizes
from sfactory.spec import EnvSpec
from sfactory.system import resources
from sfactory.system.cores import Cores
from sfactory.system.resources import (
    available_memory,
    handles_needed,
    pinnable,
    raise_file_limit,
    require_cores,
    require_handles,
    require_imports,
    require_memory,
    warn_of_few_cores,
    warn_of_niceness,
)
from tests.support.parts import VECTOR, small_layout

GIB = 2**30
FLAGS = {"env": "any", "device": "cpu", "encoder_mlp_layers": (8,)}


def plan_with(**flags: object) -> Cores:
    return plan_run(config_of({**FLAGS, **flags}), VECTOR).cores


def refuse(*_: object) -> int:
    raise PermissionError(1, "Operation not permitted")


def test_plan_above_the_free_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (available_memory() or 0) > 0
    monkeypatch.setattr(resources, "available_memory", lambda: 10 * GIB)

    require_memory(9 * GIB)
    with pytest.raises(
        ResourceError, match=r"needs 9,728 MiB of memory .*, and 10,240 MiB are free; lower --num_workers"
    ):
        require_memory(9 * GIB + GIB // 2)
    monkeypatch.setattr(resources, "available_memory", lambda: None)
    require_memory(2**60)


def test_a_limit_of_addresses_below_those_of_the_imports_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (resource.RLIM_INFINITY, 2 * GIB):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, limit=limit: (limit, limit))
        require_imports()

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (GIB // 2, GIB))
    with pytest.raises(ResourceError, match=r"may map 512 MiB here \(ulimit -v\).*: ulimit -v unlimited"):
        require_imports()


def test_memory_of_processes_and_their_copies_of_the_weights_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    def needs(**flags: object) -> int:
        with pytest.raises(ResourceError) as caught:
            plan_sizes(config_of({**FLAGS, "num_workers": 8, **flags}), VECTOR)
        (mib,) = re.findall(r"processes ([\d,]+)\), and 10 MiB are free", str(caught.value))
        return int(mib.replace(",", ""))

    monkeypatch.setattr(resources, "available_memory", lambda: 10 * 2**20)
    weights = 4 * (4096 * 4096 + 4096 * (4 + 4 + 1)) // 2**20
    wide = {"encoder_mlp_layers": (4096, 4096)}

    assert needs(inference="local") == 130 + 8 * 17
    assert needs(inference="central") == 130 + 9 * 17
    assert needs(serial_mode=True) == 60
    assert needs(inference="local", **wide) - needs(inference="local") == pytest.approx(weights * (3 + 8), rel=0.01)
    assert needs(inference="central", **wide) - needs(inference="central") == pytest.approx(weights * (3 + 1), rel=0.01)


def test_memory_of_an_update_over_large_images_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = gymnasium.spaces.Box(0, 255, (240, 320, 3), np.uint8)
    spec = EnvSpec.of_spaces(screen, gymnasium.spaces.Discrete(3)).for_model(ModelConfig())
    flags = {**FLAGS, "num_workers": 1, "inference": "local", "batch_size": 4096}
    monkeypatch.setattr(resources, "available_memory", lambda: 12 * GIB)

    with pytest.raises(ResourceError, match=r"an update 1[01],\d{3}, .*lower --microbatch_size"):
        plan_sizes(config_of(flags), spec)
    plan_sizes(config_of({**flags, "microbatch_size": 1024}), spec)


def test_memory_of_replayed_trajectories_is_planned() -> None:
    flags = {**FLAGS, "num_workers": 1, "inference": "local", "replay_proportion": 1.0}
    fits, exceeds = (config_of({**flags, "replay_slots": slots}) for slots in (100, 10**12))

    plan_sizes(fits, VECTOR)
    with pytest.raises(ResourceError, match="--replay_slots"):
        plan_sizes(exceeds, VECTOR)


def test_plan_reserves_cores_for_the_learner_or_is_refused() -> None:
    have = Cores.available().count

    with pytest.raises(ResourceError, match=f"--learner_cores={have} needs {have + 1} cores, .* has {have} "):
        plan_with(learner_cores=have)
    with pytest.raises(ResourceError, match="leave it at 0"):
        require_cores(1, have=1)

    assert plan_with(learner_cores=have, serial_mode=True).kept == 0
    assert plan_with(learner_cores=have, set_workers_cpu_affinity=False).kept == 0
    assert plan_with(learner_cores=have - 1).kept == have - 1


@pytest.fixture
def hard_limit() -> Iterator[int]:
    """The hard limit of open files, while the soft one is 200."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_limit_of_open_files_is_raised_to_the_hard_limit(hard_limit: int) -> None:
    raise_file_limit()

    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard_limit, hard_limit)


@pytest.mark.usefixtures("hard_limit")
def test_too_few_open_files_are_refused() -> None:
    require_handles(34)
    with pytest.raises(ResourceError, match="35 child processes needs 204 open files, and 200 are allowed"):
        require_handles(35)
    plan_with(num_workers=2)
    with pytest.raises(ResourceError, match=f"needs {handles_needed(201)} open files, and 200 are allowed"):
        plan_with(num_workers=200)
    plan_with(num_workers=200, serial_mode=True)  # without child processes


def test_open_files_of_many_policies_are_planned_and_their_number_has_a_bound() -> None:
    assert handles_needed(10, weights=41) == handles_needed(10) + 40 * 3
    of_all = dataclasses.replace(small_layout(), num_policies=58, mapping="names", evaluators=1)
    assert dataclasses.replace(small_layout(), opponents=8).shared_weights == 1 + 9
    assert of_all.shared_weights == 2 * 58
    require_handles(2, weights=115)
    with pytest.raises(ResourceError, match=r"sent 252 open files: .* at most 251 .*--num_policies") as error:
        require_handles(2, of_all.shared_weights)
    assert "--num_workers" not in str(error.value)  # of which each process is sent as much


def test_run_on_one_core_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    for cores in (Cores((3,), None), Cores((3, 5), 0.5), Cores((3, 5), 1.5)):
        warn_of_few_cores(cores, 4)
    warn_of_few_cores(Cores((3,), None), 4, ranks=2)

    first, second, of_ranks = (record.getMessage() for record in caplog.records)
    assert "--serial_mode=True is likely to be faster" in first
    assert of_ranks.startswith("each rank has one core")
    assert of_ranks.endswith("; fewer ranks are likely to be faster")
    assert "(affinity mask: 3; quota: none), on which its 4 processes take turns" in first
    assert "(affinity mask: 3,5; quota: 0.5 cores), on which its 4 processes take turns" in second


def test_refused_pinning_is_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(os, "sched_setaffinity", refuse)

    cores = pinnable(Cores((0, 1), None))

    assert cores.cores_of_actor(0, num_actors=1) is None
    (record,) = caplog.records
    assert record.getMessage() == "--set_workers_cpu_affinity is left out: [Errno 1] Operation not permitted"


def test_refused_niceness_is_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(os, "nice", refuse)
    plan_with(default_niceness=0)
    plan_with(default_niceness=-5, serial_mode=True)
    assert "niceness" not in caplog.text

    plan_with(default_niceness=-5)

    (warning,) = [record.getMessage() for record in caplog.records if "niceness" in record.getMessage()]
    assert "--default_niceness=-5 is left out" in warning
    assert "Operation not permitted" in warning


def test_checks_of_permissions_do_not_change_main() -> None:
    mask, niceness = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)

    assert pinnable(Cores.available()) == Cores.available()
    warn_of_niceness(-3)

    assert os.sched_getaffinity(0) == mask
    assert os.getpriority(os.PRIO_PROCESS, 0) == niceness
