"""Room: calling the observers of a run. In: ``--observers``, what there is to tell. Out: summaries, or a failure.

Nothing is raised by what observers do: the first failure is kept, whoever runs the session asks for it and brings the
session to its end, and ``end`` makes it the outcome.

Room: what may look on while a run goes on. In: facts, progress, the end. Out: numbers for the run's summaries.

``--observers module:Class`` names subclasses of ``Observer``. Each is made once, without arguments, in the main
process, before anything else is started; all of its methods are optional.

    from sfactory.report.observers import Observer

    class Notifier(Observer):
        def on_stop(self, outcome):
            send_mail(f"{outcome.status}: {outcome.summary.episode_return_mean}")
"""

from __future__ import annotations

import dataclasses
import logging
import os
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from sfactory.config.import_strings import Unresolved, described, find_callable
from sfactory.config.schema import Config
from sfactory.errors import ConfigError, ObserverFailed, named
from sfactory.experiment.summary import Outcome
from sfactory.process.signals import Interrupted, Interrupts, stdout_to_stderr
from sfactory.report.console import Progress
from sfactory.spec import EnvSpec


@dataclass(frozen=True)
class RunFacts:
    """What is decided before a session starts. env_steps: those trained in earlier sessions."""

    config: Config
    seed: int
    run_dir: Path
    spec: EnvSpec
    env_steps: int


class Observer:
    """Is told of a run in the main process, which looks after all others meanwhile: methods have to be quick.

    Whatever takes long belongs into a thread of the observer's own. An exception ends the run, which saves, with exit
    code 70; the observer that raised it is called no more. What an observer prints to stdout goes to stderr.
    """

    def on_init(self, facts: RunFacts) -> None:
        """The env and the run directory are there; no process of the run is."""

    def on_start(self) -> None:
        """The processes have been started; in serial mode, everything is made and the first turn is next."""

    def on_training_step(self, progress: Progress) -> None:
        """There were further updates: looked for four times a second, so one call may stand for many of them."""

    def extra_summaries(self) -> Mapping[str, float]:
        """Numbers for the row of metrics.jsonl and TensorBoard that is written next, by names that no other has."""
        return {}

    def on_report(self, row: Mapping[str, float | None]) -> bool | None:
        """A row of metrics.jsonl was written: env_steps, and numbers by their names, None where there is none.

        Whatever is false, except None, ends the run as a limit does: it saves, and is done.
        """
        return None

    def on_stop(self, outcome: Outcome) -> None:
        """The session is over, however it ended, unless main itself was killed or failed. Who saw its start is told."""


_log = logging.getLogger(__name__)

T = TypeVar("T")
_OF_ROWS = frozenset(("time", "env_steps"))  # what every row has beside its scalars
_NOBODY: Mapping[str, Observer] = {}


