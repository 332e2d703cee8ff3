"""V-trace equals the sums of the IMPALA paper, and 200 random cases of rlax (scripts/rlax_vtrace.py)."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfactory.algo.vtrace import VTrace, vtrace
from tests.support.source import ROOT

Array = npt.NDArray[np.float64]
GAMMA = 0.99


@dataclass
class Batch:
    """A time-major batch with terminations, truncations followed by truncation rows, and other invalid rows."""

    log_rhos: Array
    discounts: Array
    rewards: Array
    values: Array
    bootstrap_value: Array
    valid: npt.NDArray[np.bool_]


def random_batch(seed: int, steps: int, rows: int, *, on_policy: bool = False) -> Batch:
    rng = np.random.default_rng(seed)
    shape = (steps, rows)
    valid = rng.random(shape) > 0.2
    log_rhos = np.zeros(shape) if on_policy else rng.normal(0.0, 1.0, shape)
    return Batch(
        log_rhos=np.where(valid, log_rhos, -np.inf),
        discounts=np.where(rng.random(shape) < 0.15, 0.0, GAMMA),
        rewards=rng.normal(0.0, 1.0, shape),
        values=rng.normal(0.0, 2.0, shape),
        bootstrap_value=rng.normal(0.0, 2.0, rows),
        valid=valid,
    )


def run_vtrace(batch: Batch, dtype: torch.dtype = torch.float64, **overrides: Any) -> VTrace:
    names = ("log_rhos", "discounts", "rewards", "values", "bootstrap_value")
    inputs = {name: torch.tensor(getattr(batch, name), dtype=dtype) for name in names}
    settings = {"rho_clip": 1.0, "c_clip": 1.0, "pg_rho_clip": 1.0, "lambda_": 1.0, **overrides}
    return vtrace(**inputs, **settings)  # type: ignore[arg-type]


def oracle(b: Batch, rho_clip: float, c_clip: float, pg_rho_clip: float, lambda_: float) -> tuple[Array, Array, Array]:
    """The definition, v_s = V(s) + sum_t (prod_i gamma c_i) rho_t delta_t, summed directly for every s."""
    steps, rows = b.values.shape
    vs, advantages, pg_advantages = b.values.copy(), np.zeros((steps, rows)), np.zeros((steps, rows))
    for row in range(rows):
        values = [*b.values[:, row], b.bootstrap_value[row]]
        reward, discount, valid = b.rewards[:, row], b.discounts[:, row], b.valid[:, row]
        weight = np.exp(b.log_rhos[:, row])
        for s in range(steps):
            for t in range(s, steps):
                if not valid[t]:
                    break
                trace = math.prod(discount[i] * lambda_ * min(c_clip, weight[i]) for i in range(s, t))
                delta = reward[t] + discount[t] * values[t + 1] - values[t]
                vs[s, row] += trace * min(rho_clip, weight[t]) * delta
        for s in range(steps):
            if not valid[s]:
                continue
            target_ahead = vs[s + 1, row] if s + 1 < steps else values[steps]
            advantages[s, row] = reward[s] + discount[s] * target_ahead - values[s]
            pg_advantages[s, row] = min(pg_rho_clip, weight[s]) * advantages[s, row]
    return vs, pg_advantages, advantages


clips = st.sampled_from([0.3, 1.0, 2.2, None])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 9),
    rows=st.integers(1, 4),
    limits=st.tuples(clips, clips, clips),
    lambda_=st.sampled_from([0.0, 0.7, 1.0]),
)
def test_targets_equal_the_sums_of_the_paper(
    seed: int, steps: int, rows: int, limits: tuple[float | None, float | None, float | None], lambda_: float
) -> None:
    batch = random_batch(seed, steps, rows)
    rho_clip, c_clip, pg_rho_clip = limits

    result = run_vtrace(batch, rho_clip=rho_clip, c_clip=c_clip, pg_rho_clip=pg_rho_clip, lambda_=lambda_)

    expected = oracle(batch, rho_clip or math.inf, c_clip or math.inf, pg_rho_clip or math.inf, lambda_)
    for ours, theirs in zip(result, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf])
def test_garbage_in_invalid_rows_reaches_nothing(garbage: float) -> None:
    clean, spoiled = random_batch(8, 10, 6), random_batch(8, 10, 6)
    # A row that bootstraps from an invalid row needs a finite value there, so only rewards are spoiled at such.
    needed = np.zeros_like(clean.valid)
    needed[1:] = clean.valid[:-1]
    spoiled.rewards[~spoiled.valid] = garbage
    spoiled.values[~spoiled.valid & ~needed] = garbage

    expected, result = run_vtrace(clean), run_vtrace(spoiled)

    valid = torch.tensor(clean.valid)
    for ours, theirs in zip(result, expected, strict=True):
        assert bool(ours.isfinite().all())
        torch.testing.assert_close(ours[valid], theirs[valid])
    # Nor does garbage where a value is needed make targets that are not finite.
    spoiled.values[~spoiled.valid] = garbage
    assert all(bool(tensor.isfinite().all()) for tensor in run_vtrace(spoiled))


def test_wholly_invalid_batch_keeps_its_values_and_has_no_advantage() -> None:
    batch = random_batch(2, 5, 3)
    batch.valid[:], batch.log_rhos[:], batch.rewards[:] = False, -np.inf, np.nan

    result = run_vtrace(batch)

    np.testing.assert_array_equal(result.vs.numpy(), batch.values)
    assert result.advantages.abs().max() == result.pg_advantages.abs().max() == 0.0


def test_nan_in_a_valid_row_is_not_hidden() -> None:
    batch = random_batch(2, 5, 3)
    batch.log_rhos[2, 1] = np.nan

    assert bool(run_vtrace(batch).vs[2, 1].isnan())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_gradient_flows_dtype_is_kept_and_inputs_stay_untouched(dtype: torch.dtype) -> None:
    shapes = {"log_rhos": (4, 2), "discounts": (4, 2), "rewards": (4, 2), "values": (4, 2), "bootstrap_value": (2,)}
    inputs = {name: torch.randn(shape, dtype=dtype, requires_grad=True) for name, shape in shapes.items()}
    before = {name: tensor.detach().clone() for name, tensor in inputs.items()}

    result = vtrace(**inputs, rho_clip=1.0, c_clip=1.0, pg_rho_clip=1.0, lambda_=1.0)

    assert {tensor.dtype for tensor in result} == {dtype}
    assert not any(tensor.requires_grad for tensor in result)
    assert all(torch.equal(tensor, before[name]) for name, tensor in inputs.items())


def test_wrong_shape_is_refused_by_name() -> None:
    batch = random_batch(0, 4, 3)
    batch.rewards = batch.rewards[:, :1]

    with pytest.raises(ValueError, match=r"'rewards': \(4, 1\)"):
        run_vtrace(batch)


CASES: list[dict[str, Any]] = json.loads((ROOT / "tests" / "data" / "rlax_vtrace.json").read_text())["cases"]


def test_targets_and_advantages_are_those_of_rlax() -> None:
    assert len(CASES) == 200
    for case in CASES:
        columns = {name: np.array(case[name]).reshape(-1, 1) for name in ("log_rhos", "discounts", "rewards", "values")}
        values = columns.pop("values")
        valid = np.ones_like(columns["rewards"], bool)
        batch = Batch(**columns, values=values[:-1], bootstrap_value=values[-1], valid=valid)
        # c_clip is always 1 in rlax.
        limits = {"rho_clip": case["rho_clip"], "pg_rho_clip": case["pg_rho_clip"]}

        result = run_vtrace(batch, **limits, lambda_=case["lambda"])

        np.testing.assert_allclose(result.vs[:, 0], case["vs"], rtol=1e-10, atol=1e-10)
        if case["lambda"] == 1.0:  # below it rlax mixes V into the value that an advantage looks ahead to
            np.testing.assert_allclose(result.pg_advantages[:, 0], case["pg_advantages"], rtol=1e-10, atol=1e-10)
