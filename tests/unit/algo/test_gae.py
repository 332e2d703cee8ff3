"""GAE equals the sum of its paper, with the trace cut at terminations, truncations and invalid rows."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sfactory.algo.gae import GAE, gae

Array = npt.NDArray[np.float64]
GAMMA = 0.99


def random_inputs(seed: int, steps: int, rows: int, *, all_valid: bool = False) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    shape = (steps, rows)
    return {
        "discounts": torch.tensor(np.where(rng.random(shape) < 0.15, 0.0, GAMMA)),
        "rewards": torch.tensor(rng.normal(0.0, 1.0, shape)),
        "values": torch.tensor(rng.normal(0.0, 2.0, shape)),
        "bootstrap_value": torch.tensor(rng.normal(0.0, 2.0, rows)),
        "valid": torch.tensor(rng.random(shape) > (0.0 if all_valid else 0.2)),
    }


def oracle(inputs: dict[str, Tensor], lambda_: float) -> Array:
    """A_s = sum_t (prod_{i<t} gamma lambda) delta_t over the unbroken valid rows from s, summed directly."""
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    steps, rows = arrays["values"].shape
    ahead = np.concatenate([arrays["values"][1:], arrays["bootstrap_value"][None]])
    deltas = arrays["rewards"] + arrays["discounts"] * ahead - arrays["values"]
    advantages = np.zeros((steps, rows))
    for row in range(rows):
        for s in range(steps):
            for t in range(s, steps):
                if not arrays["valid"][t, row]:
                    break
                factors = (lambda_ * arrays["discounts"][i, row] for i in range(s, t))
                advantages[s, row] += math.prod(factors) * deltas[t, row]
    return advantages


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 9),
    rows=st.integers(1, 4),
    lambda_=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
def test_advantages_equal_the_sum_of_the_paper(seed: int, steps: int, rows: int, lambda_: float) -> None:
    inputs = random_inputs(seed, steps, rows)

    result = gae(**inputs, lambda_=lambda_)

    np.testing.assert_allclose(result.advantages.numpy(), oracle(inputs, lambda_), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(result.returns, result.advantages + inputs["values"])


def constant(rewards: list[float]) -> GAE:
    column = torch.tensor(rewards, dtype=torch.float64).unsqueeze(1)
    tens = torch.full_like(column, 10.0)
    return gae(
        discounts=torch.full_like(column, GAMMA),
        rewards=column,
        values=tens,
        bootstrap_value=tens[0],
        valid=torch.ones_like(column, dtype=torch.bool),
        lambda_=1.0,
    )


def test_worked_numbers_come_out() -> None:
    np.testing.assert_allclose(constant([1.0, 1.0, 1.0]).returns[:, 0], [12.673, 11.791, 10.9], atol=1e-3)


@pytest.mark.parametrize("garbage", [np.nan, np.inf])
def test_garbage_in_invalid_rows_reaches_nothing(garbage: float) -> None:
    inputs = random_inputs(9, 10, 6)
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


def test_wholly_invalid_batch_has_no_advantage_and_keeps_its_values() -> None:
    inputs = random_inputs(9, 4, 2)
    inputs["valid"] = torch.zeros(4, 2, dtype=torch.bool)
    inputs["rewards"] = torch.full((4, 2), math.nan, dtype=torch.float64)

    result = gae(**inputs, lambda_=0.95)

    assert result.advantages.abs().max() == 0.0
    assert torch.equal(result.returns, inputs["values"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept_and_no_gradient_flows(dtype: torch.dtype) -> None:
    inputs = {name: x.to(dtype) if x.dtype != torch.bool else x for name, x in random_inputs(1, 5, 2).items()}
    inputs["values"].requires_grad_()

    result = gae(**inputs, lambda_=0.95)

    assert {tensor.dtype for tensor in result} == {dtype}
    assert not any(tensor.requires_grad for tensor in result)


def test_wrong_shape_is_refused_by_name() -> None:
    inputs = random_inputs(1, 5, 2)
    inputs["bootstrap_value"] = inputs["bootstrap_value"].unsqueeze(1)

    with pytest.raises(ValueError, match=r"bootstrap_value \(2, 1\)"):
        gae(**inputs, lambda_=0.95)
