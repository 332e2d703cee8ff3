"""A plain recorder that plays a Counting env and writes its rows by the rules of NOTE [Row life]."""

from __future__ import annotations

import numpy as np

from sfactory_envs.synthetic.counting import Counting
from tests.support.counting_check import Column


def play_column(env: Counting, *, seed: int, slots: int, rollout: int) -> Column:
    """The rows of ``slots`` consecutive slots, with actions drawn from ``seed``."""
    rng = np.random.default_rng(seed)
    obs, _ = env.reset(seed=seed)
    rows: list[tuple[object, ...]] = []
    slot_end_obs, slot_end_is_first = [], []
    is_first, truncation_row_due = True, False
    for row in range(slots * rollout):
        action = np.int64(rng.integers(env.rules.num_actions))
        if truncation_row_due:
            rows.append((obs, action, 0.0, False, False, False, is_first))
            obs, _ = env.reset()
            is_first, truncation_row_due = True, False
        else:
            after, reward, terminated, truncated, _ = env.step(action)
            truncation_row_due = truncated and not terminated
            rows.append((obs, action, reward, terminated, truncation_row_due, True, is_first))
            obs, is_first = after, False
            if terminated:
                obs, _ = env.reset()
                is_first = True
        if (row + 1) % rollout == 0:
            slot_end_obs.append(obs)
            slot_end_is_first.append(is_first)
            if truncation_row_due:
                obs, _ = env.reset()
                is_first, truncation_row_due = True, False
    fields = list(zip(*rows, strict=True))
    return Column(
        obs=np.array(fields[0]),
        action=np.array(fields[1], np.int64),
        reward=np.array(fields[2], np.float32),
        terminated=np.array(fields[3], bool),
        truncated=np.array(fields[4], bool),
        valid=np.array(fields[5], bool),
        is_first=np.array(fields[6], bool),
        rollout=rollout,
        slot_end_obs=np.array(slot_end_obs),
        slot_end_is_first=np.array(slot_end_is_first, bool),
    )
