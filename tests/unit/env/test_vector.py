"""A vector env is closed although one of its processes has died."""

from __future__ import annotations

import functools
import os
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv

from sfactory.env.lifecycle import close_env
from sfactory.env.vector import SoleEnv
from tests.support.processes import eventually

CLOSED_S = 20.0


class Mortal(gymnasium.Env[Any, Any]):
    """Its process dies in the first step, if it ``dies``."""

    observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)

    def __init__(self, dies: bool) -> None:
        self._dies = dies

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.int64(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._dies:
            os._exit(1)
        return np.int64(0), 0.0, False, False, {}


@pytest.mark.parametrize("dead", [0, 1])
@pytest.mark.parametrize("is_sole", [False, True])
@pytest.mark.filterwarnings("ignore:.*pending call")
def test_a_vector_env_of_which_a_process_has_died_is_closed(dead: int, is_sole: bool) -> None:
    env = AsyncVectorEnv([functools.partial(Mortal, env == dead) for env in range(2)])
    env.reset(seed=1)
    with pytest.raises(EOFError):
        env.step(np.zeros(2, np.int64))

    closing = threading.Thread(target=close_env, args=(SoleEnv(env) if is_sole else env, "env 0"), daemon=True)
    closing.start()
    closing.join(CLOSED_S)

    assert not closing.is_alive()
    # They have got SIGTERM, and close() waits a second for each.
    assert eventually(lambda: not any(process.is_alive() for process in env.processes), CLOSED_S)
