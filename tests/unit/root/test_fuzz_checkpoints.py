"""A checkpoint with damaged or forged bytes is refused or skipped, and its code does not run."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from sfactory.checkpoint.directory import CheckpointDir
from sfactory.checkpoint.file import Unusable, read, sidecar_of
from sfactory.errors import CheckpointError
from tests.support.mutations import Mutation, mutations
from tests.support.source import ROOT

CASES = {"payload": 150, "sidecar": 100}
FORGERIES = 300
MEMORY = 16 << 30  # of addresses, most of which a process with torch only reserves
OLDER, NEWER = 1.0, 2.0


def payload(value: float) -> dict[str, Any]:
    return {"weights": {"w": torch.full((16, 4), value)}, "train_step": 3, "best": None, "betas": (0.9, 0.999)}


def vouch(path: Path) -> None:
    """Have the sidecar say what the payload file is now, as an attacker would."""
    record = json.loads(sidecar_of(path).read_text())
    content = path.read_bytes()
    forged = {**record, "size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "replaces": None}
    sidecar_of(path).write_text(json.dumps(forged))


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an older and a newer checkpoint, which no test changes."""
    folder = tmp_path_factory.mktemp("two_checkpoints")
    directory = CheckpointDir(folder, keep=2)
    directory.save(payload(OLDER), 1, 100)
    directory.save(payload(NEWER), 2, 200)
    return folder


@pytest.fixture
def newest(two_checkpoints: Path, tmp_path: Path) -> Path:
    """The newer checkpoint of a copy of that directory."""
    return max(Path(shutil.copytree(two_checkpoints, tmp_path / "checkpoint_p0")).glob("*.pth"))


def outcome_of(newest: Path, intact: bytes) -> str:
    """What loading gives. Fails if it is neither a checkpoint nor a CheckpointError."""
    folder = newest.parent
    before = sorted(entry.name for entry in folder.iterdir())
    try:
        loaded = CheckpointDir(folder, keep=2).load()
    except CheckpointError:
        outcome = "refused"
    else:
        assert loaded is not None
        value = float(loaded.payload["weights"]["w"][0, 0])
        outcome = {OLDER: "the previous one", NEWER: "the newest"}[value]
        if outcome == "the newest":
            # Only where the sidecar's other fields were hit: the payload is what was saved.
            assert newest.read_bytes() == intact
        else:
            assert loaded.path != newest
    assert sorted(entry.name for entry in folder.iterdir()) == before
    return outcome


