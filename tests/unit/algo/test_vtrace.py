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

from sfactory.algo.gae import gae
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


def random_batch(seed: int, steps: int, rows: int, *, on_policy: bool = False, all_valid: bool = False) -> Batch:
    rng = np.random.default_rng(seed)
    shape = (steps, rows)
    valid = np.ones(shape, bool) if all_valid else rng.random(shape) > 0.2
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
    def tensor(array: Array) -> torch.Tensor:
        return torch.tensor(array, dtype=dtype)

    arguments: dict[str, Any] = {"rho_clip": 1.0, "c_clip": 1.0, "pg_rho_clip": 1.0, "lambda_": 1.0, **overrides}
    return vtrace(
        log_rhos=tensor(batch.log_rhos),
        discounts=tensor(batch.discounts),
        rewards=tensor(batch.rewards),
        values=tensor(batch.values),
        bootstrap_value=tensor(batch.bootstrap_value),
        **arguments,
    )


def columns(steps: int, **fields: float | list[float]) -> Batch:
    """A single on-policy trajectory; numbers are repeated over time."""
    column = {name: np.broadcast_to(np.array(x, float).reshape(-1, 1), (steps, 1)) for name, x in fields.items()}
    ones = np.ones((steps, 1), bool)
    return Batch(
        np.zeros((steps, 1)), np.full((steps, 1), GAMMA), column["rewards"], column["values"], np.array([10.0]), ones
    )


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


seeds = st.integers(0, 2**32 - 1)
clips = st.sampled_from([0.3, 1.0, 2.2, None])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=seeds,
    steps=st.integers(1, 9),
    rows=st.integers(1, 4),
    rho_clip=clips,
    c_clip=clips,
    pg_rho_clip=clips,
    lambda_=st.sampled_from([0.0, 0.7, 1.0]),
)
def test_targets_equal_the_sums_of_the_paper(
    seed: int,
    steps: int,
    rows: int,
    rho_clip: float | None,
    c_clip: float | None,
    pg_rho_clip: float | None,
    lambda_: float,
) -> None:
    batch = random_batch(seed, steps, rows)

    result = run_vtrace(batch, rho_clip=rho_clip, c_clip=c_clip, pg_rho_clip=pg_rho_clip, lambda_=lambda_)

    expected = oracle(batch, rho_clip or math.inf, c_clip or math.inf, pg_rho_clip or math.inf, lambda_)
    for ours, theirs in zip(result, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [(1.0, [12.673, 11.791, 10.9]), ([0.0, 0.0, 5.0], [14.604, 14.751, 14.9])],
)
def test_worked_numbers_come_out(rewards: float | list[float], expected: list[float]) -> None:
    batch = columns(3, rewards=rewards, values=10.0)

    vs = run_vtrace(batch).vs

    np.testing.assert_allclose(vs[:, 0].numpy(), expected, atol=1e-3)


@pytest.mark.parametrize("lambda_", [0.0, 0.6, 0.95, 1.0])
def test_on_policy_targets_are_those_of_gae(lambda_: float) -> None:
    batch = random_batch(3, 12, 5, on_policy=True)

    result = run_vtrace(batch, lambda_=lambda_)

    reference = gae(
        discounts=torch.tensor(batch.discounts),
        rewards=torch.tensor(batch.rewards),
        values=torch.tensor(batch.values),
        bootstrap_value=torch.tensor(batch.bootstrap_value),
        valid=torch.tensor(batch.valid),
        lambda_=lambda_,
    )
    torch.testing.assert_close(result.vs, reference.returns)
    torch.testing.assert_close(result.pg_advantages, result.advantages)
    if lambda_ == 1.0:
        torch.testing.assert_close(result.advantages, reference.advantages)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf])
def test_garbage_in_invalid_rows_reaches_nothing(garbage: float) -> None:
    clean = random_batch(8, 10, 6)
    clean.discounts[-1] = GAMMA
    # A row that bootstraps from an invalid row needs a finite value there, so only rewards are spoiled at such.
    needed = np.zeros_like(clean.valid)
    needed[1:] = clean.valid[:-1]
    spoiled = random_batch(8, 10, 6)
    spoiled.discounts[-1] = GAMMA
    spoiled.rewards[~spoiled.valid] = garbage
    spoiled.values[~spoiled.valid & ~needed] = garbage

    expected, result = run_vtrace(clean), run_vtrace(spoiled)

    valid = torch.tensor(clean.valid)
    for ours, theirs in zip(result, expected, strict=True):
        assert bool(ours.isfinite().all())
        torch.testing.assert_close(ours[valid], theirs[valid])


