"""What is said on the terminal and in the log file."""

from __future__ import annotations

import dataclasses
import io
import logging
import os
import re
import termios
from pathlib import Path

import pytest

from sfactory.messages import PolicyLag
from sfactory.report.console import Console, Progress

STAMP = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] "


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    """A stream whose reader is gone."""

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


def test_faults_of_envs_are_told_once_there_are_some() -> None:
    stream = io.StringIO()
    console = Console(total_env_steps=None, total_seconds=None, stream=stream)

    console.line(dataclasses.replace(full_progress(), env_faults={"env_restarts": 0, "bad_env_data": 0}))
    console.line(dataclasses.replace(full_progress(), env_faults={"env_restarts": 2, "bad_env_data": 0}))

    first, second = stream.getvalue().splitlines()
    assert "env_restarts" not in first
    assert " env_restarts=2 " in second
    assert "bad_env_data" not in second


def test_off_a_terminal_each_report_is_one_line_of_pairs() -> None:
    stream = io.StringIO()
    console = Console(total_env_steps=4_000_000, total_seconds=None, stream=stream)

    console.line(full_progress())

    (line,) = stream.getvalue().splitlines()
    assert re.fullmatch(STAMP + r".*", line)
    pairs = dict(item.split("=") for item in re.sub(STAMP, "", line).split())
    assert pairs == {
        "env_steps": "1000000",
        "fps_10s": "100000",
        "fps_60s": "50000",
        "sample_fps": "110000",
        "return": "195.250",
        "best": "200.000",
        "length": "195.3",
        "lag": "0.0/1.2/3.0",
        "updates": "55",
        "policy_loss": "-0.01235",
        "left": "0:01:00",
    }


@pytest.mark.parametrize(("objective", "shown"), [(None, ""), (195.25, ""), (0.5, "true_objective=0.500 ")])
def test_a_true_objective_is_told_only_where_it_is_not_the_return(objective: float | None, shown: str) -> None:
    stream = io.StringIO()

    Console(None, None, stream=stream).line(dataclasses.replace(full_progress(), true_objective_mean=objective))

    assert f"return=195.250 {shown}best=200.000" in stream.getvalue()


def test_of_several_policies_the_return_of_each_is_told() -> None:
    stream = io.StringIO()

    Console(None, None, stream=stream).line(dataclasses.replace(full_progress(), returns=[20.5, None, -1.0]))

    assert " returns=20.500,-,-1.000 " in stream.getvalue()


def test_the_bar_tells_a_true_objective_that_is_not_the_return() -> None:
    stream = Terminal()
    console = Console(4_000_000, None, stream=stream)

    console.line(dataclasses.replace(full_progress(), true_objective_mean=0.5))
    console.close()

    assert "return=195.25 true_objective=0.50 fps=100000" in stream.getvalue()


def test_what_is_not_known_yet_is_a_dash() -> None:
    stream = io.StringIO()

    Console(None, None, stream=stream).line(Progress(env_steps=0, train_seconds=0.0, updates=0))

    assert "fps_10s=- fps_60s=- sample_fps=- return=- best=- length=- lag=-/-/- updates=0 left=-" in stream.getvalue()


@pytest.mark.parametrize(
    ("steps", "seconds", "left"),
    [(4_000_000, 100.0, "0:01:00"), (None, 100.0, "0:01:30"), (10**15, 25.0, "0:00:15"), (10**30, None, "-")],
)
def test_time_left_is_that_of_the_nearer_limit(steps: int | None, seconds: float | None, left: str) -> None:
    stream = io.StringIO()

    Console(steps, seconds, stream=stream).line(full_progress())

    assert stream.getvalue().rstrip().endswith(f" left={left}")


