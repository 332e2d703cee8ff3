"""Finds the saved policies that play the agents of an env, each for the agents that it was trained for."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sfactory.actor.policy_assignment import SOLE_AGENT, lasting_policies
from sfactory.config.flags import assigned
from sfactory.config.population_rules import agents_by_pattern
from sfactory.config.trust import TRUST, names_code
from sfactory.errors import CheckpointError, ConfigError
from sfactory.experiment.saved_policy import SavedPolicy, checkpoints_of
from sfactory.play.action_chooser import ActingModel
from sfactory.play.joint_policy import JointPolicy
from sfactory.spec import EnvSpec

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class SavedPolicies:
    """A saved policy, and those that play with it. by_number: all of them; a run may decide by names who plays whom."""

    saved: SavedPolicy
    by_number: Mapping[int, SavedPolicy]

    @staticmethod
    def of(saved: SavedPolicy) -> SavedPolicies:
        """Load those that play with ``saved``: all of its run, if each plays agents of its own there.

        An exported file holds one alone, which then plays the agents of others of equal spaces, too.
        Raises as ``SavedPolicy.load``.
        """
        number, policies = saved.wanted.policy_index, saved.config.population.num_policies
        by_number, others = {number: saved}, [each for each in range(policies) if each != number]
        if _each_has_its_own(saved):
            if saved.wanted.experiment:
                by_number |= {each: _beside(saved, each) for each in others}
            elif saved.state.spec is None or not saved.state.spec.part_of:
                by_number |= dict.fromkeys(others, saved)
        return SavedPolicies(saved, by_number)

    def with_weights(self, change: Callable[[Any], Any]) -> SavedPolicies:
        """The same with every weight changed."""
        by_number = {number: _with_weights(each, change) for number, each in self.by_number.items()}
        return SavedPolicies(by_number[self.saved.wanted.policy_index], by_number)

    def acting_model(self, spec: EnvSpec, says: bool = True) -> ActingModel:
        """What plays all agents of an env of ``spec``, each by its own policy. says: whether to log who plays whom.

        Raises CheckpointError if one has none, and ConfigError if no agent is played by ``saved``.
        """
        saved, number = self.saved, self.saved.wanted.policy_index
        plays, agents = self._plays(spec), spec.agents or (SOLE_AGENT,)
        if not plays:
            if says and len(self.by_number) > 1:
                mapping = assigned("policy_mapping", saved.config.population.policy_mapping)
                _log.warning("policy %d plays all agents: %s does not give each one policy for good", number, mapping)
            return saved.model(spec)
        alone = [agent for agent, policy in zip(agents, plays, strict=True) if policy not in self.by_number]
        if alone and not saved.wanted.experiment:
            raise CheckpointError(f"{saved.checkpoint} holds the policy of one kind of agents alone; play the run")
        if alone:
            raise CheckpointError(f"{saved.checkpoint}: the run has no policy that plays {', '.join(alone)}")
        if number not in plays:
            raise ConfigError([f"--policy_index={number}: this policy plays none of {', '.join(agents)}"])
        kinds = dict(zip(plays, spec.kinds or [""] * len(plays), strict=True))
        models = {policy: self.by_number[policy].model(spec.part(kind)) for policy, kind in kinds.items()}
        if says:
            self._say_who_plays(agents, plays)
        return JointPolicy(models, plays, number)

    def _say_who_plays(self, agents: Sequence[str], plays: Sequence[int]) -> None:
        saved, number = self.saved, self.saved.wanted.policy_index
        names = {each: [a for a, p in zip(agents, plays, strict=True) if p == each] for each in sorted(set(plays))}
        if saved.wanted.experiment:
            whom = "; ".join(f"policy {each} plays {', '.join(theirs)}" for each, theirs in names.items())
            _log.info("%s; returns are those of the agents of policy %d", whom, number)
        elif len(names) > 1:
            text = "policy %d plays all agents, as %s holds no other; returns are those of %s, which it was made for"
            _log.warning(text, number, saved.checkpoint, ", ".join(names[number]))

    def _plays(self, spec: EnvSpec) -> tuple[int, ...]:
        """By agent, the policy that plays it; () if one plays all."""
        population = self.saved.config.population
        if len(self.by_number) > 1:
            agents = spec.agents or (SOLE_AGENT,)
            plays = lasting_policies(population.policy_mapping, agents, population.num_policies)
            if plays:
                return plays
        kinds = list(dict.fromkeys(spec.kinds))
        return tuple(kinds.index(kind) for kind in spec.kinds)


def _each_has_its_own(saved: SavedPolicy) -> bool:
    """Whether each policy of the run plays agents of its own."""
    population, spec = saved.config.population, saved.state.spec
    if population.num_policies == 1:
        return False
    if agents_by_pattern(population.policy_mapping) or (spec is not None and spec.part_of):
        return True
    if not names_code("policy_mapping", population.policy_mapping, saved.config.run.env):
        return False
    if not saved.wanted.trust_run_dir:
        text = "policy %d plays all agents, though a function chose their policies in training (%s): --%s=True calls it"
        mapping = assigned("policy_mapping", population.policy_mapping)
        _log.warning(text, saved.wanted.policy_index, mapping, TRUST)
    return saved.wanted.trust_run_dir


def _with_weights(saved: SavedPolicy, change: Callable[[Any], Any]) -> SavedPolicy:
    weights = {name: change(weight) for name, weight in saved.state.model.items()}
    return dataclasses.replace(saved, state=dataclasses.replace(saved.state, model=weights))


def _beside(saved: SavedPolicy, policy: int) -> SavedPolicy:
    """Another policy of the run, at the checkpoint that the flags name; without one, at the nearest in env steps, since
    each policy saves at times of its own."""
    wanted = dataclasses.replace(saved.wanted, policy_index=policy)
    try:
        return SavedPolicy.load(wanted, is_partner=True)
    except (CheckpointError, ConfigError):
        if not (steps := checkpoints_of(wanted)):
            what = f"policy {policy}, which plays some of the agents, has saved nothing in the run"
            raise CheckpointError(f"{what}: train it on until it has (--save_every_sec)") from None
    nearest = min(steps, key=lambda each: abs(each - saved.state.env_steps))
    _log.info("policy %d has no such checkpoint; it plays as it was after %d env steps", policy, nearest)
    wanted = dataclasses.replace(wanted, load_checkpoint_kind="latest", checkpoint_env_steps=nearest)
    return SavedPolicy.load(wanted, is_partner=True)
