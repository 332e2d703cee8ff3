"""sfactory.run trains as the command does, several times in one process, and leaves that process as it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import sfactory
from sfactory import api
from sfactory.errors import ConfigError, EnvError, ExitCode, ObserverFailed
from sfactory.experiment.summary import Summary
from tests.support import processes
from tests.support.launches import SHORT
from tests.support.long import long
from tests.support.source import ROOT
from tests.support.trainer import CLEAN_S, ENDLESS, to_argv, within

TOP = "import json, logging, os, signal, sys, threading, time\nimport sfactory\nflags = json.loads(sys.argv[1])\n"
Flags = dict[str, object]


@pytest.fixture
def flags(tmp_path: Path) -> Flags:
    return {**SHORT, "train_dir": str(tmp_path / "train_dir"), "experiment": "run", "train_for_env_steps": 2000}


class Script(processes.MarkedProgram):
    """A user's program: forked from the warm process, or in a new interpreter."""

    def __init__(self, text: str, flags: Flags, folder: Path, is_new: bool) -> None:
        path, given = folder / "program.py", json.dumps(flags)
        path.write_text(TOP + text)
        super().__init__(uuid.uuid4().hex, [sys.executable, str(path), given], folder)
        if is_new:
            self._start(self.argv, os.environ)
        else:
            self._fork("program", [given], folder)

    def result(self) -> Any:
        """What the program has printed as JSON, in its only line."""
        assert self.wait(200.0) == 0, self.report("wrong exit code")
        (line,) = self.stdout.splitlines()
        return json.loads(line)


Start = Callable[..., Script]


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Start]:
    """Starts a user's program; afterwards nothing of it may be left."""
    started: list[Script] = []

    def start(text: str, flags: Flags, is_new: bool = False) -> Script:
        started.append(Script(text, flags, tmp_path, is_new))
        return started[-1]

    yield start
    try:
        for program in started:
            program.assert_all_gone(CLEAN_S)
    finally:
        for program in started:
            program.close()


SEVERAL = """
def state():
    root = logging.getLogger()
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)]
    import torch
    from sfactory.system.cores import NATIVE
    # Libraries that a run loads may set others of their own.
    variables = {name: os.environ.get(name) for name in NATIVE}
    return (list(map(str, handlers)), list(map(str, root.handlers)), root.level, variables,
            open("/proc/self/comm").read(), torch.get_num_threads())

def main():
    from sfactory_envs.synthetic.bandit import Bandit  # a class in place of its name
    logging.basicConfig(level=logging.ERROR)
    signal.signal(signal.SIGTERM, own_handler)
    before, results, rows, enough = state(), [], [], []
    def look(row):
        rows.extend([dict(row)] if row["perf/sampled_env_steps"] else [])
        if len(rows) < 3:
            return True
        enough.append(time.monotonic())
        return False
    def run(**more):
        rows.clear()
        enough.clear()
        result = sfactory.run(flags | more, on_report=look)
        ended = time.monotonic()
        steps = [row["env_steps"] for row in rows]
        results.append({"status": result.status, "code": result.exit_code, "early": result.stopped_early,
                        "steps": result.summary.env_steps, "rows": len(rows), "sorted": steps == sorted(steps),
                        "after": ended - (enough or [ended])[0],  # the answer that ends it
                        "last": steps[-1:] == [result.summary.env_steps], "handles": len(os.listdir("/proc/self/fd")),
                        "run_dir": str(result.run_dir), "mean": rows and rows[-1]["train/episode_return_mean"]})
    run(experiment="a", env=Bandit)
    run(experiment="b", serial_mode=True)
    run(experiment="c")
    run(experiment="a")
    run(experiment="c", train_for_env_steps=1)
    changed = [[str(a), str(b)] for a, b in zip(before, state()) if a != b]
    print(json.dumps([changed, results]))

def own_handler(*_): ...

if __name__ == "__main__":
    main()
"""


