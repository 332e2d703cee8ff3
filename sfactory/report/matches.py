"""Results of a policy against its past versions: ratings, metrics, and matches.json in the run's folder."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from sfactory import atomic
from sfactory.play.ratings import rating_against
from sfactory.report.scalars import Row
from sfactory.shared.opponents import EPISODES, POINTS, OpponentPool

MATCHES_NAME = "matches.json"

_COUNTS = ("won", "drawn", "lost")

_log = logging.getLogger(__name__)


class MatchTable:
    """A row for each snapshot that has ever been an opponent, those of earlier sessions included.

    A snapshot gets the rating that the policy has when it is taken, and keeps it; the first one has 0. The policy's
    rating follows from its recent results against the opponents.
    """

    def __init__(self, pool: OpponentPool, folder: Path, env_steps: int) -> None:
        """``env_steps``: where the run is resumed. Later snapshots are not part of its past."""
        self._pool, self._path = pool, folder / MATCHES_NAME
        self.rating = 0.0
        self._rows: dict[int, dict[str, float]] = {}  # by env steps of the snapshot
        self._earlier: dict[int, dict[str, float]] = {}  # as they were when this session began
        if env_steps and self._path.exists():
            self._read(env_steps)

    def _read(self, env_steps: int) -> None:
        try:
            saved: dict[str, Any] = atomic.read_json(self._path)
            names = ("rating", *_COUNTS)
            rows = {int(row["env_steps"]): {name: float(row[name]) for name in names} for row in saved["opponents"]}
            self.rating = float(saved["rating"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            _log.warning("%s cannot be read (%s): ratings begin at 0 again", self._path, error)
            return
        self._rows = {steps: row for steps, row in rows.items() if steps <= env_steps}
        self._earlier = {steps: dict(row) for steps, row in self._rows.items()}

    def look(self) -> None:
        """Add new snapshots and results."""
        slots, results = self._pool.newest(), self._pool.results()
        for slot in slots:
            steps = self._pool.env_steps(slot)
            row = self._rows.setdefault(steps, {"rating": self.rating, **dict.fromkeys(_COUNTS, 0.0)})
            before = self._earlier.get(steps, {})
            row |= {name: before.get(name, 0.0) + float(results[slot, i]) for i, name in enumerate(_COUNTS)}
        if any(results[slot, EPISODES] for slot in slots):
            known = np.array([self._rows[self._pool.env_steps(slot)]["rating"] for slot in slots])
            self.rating = rating_against(known, results[slots, POINTS], results[slots, EPISODES])

    def scalars(self) -> Row:
        """The policy's rating and share of points; of each opponent, from the newest on, the same and its age."""
        slots, results = self._pool.newest(), self._pool.results()
        row: Row = {"match/rating": self.rating, "match/points": _share(results[slots].sum(axis=0))}
        for place in range(self._pool.size):
            slot = slots[place] if place < len(slots) else None
            rated = {} if slot is None else self._rows.get(self._pool.env_steps(slot), {})
            name = f"match/opponent_{place}"
            row[f"{name}_env_steps"] = None if slot is None else self._pool.env_steps(slot)
            row[f"{name}_points"] = None if slot is None else _share(results[slot])
            row[f"{name}_rating"] = rated.get("rating")
        return row

    def write(self) -> None:
        """Replace matches.json; where that fails it is logged, and the next one holds the same and more."""
        rows = [{"env_steps": steps, **row} for steps, row in sorted(self._rows.items())]
        try:
            atomic.write_json(self._path, {"rating": self.rating, "opponents": rows})
        except OSError as error:
            _log.warning("%s could not be written: %s", self._path, error)


def _share(results: Any) -> float | None:
    """The share of points in recent episodes; None without any."""
    return float(results[POINTS] / results[EPISODES]) if results[EPISODES] else None
