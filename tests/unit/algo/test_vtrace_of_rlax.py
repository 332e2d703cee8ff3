"""V-trace equals that of rlax, a published implementation, on 200 random cases (scripts/rlax_vtrace.py made them)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from sfactory.algo.vtrace import VTrace, vtrace
from tests.support.source import ROOT

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


@pytest.mark.parametrize("number", range(200))
def test_targets_are_those_of_rlax(number: int) -> None:
    case = CASES[number]

    result = ours(case)

    torch.testing.assert_close(result.vs, column(case["vs"]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("number", [number for number, case in enumerate(CASES) if case["lambda"] == 1.0])
def test_advantages_are_those_of_rlax_where_it_defines_them_alike(number: int) -> None:
    # Below a lambda of 1 rlax mixes V into what an advantage looks ahead to.
    case = CASES[number]

    result = ours(case)

    torch.testing.assert_close(result.pg_advantages, column(case["pg_advantages"]), rtol=1e-10, atol=1e-10)
