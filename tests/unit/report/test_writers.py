"""Metrics are written row by row; a full disk costs rows, not the run."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import textwrap
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboardX.proto import event_pb2, layout_pb2
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData
from tensorboardX.record_writer import masked_crc32c

from sfactory.config.flags import config_of
from sfactory.report import writers
from sfactory.report.writers import MetricsWriter, TensorBoard, TensorBoardWriter
from tests.support.source import ROOT

CHARTS = "custom_scalars__config__"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def events_of(path: Path) -> list[Any]:
    """Every event of a file, with its checksums verified, after the one that names the format."""
    found, data = list[Any](), path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12]) == (masked_crc32c(data[:8]),)
        body, data = data[12 : 12 + length], data[12 + length :]
        assert struct.unpack("<I", data[:4]) == (masked_crc32c(body),)
        data = data[4:]
        found.append(event_pb2.Event.FromString(body))
    assert all(event.file_version == "brain.Event:2" for event in found[:1])
    return found[1:]


def events(directory: Path) -> list[tuple[int, dict[str, float]]]:
    """(step, scalars) of every event, files in the order of their names."""
    every = [event for path in sorted(directory.glob("events.out.tfevents.*")) for event in events_of(path)]
    return [(event.step, {value.tag: value.simple_value for value in event.summary.value}) for event in every]


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


def test_a_file_that_is_deleted_meanwhile_is_begun_again_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)

    writer.write(1000, {})
    path.unlink()
    for steps in (2000, 3000):
        writer.write(steps, {})
    writer.close()

    assert [row["env_steps"] for row in rows(path)] == [2000, 3000]
    assert [message.partition(" was deleted")[0] for message in caplog.messages] == [str(path)]


def test_rows_of_a_run_with_a_folder_that_was_removed_are_not_those_of_a_later_run_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    path.parent.mkdir()
    writer = MetricsWriter(path)
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    later = MetricsWriter(path)

    for each, steps in ((writer, 9000), (later, 1000)):
        each.write(steps, {})
        each.close()

    assert [row["env_steps"] for row in rows(path)] == [1000]


class SetBack(datetime):
    """A clock that is set back by an hour after each look."""

    looks = 0

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> SetBack:
        cls.looks += 1
        return cls.fromtimestamp(1.8e9 - 3600.0 * cls.looks, tz)


def test_sessions_and_records_of_tensorboard_keep_their_order_where_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "datetime", SetBack)

    for session in (0, 1, 2):
        writer = TensorBoardWriter(tmp_path, 3600.0)
        for steps in (1, 2):
            writer.write(10 * session + steps, {"a": 1.0})
        writer.close()

    assert [step for step, _ in events(tmp_path)] == [1, 2, 11, 12, 21, 22]
    times = [event.wall_time for path in sorted(tmp_path.glob("*")) for event in events_of(path)]
    assert times == sorted(times)


def test_a_picture_that_moves_is_an_image_of_tensorboard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gif = tmp_path / "eval.gif"
    gif.write_bytes(b"GIF89a" + struct.pack("<HH", 64, 48) + b"and so on")
    writer = TensorBoard(tmp_path, 3600.0, config_of({"env": "CartPole-v1"}))

    for path in (gif, tmp_path / "none.gif"):
        writer.show(100, "eval/video", path)
    writer.close()

    (file,) = tmp_path.glob("events.out.tfevents.*")
    *_, event = events_of(file)
    (value,) = event.summary.value
    assert (event.step, value.tag) == (100, "eval/video")
    assert (value.image.width, value.image.height, value.image.encoded_image_string) == (64, 48, gif.read_bytes())
    assert caplog.text.count("none.gif is not in TensorBoard") == 1


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


def test_each_of_several_policies_has_a_folder_and_the_settings_are_hyperparameters(tmp_path: Path) -> None:
    config = config_of({"env": "CartPole-v1", "num_policies": 2, "rollout": 64, "env_kwargs": {"a": "b|c"}})
    writer = TensorBoard(tmp_path, 3600.0, config)

    writer.write(100, {"train/kl": 0.5, "policy_0/train/kl": 0.25, "policy_1/train/kl": 0.75})
    writer.close()

    *about, scalars = events(tmp_path)
    assert scalars == (100, {"train/kl": 0.5})
    assert [events(tmp_path / f"policy_{k}") for k in range(2)] == [[(100, {"train/kl": kl})] for kl in (0.25, 0.75)]
    tags = [next(iter(values)) for _, values in about]
    assert tags == [
        *(f"_hparams_/{what}" for what in ("experiment", "session_start_info")),
        "settings/text_summary",
        CHARTS,
    ]
    (file,) = tmp_path.glob("events.out.tfevents.*")
    _, session, text, charts = (event.summary.value[0] for event in events_of(file)[:4])
    chosen = HParamsPluginData.FromString(session.metadata.plugin_data.content).session_start_info.hparams
    assert (chosen["rollout"].number_value, chosen["env"].string_value) == (64.0, "CartPole-v1")
    assert chosen["learning_rate"].number_value == config.optim.learning_rate
    assert "max_grad_norm" in chosen
    assert "train_dir" not in chosen
    assert "| rollout | 64 |" in text.tensor.string_val[0].decode()
    assert "b\\|c" in text.tensor.string_val[0].decode()
    assert len(layout_pb2.Layout.FromString(charts.tensor.string_val[0]).category) == 3


def test_a_path_that_is_not_utf_8_is_written_with_escapes(tmp_path: Path) -> None:
    TensorBoard(tmp_path, 3600.0, config_of({"env": "any", "train_dir": "runs\udcff", "pbt_dir": "all\udcff"})).close()

    (file,) = tmp_path.glob("events.out.tfevents.*")
    texts = [event.summary.value[0].tensor.string_val for event in events_of(file)]
    table = next(text[0].decode() for text in texts if text)
    assert "| train_dir | runs\\udcff |" in table
    assert "| pbt_dir | all\\udcff |" in table


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