@pytest.mark.long
def test_several_runs_in_one_process_leave_it_as_it_was(script: Start, flags: Flags, tmp_path: Path) -> None:
    changed, results = script(SEVERAL, {**flags, "train_for_env_steps": ENDLESS}, is_new=True).result()

    assert changed == []
    a, b, c, again, finished = results
    for run in (a, b, c, again):
        assert (run["status"], run["code"], run["early"]) == ("done", 0, True)
        assert run["after"] <= within(5.0)
        # More come while the end is under way, one every half a second, and the last one.
        assert 3 <= run["rows"] <= 3 + 2 * run["after"] + 2
        assert run["sorted"]
        assert run["last"]
        assert run["mean"] is not None
    assert again["steps"] > a["steps"]
    # A run that has reached its limit trains no further, and has nothing to report.
    assert (finished["status"], finished["early"], finished["steps"]) == ("done", False, c["steps"])
    assert finished["rows"] == 0
    assert again["handles"] == c["handles"]
    rows = [json.loads(line) for line in (tmp_path / "train_dir" / "b" / "metrics.jsonl").read_text().splitlines()]
    assert len([row for row in rows if row["perf/sampled_env_steps"]]) == b["rows"]
    assert json.loads((tmp_path / "train_dir" / "b" / "run.json").read_text())["status"] == "done"


INTERRUPTED = """
sent = []

def interrupt(row):
    if row["perf/updates"] and not sent:
        sent.append(os.kill(os.getpid(), signal.SIGINT))

def main():
    result = sfactory.run(flags, on_report=interrupt)
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    print(json.dumps([result.status, result.exit_code, result.stopped_early, ours, result.summary.env_steps]))

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("serial", [long(False), True])
def test_ctrl_c_saves_and_the_result_says_so(script: Start, flags: Flags, tmp_path: Path, serial: bool) -> None:
    wanted = {**flags, "train_for_env_steps": ENDLESS, "save_every_sec": 1000, "serial_mode": serial}

    # As a file, which has a __main__ without a specification.
    status, code, early, ours, env_steps = script(INTERRUPTED, wanted, is_new=True).result()

    assert (status, code, early, ours) == ("interrupted", ExitCode.SIGINT, False, True)
    assert list((tmp_path / "train_dir" / "run" / "checkpoint_p0").glob(f"*_{env_steps}.pth"))


def test_script_that_runs_at_its_import_is_refused_with_advice(script: Start, flags: Flags) -> None:
    program = script("sfactory.run(flags)", flags, is_new=True)

    assert program.wait(100.0) == 1
    err = program.stderr
    assert 'put what the script does under if __name__ == "__main__":' in err.splitlines()[-1]
    assert err.count("Traceback") == 1
    assert err.count(", line ") == 2  # that of the script, and the one that refuses
    assert "--env" not in err  # it is not to blame, and nothing was started
    assert "sfactory 0" not in err


def test_program_from_stdin_is_refused_with_advice(flags: Flags) -> None:
    text = f"import sfactory\nsfactory.run({flags!r})\n"

    ended = subprocess.run([sys.executable, "-"], input=text, cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert ended.returncode == 1
    assert "<stdin> is no file; save the program" in ended.stderr.splitlines()[-1]


def test_report_that_raises_ends_a_run_of_a_command_line_which_saves(flags: Flags, tmp_path: Path) -> None:
    def refuse(row: sfactory.api.Row) -> bool | None:
        raise LookupError("no such trial")

    with pytest.raises(ObserverFailed, match="on_report") as caught:
        sfactory.run(to_argv({**flags, "train_for_env_steps": ENDLESS, "serial_mode": True}), on_report=refuse)

    assert isinstance(caught.value.__cause__, LookupError)
    assert caught.value.exit_code == ExitCode.LEARNER
    assert json.loads((tmp_path / "train_dir" / "run" / "summary.json").read_text())["status"] == "failed"


def test_refused_runs_raise_all_problems_and_leave_signals_as_they_were(flags: Flags, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ConfigError) as caught:
        sfactory.run({**flags, "gama": 1, "gamma": 2.0, "num_epochs": 0})

    assert len(caught.value.problems) == 3
    for wrong in ("--env=x", ["--help"], [1], {**flags, "benchmark": True}):
        with pytest.raises(ConfigError):
            sfactory.run(wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "train_dir").exists()
    with pytest.raises(EnvError, match="num_contexts is 1"):
        sfactory.run({**flags, "env_kwargs": {"num_contexts": 1}})
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    "asked", [{"help": True}, {"help": "optim"}, {"print_config": True}, {"print-config": "True"}], ids=str
)
def test_what_only_prints_is_refused_in_every_form(flags: Flags, asked: dict[str, Any]) -> None:
    given: dict[str, Any] = {**flags, **asked}
    with pytest.raises(ConfigError, match="starts nothing"):
        sfactory.run(to_argv(given))
    with pytest.raises(ConfigError, match="starts nothing"):
        sfactory.run(given)
    with pytest.raises(ConfigError, match="starts nothing"):
        sfactory.train(**given)
    with pytest.raises(ConfigError, match="starts nothing"), sfactory.sampler(**given):
        pass
    for words in (["--print_config=False"], ["--print-config", "False"]):
        assert api._arguments(words) == words


@pytest.mark.parametrize("form", [lambda each: each, lambda each: [each], lambda each: iter((each,))])
def test_observers_are_several_or_one(monkeypatch: pytest.MonkeyPatch, form: Callable[[Any], Any]) -> None:
    given: list[Any] = []
    monkeypatch.setattr(
        api,
        "_checked_run",
        lambda called, flags, on_report, watching: given.append((flags.get("observers"), list(watching.values()))),
    )
    watcher = sfactory.Observer()

    for each in ("wandb", sfactory.Observer, watcher):
        sfactory.train(env="CartPole-v1", observers=form(each))
    sfactory.train(env="CartPole-v1", observers=None)

    assert given == [(["wandb"], []), ([sfactory.Observer], []), (None, [watcher]), (None, [])]


def test_a_finished_run_says_that_other_settings_and_another_seed_had_no_effect(
    flags: Flags, capfd: pytest.CaptureFixture[str]
) -> None:
    serial: dict[str, Any] = {**flags, "serial_mode": True, "train_for_env_steps": 256, "seed": 1}
    first = sfactory.train(**serial)
    capfd.readouterr()
    again = sfactory.train(**{**serial, "seed": 2}, learning_rate=0.5)

    said = capfd.readouterr().err
    assert (first.trained, again.trained) == (True, False)
    assert again.summary == first.summary
    assert "nothing was trained, so these settings had no effect: --seed=2: the run was started with --seed=1" in said
    assert "--learning_rate=0.5" in said
    assert "resumes with" not in said


THREADS = """
def work(serial):
    run = sfactory.run(flags | {"experiment": str(serial), "serial_mode": serial})
    played = 0 if serial else len(sfactory.evaluate(run, episodes=4, workers=1).returns)
    return [run.status, run.summary.env_steps >= 2000, played, 0 if serial else sample()]

