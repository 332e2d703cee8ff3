"""Observers are called in order, add numbers to rows, and end the run by an answer or a failure."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, create_autospec

import numpy as np
import pytest

from sfactory.config.flags import config_of
from sfactory.errors import ConfigError, ExitCode, ObserverFailed, WorkerDied
from sfactory.experiment.resume import Resumed
from sfactory.experiment.run_dir import RunDir
from sfactory.experiment.summary import Outcome, Summary
from sfactory.messages import EpisodeEnd, EpisodeTotals, EvaluationPart, PolicyLag
from sfactory.process.signals import ECHO_S, Interrupted, Interrupts
from sfactory.report.console import Console
from sfactory.report.observers import Observer, Observers, RunFacts
from sfactory.report.progress import Progress
from sfactory.report.reporter import Reporter
from sfactory.shared.objects import SharedObjects
from tests.support.parts import VECTOR, small_layout

CONFIG = config_of({"env": "any", "with_tensorboard": False, "experiment_summaries_interval": 1})
FACTS = RunFacts(CONFIG, 1, Path("run"), VECTOR, 0)
SUMMARY = Summary("done", 10, 10, 10, 1.0, 10.0, 10.0, 1, 2.0, 2.0, 3.0, PolicyLag(), 4)
DONE = Outcome("done", SUMMARY, None, 10)
PROGRESS = Progress(env_steps=10, train_seconds=1.0, updates=4)


def recording(summaries: Any = None, act: Callable[[], object] | None = None, answer: Any = None) -> Mock:
    """An observer that records its calls. ``act``: called at each training step. ``answer``: to each report."""
    observer: Mock = create_autospec(Observer, instance=True)
    observer.extra_summaries.return_value = {} if summaries is None else summaries
    observer.on_training_step.side_effect = None if act is None else lambda _: act()
    observer.on_report.return_value = answer
    return observer


def calls_of(observer: Mock) -> list[str]:
    """The names of its methods in the order of the calls."""
    return [name for name, *_ in observer.method_calls]


def test_all_observers_are_called_in_order_and_every_method_is_optional() -> None:
    first, second = recording(), recording()
    observers = Observers({"a:First": first, "a:Silent": Observer(), "a:Second": second})
    assert observers.end(DONE) == DONE  # without on_init there is no on_stop

    observers.begin(FACTS)
    observers.on_start()
    observers.on_training_step(PROGRESS)
    assert observers.extra_summaries(()) == {}
    observers.on_video(Path("eval.mp4"), 10)
    outcome = observers.end(DONE)

    calls = ["on_init", "on_start", "on_training_step", "extra_summaries", "on_video", "on_stop"]
    assert calls_of(first) == calls_of(second) == calls
    assert outcome == DONE
    for observer in (first, second):
        observer.on_stop.assert_called_once_with(DONE)


@pytest.mark.parametrize(
    ("answer", "last", "over"),
    [(None, False, False), (True, False, False), (False, False, True), (np.False_, False, True), (False, True, False)],
)
def test_an_answer_to_a_report_ends_the_session_unless_it_is_the_last_one(
    answer: Any, last: bool, over: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    answering = recording(answer=answer)
    observers = Observers({"a:Recording": answering, "a:Silent": Observer()})
    observers.begin(FACTS)

    observers.on_report({"env_steps": 10, "perf/fps": None}, last=last)

    answering.on_report.assert_called_once_with({"env_steps": 10, "perf/fps": None})
    assert (observers.over, observers.enough) == (over, over)
    assert caplog.messages == ["observer a:Recording ended the run: on_report() returned False"] * over
    summary = dataclasses.replace(SUMMARY, ended_by="a:Recording" if over else None)
    assert observers.end(DONE) == dataclasses.replace(DONE, summary=summary, stopped_early=over)
    interrupted = dataclasses.replace(DONE, status="interrupted", summary=SUMMARY.ended("interrupted"))
    assert observers.end(interrupted).summary.ended_by is None


def test_a_failure_ends_the_run_with_observer_method_and_traceback() -> None:
    def refuse() -> None:
        raise ValueError("no mail\nserver")

    failing, other = recording(act=refuse), recording()
    observers = Observers({"a:Failing": failing, "a:Other": other})
    observers.begin(FACTS)

    observers.on_training_step(PROGRESS)
    observers.on_training_step(PROGRESS)
    outcome = observers.end(DONE)

    assert observers.over
    assert isinstance(outcome.error, ObserverFailed)
    assert outcome.error.exit_code is ExitCode.LEARNER
    text = str(outcome.error).splitlines()
    assert text[0] == "Traceback (most recent call last):"
    assert '    raise ValueError("no mail\\nserver")' in text
    assert text[-1] == "observer a:Failing failed in on_training_step(): ValueError: no mail server"
    assert isinstance(outcome.error.__cause__, ValueError)
    assert (outcome.status, outcome.summary.status, outcome.saved_env_steps) == ("failed", "failed", 10)
    # The failed observer is not called again; the others are, and get the outcome.
    assert calls_of(failing) == ["on_init", "on_training_step"]
    assert calls_of(other) == ["on_init", "on_training_step", "on_training_step", "on_stop"]
    other.on_stop.assert_called_once_with(outcome)


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt(0)])
def test_the_first_error_of_a_run_stays_its_error_and_whatever_is_raised_is_a_failure(error: BaseException) -> None:
    observers = Observers({"a:Leaving": recording(act=Mock(side_effect=error))})
    observers.begin(FACTS)
    observers.on_training_step(PROGRESS)
    died = dataclasses.replace(DONE, status="failed", error=WorkerDied("sf-actor-0 was killed"))

    assert observers.end(died) == died
    assert f"{type(error).__name__}: 0" in str(observers.end(DONE).error)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"perf/updates": 1.0}, "'perf/updates', which is a name there already"),
        ({"env_steps": 1.0}, "'env_steps', which is"),
        ({"other/one": 1.0}, "'other/one', which is"),
        ({7: 1.0}, "7 as a name"),
        ({"mine": "many"}, "'many' for 'mine'"),
        ({"mine": None}, "None for 'mine'"),
        ({"\ud800": 1.0}, "surrogates not allowed"),
        ([1.0], "a builtins.list"),
    ],
)
def test_invalid_summaries_are_a_failure(given: Any, words: str) -> None:
    observers = Observers({"a:Other": recording({"other/one": 2.0}), "a:Recording": recording(given)})
    observers.begin(FACTS)

    assert observers.extra_summaries({"perf/updates"}) == {"other/one": 2.0}

    error = str(observers.end(DONE).error)
    assert "observer a:Recording failed in extra_summaries()" in error
    assert words in error


def test_numbers_of_observers_for_an_episode_are_added_to_those_of_its_policy() -> None:
    episode = EpisodeEnd(0, 1, 7, '[{"return": 2.0, "kills": 3.0}, {"won": 1.0}]')
    first, second, last = recording(), recording(), recording()
    first.on_episode.return_value = {"kills_per_reward": np.float32(1.5)}
    second.on_episode.return_value = None
    add = Mock(return_value=True)
    observers = Observers({"a:First": first, "a:Second": second, "a:Last": last})
    observers.begin(FACTS)

    for given in ({"kills": 1.0}, ["kills"], {"x" * 101: 1.0}, {"one_too_many": 1.0}):
        last.on_episode.return_value = given
        failing = Observers({"a:Last": last})
        failing.begin(FACTS)
        failing.on_episode(episode, lambda name, policy, number: name != "one_too_many")
        assert "observer a:Last failed in on_episode()" in str(failing.end(DONE).error)
    last.on_episode.return_value = {}
    observers.on_episode(episode, add)

    second.on_episode.assert_called_once_with(1, 7, {"return": 2.0, "kills": 3.0}, {"won": 1.0})
    add.assert_called_once_with("kills_per_reward", 1, 1.5)
    assert not observers.over
    assert observers.take_episodes
    assert not Observers({"a:Silent": Observer()}).take_episodes


@pytest.mark.parametrize("starting_up", [False, True])
def test_a_second_signal_interrupts_an_observer_and_during_start_up_the_first(starting_up: bool) -> None:
    def hang() -> None:
        for number in (signal.SIGINT, signal.SIGTERM)[starting_up:]:
            os.kill(os.getpid(), number)
            time.sleep(ECHO_S)
        time.sleep(60.0)

    with Interrupts() as interrupts:
        interrupts.raising = starting_up
        observers = Observers({"a:Hanging": recording(act=hang)}, interrupts)
        with pytest.raises(Interrupted) if starting_up else contextlib.nullcontext():
            observers.on_training_step(PROGRESS)

        assert interrupts.count == (1 if starting_up else 2)
        assert not observers.over
        assert not interrupts.raising_again


def test_observers_are_created_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_watchers.py").write_text(
        "from sfactory.errors import ConfigError\nfrom sfactory.report.observers import Observer\n"
        "class Good(Observer): ...\n"
        "class Bad:\n    ...\n"
        "class Picky(Observer):\n    def __init__(self, mail):\n        ...\n"
        "class Broken(Observer):\n    def __init__(self):\n        raise OSError('no display')\n"
        "class Lacks(Observer):\n    def __init__(self):\n        raise ConfigError(['it needs mail; run: pip'])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    assert bool(Observers.of(["my_watchers:Good"], Interrupts()))
    assert not Observers.of([], Interrupts())
    with pytest.raises(ConfigError) as caught:
        Observers.of(
            [f"my_watchers:{name}" for name in ("Good", "Bad", "Picky", "Broken", "Lacks", "Gone")], Interrupts()
        )

    assert caught.value.exit_code is ExitCode.REFUSED
    words = {
        "Bad": "my_watchers.Bad; it must be a subclass of sfactory.report.observers.Observer",
        "Picky": "missing 1 required positional argument: 'mail'",
        "Broken": "OSError: no display when called without arguments (at my_watchers.py:11 in __init__)",
        "Lacks": "--observers=my_watchers:Lacks: it needs mail; run: pip",
        "Gone": "has no 'Gone'",
    }
    for problem, (name, text) in zip(caught.value.problems, words.items(), strict=True):
        assert problem.startswith(f"--observers=my_watchers:{name}: ")
        assert text in problem


def test_rows_of_observers_have_the_names_of_training_and_of_evaluations_from_the_first_on(tmp_path: Path) -> None:
    shared, observer = SharedObjects(VECTOR, small_layout(), weight_bytes=8), recording({"mine/one": 0.5})
    config = config_of({"env": "any", "with_tensorboard": False, "eval_interval_sec": 1})
    with RunDir.open(tmp_path, "run") as rundir:
        reporting = Reporter(
            config, shared, rundir, Resumed(), Console(None, None), 0.0, Observers({"a:Recording": observer})
        )
        for number in (1, 2):
            reporting.reports.evaluations.add(EvaluationPart(0, number, 8, 100, EpisodeTotals.of(7.0, 3)))
            reporting.beat()
            reporting._write_row()
        reporting.finish("done", None)

    rows = [call.args[0] for call in observer.on_report.call_args_list]
    assert [row["eval/episode_return_mean"] for row in rows] == [7.0, None, 7.0, None, None]
    assert [row["perf/updates"] for row in rows] == [None, 0, None, 0, 0]
    assert {row["train/episode_return_mean"] for row in rows} == {None}
    assert [row.get("mine/one") for row in rows[1:]] == [0.5, None, 0.5, 0.5]
    # In the file a row has what was measured for it.
    written = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert ["eval/episodes" in row for row in written] == [True, False, True, False, False]
    assert ["train/episodes" in row for row in written] == [False, True, False, True, True]


def test_reporter_calls_observers_after_new_updates_and_adds_their_summaries(tmp_path: Path) -> None:
    shared, observer = SharedObjects(VECTOR, small_layout(), weight_bytes=8), recording({"mine/one": 0.5})
    learner = shared.status.row("sf-learner-0")
    with RunDir.open(tmp_path, "run") as rundir:
        observers = Observers({"a:Recording": observer})
        reporting = Reporter(CONFIG, shared, rundir, Resumed(updates=3), Console(None, None), 0.0, observers)
        for updates in (0, 3, 4, 4, 9):
            learner.set("updates", updates)
            reporting.beat()
        reporting.finish("done", None)

    assert [call.args[0].updates for call in observer.on_training_step.call_args_list] == [4, 9]
    assert list((tmp_path / "run").glob("events.*")) == []  # with_tensorboard is off
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["mine/one"] == 0.5
    assert row["perf/updates"] == 9
