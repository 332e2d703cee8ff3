"""Observers: user code that follows a run, adds numbers to its metrics, and may end it.

``--observers module:Class`` names subclasses of ``Observer``; a name without a colon is one of the entry-point group
``sfactory.observers`` of installed packages. Each is created once, without arguments, in the main
process before any other process starts. All methods are optional.

    from sfactory.report.observers import Observer

    class Notifier(Observer):
        def on_stop(self, outcome):
            send_mail(f"{outcome.status}: {outcome.summary.episode_return_mean}")

Exceptions of observers are not raised to the caller: the first one ends the session and becomes the error of the run's
outcome.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from sfactory.config.import_strings import Unresolved, described, find_registered
from sfactory.config.schema import Config
from sfactory.errors import ConfigError, ObserverFailed, Refused, named, traceback_of
from sfactory.experiment.summary import Outcome
from sfactory.messages import MAX_STAT_NAME_CHARS, MAX_STAT_NAMES, EpisodeEnd
from sfactory.process.signals import Interrupted, Interrupts, stdout_to_stderr
from sfactory.report.progress import Progress
from sfactory.spec import EnvSpec


@dataclass(frozen=True)
class RunFacts:
    """Facts known before a session starts. env_steps: those trained on in earlier sessions."""

    config: Config
    seed: int
    run_dir: Path
    spec: EnvSpec
    env_steps: int


class Observer:
    """Base class of observers. Methods are called in the main process and must be quick; use a thread for slow work.

    After an exception the observer is not called again, and the run saves and ends with exit code 70. Output to stdout
    is redirected to stderr.
    """

    def on_init(self, facts: RunFacts) -> None:
        """The env has been checked and the run directory exists; no process has been started."""

    def on_start(self) -> None:
        """All processes have been started; in serial mode, training is about to start."""

    def on_training_step(self, progress: Progress) -> None:
        """There were new updates. Checked four times a second, so one call may stand for many updates."""

    def extra_summaries(self) -> Mapping[str, float]:
        """Numbers for the next row of metrics.jsonl and TensorBoard, by names that are not in the row yet."""
        return {}

    def on_episode(
        self, policy: int, env: int, stats: Mapping[str, float], info: Mapping[str, float]
    ) -> Mapping[str, float] | None:
        """An episode has ended, of one agent where an env has several. Actors send episodes only if this is overridden.

        policy: that acted in it. env: number of the env among all of the run.
        stats: ``return`` (raw), ``length`` (steps), ``agent`` (its number in the env), ``true_objective`` if
            the env gave it, and the numbers in ``info["episode_extra_stats"]``.
        info: of the last step's info, the numbers (booleans, too) among its first 32 entries, by name.

        Returns numbers by name, or None: their means over the last ``stats_avg`` episodes that had them are the metrics
        ``train/extra/<name>_mean``, of each policy, too. ``--save_best_metric`` and ``--pbt_target_objective`` may name
        them, as they may the numbers of envs.
        """
        return None

    def on_report(self, row: Mapping[str, float | None]) -> bool | None:
        """A row of metrics.jsonl was written; unknown numbers are None. Return False to end the run as a limit does.

        An evaluation has a row of its own, where all is None but ``eval/...``, which is None in other rows.
        """
        return None

    def on_video(self, path: Path, env_steps: int) -> None:
        """With --eval_video: an mp4 of an evaluation, of the policy after so many env steps, is in the run's folder."""

    def on_stop(self, outcome: Outcome) -> None:
        """The session has ended in any way, unless main itself was killed. Called only after ``on_init``."""


_log = logging.getLogger(__name__)

ENTRY_POINTS = "sfactory.observers"

T = TypeVar("T")
_ROW_KEYS = frozenset(("time", "env_steps"))  # in every row beside its scalars


