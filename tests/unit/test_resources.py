"""A run that cannot have its memory is refused with need and have, before anything starts."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from sfactory.errors import ResourceError
from sfactory.run import resources
from sfactory.run.resources import available_memory, raise_file_limit, require_memory
from tests.support.files import write_files

GIB = 2**30


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, None),
        ({"memory.max": "max\n", "memory.current": "5\n"}, None),
        ({"memory.max": "100\n", "memory.current": "30\n"}, 70),
        ({"memory.max": "100\n", "memory.current": "130\n"}, 0),
        ({"memory/memory.limit_in_bytes": "50\n", "memory/memory.usage_in_bytes": "20\n"}, 30),
    ],
)
def test_the_containers_limit_is_read_from_either_version_of_cgroups(
    tmp_path: Path, files: dict[str, str], left: int | None
) -> None:
    assert resources._cgroup_available(write_files(tmp_path, files)) == left


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


def test_where_nothing_is_known_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "available_memory", lambda: None)

    require_memory(2**60)


def test_the_limit_of_open_files_is_raised_to_the_hard_one() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = min(256, before[1])
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))

        raise_file_limit()

        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
