"""GAE equals the sum of its paper, with the trace cut at terminations, truncations and invalid rows."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfactory.algo.gae import gae
from tests.unit.algo.test_vtrace import oracle, random_batch


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 9),
    rows=st.integers(1, 4),
    lambda_=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
def test_advantages_equal_the_sum_of_the_paper(seed: int, steps: int, rows: int, lambda_: float) -> None:
    batch = random_batch(seed, steps, rows, on_policy=True)

    inputs = {name: torch.tensor(value) for name, value in vars(batch).items() if name != "log_rhos"}
    inputs["rewards"] = torch.where(inputs["valid"], inputs["rewards"], torch.nan)
    advantages, values = gae(**inputs, lambda_=lambda_)

    # A_s = sum_t (prod_{i<t} gamma lambda) delta_t: the correction of V-trace without weights.
    returns, *_ = oracle(batch, math.inf, math.inf, math.inf, lambda_)
    np.testing.assert_allclose(values.numpy(), returns, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(advantages.numpy(), returns - batch.values, rtol=1e-9, atol=1e-9)
