"""Checks that work on a GPU does not wait for it, and batches on any device."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from sfactory.config.schema import ModelConfig
from sfactory.learner.batch import Batch
from sfactory.spec import EnvSpec

GPU_TESTS_ON = os.environ.get("SFACTORY_GPU_TESTS_ON", "cuda")  # "cpu": those of tests/gpu run there, to be tried

SPACES: dict[str, tuple[spaces.Space[Any], spaces.Space[Any]]] = {
    "vector": (spaces.Box(-1, 1, (3,)), spaces.Discrete(3)),
    "images": (spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6)),
    "masked": (
        spaces.Dict({"vector": spaces.Box(-1, 1, (3,)), "action_mask": spaces.Box(0, 1, (4,), np.int8)}),
        spaces.Discrete(4),
    ),
    "both": (
        spaces.Dict({"image": spaces.Box(0, 255, (3, 36, 36), np.uint8), "vector": spaces.Box(-1, 1, (3,))}),
        spaces.Dict({"jump": spaces.Discrete(3), "move": spaces.Box(-1, 1, (2,))}),
    ),
}


def spec_of(kind: str, config: ModelConfig) -> EnvSpec:
    """The spec of one of SPACES, as a run has it."""
    return EnvSpec.of_spaces(*SPACES[kind]).for_model(config)


@contextlib.contextmanager
def waits(device: torch.device, mode: str) -> Iterator[None]:
    """What torch does inside about an operation for which the host waits: "error" or "default", which is nothing.

    It knows its own operations, but not all libraries'. On a CPU nothing waits.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def made_up_batch(
    spec: EnvSpec, state_size: int, agents: bool = False, steps: int = 16, rows: int = 8, seed: int = 3
) -> Batch:
    """A batch on the CPU: a tenth of the steps is invalid, episodes begin anywhere. agents: as with several of them."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int, of: torch.dtype = torch.float32) -> Tensor:
        numbers = torch.rand(shape, generator=generator)
        if of is torch.bool:
            return numbers < 0.9
        return (numbers * (255 if of is torch.uint8 else 2)).to(of)

    def step_of(of: torch.dtype = torch.float32) -> Tensor:
        return drawn(steps, rows, of=of)

    yes, obs = torch.bool, {}
    for key, leaf in spec.obs:
        obs[key] = drawn(steps + 1, rows, *leaf.shape, of=getattr(torch, leaf.dtype))
        if leaf.is_mask:
            obs[key][..., :2] = 1  # the actions below
    return Batch(
        obs=obs,
        actions={
            head.key: drawn(steps, rows, *head.tensor.shape, of=getattr(torch, head.tensor.dtype))
            for head in spec.actions
        },
        behavior_log_prob=-step_of(),
        behavior_value=step_of(),
        rewards=step_of(),
        discounts=step_of() / 2,
        taken=(valid := step_of(yes)),
        valid=valid,
        replayed=torch.zeros(steps, rows, dtype=yes),
        policy_version=torch.zeros(steps, rows, dtype=torch.int64),
        is_first=~drawn(steps + 1, rows, of=yes),
        rnn_states=torch.zeros(2, rows, state_size),
        held=~step_of(yes) if agents else None,
        env_step=step_of(yes) if agents else None,
        run_step=step_of(yes) if agents else None,
    )
