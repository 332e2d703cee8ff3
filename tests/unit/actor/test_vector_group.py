"""What a vector env did to each of its envs, whichever way it resets them."""

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


class Telling(ScriptedEnv):
    """Tells the length of each episode at its end."""

    def step(self, action: int) -> Any:
        """As ScriptedEnv."""
        obs, reward, terminated, truncated, _ = super().step(action)
        told = {"episode_extra_stats": {"steps": float(self._step)}} if terminated or truncated else {}
        return obs, reward, terminated, truncated, told


def group_of(mode: Mode, *scripts: list[Episode]) -> VectorEnvBatch:
    makers = [functools.partial(Telling, script) for script in scripts]
    group = VectorEnvBatch(SyncVectorEnv(makers, autoreset_mode=AutoresetMode(mode)))
    group.reset([5])
    return group


def stepped(group: VectorEnvBatch) -> dict[str, Any]:
    group.step(np.zeros(group.size, np.int64))
    told = {name: getattr(group, name) for name in ("terminated", "truncated", "resumed", "lost", "first")}
    return {name: envs for name, envs in told.items() if envs} | {"shown": group.observations[:, 0].tolist()}


ENDS: list[list[Episode]] = [[(1, "terminated")], [(2, "truncated")], [(2, "both")], []]


def test_with_resets_in_the_next_step_every_end_is_followed_by_a_row_in_which_nothing_is_stepped() -> None:
    group = group_of("NextStep", *ENDS)

    assert stepped(group) == {"terminated": [0], "shown": [1, 1, 1, 1]}
    assert stepped(group) == {
        "terminated": [2],
        "truncated": [1],
        "resumed": [0],
        "first": [0],
        "shown": [100, 2, 2, 2],
    }
    assert stepped(group) == {"resumed": [2, 1], "first": [2, 1], "shown": [101, 100, 100, 3]}
    assert stepped(group) == {"shown": [102, 101, 101, 4]}


def test_with_resets_in_the_same_step_a_truncated_step_is_lost_and_no_other() -> None:
    group = group_of("SameStep", *ENDS)

    assert stepped(group) == {"terminated": [0], "first": [0], "shown": [100, 1, 1, 1]}
    assert stepped(group) == {
        "terminated": [2],
        "truncated": [1],
        "lost": [1],
        "first": [2, 1],
        "shown": [101, 100, 100, 2],
    }
    assert stepped(group) == {"shown": [102, 101, 101, 3]}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_what_an_env_tells_at_the_end_of_an_episode_is_passed_on(mode: Mode) -> None:
    group = group_of(mode, [(2, "truncated")], [(3, "terminated")])
    sent: list[tuple[str, list[float]]] = []

    for _ in range(4):
        group.step(np.zeros(2, np.int64))

    group.extras.send(0, lambda message: sent.append((message.name, message.values.tolist())) or True)  # type: ignore
    assert sent == [("steps", [2.0, 3.0])]


def test_a_vector_env_that_nobody_resets_is_refused() -> None:
    env = SyncVectorEnv([lambda: ScriptedEnv([])], autoreset_mode=AutoresetMode.DISABLED)

    with pytest.raises(EnvError, match=r"does not reset its envs .*NEXT_STEP"):
        VectorEnvBatch(env)