class Observers:
    """The observers of one session, in the order of the flag. An observer that has failed is not called again."""

    def __init__(self, observers: Mapping[str, Observer] | None = None, interrupts: Interrupts | None = None) -> None:
        """observers: by the names used in errors. interrupts: lets a second signal interrupt an observer that hangs."""
        self._observers = dict(observers or {})
        self._interrupts = interrupts
        self._begun = set[str]()  # those with an on_init that has returned or failed, but not refused the run
        self.ended_by: str | None = None  # the name of the observer that has ended the run by its answer to a report
        self._failure: ObserverFailed | None = None

    @staticmethod
    def of(
        references: Sequence[str], interrupts: Interrupts, present: Mapping[str, Observer] | None = None
    ) -> Observers:
        """``present``, then those named by ``--observers``; raises ConfigError with a line for each that fails."""
        observers = dict(present or {})
        problems: list[str] = []
        for reference in references:
            try:
                with stdout_to_stderr():
                    observers[reference] = _create(reference)
            except Unresolved as error:
                problems.append(f"--observers={reference}: {error}")
        if problems:
            raise ConfigError(problems)
        return Observers(observers, interrupts)

    def __bool__(self) -> bool:
        """Whether there are observers."""
        return bool(self._observers)

    @property
    def take_episodes(self) -> bool:
        """Whether any of them looks at single episodes."""
        return any(map(_takes_episodes, self._observers.values()))

    @property
    def enough(self) -> bool:
        """Whether an observer has ended the run by its answer to a report."""
        return self.ended_by is not None

    @property
    def over(self) -> bool:
        """True once the session must end, because an observer has failed or ended it."""
        return self.failed or self.enough

    @property
    def failed(self) -> bool:
        """Whether one of them has failed, and so the session has."""
        return self._failure is not None

    def begin(self, facts: RunFacts) -> None:
        """Call ``on_init``. Raises what an observer raises to refuse the run; those after it have not begun."""
        for name, observer in list(self._observers.items()):
            self._call(name, "on_init", partial(observer.on_init, facts))
            self._begun.add(name)

    def on_start(self) -> None:
        """Call ``on_start``."""
        self._call_all("on_start", lambda observer: observer.on_start())

    def on_training_step(self, progress: Progress) -> None:
        """Call ``on_training_step``."""
        self._call_all("on_training_step", lambda observer: observer.on_training_step(progress))

    def extra_summaries(self, taken: Collection[str]) -> dict[str, float]:
        """The numbers that all observers add to a row. ``taken``: names in the row already, which may not be used."""
        summaries: dict[str, float] = {}
        for name, observer in list(self._observers.items()):
            call = partial(_summaries_of, observer, {*taken, *summaries, *_ROW_KEYS})
            summaries |= self._call(name, "extra_summaries", call) or {}
        return summaries

    def on_episode(self, episode: EpisodeEnd, add: Callable[[str, int, float], bool]) -> None:
        """Call ``on_episode``; ``add(name, policy, number)`` each number it returns, False says that it is too many."""
        stats, info = json.loads(episode.numbers)
        for name, observer in [each for each in self._observers.items() if _takes_episodes(each[1])]:
            self._call(name, "on_episode", partial(_add_numbers, observer, episode, stats, info, add))

    def on_report(self, row: Mapping[str, float | None], last: bool) -> None:
        """Call ``on_report`` for a row that was written; answers to the ``last`` one have no effect."""
        for name, observer in list(self._observers.items()):
            answer = self._call(name, "on_report", partial(_wants_to_continue, observer, row))
            if answer is False and not last and not self.enough:
                _log.info("observer %s ended the run: on_report() returned False", name)
                self.ended_by = name

    def on_video(self, path: Path, env_steps: int) -> None:
        """Call ``on_video``."""
        self._call_all("on_video", lambda observer: observer.on_video(path, env_steps))

    def end(self, outcome: Outcome) -> Outcome:
        """Call ``on_stop`` of those that have begun; returns the outcome, which a failed observer changes."""
        if not self._begun:
            return outcome
        self._observers = {name: observer for name, observer in self._observers.items() if name in self._begun}
        if self._failure is not None and outcome.error is not None:
            _log.error("%s", self._failure)
        outcome = dataclasses.replace(self._with_failure(outcome), stopped_early=self.enough)
        if outcome.status == "done":
            summary = dataclasses.replace(outcome.summary, ended_by=self.ended_by)
            outcome = dataclasses.replace(outcome, summary=summary)
        self._call_all("on_stop", lambda observer: observer.on_stop(outcome))
        return self._with_failure(outcome)

    def _with_failure(self, outcome: Outcome) -> Outcome:
        """The outcome with an observer's failure as its error, unless the run has failed by itself."""
        if self._failure is None or outcome.error is not None:
            return outcome
        summary = outcome.summary.ended("failed")
        return dataclasses.replace(outcome, status="failed", summary=summary, error=self._failure)

    def _call_all(self, method: str, call: Callable[[Observer], None]) -> None:
        for name, observer in list(self._observers.items()):
            self._call(name, method, partial(call, observer))

    def _call(self, name: str, method: str, call: Callable[[], T]) -> T | None:
        """The result of ``call``; None if it raised, or if a second signal interrupted it."""
        interrupts = self._interrupts
        raised_again = interrupts is not None and interrupts.raising_again
        try:
            with stdout_to_stderr():
                if interrupts is not None:
                    interrupts.raising_again = True
                return call()
        except Interrupted:
            if interrupts is None or interrupts.raising or raised_again:
                raise
            return None  # the second signal ends the run at once: the supervisor has counted it
        except BaseException as error:  # user code may raise anything
            if method == "on_init" and isinstance(error, Refused):
                raise  # nothing has started
            self._fail(name, method, error)
            return None
        finally:
            if interrupts is not None:
                interrupts.raising_again = raised_again

    def _fail(self, name: str, method: str, error: BaseException) -> None:
        del self._observers[name]
        text, summary = traceback_of(error).rstrip(), " ".join(named(error).split("\n"))
        failure = ObserverFailed(f"{text}\nobserver {name} failed in {method}(): {summary}")
        failure.__cause__ = error
        if self._failure is None:
            self._failure = failure
        else:
            _log.error("%s", failure)