def sample():
    with sfactory.sampler(**flags) as sampler:
        return next(sampler).rewards.numel()

def main():
    from concurrent.futures import ThreadPoolExecutor
    handlers = str(signal.getsignal(signal.SIGINT))
    results = []
    for serial in (False, True):
        with ThreadPoolExecutor(1) as pool:  # its thread, the parent of processes, ends
            results.append(pool.submit(work, serial).result())
    results.append(sample())
    print(json.dumps([results, handlers == str(signal.getsignal(signal.SIGINT))]))

if __name__ == "__main__":
    main()
"""


def test_all_works_in_another_thread_and_afterwards_in_the_main_one(script: Start, flags: Flags) -> None:
    results, has_same_handlers = script(THREADS, flags).result()

    assert results == [["done", True, 4, 128], ["done", True, 0, 0], 128]
    assert has_same_handlers


def test_a_call_while_another_thread_is_at_work_is_refused(flags: Flags) -> None:
    calls = {
        "run": lambda: sfactory.run(flags),
        "train": lambda: sfactory.train(env="CartPole-v1"),
        "sampler": lambda: sfactory.sampler(env="CartPole-v1").__enter__(),
    }

    def look(row: sfactory.api.Row) -> bool:
        for name, call in calls.items():
            with ThreadPoolExecutor(1) as pool, pytest.raises(ConfigError, match=f"sfactory.{name}: another thread"):
                pool.submit(call).result(60)
        return False

    ended = sfactory.run({**flags, "serial_mode": True, "train_for_env_steps": ENDLESS}, on_report=look)

    assert ended.stopped_early
    assert Summary.read(ended.run_dir / "summary.json") == ended.summary
    assert ended.summary.ended_by == "on_report"
