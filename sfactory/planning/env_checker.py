"""Checks that an env keeps to its interface: plain envs, vector envs and envs with many agents."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from sfactory.actor.multi_agent_batch import AgentActivity
from sfactory.clock import Deadline
from sfactory.env.actions import block_reader
from sfactory.env.conversion import NO_LEGAL_ACTION, NOT_FINITE, BadObservation, BlockWriter, ObsWriter
from sfactory.env.info_masks import LATE_MASKS, NOT_OF_LISTS, has_choices, has_info_mask, require_none
from sfactory.env.legal_actions import LegalActions, legal_rows
from sfactory.env.multi_agent import AgentsEnv, BadAgents
from sfactory.env.multi_agent_adapters import ListedAgents, ParallelAgents, TurnAgents, UnequalAgents
from sfactory.env.vector import VectorEnv, autoreset_mode, single_spaces
from sfactory.env.wrappers import WrappedAgents
from sfactory.errors import EnvError, named
from sfactory.spec import EnvSpec
from sfactory.tensor_spec import MASK_KEY

NUM_VECTOR_ENVS = 2  # the fewest for which one env differs from several
AGENT_STEPS = 50
_LONG_S = 2.0  # no more steps are made once they have taken this long

_GYMNASIUM = ", as Gymnasium's interface has it"
_PARALLEL = ", as PettingZoo's parallel interface has it"
_LISTED = ", as envs of lists have it (docs/multi_agent.md)"


class MasksInInfo(Exception):
    """The env gives action masks in its infos, and not in its observations."""


def check_env(
    env: gymnasium.Env[Any, Any], name: str, find_masks: bool = False, obs_layout: tuple[str, ...] = ()
) -> EnvSpec:
    """Reset and step ``env`` once; returns its spec. Raises EnvError, which begins with ``name``.

    find_masks: raise MasksInInfo if the info of the reset has an action mask that observations do not have, and there
    are choices to mask.
    obs_layout: the flag, which may name masks.
    """
    with naming(name):
        spec = EnvSpec.of_spaces(env.observation_space, env.action_space).masked_by(obs_layout)
        find_masks = find_masks and has_choices(spec)
        writer = ObsWriter(spec, env.observation_space)
        form = f"reset() must return (observation, info dict){_GYMNASIUM}"
        obs, info = _tuple(_first_reset(env), 2, form)
        _require(isinstance(info, dict), form)
        if find_masks and has_info_mask(env.observation_space, info, obs_layout):
            raise MasksInInfo
        _check_observations(writer, [obs], 1, "reset()")
        (action,) = LegalActions(spec, env).of([obs])
        step = env.step(action)
        form = "step() must return (observation, reward, terminated, truncated, info)"
        obs, reward, terminated, truncated, info = _tuple(step, 5, form)
        if find_masks:
            require_none(env.observation_space, info, obs_layout)
        _check_observations(writer, [obs], 1, "step()", final=[0] if terminated or truncated else [])
        _check_reward(reward, "step() returned")
    return spec


def check_vector_env(env: VectorEnv, name: str, find_masks: bool = False, obs_layout: tuple[str, ...] = ()) -> EnvSpec:
    """Reset and step a vector env of NUM_VECTOR_ENVS once; returns the spec of one env. Else as ``check_env``."""
    size = NUM_VECTOR_ENVS
    with naming(name):
        obs_space, action_space = single_spaces(env)
        spec = EnvSpec.of_spaces(obs_space, action_space).masked_by(obs_layout)
        autoreset_mode(env)
        find_masks = find_masks and has_choices(spec)
        writer = BlockWriter(spec, obs_space)
        form = f"reset() must return (observations, infos dict){_GYMNASIUM}"
        observations, infos = _tuple(_first_reset(env), 2, form)
        _require(isinstance(infos, dict), form)
        if find_masks and has_info_mask(obs_space, infos, obs_layout):
            raise MasksInInfo
        _check_observations(writer, observations, size, "reset()")
        rows = {path: np.zeros((size, *leaf.shape), leaf.dtype) for path, leaf in spec.obs}
        with np.errstate(all="ignore"):  # whatever the env has set
            writer.write(observations, rows)
            actions = block_reader(action_space, spec.actions)(legal_rows(spec, rows))
        step = env.step(actions)
        form = "step() must return (observations, rewards, terminated, truncated, infos)"
        observations, rewards, terminated, truncated, infos = _tuple(step, 5, form)
        if find_masks:
            require_none(obs_space, infos, obs_layout)
        for what, values in (("rewards", rewards), ("terminated", terminated), ("truncated", truncated)):
            shape = np.shape(values)
            _require(shape == (size,), f"step() returned {what} of shape {shape} for {size} envs")
        final = np.flatnonzero(np.logical_or(terminated, truncated)).tolist()
        _check_observations(writer, observations, size, "step()", final=final)
        for reward in rewards:
            _check_reward(reward, "step() returned")
    return spec


def check_agents_env(env: AgentsEnv, name: str, find_masks: bool = False, obs_layout: tuple[str, ...] = ()) -> EnvSpec:
    """Reset ``env`` and step it AGENT_STEPS times, so that agents die and sleep here first. Else as ``check_env``."""
    with naming(name):
        spec = env.spec.masked_by(obs_layout)
        find_masks = find_masks and has_choices(spec)
        # One reset and one step of the foreign env itself, so that errors speak of its own form.
        inner = env.env if isinstance(env, WrappedAgents) else env
        if isinstance(inner, ParallelAgents):
            _check_parallel(inner, find_masks, obs_layout)
        elif isinstance(inner, ListedAgents):
            _check_listed(inner, find_masks, obs_layout)
        elif isinstance(inner, TurnAgents) and find_masks:
            _first_reset(inner.env)
            if has_info_mask(inner.observation_space, inner.env.last()[-1], obs_layout):
                raise MasksInInfo
        elif isinstance(inner, UnequalAgents) and find_masks:
            _find_masks_of_unequal(inner, obs_layout)
        _play(env, spec, inner.observation_space if find_masks else None, obs_layout)
    return spec


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Put ``name`` before errors."""
    try:
        yield
    except (EnvError, BadAgents, BadObservation) as error:
        raise EnvError(f"{name}: {error}") from None


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise EnvError(problem)


