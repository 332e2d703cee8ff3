"""Steps an env of any interface with random, legal actions, and checks what it gives."""

from __future__ import annotations

import contextlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space

from sfactory.actor.multi_agent_batch import AgentActivity
from sfactory.env.actions import block_reader
from sfactory.env.conversion import BlockWriter
from sfactory.env.info_masks import NOT_OF_LISTS, InfoMaskEnv, InfoMaskVectorEnv, has_choices, has_info_mask
from sfactory.env.legal_actions import LegalActions, legal_rows
from sfactory.env.multi_agent import AgentsEnv
from sfactory.env.multi_agent_adapters import ListedAgents, ParallelAgents, TurnAgents, UnequalAgents, agents_env_of
from sfactory.env.vector import autoreset_mode, single_spaces
from sfactory.env.wrappers import WrappedAgents
from sfactory.errors import EnvError
from sfactory.planning.checked_envs import checked, spec_of
from sfactory.planning.env_findings import Inspector
from sfactory.tensor_spec import MASK_KEY

_EACH_INFO = (
    f"give {MASK_KEY!r} in each info, also of reset (all ones where all actions are legal), or --info_action_mask=off"
)
SOLE_KIND, VECTOR_KIND = "a Gymnasium env", "a Gymnasium vector env"  # what reports call them


class Play:
    """Steps an env with random, legal actions.

    kind: what the env is. gave: what the last call returned, without infos. earned: since ``begin``. ended: whether an
    episode just did. resets_itself: ``begin`` is never due.
    """

    agents: tuple[str, ...] = ()
    resets_itself = False

    def __init__(self, env: Any, kind: str, checks: dict[Any, Any], action_space: gymnasium.Space[Any]) -> None:
        self.env, self.kind, self.checks, self._action_space = env, kind, checks, action_space
        self.gave: Any = None
        self.earned, self.ended = 0.0, False
        self._rng = np.random.default_rng(0)

    def seed(self, seed: int) -> None:
        """Have actions repeated."""
        self._action_space.seed(seed)
        self._rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state

    def begin(self, seed: int | None = None) -> None:
        """Begin an episode."""
        self.gave = self.env.reset(seed=seed)[:1]
        self.earned = 0.0

    def step(self) -> bool:
        """Make a step; returns whether ``begin`` is due."""
        raise NotImplementedError


class _SolePlay(Play):
    """Of an env of one agent."""

    def __init__(self, env: Any, checks: dict[Any, Any], obs_layout: tuple[str, ...]) -> None:
        super().__init__(env, SOLE_KIND, checks, env.action_space)
        spec = spec_of(env.observation_space, env.action_space, obs_layout)
        self._legal = LegalActions(spec, env, self._rng) if spec is not None and spec.masks else None

    def step(self) -> bool:
        self.gave = self.env.step(self._action())[:4]
        self.earned += self.gave[1]
        self.ended = self.gave[2] or self.gave[3]
        return self.ended

    def _action(self) -> Any:
        if self._legal is not None:
            with contextlib.suppress(EnvError):  # no action is legal
                return self._legal.of(self.gave[:1])[0]
        return self._action_space.sample()


class _AgentsPlay(Play):
    """Of an env of many agents."""

    def __init__(
        self, env: AgentsEnv, checks: dict[Any, Any], is_pettingzoo: bool, obs_layout: tuple[str, ...]
    ) -> None:
        form = (" (PettingZoo's AEC)" if env.in_turns else " (PettingZoo's parallel interface)") * is_pettingzoo
        acting = "in turn" if env.in_turns else "at the same time"
        kind = f"an env of {len(env.agents)} agents that act {acting}{form}"
        super().__init__(env, kind, checks, env.action_space)
        spec, self.agents = env.spec.masked_by(obs_layout), env.agents
        self._legal = LegalActions(spec, env, self._rng) if spec.masks else None
        self._activity = AgentActivity(len(env.agents), env.in_turns)

    def begin(self, seed: int | None = None) -> None:
        self.gave = (self.env.reset(seed=seed),)
        self._activity.begin(self.gave[0])
        self.earned = 0.0

    def step(self) -> bool:
        shown = self.gave[0]
        actions = self._legal.of(shown) if self._legal else [self._action_space.sample() for _ in shown]
        observations, rewards, change = self.env.step(actions)
        self.gave = observations, rewards, change and change[:3]
        self.earned += sum(rewards)
        self.ended = change is not None and self._activity.change(change, observations).over
        return self.ended


