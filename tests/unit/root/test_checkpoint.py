"""A checkpoint is whole or it is skipped with a warning; every save keeps the others in order."""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfactory.checkpoint import directory, file
from sfactory.checkpoint.directory import FORMAT_VERSION, CheckpointDir, Kind, Loaded, is_checkpoint
from sfactory.checkpoint.file import sidecar_of
from sfactory.errors import CannotSaveError, CheckpointError
from tests.support.files import empty, flip_a_bit, truncate


def payload(value: float) -> dict[str, Any]:
    return {"weights": {"w": torch.full((64, 8), value)}, "train_step": 3, "best": None, "betas": (0.9, 0.999)}


def value_in(loaded: Loaded | None) -> float:
    assert loaded is not None
    return float(loaded.payload["weights"]["w"][0, 0])


def names(path: Path) -> list[str]:
    return sorted(item.name for item in path.iterdir())


def payload_names(path: Path) -> list[str]:
    return [name for name in names(path) if name.endswith(".pth")]


def test_saved_payload_is_loaded_as_it_was(tmp_path: Path) -> None:
    directory = CheckpointDir(tmp_path / "checkpoint_p0", keep=2)
    assert directory.load() is None
    view = torch.arange(1_000_000, dtype=torch.float32)[10:20]
    tensors = {"w": torch.nn.Parameter(torch.randn(3, 4)), "steps": torch.tensor(7), "view": view}
    plain = {
        "optim": {"param_groups": [{"betas": (0.9, 0.999), "params": [0]}]},
        "env_steps": 123_456,
        "name": "cart pole",
        "lr": 1e-4,
        "flag": True,
        "none": None,
    }

    path = directory.save({"model": OrderedDict(tensors), **plain}, train_step=12, env_steps=123_456)
    loaded = directory.load()

    assert path.name == "checkpoint_000000012_123456.pth"
    assert path.stat().st_size < 10_000  # a view does not bring its whole storage along
    assert torch.serialization.get_unsafe_globals_in_checkpoint(path) == []
    assert loaded is not None
    assert loaded.path == path
    model = loaded.payload.pop("model")
    assert all(torch.equal(model[name], tensor) for name, tensor in tensors.items())
    assert model["steps"].dtype == torch.int64
    assert loaded.payload == plain
    assert names(tmp_path / "checkpoint_p0") == [path.name, path.name + ".json"]


def test_nothing_is_saved_where_another_run_has_taken_the_name(tmp_path: Path) -> None:
    directory = CheckpointDir(tmp_path / "run" / "checkpoint_p0", keep=1)
    (tmp_path / "run").mkdir()
    directory.tidy()
    directory.save(payload(1.0), 1, 100)
    (tmp_path / "run").rename(tmp_path / "moved")

    for _ in range(2):
        with pytest.raises(CannotSaveError, match="run was renamed or removed"):
            directory.save(payload(2.0), 2, 200)
        (tmp_path / "run").mkdir(exist_ok=True)

    assert names(tmp_path / "run") == []
    assert len(payload_names(tmp_path / "moved" / "checkpoint_p0")) == 1


def test_a_folder_that_cannot_be_made_is_a_narrow_error(tmp_path: Path) -> None:
    (tmp_path / "milestones").write_text("in the way")

    with pytest.raises(CannotSaveError):
        CheckpointDir(tmp_path, keep=1).save_milestone(payload(1.0), 1, 100)
    with pytest.raises(CannotSaveError):
        CheckpointDir(tmp_path / "milestones" / "p0", keep=1).save(payload(1.0), 1, 100)


def test_a_folder_that_is_moved_away_after_a_checkpoint_is_written_does_not_fail_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = CheckpointDir(tmp_path / "checkpoint_p0", keep=1)
    run.save(payload(1.0), 1, 100)
    real = file.commit

    def commit_then_move(*args: Any) -> None:
        real(*args)
        run.path.rename(tmp_path / "aside")
        run.path.write_text("no directory")

    with monkeypatch.context() as moved:
        moved.setattr(directory, "commit", commit_then_move)
        run.save(payload(2.0), 2, 200)

    assert "is saved, but older files could not be removed" in caplog.text
    with pytest.raises(CannotSaveError):
        run.save(payload(3.0), 3, 300)
    assert value_in(CheckpointDir(tmp_path / "aside", keep=1).load()) == 2.0