@pytest.mark.parametrize("part", CASES)
def test_a_mutated_checkpoint_is_skipped_or_refused(newest: Path, part: str) -> None:
    damaged = newest if part == "payload" else sidecar_of(newest)
    intact, content = damaged.read_bytes(), newest.read_bytes()
    outcomes: Counter[str] = Counter()

    @settings(max_examples=CASES[part], deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(mutations(len(intact)))
    def mutate(mutation: Mutation) -> None:
        damaged.write_bytes(mutation.applied(intact))
        outcomes[outcome_of(newest, content)] += 1
        damaged.write_bytes(intact)

    mutate()

    assert outcomes.total() >= CASES[part]
    assert outcomes["the previous one"] > 0.5 * CASES[part]
    if part == "payload":
        assert outcomes["the newest"] <= 0.2 * CASES[part]  # a mutation may change nothing
        assert outcomes["refused"] == 0


UNREADABLE = [
    '{"format_version": 1, "size": 1e999, "sha256": "", "replaces": 0}',
    "[" * 100_000,
    '{"a":' * 100_000,
    "\xff",
]


@pytest.mark.parametrize("text", UNREADABLE, ids=["endless size", "deep list", "deep object", "no text"])
def test_unreadable_sidecar_is_damage_like_any_other(newest: Path, text: str) -> None:
    sidecar_of(newest).write_bytes(text.encode("latin-1"))

    assert outcome_of(newest, newest.read_bytes()) == "the previous one"
    # Nor does it keep a checkpoint of the same name from being saved.
    CheckpointDir(newest.parent, keep=2).save(payload(NEWER), 2, 200)
    assert outcome_of(newest, newest.read_bytes()) == "the newest"


def load_forged(path: Path) -> None:
    """Print how many mutants of a checkpoint, each with a sidecar that vouches for it, are loaded and refused."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    content, outcomes = path.read_bytes(), Counter[str](loaded=0, refused=0)

    @settings(max_examples=FORGERIES, deadline=None, derandomize=True, database=None)
    @given(mutations(len(content)))
    def load(mutation: Mutation) -> None:
        path.write_bytes(mutation.applied(content))
        vouch(path)
        try:
            read(path)
            outcomes["loaded"] += 1
        except Unusable:
            outcomes["refused"] += 1

    load()
    print(json.dumps(outcomes))


@pytest.mark.long
def test_mutated_content_that_its_sidecar_vouches_for_crashes_no_process(newest: Path) -> None:
    """Behind the hash stands torch's own reader. It runs in a process of its own, in bounded memory: it may die."""
    code = f"from pathlib import Path; import {__name__} as own; own.load_forged(Path({str(newest)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-4000:]}"
    counts = json.loads(done.stdout)
    assert counts["loaded"] + counts["refused"] >= FORGERIES
    assert counts["refused"] > 0.3 * FORGERIES


class Gadget:
    """Pickled as a call of ``function`` with ``arguments``, or as a dict that is given a state."""

    def __init__(self, function: Callable[..., object], *arguments: object, state: object = None) -> None:
        self.call = (function, arguments, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def gadgets(marker: Path) -> dict[str, object]:
    """Payloads each of which would touch ``marker`` if what it names were called."""
    touch = f"open({str(marker)!r}, 'w')"
    return {
        "touch": Gadget(Path.touch, marker),
        "eval": Gadget(eval, touch),
        "os.system": Gadget(os.system, f"touch {marker}"),
        "getattr": Gadget(getattr, Gadget(__import__, "os"), "system"),
        "nested pickle": Gadget(pickle.loads, pickle.dumps(Gadget(Path.touch, marker))),
        "torch.load": Gadget(torch.load, str(marker)),
        "built": Gadget(dict, state={"__class__": Gadget(Path.touch, marker)}),
    }


@pytest.mark.parametrize("name", gadgets(Path("marker")))
@pytest.mark.parametrize("form", ["zip", "legacy", "plain pickle"])
def test_a_malicious_pickle_is_refused_and_its_code_does_not_run(
    newest: Path, tmp_path: Path, name: str, form: str
) -> None:
    marker = tmp_path / "marker"
    content = {"weights": gadgets(marker)[name]}
    with newest.open("wb") as file:
        if form == "plain pickle":
            pickle.dump(content, file)
        else:
            torch.save(content, file, _use_new_zipfile_serialization=form == "zip")
    vouch(newest)

    with pytest.raises(Unusable, match="cannot be loaded safely"):
        read(newest)
    assert outcome_of(newest, b"") == "the previous one"
    assert not marker.exists()


def squeezed(path: Path) -> None:
    """Compress the archive, so that a small file could unpack to anything."""
    with zipfile.ZipFile(path) as old:
        records = {record.filename: old.read(record) for record in old.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in records.items():
            new.writestr(name, content)


def endless(path: Path) -> None:
    """Have the payload hold itself."""
    value: dict[str, Any] = {}
    value["again"] = value
    torch.save(value, path)


def shared(path: Path) -> None:
    """Have lists hold the same lists again and again: 1.4 KB for 2^40 values."""
    value: list[Any] = []
    for _ in range(40):
        value = [value, value]
    torch.save({"deep": value}, path)


def endless_key(path: Path) -> None:
    """Make a tuple of tuples the key of a dict: its hash takes 2^40 steps, in torch's reader."""
    tuples = b"".join(b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(40))
    replaced = b"\x80\x02})q\x00" + tuples + b"K\x01s."
    with zipfile.ZipFile(path) as old:
        records = {record.filename: old.read(record) for record in old.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for name, content in records.items():
            new.writestr(name, replaced if name.endswith("data.pkl") else content)


def long_keys(path: Path) -> None:
    """Nest dicts under a long key, of which a path in an error would have all."""
    value: object = {1.5: 1}
    key = "k" * 1_000_000
    for _ in range(30):
        value = {key: value}
    torch.save(value, path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (endless, "nested"),
        (squeezed, "compressed"),
        (shared, "one value too many"),
        (endless_key, "nested"),
        (long_keys, "has the key 1.5"),
    ],
)
def test_content_without_a_bound_is_refused(tmp_path: Path, change: Callable[[Path], None], reason: str) -> None:
    path = CheckpointDir(tmp_path, keep=1).save({"zeros": torch.zeros(1_000_000)}, 1, 100)
    change(path)
    vouch(path)

    with pytest.raises(Unusable, match=reason) as caught:
        read(path)
    assert len(str(caught.value)) < 5_000


def test_many_views_of_one_tensor_take_no_more_memory_than_it(tmp_path: Path) -> None:
    path = CheckpointDir(tmp_path, keep=1).save({"zeros": torch.zeros(2)}, 1, 100)
    view = torch.zeros(1000)[1:]
    torch.save({"views": [view] * 100}, path)
    vouch(path)

    assert len({each.untyped_storage().data_ptr() for each in read(path)["views"]}) == 1
