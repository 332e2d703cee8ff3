"""The folder through which runs, on one machine or several, form a population: ``--pbt_dir``.

Member K owns ``member-K`` in it: ``member.json``, which says what it has reached and with which hyperparameters, and
copies of its newest checkpoints. Both are replaced atomically, and both are data: nothing in them is executed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sfactory import atomic
from sfactory.config.flags import strict_json
from sfactory.config.hyperparameters import is_number
from sfactory.errors import RunDirError, clean
from sfactory.pbt.mutation import Shaping, changed
from sfactory.pbt.state import Member, PopulationState

MEMBER_NAME = "member.json"
_FOLDER = re.compile(r"member-(0|[1-9][0-9]{0,8})")
_STILL = 3  # turns of this member without one of another, or without another, after which that is logged
_MOST_BYTES = 1 << 20  # of a member's file

_log = logging.getLogger(__name__)


class Published(NamedTuple):
    """Another member as of its last turn, before that changed it. objective: None after too few episodes."""

    member: Member
    objective: float | None
    run_dir: str


def member_dir(path: Path | str, number: int) -> Path:
    """The folder of a member."""
    return Path(path) / f"member-{number}"


class SharedDir:
    """What one member writes into the folder of the population, and reads of the others."""

    def __init__(self, path: Path, own: int, env: str, run_dir: Path) -> None:
        """own: the member's number. env, run_dir: of its run."""
        self._path, self._own, self._env, self._run_dir = path, own, env, str(run_dir)
        self._last: dict[int, tuple[int, int]] = {}  # by member: its turn, and for how many turns it has been that
        self._runs: dict[int, str] = {}  # run directories of members that have been logged
        self._turns_alone = 0
        self._refused: dict[Path, str] = {}  # what has been logged

    def publish(self, state: PopulationState, metric: str, env_steps: int, objective: float | None) -> None:
        """Write what this member has reached; if that fails, a warning is logged, and the next turn tries again.

        state: of the population in this run. objective: mean of the episode statistic ``metric``, None if unknown.
        """
        reached = {"env_steps": env_steps, "metric": metric, "objective": objective}
        path = member_dir(self._path, self._own) / MEMBER_NAME
        try:
            atomic.write_json(path, {**state.to_json(), "env": self._env, "run_dir": self._run_dir, **reached})
        except OSError as error:
            _log.warning("other members do not see what this one has reached: %s cannot be written: %s", path, error)

    def others(self, metric: str, reward_shaping: Shaping | None) -> dict[int, Published]:
        """All other members that have had a turn, by number; a file that cannot be used is left out, and logged once.

        metric, reward_shaping: this run's. A member that has no more turns stays a source of weights, and is logged.
        """
        same = {"env": self._env, "metric": metric, "reward_shaping": reward_shaping}
        found = {}
        try:
            files = _files(self._path)
        except OSError as error:
            _log.warning("this turn is taken without other members: %s cannot be read: %s", self._path, error)
            return {}
        for number, path in files.items():
            if number == self._own:
                continue
            try:
                found[number] = _read(path, number, same)
            except (OSError, ValueError) as error:
                if self._refused.get(path) != str(error):
                    self._refused[path] = str(error)
                    _log.warning("%s is left out: %s", path, error)
                continue
            self._note_run(number, found[number].run_dir)
            self._note_age(number, found[number].member.turns)
        self._note_absence()
        return found

    def _note_run(self, number: int, run_dir: str) -> None:
        if self._runs.get(number) != run_dir:
            self._runs[number] = run_dir
            _log.info("member %d of the population is the run in %s", number, clean(run_dir))

    def _note_absence(self) -> None:
        self._turns_alone += not self._runs
        if not self._runs and self._turns_alone == _STILL:
            text = "all runs of a population need the same --pbt_dir"
            _log.warning("no other member has been found in %s during %d turns: %s", self._path, _STILL, text)

    def _note_age(self, number: int, turn: int) -> None:
        before, still = self._last.get(number, (turn, -1))
        still = still + 1 if turn == before else 0
        self._last[number] = turn, still
        if still == _STILL:
            text = "it has ended, or is much slower; its weights may still be copied"
            _log.warning("member %d has had no turn during %d turns of this one: %s", number, _STILL, text)


def runs_in(path: Path) -> dict[int, Path]:
    """The run directories of all members of the population in ``path``; {} if there is none. Raises RunDirError."""
    try:
        files = _files(path)
    except OSError as error:
        raise RunDirError(f"{path} cannot be read: {error}; check its permissions") from error
    return {number: run_of(file, number) for number, file in files.items()}


def run_of(path: Path, number: int) -> Path:
    """The run directory of a member, from its file. Raises RunDirError if that cannot be used."""
    try:
        return Path(_member_and_data(path, number)[1]["run_dir"])
    except (OSError, ValueError) as error:
        raise RunDirError(f"{path} is not of a member: {error}; restore a copy of it, or remove it") from error


def _files(path: Path) -> dict[int, Path]:
    """The files of members by number."""
    named = {_FOLDER.fullmatch(file.parent.name): file for file in path.glob(f"*/{MEMBER_NAME}")}
    return dict(sorted((int(match[1]), file) for match, file in named.items() if match is not None))


def _member_and_data(path: Path, number: int) -> tuple[Member, Mapping[str, Any]]:
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES} bytes")
    data: Any = strict_json(atomic.read_bytes(path))
    member = PopulationState.from_json(data).members.get(number)
    if member is None:
        raise ValueError(f"it is not of member {number}")
    if not isinstance(data.get("run_dir"), str):
        raise ValueError("'run_dir' is not a text")
    return member, data


def _read(path: Path, number: int, same: Mapping[str, Any]) -> Published:
    """Raises OSError, and ValueError that describes the problem if the file is invalid, or of another task.

    same: what members have in common, as their objectives could not be compared otherwise.
    """
    member, data = _member_and_data(path, number)
    for name, here in same.items():
        if data.get(name) != here:
            raise ValueError(f"its {name} is {data.get(name)!r:.100}, and {here!r:.100} in this run")
    own = same["reward_shaping"]
    if changed(member.reward_shaping, own, lambda _, origin: origin) != own:
        raise ValueError("the reward shaping of its member differs from the env's own by more than numbers")
    objective = data.get("objective")
    if objective is not None and not is_number(objective):
        raise ValueError(f"'objective' is not a number: {objective!r:.100}")
    return Published(member, objective, data["run_dir"])
