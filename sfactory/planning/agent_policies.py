"""Decides which policy plays which kind of agents, where agents have different spaces."""

from __future__ import annotations

import glob

from sfactory.actor.policy_assignment import SOLE_AGENT, policies_by_name
from sfactory.config.flags import assigned
from sfactory.config.population_rules import agents_by_pattern
from sfactory.config.resolve import Resolved
from sfactory.config.rule import waits_for_learner
from sfactory.config.saved_config import BY_ENV
from sfactory.config.schema import Config
from sfactory.errors import ConfigError
from sfactory.spec import EnvSpec


def with_policies_of_kinds(resolved: Resolved, spec: EnvSpec) -> Resolved:
    """The config with a policy for each kind of agents, if agents differ and no mapping by names is set.

    Raises ConfigError if policies are set otherwise.
    """
    population = resolved.config.population
    if not spec.kinds or agents_by_pattern(population.policy_mapping):
        return resolved
    kinds = list(dict.fromkeys(spec.kinds))
    mapping = ",".join(
        f"{glob.escape(agent)}={kinds.index(kind)}" for agent, kind in zip(spec.agents, spec.kinds, strict=True)
    )
    flags = {"num_policies": len(kinds), "policy_mapping": mapping}
    if population.num_policies != 1 or population.policy_mapping != "auto":
        typed = " ".join(assigned(name, value) for name, value in flags.items())
        raise ConfigError(
            [
                f"{assigned('policy_mapping', population.policy_mapping)}: the agents have {len(kinds)} kinds of "
                f"observations or actions, so a policy can only play agents of one kind, by their names: {typed}"
            ]
        )
    return resolved.replaced(flags, BY_ENV)


def kinds_of_policies(config: Config, spec: EnvSpec) -> tuple[str, ...]:
    """By policy, the kind of agents that it plays; () where agents are equal.

    Raises ConfigError if the patterns of ``--policy_mapping`` do not fit the agents, or for flags that need equal ones.
    """
    population, agents = config.population, spec.agents or (SOLE_AGENT,)
    mapping = population.policy_mapping
    if not agents_by_pattern(mapping):
        return ()
    chosen = policies_by_name(mapping, agents)
    if absent := set(range(population.num_policies)) - set(chosen):
        raise ConfigError(
            [f"{assigned('policy_mapping', mapping)}: policy {min(absent)} plays none of {', '.join(agents)}"]
        )
    if not spec.kinds:
        return ()
    for kind in dict.fromkeys(spec.kinds):
        if all(leaf.is_mask for _, leaf in spec.part(kind).obs):
            raise ConfigError([f"agents with the spaces of {kind!r} have no observation beside an action mask"])
    kinds: list[str] = []
    for policy in range(population.num_policies):
        first, *others = [agent for agent, plays in enumerate(chosen) if plays == policy]
        if odd := [agent for agent in others if spec.kinds[agent] != spec.kinds[first]]:
            problem = (
                f"{assigned('policy_mapping', mapping)}: policy {policy} plays {agents[first]!r} and "
                f"{agents[odd[0]]!r}, which have different spaces; give them policies of their own"
            )
            raise ConfigError([problem])
        kinds.append(spec.kinds[first])
    waiting = "num_batches_to_accumulate" if config.sampling.async_rl else "async_rl"
    for flag, is_set, why in (
        (waiting, waits_for_learner(config), "where collection waits for the learner, each needs splits of its own"),
        ("normalize_input_keys", bool(config.model.normalize_input_keys), "a policy has but the keys of its kind"),
        ("with_pbt", population.with_pbt, "policies copy each other's weights"),
        (
            "eval_interval_sec",
            config.evaluation.eval_interval_sec > 0,
            "an evaluator makes its policies for agents of equal spaces",
        ),
        ("init_from", bool(config.checkpoint.init_from), "the weights are those of one policy"),
        ("opponent_pool", population.opponent_pool > 0, "a past version plays all agents alike"),
        ("critic_obs_keys", bool(config.model.critic_only), "the critic of each kind reads what its actor does"),
        ("actor_obs_keys", bool(config.model.actor_obs_keys), "the critic of each kind reads what its actor does"),
        ("core_inputs", bool(config.model.core_inputs), "the last action has one form"),
    ):
        if is_set:
            raise ConfigError([f"--{flag}: {why}, and the env's agents have different spaces: leave it out"])
    return tuple(kinds)
