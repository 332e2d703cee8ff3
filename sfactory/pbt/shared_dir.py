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
from sfactory.errors import RunDirError
from sfactory.pbt.mutation import Shaping
from sfactory.pbt.state import Member, PopulationState

MEMBER_NAME = "member.json"
_FOLDER = re.compile(r"member-(\d{1,9})")
_STILL = 3  # turns of this member without one of another, after which that is logged

_log = logging.getLogger(__name__)


class Published(NamedTuple):
    """Another member as of its last turn, before that changed it. objective: None after too few episodes."""

    member: Member
    objective: float | None


def member_dir(path: Path | str, number: int) -> Path:
    """The folder of a member."""
    return Path(path) / f"member-{number}"


class SharedDir:
    """What one member writes into the folder of the population, and reads of the others."""

    def __init__(self, path: Path, own: int, env: str, run_dir: Path) -> None:
        """own: the member's number. env, run_dir: of its run."""
        self._path, self._own, self._env, self._run_dir = path, own, env, str(run_dir)
        self._last: dict[int, tuple[int, int]] = {}  # by member: its turn, and for how many turns it has been that
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
        for number, path in _files(self._path).items():
            if number == self._own:
                continue
            try:
                found[number] = _read(path, number, same)
            except (OSError, ValueError) as error:
                if self._refused.get(path) != str(error):
                    self._refused[path] = str(error)
                    _log.warning("%s is left out: %s", path, error)
                continue
            self._note_age(number, found[number].member.turns)
        return found

    def _note_age(self, number: int, turn: int) -> None:
        before, still = self._last.get(number, (turn, -1))
        still = still + 1 if turn == before else 0
        self._last[number] = turn, still
        if still == _STILL:
            text = "it has ended, or is much slower; its weights may still be copied"
            _log.warning("member %d has had no turn during %d turns of this one: %s", number, _STILL, text)


def runs_in(path: Path) -> list[Path]:
    """The run directories of all members of the population in ``path``; [] if there is none. Raises RunDirError."""
    found = []
    for number, file in _files(path).items():
        try:
            found.append(Path(_member_and_data(file, number)[1]["run_dir"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunDirError(f"{file} is not of a member: {error}; restore a copy of it, or remove it") from error
    return found


def _files(path: Path) -> dict[int, Path]:
    """The files of members by number."""
    named = {_FOLDER.fullmatch(file.parent.name): file for file in path.glob(f"*/{MEMBER_NAME}")}
    return dict(sorted((int(match[1]), file) for match, file in named.items() if match is not None))


def _member_and_data(path: Path, number: int) -> tuple[Member, Mapping[str, Any]]:
    data: Any = strict_json(atomic.read_bytes(path))
    member = PopulationState.from_json(data).members.get(number)
    if member is None:
        raise ValueError(f"it is not of member {number}")
    return member, data


def _read(path: Path, number: int, same: Mapping[str, Any]) -> Published:
    """Raises OSError, and ValueError that describes the problem if the file is invalid, or of another task.

    same: what members have in common, as their objectives could not be compared otherwise.
    """
    member, data = _member_and_data(path, number)
    for name, here in same.items():
        if data.get(name) != here:
            raise ValueError(f"its {name} is {data.get(name)!r:.100}, and {here!r:.100} in this run")
    objective = data.get("objective")
    if objective is not None and not is_number(objective):
        raise ValueError(f"'objective' is not a number: {objective!r:.100}")
    return Published(member, objective)