def _first_reset(env: Any) -> Any:
    """What ``env.reset(seed=0)`` returns; raises EnvError if it takes no seed, or no options of wrappers."""
    try:
        return env.reset(seed=0)
    except TypeError as error:
        if re.search(r"reset\(\) got an unexpected keyword argument '(seed|options)'", str(error)) is None:
            raise
        raise EnvError(
            f"{named(error)}, as in the old gym; Gymnasium's interface is reset(self, *, seed=None, options=None), and "
            "begins with super().reset(seed=seed)"
        ) from error


def _tuple(value: Any, size: int, problem: str) -> tuple[Any, ...]:
    """``value``, which has to be a tuple of ``size``."""
    if isinstance(value, tuple) and (len(value), size) == (4, 5):
        problem += "; it returns four, as in the old gym: its done is terminated, or truncated at a limit of time"
    _require(isinstance(value, tuple) and len(value) == size, problem)
    result: tuple[Any, ...] = value
    return result


def _check_observations(
    writer: ObsWriter,
    observations: Any,
    size: int,
    where: str,
    agents: Sequence[str] | None = None,
    final: Collection[int] = (),
) -> None:
    """Raise EnvError unless ``size`` observations are finite and as their space promises.

    agents: their names. final: rows after which no action is taken, so that none has to be legal.
    """
    for row, flaw in writer.flaws(observations, size).items():
        if flaw.text == NO_LEGAL_ACTION and row in final:
            continue
        agent = "" if agents is None else f", agent {agents[row]!r}"
        hint = "; observations must be finite" if flaw.text == NOT_FINITE else ""
        raise EnvError(f"{where}{agent}: observation {flaw.key!r} {flaw.text}{hint}")


def _check_reward(reward: Any, where: str) -> None:
    try:
        number = float(reward)
    except Exception:  # the env's own objects may raise anything when they are read
        raise EnvError(f"{where} the reward {reward!r}, which is no number") from None
    _require(math.isfinite(number), f"{where} the reward {number}; rewards must be finite")


def _check_parallel(agents: ParallelAgents, find_masks: bool, obs_layout: tuple[str, ...]) -> None:
    env: Any = agents.env
    form = f"reset() must return (dict of observations, dict of infos){_PARALLEL}"
    observations, infos = _tuple(_first_reset(env), 2, form)
    _require(isinstance(observations, Mapping), form)
    if (
        find_masks
        and isinstance(infos, Mapping)
        and any(has_info_mask(agents.observation_space, info, obs_layout) for info in infos.values())
    ):
        raise MasksInInfo
    _require(bool(env.agents), "no agent is in the env's agents after reset()")
    known = list(env.possible_agents)
    _require_known(observations, known, "reset() gave an observation")
    for agent in env.agents:
        there = agent in observations
        _require(there, f"reset() gave no observation of agent {agent!r}, who is among the env's agents")
    legal = LegalActions(agents.spec.masked_by(obs_layout), agents)
    actions = legal.of([observations.get(agent) for agent in known])
    form = f"step() must return dicts of observations, rewards, terminations, truncations and infos{_PARALLEL}"
    step = _tuple(env.step({agent: actions[known.index(agent)] for agent in env.agents if agent in known}), 5, form)
    _require(all(isinstance(part, Mapping) for part in step), form)
    whats = ("an observation", "a reward", "a termination", "a truncation", "an info")
    for what, part in zip(whats, step, strict=True):
        _require_known(part, known, f"step() gave {what}")
    if find_masks:
        for info in step[-1].values():
            require_none(agents.observation_space, info, obs_layout)


