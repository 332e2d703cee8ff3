"""A checkpoint is whole or it is passed over, loudly; loading one never runs code."""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
import textwrap
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfactory.checkpoint import FORMAT_VERSION, CheckpointDir, Kind, is_checkpoint
from sfactory.errors import CannotSaveError, CheckpointError
from tests.support.files import empty, flip_a_bit, truncate

REPO = Path(__file__).resolve().parents[3]


def payload(value: float) -> dict[str, Any]:
    return {"weights": {"w": torch.full((64, 8), value)}, "train_step": 3, "best": None, "betas": (0.9, 0.999)}


def value_of(directory: CheckpointDir, kind: Any = "latest") -> float:
    loaded = directory.load(kind)
    assert loaded is not None
    return float(loaded.payload["weights"]["w"][0, 0])


def names(path: Path) -> list[str]:
    return sorted(item.name for item in path.iterdir())


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A child that runs ``code`` with the working tree importable."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=REPO,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_saved_payload_is_loaded_as_it_was(tmp_path: Path) -> None:
    directory = CheckpointDir(tmp_path / "checkpoint_p0", keep=2)
    assert directory.load() is None
    block = torch.arange(1_000_000, dtype=torch.float32)
    saved = {
        "model": OrderedDict(w=torch.nn.Parameter(torch.randn(3, 4)), steps=torch.tensor(7), view=block[10:20]),
        "optim": {"state": {0: {"step": torch.tensor(2.0)}}, "param_groups": [{"betas": (0.9, 0.999), "params": [0]}]},
        "env_steps": 123_456,
        "name": "cart pole",
        "lr": 1e-4,
        "flag": True,
        "none": None,
    }

    path = directory.save(saved, train_step=12, env_steps=123_456)
    loaded = directory.load()

    assert path.name == "checkpoint_000000012_123456.pth"
    assert path.stat().st_size < 10_000  # a view does not bring its whole storage along
    assert torch.serialization.get_unsafe_globals_in_checkpoint(path) == []
    assert loaded is not None
    assert (loaded.path, loaded.skipped) == (path, ())
    assert torch.equal(loaded.payload["model"]["w"], saved["model"]["w"])  # type: ignore[index]
    assert loaded.payload["model"]["steps"].dtype == torch.int64
    assert loaded.payload["model"]["view"].tolist() == list(range(10, 20))
    assert loaded.payload["optim"]["param_groups"] == [{"betas": (0.9, 0.999), "params": [0]}]
    assert all(loaded.payload[key] == saved[key] for key in ("env_steps", "name", "lr", "flag", "none"))
    assert names(tmp_path / "checkpoint_p0") == [path.name, path.name + ".json"]


@pytest.mark.parametrize(
    "broken",
    [
        lambda folder: CheckpointDir(folder, keep=0),
        lambda folder: CheckpointDir(folder, keep=1).save_best(payload(1.0), 1, 100, metric=float("nan")),
    ],
)
def test_nonsense_is_refused(tmp_path: Path, broken: Callable[[Path], object]) -> None:
    with pytest.raises(ValueError, match="="):
        broken(tmp_path)


def test_a_folder_that_cannot_be_made_is_a_narrow_error(tmp_path: Path) -> None:
    (tmp_path / "milestones").write_text("in the way")

    with pytest.raises(CannotSaveError):
        CheckpointDir(tmp_path, keep=1).save_milestone(payload(1.0), 1, 100)
    with pytest.raises(CannotSaveError):
        CheckpointDir(tmp_path / "milestones" / "p0", keep=1).save(payload(1.0), 1, 100)


def without_sidecar(path: Path) -> None:
    path.with_name(path.name + ".json").unlink()


