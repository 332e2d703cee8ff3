"""Envs that hand out the same memory do not see each other's observations."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from sfactory.actor.env_batch import BaseBatch
from sfactory.actor.shared_buffers import envs_that_share
from tests.support.scripted_env import batch_of


class SharedBuffer(gymnasium.Env[Any, Any]):
    """Shows its number and its step in a buffer of all such envs: from the reset on, or from the first step on."""

    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, number: int, buffer: Any, in_reset: bool) -> None:
        self._number, self.buffer, self._in_reset, self._step = number, buffer, in_reset, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._step = 0
        return self._show(self._in_reset), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._show(True), 0.0, False, False, {}

    def _show(self, shared: bool) -> Any:
        shown = self.buffer if shared else [0.0, 0.0]
        shown[0], shown[1] = self._number, self._step
        return shown


@pytest.mark.parametrize("in_reset", [True, False])
@pytest.mark.parametrize("buffer", [np.zeros(2, np.float32), [0.0, 0.0]], ids=["array", "list"])
def test_observations_in_a_shared_buffer_are_copied(
    in_reset: bool, buffer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    batch: BaseBatch = batch_of([SharedBuffer(number, buffer, in_reset) for number in range(3)])

    batch.reset([1, 2, 3])
    for step in range(1, 7):
        batch.step([0, 0, 0])
        assert [list(map(int, obs)) for obs in batch.observations] == [[0, step], [1, step], [2, step]]

    assert caplog.text.count("same memory") == 1


def test_envs_of_two_batches_that_share_a_buffer_do_not_see_each_other() -> None:
    buffer = np.zeros(2, np.float32)
    one, other = (batch_of([SharedBuffer(number, buffer, True)]) for number in range(2))
    one.reset([1])
    other.reset([2])
    for step in range(1, 7):
        one.step([0])
        other.step([0])
        assert [list(map(int, batch.observations[0])) for batch in (one, other)] == [[0, step], [1, step]]


def test_observations_in_memory_of_their_own_are_not_copied_after_the_first_steps() -> None:
    envs = [SharedBuffer(number, np.zeros(2, np.float32), True) for number in range(3)]
    batch = batch_of(envs)
    batch.reset([1, 2, 3])
    for _ in range(5):
        batch.step([0, 0, 0])

    assert batch.envs == envs
    assert all(obs is env.buffer for obs, env in zip(batch.observations, envs, strict=True))


def test_rows_of_one_env_and_disjoint_views_share_nothing() -> None:
    block = np.zeros((4, 3))
    assert envs_that_share(list(block), 1) is None
    assert envs_that_share([block[0], block[0], block[1], block[1]], 2) is None
    assert envs_that_share([{"a": block[:2]}, ({"b": block[2]},), {"a": block[1:]}], 1) == (0, 2)
