"""Acts for agents of different spaces, each by the policy of its kind."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from sfactory.errors import CheckpointError
from sfactory.experiment.saved_policy import SavedPolicy, checkpoints_of
from sfactory.model.actor_critic import Acted, ActorCritic
from sfactory.play.action_chooser import ActingModel
from sfactory.spec import EnvSpec

_log = logging.getLogger(__name__)


class JointPolicy:
    """The policies of all kinds of agents, see NOTE [Unequal agents], as one for the A rows of an env."""

    def __init__(self, spec: EnvSpec, policies: Mapping[str, ActorCritic]) -> None:
        """``policies``: by kind."""
        kinds = torch.tensor([list(policies).index(kind) for kind in spec.kinds]).unsqueeze(-1)
        self._policies = [(policy, kinds == index) for index, policy in enumerate(policies.values())]

    def fresh_state(self, rows: int) -> Tensor:
        """[rows, S]: the state of rows that start an episode."""
        return self._policies[0][0].fresh_state(rows)

    def draw_privately(self) -> None:
        """See ActorCritic."""
        for policy, _ in self._policies:
            policy.draw_privately()

    def act(self, obs: dict[str, Tensor], state: Tensor, deterministic: bool = False) -> Acted:
        """As ``ActorCritic.act``. Each policy acts in all rows, and fills the actions that its kind of agents takes."""
        actions: dict[str, Tensor] = {}
        log_prob = value = torch.zeros(len(state))
        after = state
        for policy, own in self._policies:
            acted = policy.act(obs, state, deterministic)
            actions |= acted.actions
            after = torch.where(own, acted.state, after)
            log_prob = torch.where(own[:, 0], acted.log_prob, log_prob)
            value = torch.where(own[:, 0], acted.value, value)
        return Acted(actions=actions, log_prob=log_prob, value=value, state=after)


def acting_model(saved: SavedPolicy, spec: EnvSpec) -> ActingModel:
    """What plays all agents of an env of ``spec``: ``saved``, and where agents have different spaces also the first
    policy of the run for each other kind. Raises CheckpointError if a kind has no policy.
    """
    if not spec.kinds:
        return saved.model(spec)
    found: dict[str, ActorCritic] = {}
    parts = {kind: spec.part(kind) for kind in spec.kinds}
    for one in (saved, *_others(saved)):
        for kind, part in parts.items():
            if kind not in found and one.state.spec is not None and one.state.spec.obs == part.obs:
                found[kind] = one.model(part)
    if (absent := parts.keys() - found.keys()) and not saved.wanted.experiment:
        raise CheckpointError(f"{saved.checkpoint} holds the policy of one kind of agents alone; play the run")
    if absent:
        raise CheckpointError(f"{saved.checkpoint}: the run has no policy that plays {', '.join(sorted(absent))}")
    return JointPolicy(spec, found)


def _others(saved: SavedPolicy) -> Iterator[SavedPolicy]:
    """The other policies of the run."""
    others = range(saved.config.population.num_policies) if saved.wanted.experiment else ()  # a file has one policy
    for policy in others:
        if policy != saved.wanted.policy_index:
            yield _beside(saved, policy)


def _beside(saved: SavedPolicy, policy: int) -> SavedPolicy:
    """Another policy of the run, at the checkpoint that the flags name; without one, at the nearest in env steps, since
    each policy saves at times of its own."""
    wanted = dataclasses.replace(saved.wanted, policy_index=policy)
    try:
        return SavedPolicy.load(wanted)
    except CheckpointError:
        if not (steps := checkpoints_of(wanted)):
            raise
    nearest = min(steps, key=lambda each: abs(each - saved.state.env_steps))
    _log.info("policy %d has no such checkpoint; it plays as it was after %d env steps", policy, nearest)
    return SavedPolicy.load(dataclasses.replace(wanted, load_checkpoint_kind="latest", checkpoint_env_steps=nearest))
