"""A population shapes rewards toward what counts: see envs/synthetic/tempting.py.

Small, because much of what a population does is chance: with 8 members, a network that learns quickly and an entropy
that keeps it able to change its mind, 12 of 12 seeds ended with every member above 7 of 8.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from sfactory.errors import ExitCode
from sfactory.population.event import Event, Kind
from sfactory.population.genealogy import read_genealogy
from sfactory.population.state import load_state
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

    assert run.wait(within_s=240.0) == ExitCode.DONE, run.report("wrong exit code")
    run.assert_clean()
    state, last = load_state(run.run_dir), run.metrics()[-1]
    assert state is not None
    assert state.reward_shaping == {"pays": {"right": 0.5, "tempting": 1.0}}
    assert all(objective > HALF_RIGHT for objective in true_objectives(last))
    # What those were paid by who did well enough to be left as they were.
    assert statistics.median(map(right_over_tempting, kept_for_being_right(read_genealogy(run.run_dir)))) > 1.0


def test_without_a_population_policies_learn_what_tempts_them(run_trainer: RunTrainer) -> None:
    run = run_trainer(env=TEMPTING, **LEARNING)

    assert run.wait(within_s=240.0) == ExitCode.DONE, run.report("wrong exit code")
    assert all(objective < 2.0 for objective in true_objectives(run.metrics()[-1]))


def true_objectives(row: Mapping[str, Any]) -> list[float]:
    return [row[f"policy_{policy}/train/true_objective_mean"] for policy in range(POLICIES)]


def kept_for_being_right(events: list[Event]) -> Iterator[Event]:
    for event in events:
        objective = event.objectives.get(event.policy)
        if event.kind is Kind.KEEP and objective is not None and objective > HALF_RIGHT:
            yield event


def right_over_tempting(event: Event) -> float:
    assert event.reward_shaping is not None
    pays = event.reward_shaping["pays"]
    assert isinstance(pays, Mapping)
    return float(pays["right"]) / float(pays["tempting"])
