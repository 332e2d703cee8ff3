"""Room: flags: several policies, and population-based training of them. In: nothing. Out: ``PopulationConfig``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sfactory.config.field import flag


@dataclass(frozen=True)
class PopulationConfig:
    """How many policies there are, who plays which, and population-based training (PBT)."""

    num_policies: int = flag(1, "policies that are trained side by side, each with a learner of its own", ge=1, le=64)
    train_policies: tuple[int, ...] = flag(
        (), "policies that learn; the others play with the weights they have; empty: all of them learn", ge=0
    )
    policy_mapping: str = flag(
        "auto",
        "which policy plays; split: each split belongs to one for good; env, agent: one is drawn for each environment "
        "or agent; auto: agent where environments have several agents and pbt_mix_policies_in_one_env is True, split "
        "otherwise (env if there are fewer splits than policies); or module:function, which is called with the agent's "
        "name, its episode and the number of its env, and returns a policy",
    )
    policy_mapping_episodes: int = flag(10, "episodes after which it is drawn anew which policy plays", ge=1)
    with_pbt: bool = flag(
        False,
        "population-based training: the worst policies take over weights and hyperparameters of the best, and "
        "hyperparameters are mutated",
    )
    pbt_mix_policies_in_one_env: bool = flag(
        True, "policy_mapping=auto: agents of one environment are played by different policies"
    )
    pbt_period_env_steps: int = flag(5_000_000, "env steps of a policy between two of its turns", ge=1)
    pbt_start_mutation: int = flag(20_000_000, "env steps of a policy before its first turn", ge=0)
    pbt_replace_fraction: float = flag(
        0.3, "share of the policies that count as the best, and as the worst; rounded up to whole policies", gt=0, lt=1
    )
    pbt_mutation_rate: float = flag(0.15, "probability that a hyperparameter is mutated in a turn", ge=0, le=1)
    pbt_replace_reward_gap: float = flag(
        0.1,
        "a policy is replaced if the other is better by more than this share of the larger of the two objectives, "
        "signs left away",
        ge=0,
        lt=1,
    )
    pbt_replace_reward_gap_absolute: float = flag(
        1e-6, "a policy is replaced if the other is better by more than this, too", ge=0
    )
    pbt_optimize_gamma: bool = flag(False, "gamma is mutated, too")
    pbt_optimize_batch_size: bool = flag(False, "batch_size is mutated, too: doubled or halved")
    pbt_target_objective: str = flag(
        "true_objective",
        "what policies are ranked by, as a mean over stats_avg episodes: true_objective (reward, where the environment "
        "has none), reward, length, or the name of an extra episode statistic",
    )
    pbt_perturb_min: float = flag(1.1, "least factor of a mutation", gt=1, le=100)
    pbt_perturb_max: float = flag(1.5, "greatest factor of a mutation", gt=1, le=100)
    pbt_hyperparameters: Mapping[str, Any] = flag(
        {},
        'JSON object that adds a flag to what is mutated, or changes how it is: {"adam_beta1": {}, "learning_rate": '
        '{"min": 1e-5, "max": 1e-3, "how": "log_uniform"}, "ppo_clip_ratio": null}; what is left out is as '
        "docs/populations.md says, null leaves a flag as it is; how: factor, one_minus, double, uniform, log_uniform",
    )
