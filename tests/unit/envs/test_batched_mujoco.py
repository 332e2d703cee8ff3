"""EnvPool's MuJoCo tasks, many envs a call, are Gymnasium's: the same steps and ends from the same states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from sfactory.config.env_families import find_family, lack_of_family
from sfactory.env.factory import EnvFactory, make_env
from sfactory.env.vector import autoreset_mode

STEPS, LIMIT = 300, 45  # the limit truncates episodes
SHOWS_ALL = {"exclude_current_positions_from_observation": False}


@pytest.mark.parametrize(
    ("name", "kwargs", "follows", "ends"),
    [
        # It is chaotic: rounding grows by ten in a few steps.
        ("HalfCheetah-v5", SHOWS_ALL, 20, {"truncated"}),
        ("Hopper-v5", SHOWS_ALL, LIMIT, {"terminated", "truncated"}),
        ("Walker2d-v5", SHOWS_ALL, LIMIT, {"terminated"}),
        ("InvertedPendulum-v5", {}, LIMIT, {"terminated"}),
    ],
)
def test_a_pool_steps_and_ends_as_gymnasium_does(
    name: str, kwargs: dict[str, object], follows: int, ends: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in (name, f"envpool:{name}"):
        family = find_family(each)
        assert family is not None
        if lack := lack_of_family(family):
            pytest.skip(lack)
    monkeypatch.chdir(tmp_path)  # EnvPool's MuJoCo may write warnings into the current folder
    kwargs = {**kwargs, "max_episode_steps": LIMIT}
    pool = EnvFactory(f"envpool:{name}", kwargs).vector(num_envs=2, seed=3)
    env, random, seen = make_env(name, kwargs), np.random.default_rng(0), set()
    assert autoreset_mode(pool) is AutoresetMode.NEXT_STEP
    low, high = env.action_space.low, env.action_space.high  # type: ignore[attr-defined]

    begin(env, pool.reset()[0][1])
    steps, over = 0, False
    for _ in range(STEPS):
        actions = random.uniform(low, high, (2, *low.shape)).astype(np.float32)
        obs, rewards, terminated, truncated, _ = pool.step(actions.astype(np.float64))
        if over:  # this step has reset the env
            assert (rewards[1], terminated[1], truncated[1]) == (0, False, False)
            begin(env, obs[1])
            steps, over = 0, False
            continue
        shown, reward, *end, _ = env.step(actions[1])
        steps, over = steps + 1, any(end)
        assert [terminated[1], truncated[1]] == end
        seen |= {kind for kind, is_so in zip(("terminated", "truncated"), end, strict=True) if is_so}
        if steps <= follows:
            np.testing.assert_allclose(obs[1], shown, atol=1e-8)
            assert rewards[1] == pytest.approx(float(reward), abs=1e-6)  # Gymnasium's costs of actions are float32
    pool.close()

    assert seen == ends


def begin(env: Any, obs: Any) -> None:
    """Begin an episode of ``env`` in the state that ``obs`` shows."""
    env.reset()
    size = env.unwrapped.model.nq
    env.unwrapped.set_state(obs[:size], obs[size:])