def _find_masks_of_unequal(agents: UnequalAgents, obs_layout: tuple[str, ...]) -> None:
    own, env = agents.env, agents.env.env
    seen_by = {agent: seen for agent, (seen, _) in zip(env.possible_agents, own.spaces, strict=True)}
    given = _first_reset(env)
    infos = given[1] if isinstance(own, ParallelAgents) else env.infos
    if any(agent in seen_by and has_info_mask(seen_by[agent], info) for agent, info in infos.items()):
        raise MasksInInfo
    if isinstance(own, ParallelAgents):
        actions = LegalActions(agents.spec.masked_by(obs_layout), agents).of(agents.reset(seed=0))
        chosen = {
            agent: actions[place][kind] for place, (agent, kind) in enumerate(zip(seen_by, agents.kinds, strict=True))
        }
        for agent, info in env.step({agent: chosen[agent] for agent in env.agents})[-1].items():
            if agent in seen_by:
                require_none(seen_by[agent], info)


def _require_known(part: Mapping[Any, Any], known: Sequence[Any], what: str) -> None:
    for agent in part:
        problem = f"{what} of {agent!r}, who is not among possible_agents {known}; name every agent there"
        _require(agent in known, problem)


def _check_listed(agents: ListedAgents, find_masks: bool, obs_layout: tuple[str, ...]) -> None:
    env, spec = agents.env, agents.spec.masked_by(obs_layout)
    reset = _tuple(_first_reset(env), 2, f"reset() must return (list of observations, list of infos){_LISTED}")
    is_sole = isinstance(reset[1], Mapping) and not getattr(env, "is_multiagent", False)
    advice = f"num_agents is {spec.num_agents}; if it is an env of one agent, set is_multiagent = False"
    _require(not is_sole, f"reset() gave infos as a dict; it must be a list of one for each agent, as {advice}")
    _require_lists(("observations", "infos"), reset, spec, "reset()")
    actions = LegalActions(spec, agents).of(reset[0])
    step = _tuple(env.step(actions), 5, f"step() must return five lists{_LISTED}")
    _require_lists(("observations", "rewards", "terminated", "truncated", "infos"), step, spec, "step()")
    given = (("reset()", reset[-1]), ("step()", step[-1])) if find_masks else ()
    for where, infos in given:
        for info in infos:
            problem = f"{where} gave infos with {MASK_KEY!r}: {NOT_OF_LISTS}"
            require_none(agents.observation_space, info, obs_layout, problem)


def _require_lists(whats: Sequence[str], parts: Sequence[Any], spec: EnvSpec, where: str) -> None:
    for what, part in zip(whats, parts, strict=True):
        is_list = hasattr(part, "__len__") and not isinstance(part, str | Mapping)
        kind = type(part).__name__
        _require(is_list, f"{where} gave {what} as a {kind}; it must be a list of one for each agent")
        _require_size(what, part, spec, where)
        if what == "infos":
            are_dicts = all(isinstance(info, Mapping) for info in part)
            _require(are_dicts, f"{where} gave infos that are not dicts; they must be one dict for each agent")


def _require_size(what: str, part: Sequence[Any], spec: EnvSpec, where: str) -> None:
    _require(len(part) == spec.num_agents, f"{where} gave {len(part)} {what} for {spec.num_agents} agents")


def _play(env: AgentsEnv, spec: EnvSpec, unmasked: gymnasium.Space[Any] | None, obs_layout: tuple[str, ...]) -> None:
    """Step the env as training does. unmasked: the space of an agent whose infos may have no masks."""
    writer, activity = ObsWriter(spec, env.observation_space), AgentActivity(spec.num_agents, spec.in_turns)
    legal, actions = LegalActions(spec, env), None
    joins = isinstance(env, ParallelAgents | TurnAgents | UnequalAgents)
    problem = LATE_MASKS if joins else f"step() gave infos with {MASK_KEY!r}: {NOT_OF_LISTS}"
    deadline = Deadline(_LONG_S)

    def check_shown(observations: Sequence[Any], where: str) -> None:
        shown = [agent for agent, acts in enumerate(activity.acting) if acts or agent in activity.showing]
        names = [spec.agents[agent] for agent in shown]
        final = [index for index, agent in enumerate(shown) if not activity.acting[agent]]
        _check_observations(writer, [observations[agent] for agent in shown], len(shown), where, names, final)

    def reset(where: str, seed: int | None) -> Sequence[Any]:
        observations: Sequence[Any] = env.reset(seed=seed)
        _require_size("observations", observations, spec, where)
        activity.begin(observations)
        check_shown(observations, where)
        return observations

    observations = reset("reset()", seed=0)
    for number in range(1, AGENT_STEPS + 1):
        where = f"step {number}"
        if actions is None or spec.masks:
            actions = legal.of(observations)
        observations, rewards, change = env.step(actions)
        changed = {} if change is None else change._asdict()
        for what, values in {"observations": observations, "rewards": rewards, **changed}.items():
            _require_size(what, values, spec, where)
        if unmasked is not None and change is not None:
            for info in change.infos:
                require_none(unmasked, info, obs_layout, problem)
        for agent, reward in zip(spec.agents, rewards, strict=True):
            _check_reward(reward, f"{where}: agent {agent!r} got")
        activity.showing = []
        over = change is not None and activity.change(change, observations).over
        check_shown(observations, where)
        if over:
            observations = reset(f"reset() after step {number}", seed=None)
        if deadline.passed:
            return
