"""Targets with held rows are those of the trajectory without them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfactory.algo.gae import gae
from sfactory.algo.vtrace import vtrace
from tests.unit.algo.test_vtrace import Batch, random_batch

CLIPS: dict[str, Any] = {"rho_clip": 1.0, "c_clip": 0.9, "pg_rho_clip": 1.1}


def tensors(batch: Batch, *names: str) -> dict[str, Any]:
    return {name: torch.tensor(getattr(batch, name)) for name in names}


def without(batch: Batch, held: npt.NDArray[np.bool_], row: int) -> Batch:
    """One row of the batch, without its held steps."""
    kept = ~held[:, row]
    fields = {name: value if name == "bootstrap_value" else value[kept] for name, value in vars(batch).items()}
    return Batch(**{name: value[..., row : row + 1] for name, value in fields.items()})


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 12),
    lambda_=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    share=st.sampled_from([0.0, 0.3, 0.8]),
)
def test_held_rows_are_passed_over(seed: int, steps: int, lambda_: float, share: float) -> None:
    batch = random_batch(seed, steps, 3)
    rng = np.random.default_rng(seed)
    held = rng.random((steps, 3)) < share
    # What lies in held rows is left over from earlier rollouts.
    valid, log_rhos = batch.valid & ~held, np.where(held, -np.inf, batch.log_rhos)
    values = np.where(held, rng.choice([np.nan, 7.0], held.shape), batch.values)
    batch = dataclasses.replace(batch, valid=valid, log_rhos=log_rhos, values=values)
    names = ("discounts", "rewards", "values", "bootstrap_value")

    by_gae = gae(**tensors(batch, *names, "valid"), lambda_=lambda_, held=torch.tensor(held))
    by_vtrace = vtrace(**tensors(batch, *names, "log_rhos"), lambda_=lambda_, held=torch.tensor(held), **CLIPS)

    for row in range(3):
        kept = ~held[:, row]
        if not kept.any():
            continue
        turns = without(batch, held, row)
        due_gae = gae(**tensors(turns, *names, "valid"), lambda_=lambda_)
        due_vtrace = vtrace(**tensors(turns, *names, "log_rhos"), lambda_=lambda_, **CLIPS)
        for found, due in ((by_gae, due_gae), (by_vtrace, due_vtrace)):
            for one, other in zip(found, due, strict=True):
                np.testing.assert_allclose(one[kept, row], other[:, 0], rtol=1e-9, atol=1e-9)
    assert not by_gae.advantages[held].any()
    assert not by_vtrace.advantages[held].any()
    assert not by_vtrace.pg_advantages[held].any()


def test_a_turn_leads_to_the_next_one_of_its_agent() -> None:
    """Two turns with two steps between: A = r + gamma V' - V + gamma lambda A'."""
    column = lambda *numbers: torch.tensor(numbers, dtype=torch.float64).unsqueeze(1)  # noqa: E731
    held = torch.tensor([[False], [True], [True], [False]])

    targets = gae(
        discounts=column(0.9, 0.9, 0.9, 0.9),
        rewards=column(3.0, 50.0, 60.0, 1.0),
        values=column(10.0, 70.0, 80.0, 20.0),
        bootstrap_value=torch.tensor([30.0], dtype=torch.float64),
        valid=~held,
        lambda_=0.5,
        held=held,
    )

    last = 1.0 + 0.9 * 30.0 - 20.0
    first = 3.0 + 0.9 * 20.0 - 10.0 + 0.9 * 0.5 * last
    assert targets.advantages[:, 0].tolist() == [first, 0.0, 0.0, last]
