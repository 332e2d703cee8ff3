"""Progress and messages on the terminal and in the log file."""

from __future__ import annotations

import dataclasses
import io
import logging
import re
import resource
from pathlib import Path
from typing import Any

import pytest

from sfactory.messages import PolicyLag
from sfactory.report.console import Console, ConsoleHandler
from sfactory.report.progress import Progress

STAMP = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] "


class Broken(io.StringIO):
    """A stream that fails at every write."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def full_progress(env_steps: int = 1_000_000) -> Progress:
    return Progress(
        env_steps=env_steps,
        train_seconds=10.0,
        updates=55,
        fps_10s=100_000.4,
        fps_60s=50_000.0,
        sample_fps=110_000.0,
        return_mean=195.25,
        best_return_mean=200.0,
        length_mean=195.3,
        lag=PolicyLag(0.0, 1.25, 3.0),
        losses={"policy_loss": -0.012345678},
    )


def shown(progress: Progress, steps: int | None = None, seconds: float | None = None) -> str:
    """The line of a stream that is not a terminal."""
    stream = io.StringIO()
    Console(steps, seconds, stream=stream).line(progress)
    (line,) = stream.getvalue().splitlines()
    assert re.match(STAMP, line)
    return re.sub(STAMP, "", line)


def test_a_report_is_one_line_of_pairs_off_a_terminal() -> None:
    assert shown(full_progress(), steps=4_000_000) == (
        "env_steps=1000000 fps_10s=100000 fps_60s=50000 sample_fps=110000 return=195.250 best=200.000 length=195.3 "
        "lag=0.0/1.2/3.0 updates=55 policy_loss=-0.01235 left=0:01:00"
    )
    assert shown(Progress(env_steps=0, train_seconds=0.0, updates=0)).count("=-") == 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env_faults": {"env_restarts": 2, "bad_env_data": 0}}, "policy_loss=-0.01235 env_restarts=2 left="),
        ({"true_objective_mean": 195.25}, "return=195.250 best="),
        ({"true_objective_mean": 0.5}, "return=195.250 true_objective=0.500 best="),
        ({"returns": [20.5, None, -1.0]}, "best=200.000 returns=20.500,-,-1.000 length="),
        ({"return_mean": 1234567.891, "best_return_mean": -1000.5}, "return=1234568 best=-1000 length="),
    ],
)
def test_optional_values_are_shown_only_if_they_say_something(changes: dict[str, Any], words: str) -> None:
    assert words in shown(dataclasses.replace(full_progress(), **changes))


@pytest.mark.parametrize(
    ("steps", "seconds", "left"),
    [(4_000_000, 100.0, "0:01:00"), (None, 100.0, "0:01:30"), (10**15, 25.0, "0:00:15"), (10**30, None, "-")],
)
def test_time_left_is_that_of_the_nearer_limit(steps: int | None, seconds: float | None, left: str) -> None:
    assert shown(full_progress(), steps, seconds).endswith(f" left={left}")


@pytest.mark.parametrize(
    ("learning", "left"),
    [
        ([(1_000_000, 50_000.0)] * 2, "0:01:00"),  # both are in every env step
        ([(800_000, 100_000.0), (200_000, 25_000.0)], "0:02:32"),
        ([(4_000_000, 0.0), (3_000_000, 50_000.0)], "0:00:20"),  # one has finished
        ([(800_000, 100_000.0), (0, None)], "-"),
    ],
)
def test_time_left_is_that_of_the_slowest_policy_as_limits_hold_for_each(
    learning: list[tuple[int, float | None]], left: str
) -> None:
    progress = dataclasses.replace(full_progress(), learning=learning)

    assert shown(progress, steps=4_000_000).endswith(f" left={left}")


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_leaves_warnings_and_the_last_line_to_the_stream_and_all_to_the_log(tmp_path: Path, quiet: bool) -> None:
    stream, log = io.StringIO(), tmp_path / "sf_log.txt"
    log.write_text("an earlier session\n")
    console = Console(1_000_000, None, stream=stream, log_path=log, quiet=quiet)

    console.line(full_progress(500_000))
    console.show(full_progress(500_000))
    console.message("bound by none")
    console.message("actor 3 was replaced", logging.WARNING)
    console.close("RESULT done env_steps=1")

    expected = ["env_steps=500000", "bound by none", "actor 3 was replaced", "RESULT done env_steps=1"]
    printed, logged = (
        [re.sub(STAMP, "", line).partition(" fps")[0] for line in text.splitlines()]
        for text in (stream.getvalue(), log.read_text())
    )
    assert printed == expected[2 * quiet :]
    assert logged == ["an earlier session", *expected]
    assert not console.is_live


@pytest.mark.parametrize("stream", [Broken(), io.StringIO(), None], ids=["broken pipe", "closed", "stderr"])
def test_a_broken_terminal_does_not_end_the_run_and_stdout_stays_empty(
    tmp_path: Path, stream: io.StringIO | None, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(100, None, stream=stream, log_path=tmp_path / "sf_log.txt")
    if stream is not None:
        stream.close()

    console.line(full_progress())
    console.message("still here")
    console.close("RESULT done")

    assert len((tmp_path / "sf_log.txt").read_text().splitlines()) == 3
    captured = capsys.readouterr()
    assert (captured.out, len(captured.err.splitlines())) == ("", 3 if stream is None else 0)


def test_a_log_that_cannot_be_opened_is_reported_and_log_records_become_messages(tmp_path: Path) -> None:
    stream, logger = io.StringIO(), logging.getLogger("tests.console")
    console = Console(None, None, stream=stream, log_path=tmp_path / "absent" / "sf_log.txt")
    handler = ConsoleHandler(console)

    logger.addHandler(handler)
    logger.warning("checkpoint %s skipped", "x.pth")
    logger.removeHandler(handler)

    first, second = stream.getvalue().splitlines()
    assert "cannot be written" in first
    assert re.fullmatch(STAMP + "WARNING: checkpoint x.pth skipped", second)


def test_a_full_disk_costs_whole_lines_of_the_log_and_is_said_once(tmp_path: Path) -> None:
    stream, log = io.StringIO(), tmp_path / "sf_log.txt"
    console = Console(None, None, stream=stream, log_path=log)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    console.message("first")
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + 10, hard))
    try:
        console.message("lost")
        console.message("lost, too")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    console.close("last")

    assert re.fullmatch(f"{STAMP}first\nlast\n", log.read_text())
    assert [stream.getvalue().count(words) for words in ("lines are lost", "lost, too", "last\n")] == [1, 1, 1]


def test_a_record_that_cannot_be_formatted_is_reported_and_its_caller_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = io.StringIO()
    record = logging.LogRecord("library", logging.INFO, "loader.py", 7, "loaded %d files", ("three",), None)

    ConsoleHandler(Console(None, None, stream=stream)).emit(record)

    assert stream.getvalue() == ""
    assert "Message: 'loaded %d files'" in capsys.readouterr().err