def _wants_to_continue(observer: Observer, row: Mapping[str, float | None]) -> bool:
    """Whether the run continues after this row; the answer may be a numpy bool."""
    answer = observer.on_report(row)
    return answer is None or bool(answer)


def _create(reference: str) -> Observer:
    """Create one observer; raises Unresolved."""
    maker = find_registered(reference, ENTRY_POINTS)
    try:
        made = maker()
    except ConfigError as error:  # of a tracker without its package
        raise Unresolved("; ".join(error.problems)) from error
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"at {os.path.relpath(frame.filename)}:{frame.lineno} in {frame.name}"
        raise Unresolved(
            f"it raised {named(error)} when called without arguments ({where}); fix it or leave it out"
        ) from error
    if not isinstance(made, Observer):
        raise Unresolved(f"it returns {described(made)}; it must be a subclass of sfactory.report.observers.Observer")
    return made


def _summaries_of(observer: Observer, taken: Collection[str]) -> dict[str, float]:
    """The numbers of one observer by name; raises TypeError or ValueError if one is invalid or its name is taken."""
    return _numbers_of(observer.extra_summaries(), taken)


def _takes_episodes(observer: Observer) -> bool:
    return getattr(type(observer), "on_episode", None) is not Observer.on_episode


def _add_numbers(
    observer: Observer,
    episode: EpisodeEnd,
    stats: dict[str, float],
    info: dict[str, float],
    add: Callable[[str, int, float], bool],
) -> None:
    """Add what one observer returns for an episode; raises TypeError or ValueError if it is invalid."""
    given = observer.on_episode(episode.policy, episode.env, dict(stats), dict(info))
    if given is None:
        return
    for name, number in _numbers_of(given, stats).items():
        if len(name) > MAX_STAT_NAME_CHARS or not add(name, episode.policy, number):
            raise ValueError(
                f"it returned {name[:MAX_STAT_NAME_CHARS]!r}, which is one name too many or too long: there may be "
                f"{MAX_STAT_NAMES} of {MAX_STAT_NAME_CHARS} characters, those of the env included"
            )


def _numbers_of(given: object, taken: Collection[str]) -> dict[str, float]:
    """The numbers that an observer has returned; raises TypeError or ValueError."""
    if not isinstance(given, Mapping):
        raise TypeError(f"it returned {described(given)}; it must return a mapping of names to numbers")
    numbers: dict[str, float] = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise TypeError(f"it returned {name!r} as a name; names must be str")
        name.encode()  # it is written to files; half a surrogate pair raises ValueError
        if name in taken:
            raise ValueError(f"it returned {name!r}, which is a name there already; choose another one")
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"it returned {value!r} for {name!r}; it must be a number") from None
    return numbers