class _VectorPlay(Play):
    """Of a vector env."""

    resets_itself = True

    def __init__(self, env: Any, checks: dict[Any, Any], obs_layout: tuple[str, ...]) -> None:
        seen, chosen = single_spaces(env)
        kind = f"{VECTOR_KIND}, here of {env.num_envs} envs"
        super().__init__(env, kind, checks, batch_space(chosen, env.num_envs))
        spec = spec_of(seen, chosen, obs_layout)
        self._masked = spec if spec is not None and spec.masks else None
        if spec is not None:
            self._writer, self._read = BlockWriter(spec, seen), block_reader(chosen, spec.actions)
            self._rows = {path: np.zeros((env.num_envs, *leaf.shape), leaf.dtype) for path, leaf in spec.obs}

    def step(self) -> bool:
        actions = self._action_space.sample()
        if self._masked is not None:
            with np.errstate(all="ignore"):  # whatever the env has set
                self._writer.write(self.gave[0], self._rows)
                actions = self._read(legal_rows(self._masked, self._rows, self._rng))
        self.gave = self.env.step(actions)[:4]
        self.earned += float(self.gave[1].sum())
        self.ended = bool(np.any(self.gave[2]) or np.any(self.gave[3]))
        return False


def _can_join(env: Any, obs_layout: tuple[str, ...]) -> bool:
    """Whether an action mask in an info of ``env``, or of one of its agents, is one."""
    if isinstance(env, gymnasium.vector.VectorEnv):
        pairs = [single_spaces(env)]
    else:
        is_named = isinstance(env, ParallelAgents | TurnAgents)
        pairs = env.spaces if is_named else [(env.observation_space, env.action_space)]
    for seen, chosen in pairs:
        spec = spec_of(seen, chosen, obs_layout)
        if (spec is None or has_choices(spec)) and has_info_mask(seen, {MASK_KEY: None}, obs_layout):
            return True
    return False


def play_of(env: Any, inspector: Inspector, may_mask: bool) -> Play:
    """``env``, which a factory has made, checked by ``inspector``, after a first reset.

    may_mask: action masks in its infos, which the reset shows, are used. Raises EnvError for a vector env that leaves
    resets to its caller.
    """
    flags, obs_layout = env.flags if isinstance(env, WrappedAgents) else None, inspector.obs_layout
    env = env if flags is None else env.env
    own = env.env if isinstance(env, UnequalAgents) else env
    raw = own.env if isinstance(own, ParallelAgents | TurnAgents | ListedAgents) else own
    if isinstance(raw, gymnasium.vector.VectorEnv):
        autoreset_mode(raw)
    seen = checked(raw, inspector)
    seen.reset(seed=0)
    if isinstance(own, TurnAgents):
        seen.last()
    named = isinstance(own, ParallelAgents | TurnAgents)
    is_listed = isinstance(own, AgentsEnv) and not named
    can_join = may_mask and _can_join(own, obs_layout)
    joins = can_join and inspector.masks_in_info and not is_listed
    if can_join and not inspector.masks_in_info:
        inspector.unread_masks = NOT_OF_LISTS if is_listed else _EACH_INFO
    if isinstance(raw, gymnasium.vector.VectorEnv):
        return _VectorPlay(InfoMaskVectorEnv(seen) if joins else seen, seen.checks, obs_layout)
    if isinstance(raw, gymnasium.Env):
        return _SolePlay(InfoMaskEnv(seen) if joins else seen, seen.checks, obs_layout)
    agents = agents_env_of(seen, joins)
    assert agents is not None, "the factory has found several agents"
    agents = agents if flags is None else WrappedAgents(agents, flags, obs_layout)
    return _AgentsPlay(agents, seen.checks, named, obs_layout)