def test_on_a_terminal_a_bar_shows_steps_and_the_log_gets_the_lines(tmp_path: Path) -> None:
    stream = Terminal()
    console = Console(2_000_000, None, stream=stream, log_path=tmp_path / "sf_log.txt")

    console.line(full_progress(500_000))
    console.line(full_progress(1_000_000))
    console.close()

    shown = stream.getvalue()
    assert "25%" in shown
    assert "50%" in shown
    assert "1.00M/2.00M" in shown
    assert "return=195.25 fps=100000" in shown
    assert "env_steps=" not in shown
    log = (tmp_path / "sf_log.txt").read_text().splitlines()
    assert [re.sub(STAMP, "", line).split()[0] for line in log] == ["env_steps=500000", "env_steps=1000000"]


@pytest.mark.parametrize(("columns", "bar"), [(100, True), (0, False)])
def test_a_terminal_of_no_width_gets_lines(columns: int, bar: bool) -> None:
    reader, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, columns))

    with os.fdopen(terminal, "w") as stream:
        console = Console(2_000_000, None, stream=stream)
        console.line(full_progress(500_000))
        shown = os.read(reader, 4096).decode()
        console.close()
    os.close(reader)

    assert ("25%" in shown) is bar
    assert ("env_steps=500000" in shown) is not bar


def test_going_past_the_limit_shows_a_full_bar() -> None:
    stream = Terminal()
    console = Console(1_000, None, stream=stream)

    console.line(full_progress(1_024))
    console.close()

    assert "100%" in stream.getvalue()


def test_a_message_stands_on_a_line_of_its_own_beside_the_bar(tmp_path: Path) -> None:
    stream = Terminal()
    console = Console(2_000_000, None, stream=stream, log_path=tmp_path / "sf_log.txt")
    console.line(full_progress(500_000))

    console.message("actor 3 was replaced")
    console.close()

    assert re.search(r"\r" + STAMP + r"actor 3 was replaced\n", stream.getvalue())
    assert re.search(STAMP + r"actor 3 was replaced\n", (tmp_path / "sf_log.txt").read_text())


def test_the_last_line_is_written_as_it_is(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = Console(None, None, stream=stream, log_path=tmp_path / "sf_log.txt")

    console.message("saving")
    console.close("RESULT done env_steps=1")

    assert stream.getvalue().splitlines()[-1] == "RESULT done env_steps=1"
    assert (tmp_path / "sf_log.txt").read_text().splitlines()[-1] == "RESULT done env_steps=1"


def test_nothing_goes_to_stdout_and_stderr_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(None, None)
    console.message("hello")
    console.line(full_progress())
    console.close("RESULT done")

    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 3


def test_a_resumed_run_appends_to_its_log(tmp_path: Path) -> None:
    for text in ("first", "second"):
        console = Console(None, None, stream=io.StringIO(), log_path=tmp_path / "sf_log.txt")
        console.message(text)
        console.close()

    log = (tmp_path / "sf_log.txt").read_text().splitlines()
    assert [re.sub(STAMP, "", line) for line in log] == ["first", "second"]


@pytest.mark.parametrize("stream", [Broken(), io.StringIO()], ids=["broken pipe", "closed"])
def test_a_terminal_that_goes_away_does_not_end_the_run(tmp_path: Path, stream: io.StringIO) -> None:
    console = Console(100, None, stream=stream, log_path=tmp_path / "sf_log.txt")
    stream.close()

    console.line(full_progress())
    console.message("still here")
    console.close("RESULT done")

    assert len((tmp_path / "sf_log.txt").read_text().splitlines()) == 3


def test_a_log_that_cannot_be_opened_is_a_message_and_not_an_error(tmp_path: Path) -> None:
    stream = io.StringIO()

    console = Console(None, None, stream=stream, log_path=tmp_path / "absent" / "sf_log.txt")
    console.message("going on")

    assert "cannot be written" in stream.getvalue()
    assert "going on" in stream.getvalue()


def test_log_records_become_messages() -> None:
    stream = io.StringIO()
    logger = logging.getLogger("tests.console")
    handler = Console(None, None, stream=stream).handler()
    logger.addHandler(handler)

    logger.warning("checkpoint %s skipped", "x.pth")
    logger.removeHandler(handler)

    assert re.fullmatch(STAMP + r"WARNING: checkpoint x.pth skipped\n", stream.getvalue())
