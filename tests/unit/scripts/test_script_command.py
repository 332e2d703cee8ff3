"""Scripts run commands to their end, end what these have started, and show those that failed."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from scripts.command import ROOT, Command, json_line, run, shown
from scripts.proc import parse_stat, rollup, stat_of
from scripts.process_facts import facts_of


def test_the_last_json_line_of_an_output_is_its_result() -> None:
    assert json_line('{"a": 1}\nnoise\n{"a": 2}\n') == {"a": 2}


def test_an_output_without_json_is_shown() -> None:
    with pytest.raises(SystemExit, match="nothing here"):
        json_line("nothing here")


def test_a_failed_command_is_shown_with_the_end_of_its_stderr() -> None:
    script = "import sys; print('x' * 50 + '\\n' * 100 + 'why it failed', file=sys.stderr); sys.exit(3)"

    with pytest.raises(SystemExit, match="why it failed") as caught:
        run([sys.executable, "-c", script])

    text = str(caught.value)
    assert "ended with 3" in text
    assert sys.executable in text
    assert "x" * 50 not in text.partition("stderr:")[2]


def test_a_command_runs_in_a_session_of_its_own_with_the_given_environment() -> None:
    script = "import os; print(os.getsid(0) == os.getpid(), os.environ['NUMBER'])"

    output = run([sys.executable, "-c", script], environment={"NUMBER": "7"})

    assert output.stdout.split() == ["True", "7"]


def test_a_command_is_shown_without_the_places_of_this_machine() -> None:
    ours, theirs = [sys.executable, f"{ROOT}/scripts/x.py", "--y={1}"], ["/some/peers/sb/bin/python", "x.py"]

    assert shown(ours) == "python scripts/x.py '--y={1}'"
    assert shown(ours, Path("/some/bench")) == "cd BENCH && python REPOSITORY/scripts/x.py '--y={1}'"
    assert shown(theirs, Path("/some/bench"), Path("/some/peers")) == "cd BENCH && PEERS/sb/bin/python x.py"


def test_a_stat_line_is_read_whatever_the_name() -> None:
    line = "123 (sf-actor-0 ) x) S 1 2 77 0 -1 4194304 1 2 3 4 150 50 0 0 20 0 1 0 0 0"

    stat = parse_stat(line)

    assert stat.name == "sf-actor-0 ) x"
    assert stat.session == 77
    assert stat.threads == 1
    assert stat.cpu_s == pytest.approx(2.0)  # 200 ticks of a hundredth


def test_the_stat_of_a_process_is_its_own() -> None:
    stat = stat_of(os.getpid())

    assert stat.session == os.getsid(0)
    assert stat.threads >= 1


def test_what_is_no_process_has_no_stat(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        stat_of(7, tmp_path)


def test_the_kernels_numbers_are_read() -> None:
    text = "55c9e1bda000-7ffcb30e2000 ---p 00000000 00:00 0      [rollup]\nRss:     2048 kB\nPss:      512 kB\n"

    assert rollup(text) == {"Rss": 2.0, "Pss": 0.5}


def test_a_command_is_ended_with_all_that_it_has_started(tmp_path: Path) -> None:
    child = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: None); time.sleep(60)"
    parent = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)\n"
        "print('started', file=sys.stderr, flush=True)\ntime.sleep(60)"
    )

    with Command([sys.executable, "-c", parent], tmp_path) as run:
        run.wait_for("started", 60)
        during = set(run.living())

    assert len(during) == 2
    assert run.left_over() == []
    assert run.exit_code is not None


def test_a_script_that_is_told_to_end_ends_its_command_first_however_often_it_is_told(tmp_path: Path) -> None:
    child = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(time.sleep(1))); time.sleep(60)"
    )
    script = (
        "import pathlib, sys, time\nfrom scripts.command import Command\n"
        f"with Command([sys.executable, '-c', {child!r}], pathlib.Path({str(tmp_path)!r})) as run:\n"
        "    time.sleep(1)\n"
        "    print(f'started {run.session}.', file=sys.stderr, flush=True)\n    run.wait(60)"
    )

    with Command([sys.executable, "-c", script], tmp_path, ROOT) as run:
        run.wait_for(".", 60)
        pid = int(run.stderr.split()[-1].rstrip("."))
        during = facts_of(pid)
        run.send(signal.SIGTERM)
        time.sleep(0.2)
        run.send(signal.SIGTERM)
        exit_code = run.wait(60)

    assert during is not None
    assert facts_of(pid) is None
    assert exit_code == 128 + signal.SIGTERM


def test_a_command_that_ends_before_it_tells_what_is_waited_for_is_told(tmp_path: Path) -> None:
    with (
        Command([sys.executable, "-c", "raise SystemExit('no luck')"], tmp_path) as run,
        pytest.raises(SystemExit, match=r"(?s)'started' was not told within .*no luck"),
    ):
        run.wait_for("started", 60)


def test_a_process_without_a_mark_is_ended_with_its_session(tmp_path: Path) -> None:
    child = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: None); time.sleep(60)"
    parent = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], env={{}})\n"
        "print(f'started {child.pid}.', file=sys.stderr, flush=True)\ntime.sleep(60)"
    )

    with Command([sys.executable, "-c", parent], tmp_path) as run:
        run.wait_for(".", 60)
        pid = int(run.stderr.split()[-1].rstrip("."))
        during = facts_of(pid)

    assert during is not None
    assert pid not in run.living()
    end = time.monotonic() + 10
    while facts_of(pid) is not None and time.monotonic() < end:
        time.sleep(0.01)
    assert facts_of(pid) is None


def test_a_command_that_takes_too_long_is_ended_and_shown(tmp_path: Path) -> None:
    script = "import sys, time; print('busy', file=sys.stderr, flush=True); time.sleep(60)"

    with Command([sys.executable, "-c", script], tmp_path) as run:
        run.wait_for("busy", 60)
        with pytest.raises(SystemExit, match=r"(?s)still running after 0 s.*busy"):
            run.wait(0)

    assert run.exit_code == -signal.SIGTERM


def test_colours_are_left_out() -> None:
    output = run([sys.executable, "-c", r"print('\x1b[1;32mgreen\x1b[0m')"])

    assert output.stdout == "green\n"
