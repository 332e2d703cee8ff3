"""Metrics are written row by row; a full disk costs rows, not the run."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import textwrap
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import masked_crc32c

from sfactory.report.writers import MetricsWriter, TensorBoardWriter
from tests.support.source import ROOT


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def events(directory: Path) -> list[tuple[int, dict[str, float]]]:
    """(step, scalars) of every event with scalars, checksums verified, files in the order of their names."""
    found = []
    for path in sorted(directory.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            assert struct.unpack("<I", data[8:12]) == (masked_crc32c(data[:8]),)
            body, data = data[12 : 12 + length], data[12 + length :]
            assert struct.unpack("<I", data[:4]) == (masked_crc32c(body),)
            data = data[4:]
            event = event_pb2.Event.FromString(body)
            if event.summary.value:
                found.append((event.step, {value.tag: value.simple_value for value in event.summary.value}))
            else:
                assert event.file_version == "brain.Event:2"
    return found


def test_rows_are_readable_at_once_and_a_resumed_run_appends(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)

    writer.write(1000, {"perf/fps": 123.5, "train/updates": 7, "train/loss": np.float32(0.5)})
    (row,) = rows(path)
    assert datetime.fromisoformat(str(row.pop("time"))).tzinfo is not None
    assert row == {"env_steps": 1000, "perf/fps": 123.5, "train/updates": 7, "train/loss": 0.5}
    writer.write(2000, {"nan": float("nan"), "inf": float("-inf"), "none": None})
    assert {**rows(path)[1], "time": None} == {"time": None, "env_steps": 2000, "nan": None, "inf": None, "none": None}
    writer.close()

    resumed = MetricsWriter(path)
    resumed.write(3000, {"a": 1})
    resumed.close()

    assert [row["env_steps"] for row in rows(path)] == [1000, 2000, 3000]


@pytest.mark.parametrize(("whole_rows", "torn"), [(0, 9), (2000, 9), (1, 65_535), (1, 65_536), (1, 200_000)])
def test_a_torn_row_is_removed(tmp_path: Path, whole_rows: int, torn: int) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = "".join(f'{{"env_steps": {step}, "pad": "{"p" * 100}"}}\n' for step in range(whole_rows))
    path.write_text(whole + '{"time": '.ljust(torn, "x"))

    writer = MetricsWriter(path)
    writer.write(whole_rows, {})
    writer.close()

    assert [row["env_steps"] for row in rows(path)] == list(range(whole_rows + 1))


def test_tensorboard_has_all_finite_scalars_at_the_flush_interval(tmp_path: Path) -> None:
    directories = [tmp_path / "now", tmp_path / "later"]
    for directory in directories:
        directory.mkdir()
    now, later = map(TensorBoardWriter, directories, (0.0, 3600.0))

    for writer in (now, later):
        writer.write(100, {"train/episode_return_mean": 20.5, "policy_lag/mean": 1})
        writer.write(200, {"train/episode_return_mean": float("nan"), "perf/fps": 4.0, "x": None})

    written = [(100, {"train/episode_return_mean": 20.5, "policy_lag/mean": 1.0}), (200, {"perf/fps": 4.0})]
    assert [events(directory) for directory in directories] == [written, []]
    now.close()
    later.close()
    assert [events(directory) for directory in directories] == [written, written]


FULL_DISK = """
    import logging, resource, sys
    from pathlib import Path
    from sfactory.report.writers import MetricsWriter, TensorBoardWriter

    logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
    folder = Path(sys.argv[1])
    writers = MetricsWriter(folder / "metrics.jsonl"), TensorBoardWriter(folder, flush_secs=0)
    for step in range(1, 41):
        most = 150 if 1 < step < 40 else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        for writer in writers:
            writer.write(step, {"a": 1.0})
    for writer in writers:
        writer.close()
"""


def test_a_full_disk_warns_once_per_file_and_writing_resumes(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )

    assert child.returncode == 0, child.stdout
    assert child.stdout.count("WARNING") == 2, child.stdout
    assert child.stdout.count("metrics.jsonl: rows are lost") == 1
    steps = [row["env_steps"] for row in rows(tmp_path / "metrics.jsonl")]
    assert (steps[0], steps[-1], len(steps) < 10) == (1, 40, True)
    assert events(tmp_path)[-1] == (40, {"a": 1.0})
