"""Room: what may look on while a run goes on. In: facts, progress, the end. Out: numbers for the run's summaries.

``--observers module:Class`` names subclasses of ``Observer``. Each is made once, without arguments, in the main
process, before anything else is started; all of its methods are optional.

    from sfactory.runtime.observer import Observer

    class Notifier(Observer):
        def on_stop(self, outcome):
            send_mail(f"{outcome.status}: {outcome.summary.episode_return_mean}")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sfactory.config.schema import Config
from sfactory.runtime.console import Progress
from sfactory.runtime.outcome import Outcome
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