@pytest.mark.parametrize(
    "damage",
    [
        *(truncate, flip_a_bit, empty),
        lambda path: sidecar_of(path).unlink(),
        lambda path: sidecar_of(path).write_text("{}"),
    ],
)
def test_damaged_newest_is_skipped_and_if_all_are_damaged_loading_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], object]
) -> None:
    directory = CheckpointDir(tmp_path, keep=2)
    older = directory.save(payload(1.0), 1, 100)
    newest = directory.save(payload(2.0), 2, 200)
    damage(newest)

    with caplog.at_level(logging.WARNING):
        loaded = directory.load()

    assert value_in(loaded) == 1.0
    assert loaded is not None
    assert loaded.path == older
    assert str(older) in caplog.text
    assert str(newest) in caplog.text

    damage(older)
    before = names(tmp_path)
    with pytest.raises(CheckpointError, match=f"(?s){newest.name}.*{older.name}.*Nothing was deleted"):
        directory.load()
    assert names(tmp_path) == before


@pytest.mark.parametrize(
    ("bad", "place"),
    [
        ({"a": {"b": [1, np.float64(2.0)]}}, r"payload\['a'\]\['b'\]\[1\] is a numpy.float64"),
        ({"a": np.zeros(3)}, r"payload\['a'\] is a numpy.ndarray"),
        ({"a": {1.5: 0}}, r"payload\['a'\] has the key 1.5 of type float"),
        ({"a": Path("/")}, r"payload\['a'\] is a pathlib\.[\w.]*PosixPath"),
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
    (tmp_path / "checkpoint_000000001_100.pth.json").write_text(
        json.dumps({"format_version": FORMAT_VERSION + 1, "sfactory": "9.9"})
    )

    with pytest.raises(CheckpointError, match=f"format {FORMAT_VERSION + 1}, written by sfactory 9.9"):
        directory.load()


def test_only_the_latest_are_kept_by_number_and_every_milestone(tmp_path: Path) -> None:
    directory = CheckpointDir(tmp_path, keep=2)

    for env_steps in (5, 900, 1_000, 20_000):
        directory.save_milestone(payload(-env_steps), 999_999_990 + env_steps, env_steps)
        directory.save(payload(env_steps), 999_999_990 + env_steps, env_steps)

    assert payload_names(tmp_path) == ["checkpoint_1000000990_1000.pth", "checkpoint_1000019990_20000.pth"]
    assert len(payload_names(tmp_path / "milestones")) == 4
    assert len(list(tmp_path.rglob("*.json"))) == 6
    assert (value_in(directory.load()), value_in(directory.load("milestone"))) == (20_000, -20_000)


@pytest.mark.parametrize("save", ["save", "save_milestone"])
def test_a_save_of_an_earlier_step_renames_later_ones_and_one_of_the_same_replaces(tmp_path: Path, save: str) -> None:
    directory, folder = CheckpointDir(tmp_path, keep=1), tmp_path / ("" if save == "save" else "milestones")
    abandoned = getattr(directory, save)(payload(9.0), 900, 9_000)

    for value in (4.0, 5.0):
        getattr(directory, save)(payload(value), 500, 5_000)

    assert value_in(directory.load("latest" if save == "save" else "milestone")) == 5.0
    assert names(folder) == [
        *("checkpoint_000000500_5000.pth", "checkpoint_000000500_5000.pth.json"),
        *(f"set_aside_{abandoned.name}", f"set_aside_{abandoned.name}.json"),
    ]


def test_one_best_is_kept_and_is_apart_from_the_latest(tmp_path: Path) -> None:
    directory = CheckpointDir(tmp_path, keep=1)
    directory.save_best(payload(1.0), 1, 100, metric=-12.34567)
    directory.save_best(payload(2.0), 2, 200, metric=7.0)
    directory.save(payload(3.0), 3, 300)

    assert payload_names(tmp_path) == ["best_000000002_200_7.000.pth", "checkpoint_000000003_300.pth"]
    assert (value_in(directory.load("best")), value_in(directory.load("latest"))) == (2.0, 3.0)
    with pytest.raises(ValueError, match="metric=nan"):
        directory.save_best(payload(1.0), 4, 400, metric=float("nan"))


def three_kinds(path: Path) -> CheckpointDir:
    """Milestones of env steps 100 and 200, a best checkpoint of 200, latest ones of 300 and 400."""
    directory = CheckpointDir(path, keep=2)
    for step in (1, 2):
        directory.save_milestone(payload(step), step, step * 100)
    directory.save_best(payload(2.5), 2, 200, metric=1.0)
    for step in (3, 4):
        directory.save(payload(step), step, step * 100)
    return directory


def going_back(path: Path, kind: Kind) -> CheckpointDir:
    """The directory in a session that resumes from the newest checkpoint of a kind."""
    directory = CheckpointDir(path, keep=2)
    loaded = directory.load_to_resume(kind)
    assert loaded is not None
    directory.resume_from(loaded, kind)
    return directory


@pytest.mark.parametrize(("save", "more"), [("save", ()), ("save_best", (-7.0,)), ("save_milestone", ())])
def test_the_first_save_after_going_back_renames_all_later_kinds_even_if_it_is_later_itself(
    tmp_path: Path, save: str, more: tuple[float, ...]
) -> None:
    three_kinds(tmp_path).save_milestone(payload(3.5), 3, 300)
    truncate(tmp_path / "milestones" / "checkpoint_000000003_300.pth")
    truncate(tmp_path / "milestones" / "checkpoint_000000002_200.pth")
    directory = going_back(tmp_path, "milestone")  # from env step 100

    # Later ones are not loaded any more, though nothing is renamed before a save.
    assert [directory.load(kind) for kind in ("latest", "best")] == [None, None]
    assert value_in(directory.load("milestone")) == 1.0
    assert not list(tmp_path.rglob("set_aside*"))
    getattr(directory, save)(payload(9.0), 5, 500, *more)

    left = {path.name for path in tmp_path.rglob("*.pth") if "set_aside" not in path.name}
    assert left - {"checkpoint_000000005_500.pth", "best_000000005_500_-7.000.pth"} == {"checkpoint_000000001_100.pth"}
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("set_aside_*.pth")) == [
        "milestones/set_aside_checkpoint_000000002_200.pth",
        "milestones/set_aside_checkpoint_000000003_300.pth",
        "set_aside_best_000000002_200_1.000.pth",
        "set_aside_checkpoint_000000003_300.pth",
        "set_aside_checkpoint_000000004_400.pth",
    ]
    assert len(list(tmp_path.rglob("set_aside_*.pth.json"))) == 5


def test_going_back_twice_overwrites_nothing(tmp_path: Path) -> None:
    CheckpointDir(tmp_path, keep=1).save_best(payload(2.0), 2, 200, metric=1.0)
    CheckpointDir(tmp_path, keep=1).save(payload(3.0), 3, 300)

    for value in (4.0, 5.0):
        going_back(tmp_path, "best").save(payload(value), 3, 300)

    found = {path.name: torch.load(path, weights_only=True) for path in tmp_path.glob("*.pth")}
    assert {name: float(held["weights"]["w"][0, 0]) for name, held in found.items()} == {
        "best_000000002_200_1.000.pth": 2.0,
        "set_aside_checkpoint_000000003_300.pth": 3.0,
        "set_aside_set_aside_checkpoint_000000003_300.pth": 4.0,
        "checkpoint_000000003_300.pth": 5.0,
    }
    assert all(is_checkpoint(name) for name in names(tmp_path))
    assert not any(is_checkpoint(name) for name in ("my.pth", "checkpoint_1_2.pth", "checkpoint_000000001_2.pth.bak"))


def test_the_checkpoint_of_an_env_step_is_loaded_and_a_missing_or_damaged_one_is_not(tmp_path: Path) -> None:
    directory = three_kinds(tmp_path)
    steps = (100, 200, 300)

    assert [value_in(directory.load_at(env_steps)) for env_steps in steps] == [1.0, 2.5, 3.0]
    assert value_in(directory.load_at(400, "latest")) == 4.0
    assert value_in(directory.load_at(200, "milestone")) == 2.0

    truncate(next(tmp_path.glob("best_*.pth")))
    assert value_in(directory.load_at(200)) == 2.0
    with pytest.raises(CheckpointError, match="200"):
        directory.load_at(200, "best")
    with pytest.raises(CheckpointError, match=r"latest: 300, 400; .*milestone: 100, 200"):
        directory.load_at(250)
    with pytest.raises(CheckpointError, match=r"milestone: 100, 200"):
        directory.load_at(300, "milestone")


def test_without_a_latest_checkpoint_a_run_resumes_from_the_newest_other_one(tmp_path: Path) -> None:
    directory = CheckpointDir(tmp_path, keep=1)

    directory.save_milestone(payload(2.0), 2, 200)
    for best_step, expected in ((1, 2.0), (3, 3.0)):
        directory.save_best(payload(best_step), best_step, best_step * 100, metric=1.0)
        assert value_in(directory.load_to_resume()) == expected
