"""A vector batch records what a step did to each env, in both autoreset modes."""

from __future__ import annotations

import functools
from typing import Any, Literal

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from sfactory.actor.vector_batch import VectorEnvBatch
from sfactory.errors import EnvError
from tests.support.scripted_env import Episode, ScriptedEnv

Mode = Literal["NextStep", "SameStep"]


class StepsAsExtra(ScriptedEnv):
    """Reports the length of each episode at its end."""

    def step(self, action: int) -> Any:
        """As ScriptedEnv."""
        obs, reward, terminated, truncated, _ = super().step(action)
        info = {"episode_extra_stats": {"steps": float(self._step)}} if terminated or truncated else {}
        return obs, reward, terminated, truncated, info


def batch_of(mode: Mode, *scripts: list[Episode]) -> VectorEnvBatch:
    makers = [functools.partial(StepsAsExtra, script) for script in scripts]
    batch = VectorEnvBatch(SyncVectorEnv(makers, autoreset_mode=AutoresetMode(mode)))
    batch.reset([5])
    return batch


def stepped(batch: VectorEnvBatch) -> dict[str, Any]:
    batch.step(np.zeros(batch.size, np.int64))
    lists = {name: getattr(batch, name) for name in ("terminated", "truncated", "resumed", "lost", "first")}
    return {name: envs for name, envs in lists.items() if envs} | {"shown": batch.observations[:, 0].tolist()}


ENDS: list[list[Episode]] = [[(1, "terminated")], [(2, "truncated")], [(2, "both")], []]
STEPS: dict[Mode, list[dict[str, list[int]]]] = {
    "NextStep": [
        {"terminated": [0], "shown": [1, 1, 1, 1]},
        {"terminated": [2], "truncated": [1], "resumed": [0], "first": [0], "shown": [100, 2, 2, 2]},
        {"resumed": [2, 1], "first": [2, 1], "shown": [101, 100, 100, 3]},
        {"shown": [102, 101, 101, 4]},
    ],
    "SameStep": [
        {"terminated": [0], "first": [0], "shown": [100, 1, 1, 1]},
        {"terminated": [2], "truncated": [1], "lost": [1], "first": [2, 1], "shown": [101, 100, 100, 2]},
        {"shown": [102, 101, 101, 3]},
    ],
}


@pytest.mark.parametrize("mode", STEPS)
def test_next_step_resets_in_a_row_of_its_own_and_same_step_loses_the_truncated_step(mode: Mode) -> None:
    batch = batch_of(mode, *ENDS)

    assert [stepped(batch) for _ in STEPS[mode]] == STEPS[mode]


@pytest.mark.parametrize("mode", STEPS)
def test_extra_statistics_at_the_end_of_an_episode_are_passed_on(mode: Mode) -> None:
    batch = batch_of(mode, [(2, "truncated")], [(3, "terminated")])
    sent: list[tuple[str, list[float]]] = []

    for _ in range(4):
        batch.step(np.zeros(2, np.int64))

    batch.extras.send(0, lambda message: sent.append((message.name, message.values.tolist())) or True)  # type: ignore
    assert sent == [("steps", [2.0, 3.0])]


def test_a_vector_env_without_autoreset_is_refused() -> None:
    env = SyncVectorEnv([lambda: ScriptedEnv([])], autoreset_mode=AutoresetMode.DISABLED)

    with pytest.raises(EnvError, match=r"does not reset its envs .*NEXT_STEP"):
        VectorEnvBatch(env)