class Observers:
    """The observers of one session, in the order of the flag. One that has failed is called no more."""

    def __init__(self, observers: Mapping[str, Observer] | None = None, interrupts: Interrupts | None = None) -> None:
        """``observers``: by the names that errors call them.

        interrupts: with it a second signal ends the work of an observer that does not come back.
        """
        self._observers = dict(observers or {})
        self._interrupts = interrupts
        self._begun = False
        self._enough = False
        self._failure: ObserverFailed | None = None

    @staticmethod
    def of(references: Sequence[str], interrupts: Interrupts, present: Mapping[str, Observer] = _NOBODY) -> Observers:
        """Make those that ``--observers`` names; raises ConfigError with a line for each that cannot be made.

        present: others, which come first.
        """
        observers = dict(present)
        problems: list[str] = []
        for reference in references:
            try:
                with stdout_to_stderr():
                    observers[reference] = _made(reference)
            except Unresolved as error:
                problems.append(f"--observers={reference}: {error}")
        if problems:
            raise ConfigError(problems)
        return Observers(observers, interrupts)

    def __bool__(self) -> bool:
        """Whether there is anybody to tell anything."""
        return bool(self._observers)

    @property
    def failed(self) -> bool:
        """True once an observer has failed: the session is to come to its end."""
        return self._failure is not None

    @property
    def enough(self) -> bool:
        """True once an observer has answered a report by saying that the run is to end."""
        return self._enough

    @property
    def over(self) -> bool:
        """True once the session is to come to its end, for either reason."""
        return self.failed or self.enough

    def begin(self, facts: RunFacts) -> bool:
        """Tell of a session that is about to start; False if it is not to, because an observer failed."""
        self._begun = True
        self._tell("on_init", lambda observer: observer.on_init(facts))
        return not self.failed

    def on_start(self) -> None:
        """Tell that processes were started."""
        self._tell("on_start", lambda observer: observer.on_start())

    def on_training_step(self, progress: Progress) -> None:
        """Tell of further updates."""
        self._tell("on_training_step", lambda observer: observer.on_training_step(progress))

    def extra_summaries(self, taken: Collection[str]) -> dict[str, float]:
        """What all of them add to a row; ``taken``: names that the row has already, which is a failure."""
        summaries: dict[str, float] = {}
        for name, observer in list(self._observers.items()):
            ask = partial(_summaries_of, observer, {*taken, *summaries, *_OF_ROWS})
            summaries |= self._call(name, "extra_summaries", ask) or {}
        return summaries

    def on_report(self, row: Mapping[str, float | None], last: bool) -> None:
        """Tell of a row that was written; after the ``last`` one there is nothing that an answer could end."""
        for name, observer in list(self._observers.items()):
            answer = self._call(name, "on_report", partial(_goes_on, observer, row))
            self._enough = self._enough or (answer is False and not last)

    def end(self, outcome: Outcome) -> Outcome:
        """Tell of the end of a session that was told of, and say how it ended in view of what observers did."""
        if not self._begun:
            return outcome
        if self._failure is not None and outcome.error is not None:
            _log.error("%s", self._failure)
        outcome = dataclasses.replace(self._judged(outcome), stopped_early=self.enough)
        self._tell("on_stop", lambda observer: observer.on_stop(outcome))
        return self._judged(outcome)

    def _judged(self, outcome: Outcome) -> Outcome:
        """A failure of an observer is the run's, unless the run has failed by itself."""
        if self._failure is None or outcome.error is not None:
            return outcome
        summary = dataclasses.replace(outcome.summary, status="failed")
        return dataclasses.replace(outcome, status="failed", summary=summary, error=self._failure)

    def _tell(self, method: str, call: Callable[[Observer], None]) -> None:
        for name, observer in list(self._observers.items()):
            self._call(name, method, partial(call, observer))

    def _call(self, name: str, method: str, call: Callable[[], T]) -> T | None:
        """What ``call`` returns; None if it failed, after which the observer is out, or if a signal cut it short."""
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
            return None  # a second signal, which ends the run at once: whoever supervises has counted it
        # Foreign code may raise anything, and may even call sys.exit.
        except (Exception, SystemExit) as error:
            self._fail(name, method, error)
            return None
        finally:
            if interrupts is not None:
                interrupts.raising_again = raised_again

    def _fail(self, name: str, method: str, error: BaseException) -> None:
        del self._observers[name]
        text = "".join(traceback.format_exception(error)).rstrip()
        told = " ".join(named(error).split("\n"))
        failure = ObserverFailed(f"{text}\nobserver {name} failed in {method}(): {told}")
        failure.__cause__ = error
        if self._failure is None:
            self._failure = failure  # which is told at the end
        else:
            _log.error("%s", failure)


def _goes_on(observer: Observer, row: Mapping[str, float | None]) -> bool:
    """Whether the run is to go on after this row; a numpy bool says that as well as Python's."""
    answer = observer.on_report(row)
    return answer is None or bool(answer)


def _made(reference: str) -> Observer:
    """One observer; raises Unresolved."""
    maker = find_callable(reference)
    try:
        made = maker()
    # Same reason as above.
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"at {os.path.relpath(frame.filename)}:{frame.lineno} in {frame.name}"
        raise Unresolved(
            f"it is called without arguments to make the observer, and raised {named(error)} ({where}); mend it, or "
            "leave it out"
        ) from error
    if not isinstance(made, Observer):
        raise Unresolved(f"it makes {described(made)}; it must be a subclass of sfactory.report.observers.Observer")
    return made


def _summaries_of(observer: Observer, taken: Collection[str]) -> dict[str, float]:
    """The names and numbers that it gives; raises TypeError or ValueError if they are none, or a name is taken."""
    told: object = observer.extra_summaries()
    if not isinstance(told, Mapping):
        raise TypeError(f"it gave {described(told)}; it must give a mapping of names to numbers")
    numbers: dict[str, float] = {}
    for name, value in told.items():
        if not isinstance(name, str):
            raise TypeError(f"it gave {name!r} as a name; names must be str")
        name.encode()  # which is what it will be in the files; half a surrogate pair is a ValueError
        if name in taken:
            raise ValueError(f"it gave {name!r}, and the row has a number of that name already; choose another one")
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"it gave {value!r} for {name!r}; it must be a number") from None
    return numbers
