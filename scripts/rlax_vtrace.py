"""V-trace by rlax, on random cases: what tests/unit/algo/test_vtrace.py compares ours with.

Needs a Python of its own, so that sfactory does not depend on JAX:

    python3 -m venv rlax && rlax/bin/pip install rlax jax && rlax/bin/python scripts/rlax_vtrace.py

It writes tests/data/rlax_vtrace.json, the same again by the same versions.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
import rlax

CASES = 200
MAX_STEPS = 8
TARGET = Path(__file__).resolve().parents[1] / "tests" / "data" / "rlax_vtrace.json"


def random_case(rng: np.random.Generator) -> dict[str, object]:
    """One trajectory with terminations, and what rlax makes of it. In half of the cases lambda is 1."""
    steps = int(rng.integers(1, MAX_STEPS + 1))
    log_rhos = rng.normal(0.0, 1.0, steps)
    discounts = np.where(rng.random(steps) < 0.15, 0.0, rng.choice([0.9, 0.99, 1.0]))
    rewards, values = rng.normal(0.0, 1.0, steps), rng.normal(0.0, 2.0, steps + 1)
    lambda_ = 1.0 if rng.random() < 0.5 else float(rng.choice([0.0, 0.3, 0.7, 0.95]))
    # rlax clips the trace at 1 always.
    rho_clip, pg_rho_clip = float(rng.choice([0.5, 1.0, 2.2, 100.0])), float(rng.choice([0.5, 1.0, 2.2, 100.0]))
    result = rlax.vtrace_td_error_and_advantage(
        values[:-1], values[1:], rewards, discounts, np.exp(log_rhos), lambda_, rho_clip, pg_rho_clip
    )
    return {
        "lambda": lambda_,
        "rho_clip": rho_clip,
        "pg_rho_clip": pg_rho_clip,
        "log_rhos": log_rhos.tolist(),
        "discounts": discounts.tolist(),
        "rewards": rewards.tolist(),
        "values": values.tolist(),
        "vs": (np.asarray(result.errors) + values[:-1]).tolist(),
        "pg_advantages": np.asarray(result.pg_advantage).tolist(),
    }


def main() -> None:
    """Write the file."""
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    made_by = {name: version(name) for name in ("rlax", "jax", "numpy")}
    cases = [random_case(rng) for _ in range(CASES)]
    TARGET.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(case, allow_nan=False) for case in cases)
    TARGET.write_text(f'{{"made_by": {json.dumps(made_by)}, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
