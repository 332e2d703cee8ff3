"""The live view stands in the last rows of a terminal, and nothing that is printed disturbs it."""

from __future__ import annotations

import dataclasses
import logging
import signal
from collections.abc import Callable, Iterator

import pytest

from sfactory.messages import PolicyLag
from sfactory.report.console import Console
from sfactory.report.live_view import HEIGHT, Sparkline
from sfactory.report.progress import Progress
from tests.support.terminal import COLUMNS, ROWS, Terminal

FULL = Progress(
    env_steps=250_000,
    train_seconds=83.0,
    updates=1234,
    fps_10s=123_456.7,
    fps_60s=120_000.0,
    sample_fps=130_000.0,
    return_mean=195.25,
    true_objective_mean=0.5,
    best_return_mean=200.0,
    length_mean=195.3,
    returns=[20.5, None, -1.0],
    lag=PolicyLag(0.0, 1.25, 3.0),
    losses={"policy_loss": -0.0123456, "value_loss": 0.34, "entropy": float("nan"), "learning_rate": 3e-4},
    busy={"actor": 0.61, "policy": 0.2, "learner": 0.98},
    bound_by="learner",
    env_faults={"env_restarts": 2, "bad_env_data": 0},
    slots={"free": 12, "filling": 3, "ready": 1},
    queues={"requests": 1.5, "replies": None, "datasets": 0.25},
    memory_mb={"total": 512.0, "main": 120.0, "actor": 392.0},
    pure_fps=200_000.0,
)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    yield terminal
    terminal.close()


def console_on(terminal: Terminal, on_view: Callable[[bool], None] = lambda is_open: None) -> Console:
    return Console(1_000_000, None, stream=terminal.stream, title="cartpole", on_view=on_view)


def test_with_several_policies_the_least_env_steps_of_any_are_of_the_limit(terminal: Terminal) -> None:
    console_on(terminal).show(dataclasses.replace(FULL, learning=[(150_000, 60_000.0), (100_000, 60_000.0)]))

    view = "\n".join(terminal.rows()[-HEIGHT:])
    assert "10%  100,000 of 1,000,000 env steps of each policy" in view
    assert "left 0:00:15" in view


def test_all_is_shown_below_what_is_printed_and_nothing_is_too_wide(terminal: Terminal) -> None:
    console = console_on(terminal)
    assert console.is_live
    console.message("first env step 1.0 s after the start")
    for _ in range(3):
        console.show(FULL)
        rows = terminal.rows()

    assert terminal.region() == (0, ROWS - HEIGHT - 1)
    assert "first env step" in rows[0]
    view = "\n".join(rows[-HEIGHT:])
    for words in (
        *(
            "cartpole  0:01:23  left 0:00:06",
            "25%  250,000 of 1,000,000 env steps",
            "trained 123,457",
            "sampled 130,000",
        ),
        *("of pure simulation 62%", "mean 195.2  best 200  objective 0.5  length 195.3  ▁▁▁", "20.5  -  -1"),
        *("policy -0.0123  value 0.34  entropy -", "1,234  policy lag 0/1.25/3  learning rate 0.0003  gradient -"),
        *(" 61% busy\n", " 98% busy, sets the pace\n", "free 12  filling 3  ready 1", "requests 1.5  replies -"),
        *("512 MB  main 120  actor 392", " warnings  env restarts 2"),
    ):
        assert words in view, words
    assert max(map(len, rows)) < COLUMNS
    assert all(rows[-HEIGHT:])  # no row is left over


def test_what_others_print_scrolls_above_the_view_and_nothing_is_lost(terminal: Terminal) -> None:
    console = console_on(terminal)
    console.show(FULL)

    for number in range(30):
        terminal.print(f"actor prints {number}\n")
        console.show(FULL)
        terminal.rows()
    long = "a warning " * 20
    console.message(long, logging.WARNING)
    console.show(FULL)

    rows = terminal.rows()
    printed = [row for row in terminal.scrolled_off + rows if row.startswith("actor prints")]
    assert printed == [f"actor prints {number}" for number in range(30)]
    assert sum(row.count("a warning") for row in rows[:-HEIGHT]) == 20
    assert "1, the last: a warning" in rows[-1]
    assert max(map(len, rows)) < COLUMNS


def test_the_terminal_is_given_back_at_the_end_with_the_last_line_in_one_piece(terminal: Terminal) -> None:
    console = console_on(terminal)
    console.message("before")
    console.show(FULL)
    last = "RESULT done resume: " + "x" * 100

    console.close(last)
    terminal.print("prompt\n")

    rows = terminal.rows()
    assert terminal.region() is None
    assert rows[0].endswith("before")
    assert rows[1:3] == [last, "prompt"]
    assert not any(rows[3:])


def test_the_view_follows_the_size_and_leaves_a_small_terminal_alone(terminal: Terminal) -> None:
    said = list[bool]()
    console = console_on(terminal, said.append)
    for _ in range(2):
        console.show(FULL)
    terminal.resize(ROWS, 100)
    console.show(FULL)
    assert said == [True] * 3, "the watcher may be another one; a signal that the view is closed may come too late"
    rows = terminal.rows()
    assert terminal.region() == (0, ROWS - HEIGHT - 1)
    assert sum("cartpole" in row for row in rows) == 1

    terminal.resize(10, 100)
    console.show(FULL)
    console.message("still here")
    console.line(FULL)

    rows = terminal.rows()
    assert terminal.region() is None
    assert not said[-1]
    assert any("env_steps=" in row for row in rows)
    assert not any("cartpole" in row for row in rows)
    assert any("still here" in row for row in rows)


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN])
def test_ctrl_z_gives_the_terminal_back_until_the_run_goes_on(before: signal.Handlers, terminal: Terminal) -> None:
    console, stops, found = console_on(terminal), list[object](), signal.signal(signal.SIGTSTP, before)

    def stop(signum: int) -> None:  # a test that stops itself would never go on
        terminal.rows()
        stops.append((signal.getsignal(signum), terminal.region()))

    try:
        console.show(FULL)
        with pytest.MonkeyPatch.context() as patch:
            handler = signal.getsignal(signal.SIGTSTP)
            patch.setattr(signal, "raise_signal", stop)
            if callable(handler):
                handler(signal.SIGTSTP, None)
        console.show(FULL)
        terminal.rows()
        assert terminal.region() == (0, ROWS - HEIGHT - 1)
        console.close()
        assert signal.getsignal(signal.SIGTSTP) == before
    finally:
        signal.signal(signal.SIGTSTP, found)
    assert stops == ([(signal.SIG_DFL, None)] if before == signal.SIG_DFL else [])


@pytest.mark.parametrize(("rows", "columns", "term"), [(24, 0, "xterm"), (24, 40, "xterm"), (24, 80, "dumb")])
def test_other_terminals_get_lines(rows: int, columns: int, term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    terminal = Terminal(rows, columns)
    console = console_on(terminal)

    console.line(FULL)

    assert not console.is_live
    assert "env_steps=250000" in terminal.rows()[0]
    terminal.close()


def test_a_sparkline_spans_all_values() -> None:
    line = Sparkline(most=8)
    assert str(line) == ""
    line.add(1.0)
    assert str(line) == "▁"
    for value in range(2, 8):
        line.add(value)
    assert str(line) == "▁▂▃▅▆▇█"
    for value in range(8, 65):
        line.add(value)
    assert 4 <= len(str(line)) <= 8
    assert str(line)[0] == "▁"
    assert list(str(line)) == sorted(str(line))