def test_garbage_value_in_a_truncation_row_still_yields_finite_numbers() -> None:
    batch = random_batch(8, 10, 6)
    batch.values[~batch.valid] = np.nan

    assert all(bool(tensor.isfinite().all()) for tensor in run_vtrace(batch))


def test_wholly_invalid_batch_keeps_its_values_and_has_no_advantage() -> None:
    batch = random_batch(2, 5, 3)
    batch.valid[:], batch.log_rhos[:], batch.rewards[:] = False, -np.inf, np.nan

    result = run_vtrace(batch)

    np.testing.assert_array_equal(result.vs.numpy(), batch.values)
    assert result.advantages.abs().max() == 0.0
    assert result.pg_advantages.abs().max() == 0.0


def test_nan_in_a_valid_row_is_not_hidden() -> None:
    batch = random_batch(2, 5, 3, all_valid=True)
    batch.log_rhos[2, 1] = np.nan

    assert bool(run_vtrace(batch).vs[:3, 1].isnan().any())


def test_no_gradient_flows_through_targets_and_inputs_stay_untouched() -> None:
    inputs = {name: torch.randn(4, 2) for name in ("log_rhos", "discounts", "rewards")}
    values, bootstrap_value = torch.randn(4, 2, requires_grad=True), torch.randn(2, requires_grad=True)
    before = {name: tensor.clone() for name, tensor in {**inputs, "values": values}.items()}

    result = vtrace(
        **inputs, values=values, bootstrap_value=bootstrap_value, rho_clip=1.0, c_clip=1.0, pg_rho_clip=1.0, lambda_=1.0
    )

    assert not any(tensor.requires_grad for tensor in result)
    for name, tensor in {**inputs, "values": values}.items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept(dtype: torch.dtype) -> None:
    assert {tensor.dtype for tensor in run_vtrace(random_batch(0, 3, 2), dtype)} == {dtype}


def test_wrong_shape_is_refused_by_name() -> None:
    batch = random_batch(0, 4, 3)
    batch.rewards = batch.rewards[:, :1]

    with pytest.raises(ValueError, match=r"'rewards': \(4, 1\)"):
        run_vtrace(batch)


MADE = json.loads((ROOT / "tests" / "data" / "rlax_vtrace.json").read_text())
CASES: list[dict[str, Any]] = MADE["cases"]


def column(numbers: list[float]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(1)


def ours(case: dict[str, Any]) -> VTrace:
    values = column(case["values"])
    return vtrace(
        log_rhos=column(case["log_rhos"]),
        discounts=column(case["discounts"]),
        rewards=column(case["rewards"]),
        values=values[:-1],
        bootstrap_value=values[-1],
        rho_clip=case["rho_clip"],
        c_clip=1.0,  # as rlax has it, always
        pg_rho_clip=case["pg_rho_clip"],
        lambda_=case["lambda"],
    )


def test_there_are_200_cases_of_all_kinds() -> None:
    assert len(CASES) == 200
    assert {len(case["rewards"]) for case in CASES} == set(range(1, 9))
    assert {case["lambda"] for case in CASES} == {0.0, 0.3, 0.7, 0.95, 1.0}
    assert {case["rho_clip"] for case in CASES} == {case["pg_rho_clip"] for case in CASES} == {0.5, 1.0, 2.2, 100.0}
    assert sum(0.0 in case["discounts"] for case in CASES) > 50


def test_targets_and_advantages_are_those_of_rlax() -> None:
    for case in CASES:
        result = ours(case)

        torch.testing.assert_close(result.vs, column(case["vs"]), rtol=1e-10, atol=1e-10)
        if case["lambda"] == 1.0:  # below it rlax mixes V into the value that an advantage looks ahead to
            torch.testing.assert_close(result.pg_advantages, column(case["pg_advantages"]), rtol=1e-10, atol=1e-10)
