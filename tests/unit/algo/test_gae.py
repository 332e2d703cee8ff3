"""GAE equals the sum of its paper, with the trace cut at terminations, truncations and invalid rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sfactory.algo.returns import gae
from tests.unit.algo.test_vtrace import Batch, oracle, random_batch


def inputs_of(batch: Batch) -> dict[str, Tensor]:
    names = ("discounts", "rewards", "values", "bootstrap_value", "valid")
    return {name: torch.tensor(getattr(batch, name)) for name in names}


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 9),
    rows=st.integers(1, 4),
    lambda_=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
def test_advantages_equal_the_sum_of_the_paper(seed: int, steps: int, rows: int, lambda_: float) -> None:
    batch = random_batch(seed, steps, rows, on_policy=True)

    result = gae(**inputs_of(batch), lambda_=lambda_)

    # A_s = sum_t (prod_{i<t} gamma lambda) delta_t: the correction of V-trace without weights.
    returns, *_ = oracle(batch, math.inf, math.inf, math.inf, lambda_)
    np.testing.assert_allclose(result.returns.numpy(), returns, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(result.advantages.numpy(), returns - batch.values, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("garbage", [np.nan, np.inf])
def test_garbage_in_invalid_rows_reaches_nothing(garbage: float) -> None:
    inputs = inputs_of(random_batch(9, 10, 6))
    valid = inputs["valid"]
    expected = gae(**inputs, lambda_=0.95)
    inputs["rewards"] = inputs["rewards"].masked_fill(~valid, garbage)
    needed = torch.zeros_like(valid)
    needed[1:] = valid[:-1]
    inputs["values"] = inputs["values"].masked_fill(~valid & ~needed, garbage)

    result = gae(**inputs, lambda_=0.95)

    for ours, theirs in zip(result, expected, strict=True):
        assert bool(ours.isfinite().all())
        torch.testing.assert_close(ours[valid], theirs[valid])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept_and_no_gradient_flows(dtype: torch.dtype) -> None:
    inputs = {name: x.to(dtype) if x.dtype != torch.bool else x for name, x in inputs_of(random_batch(1, 5, 2)).items()}
    inputs["values"].requires_grad_()

    result = gae(**inputs, lambda_=0.95)

    assert {tensor.dtype for tensor in result} == {dtype}
    assert not any(tensor.requires_grad for tensor in result)


def test_wrong_shape_is_refused_by_name() -> None:
    inputs = inputs_of(random_batch(1, 5, 2))
    inputs["bootstrap_value"] = inputs["bootstrap_value"].unsqueeze(1)

    with pytest.raises(ValueError, match=r"bootstrap_value \(2, 1\)"):
        gae(**inputs, lambda_=0.95)