def with_sidecar(text: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.with_name(path.name + ".json").write_text(text)

    return damage


DAMAGES = {
    "truncated": truncate,
    "a bit": flip_a_bit,
    "empty": empty,
    "no sidecar": without_sidecar,
    **{text: with_sidecar(text) for text in ("", "[]", "{}", '{"format_version": 1, "size": "x"}')},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_newest_is_passed_over_and_both_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    directory = CheckpointDir(tmp_path, keep=2)
    older = directory.save(payload(1.0), 1, 100)
    newest = directory.save(payload(2.0), 2, 200)
    DAMAGES[damage](newest)

    with caplog.at_level(logging.WARNING):
        loaded = directory.load()

    assert loaded is not None
    assert loaded.path == older
    assert float(loaded.payload["weights"]["w"][0, 0]) == 1.0
    assert [bad.path for bad in loaded.skipped] == [newest]
    assert str(older) in caplog.text
    assert str(newest) in caplog.text


@pytest.mark.parametrize("damage", [truncate, without_sidecar])
def test_when_all_are_damaged_loading_is_refused_and_nothing_is_deleted(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    directory = CheckpointDir(tmp_path, keep=2)
    for step in (1, 2):
        damage(directory.save(payload(step), step, step * 100))
    before = names(tmp_path)

    with pytest.raises(CheckpointError) as caught:
        directory.load()

    assert "checkpoint_000000001_100.pth" in str(caught.value)
    assert "checkpoint_000000002_200.pth" in str(caught.value)
    assert names(tmp_path) == before


@pytest.mark.parametrize(
    ("bad", "place"),
    [
        ({"a": {"b": [1, np.float64(2.0)]}}, r"payload\['a'\]\['b'\]\[1\] is a numpy.float64"),
        ({"a": np.zeros(3)}, r"payload\['a'\] is a numpy.ndarray"),
        ({"a": {1.5: 0}}, r"payload\['a'\] has the key 1.5 of type float"),
        ({"a": Path("/")}, r"payload\['a'\] is a pathlib.PosixPath"),
        ({"a": torch.ones(2).to_sparse()}, r"payload\['a'\] is a Tensor \(torch.sparse_coo"),
    ],
)
def test_a_value_that_is_not_plain_is_refused_by_its_place(tmp_path: Path, bad: dict[str, Any], place: str) -> None:
    directory = CheckpointDir(tmp_path, keep=1)

    with pytest.raises(TypeError, match=place):
        directory.save(bad, 1, 2)

    assert names(tmp_path) == []


def test_another_format_version_is_refused_with_both_versions_named(tmp_path: Path) -> None:
    directory = CheckpointDir(tmp_path, keep=2)
    directory.save(payload(1.0), 1, 100)
    sidecar = tmp_path / "checkpoint_000000001_100.pth.json"
    sidecar.write_text(json.dumps({"format_version": FORMAT_VERSION + 1, "sfactory": "9.9"}))

    with pytest.raises(CheckpointError, match=f"format {FORMAT_VERSION + 1}, written by sfactory 9.9"):
        directory.load()


class Gadget:
    """Touches a file when it is unpickled by a reader that runs code."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return (Path.touch, (self.marker,))


def test_a_malicious_checkpoint_is_refused_and_its_code_does_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    directory = CheckpointDir(tmp_path, keep=1)
    path = directory.save(payload(1.0), 1, 100)
    sidecar = path.with_name(path.name + ".json")
    torch.save({"weights": Gadget(marker)}, path)
    # The sidecar vouches for the gadget, as an attacker's would.
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    forged = {**json.loads(sidecar.read_text()), "size": path.stat().st_size, "sha256": digest}
    sidecar.write_text(json.dumps(forged))

    with pytest.raises(CheckpointError, match="cannot be loaded safely: UnpicklingError"):
        directory.load()

    assert not marker.exists()


def test_only_the_latest_are_kept_by_number_and_not_by_name(tmp_path: Path) -> None:
    directory = CheckpointDir(tmp_path, keep=2)

    for env_steps in (5, 900, 1_000, 20_000):
        directory.save(payload(env_steps), 999_999_990 + env_steps, env_steps)

    assert [name for name in names(tmp_path) if name.endswith(".pth")] == [
        "checkpoint_1000000990_1000.pth",
        "checkpoint_1000019990_20000.pth",
    ]
    assert len(names(tmp_path)) == 4
    assert value_of(directory) == 20_000


@pytest.mark.parametrize("save", ["save", "save_milestone"])
def test_a_save_of_an_earlier_step_sets_later_ones_aside_and_one_of_the_same_replaces(
    tmp_path: Path, save: str
) -> None:
    directory, folder = CheckpointDir(tmp_path, keep=1), tmp_path / ("" if save == "save" else "milestones")
    abandoned = getattr(directory, save)(payload(9.0), 900, 9_000)

    for value in (4.0, 5.0):
        getattr(directory, save)(payload(value), 500, 5_000)

    assert value_of(directory, "latest" if save == "save" else "milestone") == 5.0
    assert names(folder) == [
        *("checkpoint_000000500_5000.pth", "checkpoint_000000500_5000.pth.json"),
        *(f"set_aside_{abandoned.name}", f"set_aside_{abandoned.name}.json"),
    ]


def test_one_best_is_kept_and_is_apart_from_the_latest(tmp_path: Path) -> None:
    directory = CheckpointDir(tmp_path, keep=1)
    directory.save_best(payload(1.0), 1, 100, metric=-12.34567)
    directory.save_best(payload(2.0), 2, 200, metric=7.0)
    directory.save(payload(3.0), 3, 300)

    assert [name for name in names(tmp_path) if name.endswith(".pth")] == [
        "best_000000002_200_7.000.pth",
        "checkpoint_000000003_300.pth",
    ]
    assert value_of(directory, "best") == 2.0
    assert value_of(directory, "latest") == 3.0


KILLED_AT_RENAME = """
    import os, sys, time
    import torch
    from sfactory.checkpoint import CheckpointDir

    real, calls = os.replace, []

    def replace(source, target):
        calls.append(target)
        if len(calls) == int(sys.argv[2]):
            print("before", os.path.basename(target), flush=True)
            time.sleep(600)
        real(source, target)

    os.replace = replace
    step = int(sys.argv[3])
    CheckpointDir(sys.argv[1], keep=2).save({"weights": {"w": torch.full((64, 8), 2.0)}}, step, step * 100)
"""


@pytest.mark.parametrize("rename", [1, 2])
@pytest.mark.parametrize("step", [1, 2], ids=["same name", "new name"])
def test_a_kill_before_any_rename_leaves_the_old_one_and_its_leftovers_are_removed(
    tmp_path: Path, rename: int, step: int
) -> None:
    CheckpointDir(tmp_path, keep=2).save(payload(1.0), 1, 100)

    child = python(KILLED_AT_RENAME, str(tmp_path), str(rename), str(step))
    assert child.stdout is not None
    announced = child.stdout.readline()
    child.kill()
    child.communicate()
    leftovers = [name for name in names(tmp_path) if name.startswith(".tmp-")]
    reopened = CheckpointDir(tmp_path, keep=2)
    reopened.tidy()

    assert announced.startswith(f"before checkpoint_{step:09d}_{step * 100}.pth"), announced
    assert leftovers
    assert not [name for name in names(tmp_path) if name.startswith(".tmp-")]
    assert value_of(reopened) == 1.0

    reopened.save(payload(3.0), step, step * 100)

    assert value_of(reopened) == 3.0
    assert len(names(tmp_path)) == 2 * step


FULL_DISK = """
    import resource, sys
    import torch
    from sfactory.checkpoint import CheckpointDir
    from sfactory.errors import CannotSaveError

    directory = CheckpointDir(sys.argv[1], keep=2)
    payload = {"weights": {"w": torch.full((64, 8), 2.0)}, "big": {str(i): torch.ones(100, 100) for i in range(20)}}
    outcomes = []
    for limit in (0, 10, 1_000, 100_000, 800_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            directory.save(payload, 2, 200)
        except CannotSaveError as error:
            outcomes.append("refused")
    print(" ".join(outcomes), sorted(path.name for path in directory.path.iterdir()))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    directory.save(payload, 2, 200)
"""


def test_a_full_disk_leaves_the_old_checkpoint_and_a_later_save_succeeds(tmp_path: Path) -> None:
    CheckpointDir(tmp_path, keep=2).save(payload(1.0), 1, 100)

    child = python(FULL_DISK, str(tmp_path))
    output, _ = child.communicate(timeout=120)

    assert child.returncode == 0, output
    assert output.split() == ["refused"] * 5 + [
        "['checkpoint_000000001_100.pth',",
        "'checkpoint_000000001_100.pth.json']",
    ]
    assert value_of(CheckpointDir(tmp_path, keep=2)) == 2.0


def test_milestones_are_never_pruned_and_are_apart_from_the_latest(tmp_path: Path) -> None:
    directory = CheckpointDir(tmp_path, keep=1)

    for step in (1, 2, 3):
        directory.save_milestone(payload(step), step, step * 100)
        directory.save(payload(10 + step), step, step * 100)

    assert [name for name in names(tmp_path / "milestones") if name.endswith(".pth")] == [
        "checkpoint_000000001_100.pth",
        "checkpoint_000000002_200.pth",
        "checkpoint_000000003_300.pth",
    ]
    assert len(names(tmp_path / "milestones")) == 6
    assert value_of(directory, "milestone") == 3.0
    assert value_of(directory, "latest") == 13.0


def three_kinds(path: Path) -> CheckpointDir:
    """Milestones of env steps 100 and 200, a best checkpoint of 200, latest ones of 300 and 400."""
    directory = CheckpointDir(path, keep=2)
    directory.save_milestone(payload(1.0), 1, 100)
    directory.save_milestone(payload(2.0), 2, 200)
    directory.save_best(payload(2.5), 2, 200, metric=1.0)
    directory.save(payload(3.0), 3, 300)
    directory.save(payload(4.0), 4, 400)
    return directory


def going_back(path: Path, kind: Kind) -> CheckpointDir:
    """The directory as a new session has it that goes on from the newest checkpoint of a kind."""
    directory = CheckpointDir(path, keep=2)
    loaded = directory.load_to_resume(kind)
    assert loaded is not None
    directory.resume_from(loaded, kind)
    return directory


def checkpoints(path: Path) -> dict[str, float]:
    """What each payload file below ``path`` holds, set aside or not, by the name of that file."""
    found = {file: torch.load(file, weights_only=True) for file in path.rglob("*.pth")}
    return {str(file.relative_to(path)): float(held["weights"]["w"][0, 0]) for file, held in found.items()}


SAVES: dict[str, Callable[[CheckpointDir], Path]] = {
    "latest": lambda directory: directory.save(payload(9.0), 5, 500),
    "best": lambda directory: directory.save_best(payload(9.0), 5, 500, metric=-7.0),
    "milestone": lambda directory: directory.save_milestone(payload(9.0), 5, 500),
}


@pytest.mark.parametrize("first_save", SAVES)
def test_the_first_save_after_going_back_sets_all_later_kinds_aside_even_if_it_is_later_itself(
    tmp_path: Path, first_save: str
) -> None:
    three_kinds(tmp_path).save_milestone(payload(3.5), 3, 300)
    truncate(tmp_path / "milestones" / "checkpoint_000000003_300.pth")
    truncate(tmp_path / "milestones" / "checkpoint_000000002_200.pth")
    directory = going_back(tmp_path, "milestone")  # from env step 100

    before = names(tmp_path)
    SAVES[first_save](directory)

    assert not any("set_aside" in name for name in before)
    stands = {path.name for path in tmp_path.rglob("*.pth") if "set_aside" not in path.name}
    assert stands - {"checkpoint_000000005_500.pth", "best_000000005_500_-7.000.pth"} == {
        "checkpoint_000000001_100.pth"
    }
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("set_aside_*.pth")) == [
        "milestones/set_aside_checkpoint_000000002_200.pth",
        "milestones/set_aside_checkpoint_000000003_300.pth",
        "set_aside_best_000000002_200_1.000.pth",
        "set_aside_checkpoint_000000003_300.pth",
        "set_aside_checkpoint_000000004_400.pth",
    ]
    assert len(list(tmp_path.rglob("set_aside_*.pth.json"))) == 5


def test_going_back_twice_writes_over_nothing(tmp_path: Path) -> None:
    CheckpointDir(tmp_path, keep=1).save_best(payload(2.0), 2, 200, metric=1.0)
    CheckpointDir(tmp_path, keep=1).save(payload(3.0), 3, 300)

    for value in (4.0, 5.0):
        going_back(tmp_path, "best").save(payload(value), 3, 300)

    assert checkpoints(tmp_path) == {
        "best_000000002_200_1.000.pth": 2.0,
        "set_aside_checkpoint_000000003_300.pth": 3.0,
        "set_aside_set_aside_checkpoint_000000003_300.pth": 4.0,
        "checkpoint_000000003_300.pth": 5.0,
    }
    assert all(is_checkpoint(name) for name in names(tmp_path))


@pytest.mark.parametrize(
    ("env_steps", "kind", "expected"),
    [(100, None, 1.0), (200, None, 2.5), (300, None, 3.0), (400, "latest", 4.0), (200, "milestone", 2.0)],
)
def test_the_checkpoint_of_an_env_step_is_loaded_whatever_its_kind(
    tmp_path: Path, env_steps: int, kind: Any, expected: float
) -> None:
    loaded = three_kinds(tmp_path).load_at(env_steps, kind)

    assert float(loaded.payload["weights"]["w"][0, 0]) == expected
    assert f"_{env_steps}" in loaded.path.name


def test_missing_and_damaged_checkpoints_of_an_env_step_are_passed_over_or_refused(tmp_path: Path) -> None:
    directory = three_kinds(tmp_path)
    truncate(next(tmp_path.glob("best_*.pth")))

    assert float(directory.load_at(200).payload["weights"]["w"][0, 0]) == 2.0
    with pytest.raises(CheckpointError, match="200"):
        directory.load_at(200, "best")
    with pytest.raises(CheckpointError, match=r"latest: 300, 400; .*milestone: 100, 200"):
        directory.load_at(250)
    with pytest.raises(CheckpointError, match=r"milestone: 100, 200"):
        directory.load_at(300, "milestone")


@pytest.mark.parametrize(("best_step", "expected"), [(1, 2.0), (3, 3.0)])
def test_without_a_latest_checkpoint_a_run_resumes_from_the_newest_other_one(
    tmp_path: Path, best_step: int, expected: float
) -> None:
    directory = CheckpointDir(tmp_path, keep=1)
    directory.save_milestone(payload(2.0), 2, 200)
    directory.save_best(payload(best_step), best_step, best_step * 100, metric=1.0)

    loaded = directory.load_to_resume()

    assert loaded is not None
    assert float(loaded.payload["weights"]["w"][0, 0]) == expected


def test_later_checkpoints_count_no_more_before_they_are_renamed_and_earlier_ones_stay(tmp_path: Path) -> None:
    three_kinds(tmp_path)
    truncate(tmp_path / "milestones" / "checkpoint_000000002_200.pth")
    before = sorted(tmp_path.rglob("*"))

    directory = going_back(tmp_path, "milestone")

    assert [directory.load(kind) for kind in ("latest", "best")] == [None, None]
    assert value_of(directory, "milestone") == 1.0
    assert sorted(tmp_path.rglob("*")) == before


def test_every_written_file_is_known_as_a_checkpoint_and_no_other(tmp_path: Path) -> None:
    three_kinds(tmp_path)
    directory = going_back(tmp_path, "best")
    directory.save(payload(9.0), 3, 350)
    directory.save_milestone(payload(9.0), 1, 50)

    written = [path.name for path in tmp_path.rglob("*") if path.is_file()]

    assert value_of(directory, "best") == 2.5
    assert (value_of(directory, "latest"), value_of(directory, "milestone")) == (9.0, 9.0)
    assert len(written) == 14
    assert all(is_checkpoint(name) for name in written)
    assert not any(is_checkpoint(name) for name in ("my.pth", "checkpoint_1_2.pth", "checkpoint_000000001_2.pth.bak"))
