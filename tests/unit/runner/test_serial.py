"""A run in one process draws other actions in each session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sfactory.runner.serial import SerialExecutor
from sfactory.supervise.shared_objects import SharedObjects
from tests.support.parts import VECTOR, small_layout


def seed_of_actions(env_steps: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """The seed in force when the workers are made, of a session that resumes at ``env_steps``."""
    layout, seeds = small_layout(), list[int]()
    for name in ("_make_learner", "_make_actor"):
        monkeypatch.setattr(SerialExecutor, name, lambda *_: None)
    monkeypatch.setattr(SerialExecutor, "_make_policy_worker", lambda *_: seeds.append(torch.initial_seed()))
    context: Any = SimpleNamespace(
        seed=1,
        plan=SimpleNamespace(layout=layout),
        resumed=SimpleNamespace(env_steps=env_steps),
        interrupts=SimpleNamespace(),
    )
    reporter: Any = None
    with torch.random.fork_rng():
        SerialExecutor(context, SharedObjects(VECTOR, layout, weight_bytes=8), reporter, None).start()
    return seeds[0]


def test_actions_are_drawn_from_another_seed_after_a_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = [seed_of_actions(env_steps, monkeypatch) for env_steps in (0, 0, 1000, 2000)]

    assert seeds[0] == seeds[1]
    assert len(set(seeds)) == 3
