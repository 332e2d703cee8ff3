"""Flags of a population of policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sfactory.config.field import flag


@dataclass(frozen=True)
class PopulationConfig:
    """How many policies there are, who plays which, and population-based training (PBT)."""

    num_policies: int = flag(1, "number of policies trained side by side, each with its own learner", ge=1, le=64)
    train_policies: tuple[int, ...] = flag(
        (), "policies that learn; the others play with fixed weights; empty: all of them learn", ge=0
    )
    policy_mapping: str = flag(
        "auto",
        "which policy plays: split assigns one to each split for the whole run; env and agent draw one for each "
        "environment or agent; auto is agent where environments have several agents and pbt_mix_policies_in_one_env "
        "is True, split otherwise (env if there are fewer splits than policies); red_*=0,blue_*=1 assigns agents by "
        "patterns of their names; module:function is called with the agent's name, its episode and the number of its "
        "env, and returns a policy",
    )
    policy_mapping_episodes: int = flag(10, "episodes after which the policy that plays is drawn again", ge=1)
    opponent_pool: int = flag(
        0, "past versions of the policy that it plays against in environments of several agents; 0: none", ge=0, le=64
    )
    opponent_snapshot_env_steps: int = flag(
        100_000, "env steps between two snapshots of the policy, which are saved as milestones", ge=1
    )
    opponent_sampling: Literal["uniform", "recent", "pfsp"] = flag(
        "uniform",
        "which opponent plays: uniform draws all alike; recent prefers new ones, with weights that fall linearly; pfsp "
        "prefers those that the policy loses to, with weights (1 - share of points)^2",
    )
    opponent_share: float = flag(
        0.5, "share of episodes in which an opponent plays one side; in the others the policy plays both", gt=0, le=1
    )
    with_pbt: bool = flag(
        False, "population-based training: the worst policies copy the best ones, and hyperparameters are mutated"
    )
    pbt_dir: str = flag(
        "",
        "folder, on storage that all machines share, through which runs of one policy each form a population; empty: "
        "the policies of this run are the population",
        path=True,
    )
    pbt_member: int | None = flag(
        None, "number of this run among those of pbt_dir, from 0; each has its own", ge=0, le=999_999_999
    )
    pbt_mix_policies_in_one_env: bool = flag(True, "policy_mapping=auto: different policies play the agents of one env")
    pbt_period_env_steps: int = flag(5_000_000, "env steps of a policy between two of its PBT updates", ge=1)
    pbt_start_mutation: int = flag(20_000_000, "env steps of a policy before its first PBT update", ge=0)
    pbt_replace_fraction: float = flag(
        0.3, "share of the policies that count as the best, and as the worst; rounded up to whole policies", gt=0, lt=1
    )
    pbt_mutation_rate: float = flag(0.15, "probability that a hyperparameter is mutated in a PBT update", ge=0, le=1)
    pbt_replace_reward_gap: float = flag(
        0.1, "a policy is replaced only by one better by more than this share of the larger |objective|", ge=0, lt=1
    )
    pbt_replace_reward_gap_absolute: float = flag(
        1e-6, "a policy is replaced only if the other is better by more than this", ge=0
    )
    pbt_optimize_gamma: bool = flag(False, "also mutate gamma")
    pbt_optimize_batch_size: bool = flag(False, "also mutate batch_size, which is doubled or halved")
    pbt_target_objective: str = flag(
        "true_objective",
        "what ranks policies, as a mean over stats_avg episodes: true_objective (reward, where the environment has "
        "none), reward, length, or the name of an extra episode statistic",
    )
    pbt_perturb_min: float = flag(1.1, "smallest factor of a mutation", gt=1, le=100)
    pbt_perturb_max: float = flag(1.5, "largest factor of a mutation", gt=1, le=100)
    pbt_hyperparameters: Mapping[str, Any] = flag(
        {},
        'JSON object that adds a flag to the mutated ones, or changes how it is mutated: {"adam_beta1": {}, '
        '"learning_rate": {"min": 1e-5, "max": 1e-3, "how": "log_uniform"}, "ppo_clip_ratio": null}; keys that are '
        "left out have the defaults of docs/populations.md, null switches a flag off; how: factor, one_minus, double,"
        " uniform, log_uniform",
    )
