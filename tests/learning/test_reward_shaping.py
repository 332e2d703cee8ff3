"""A population shapes rewards toward what counts: see envs/synthetic/tempting.py.

Small, because much of what a population does is chance: with 8 members, a network that learns quickly and an entropy
that keeps it able to change its mind, 8 of 8 seeds ended with every member above 6.5 of 8.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import pytest

from sfactory.errors import ExitCode
from sfactory.pbt.event_log import Event, read_events
from sfactory.pbt.mutation import Shaping
from sfactory.pbt.state import load_state
from tests.support.trainer import RunTrainer

TEMPTING = "sfactory_envs.synthetic.tempting:Tempting"
POLICIES = 8
LEARNING = {
    "train_for_env_steps": 100_000,
    "num_policies": POLICIES,
    "num_envs_per_worker": 64,
    "rollout": 8,
    "encoder_mlp_layers": (32,),
    "batch_size": 1024,
    "learning_rate": 3e-3,
    "exploration_loss_coeff": 0.05,
    "stats_avg": 50,
    "serial_mode": True,
}
HALF_RIGHT = 4.0  # of 8 steps; who is tempted gets less than 2


@pytest.mark.long
def test_shaping_weights_move_toward_the_true_objective(run_trainer: RunTrainer) -> None:
    run = run_trainer(
        env=TEMPTING,
        **LEARNING,
        with_pbt=True,
        pbt_start_mutation=4000,
        pbt_period_env_steps=4000,
        pbt_mutation_rate=0.5,
        pbt_replace_fraction=0.25,
        pbt_perturb_max=3,
    )

    run.assert_ended(ExitCode.DONE, 600.0)
    state, last = load_state(run.run_dir), run.metrics()[-1]
    assert state is not None
    assert state.reward_shaping == {"pays": {"right": 0.5, "tempting": 1.0}}
    assert all(objective > HALF_RIGHT for objective in true_objectives(last))
    paid = [right_over_tempting(shaping) for shaping in shapings_that_turned(read_events(run.run_dir))]
    assert len(paid) == POLICIES
    assert statistics.median(paid) > 1.0


# Takes a minute and a half, and tells of the env alone: that it tempts a policy alone.
@pytest.mark.long
def test_without_a_population_policies_learn_what_tempts_them(run_trainer: RunTrainer) -> None:
    run = run_trainer(env=TEMPTING, **LEARNING)

    run.assert_ended(ExitCode.DONE, 600.0)
    assert all(objective < 2.0 for objective in true_objectives(run.metrics()[-1]))


def true_objectives(row: Mapping[str, Any]) -> list[float]:
    return [row[f"policy_{policy}/train/true_objective_mean"] for policy in range(POLICIES)]


def shapings_that_turned(events: list[Event]) -> list[Shaping]:
    """Of each member the reward shaping that it had when it was first right in most steps.

    Later ones tell nothing: once all are right, no shaping makes a difference to their ranks, and chance moves them.
    """
    had: dict[int, Shaping] = {}
    found: dict[int, Shaping] = {}
    for event in events:
        objective = event.objectives.get(event.policy)
        if objective is not None and objective > HALF_RIGHT:
            found.setdefault(event.policy, had[event.policy])
        assert event.reward_shaping is not None
        had[event.policy] = event.reward_shaping
    return list(found.values())


def right_over_tempting(shaping: Shaping) -> float:
    pays = shaping["pays"]
    assert isinstance(pays, Mapping)
    return float(pays["right"]) / float(pays["tempting"])
