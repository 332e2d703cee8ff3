"""The result of an evaluation: all episodes, and their mean, deviation, interquartile mean and intervals."""

from __future__ import annotations

import csv
import io
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sfactory import atomic
from sfactory.errors import CannotSaveError
from sfactory.experiment.summary import finite
from sfactory.play.player import Episode, result_of, returns_of
from sfactory.statistics import bootstrap_interval, interquartile_mean, sum_to_zero

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluation:
    """Episodes of a saved policy, in the order of their numbers, which determine their seeds.

    played: what was played, and how: env, checkpoint, seed and so on.
    """

    played: Mapping[str, Any]
    episodes: tuple[Episode, ...]

    @cached_property
    def returns(self) -> npt.NDArray[np.float64]:
        """[N] - raw returns; with several agents the means of theirs.

        Episodes in which none of them acted have none; [nan] if that is so in all.
        """
        return np.array(returns_of(self.episodes) or [math.nan], np.float64)

    @property
    def mean(self) -> float:
        """Of the returns."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """The standard deviation of the returns, of a sample; nan of a single one."""
        return float(self.returns.std(ddof=1)) if len(self.returns) > 1 else float("nan")

    @property
    def iqm(self) -> float:
        """The interquartile mean of the returns."""
        return float(interquartile_mean(self.returns))

    @cached_property
    def iqm_interval(self) -> tuple[float, float]:
        """The 95% bootstrap interval of the interquartile mean."""
        return bootstrap_interval(self.returns)

    @cached_property
    def mean_interval(self) -> tuple[float, float]:
        """The 95% bootstrap interval of the mean."""
        return bootstrap_interval(self.returns, statistic=lambda returns: returns.mean(-1))

    def warn(self) -> None:
        """Log a warning if the returns say nothing of the policy, because it has played against itself."""
        stats = [episode.stats for episode in self.episodes]
        team = [each.get("team_return", math.nan) for each in stats]
        of_agents = [[value for name, value in each.items() if name.startswith("return/")] for each in stats]
        if np.allclose(self.returns, 0.0, atol=1e-6) and sum_to_zero(team, of_agents):
            _log.warning(
                "the returns of all agents sum to 0 in each episode, and one policy plays all of them: its mean return "
                "is 0 however good it is; python -m sfactory.match compares policies"
            )

    def summary(self) -> dict[str, Any]:
        """What JSON holds: ``played``, and the numbers. Those that are not finite are None."""
        numbers = {
            "episode_return_std": self.std,
            "episode_return_iqm": self.iqm,
            "episode_return_mean_interval": list(self.mean_interval),
            "episode_return_iqm_interval": list(self.iqm_interval),
        }
        result = {**result_of(self.played, self.episodes), **numbers}
        return {name: finite(value) for name, value in result.items()}

    def write_csv(self, path: str | Path) -> None:
        """A line for each episode: its number, return, length, and what else it reports. Raises CannotSaveError.

        A statistic with the name of another column has ``stats/`` before it.
        """
        names = sorted({name for episode in self.episodes for name in episode.stats})
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        columns = ["episode", "return", "length"]
        for name in names:
            while name in columns:
                name = f"stats/{name}"
            columns.append(name)
        rows.writerow(columns)
        for number, episode in enumerate(self.episodes):
            stats = [episode.stats.get(name, "") for name in names]
            rows.writerow([number, episode.episode_return, episode.length, *stats])
        try:
            atomic.write_text(Path(path), text.getvalue())
        except OSError as error:
            raise CannotSaveError(f"{path} could not be written: {error}; check the free space and rights") from error
