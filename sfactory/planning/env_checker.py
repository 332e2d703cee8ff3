"""Room: holding an env of many agents to its interface. In: an AgentsEnv. Out: its spec, or a teaching EnvError.

It is played with legal actions for some episodes, so that agents die, sleep and come back here first, if they do early.

Room: holding a vector env to its interface. In: a factory. Out: EnvSpec of one env, or a teaching EnvError.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sfactory.actor.multi_agent_batch import AgentActivity
from sfactory.clock import Deadline
from sfactory.env.conversion import BadObservation, BlockWriter, Writer, action_reader, block_reader
from sfactory.env.factory import EnvFactory
from sfactory.env.lifecycle import close_env
from sfactory.env.multi_agent import AgentsEnv, AgentsWriter, BadAgents, Change
from sfactory.env.multi_agent_adapters import ListedAgents, ParallelAgents
from sfactory.env.vector import VectorEnv, autoreset_mode, single_spaces
from sfactory.errors import EnvError
from sfactory.spec import EnvSpec

STEPS = 50
_LONG_S = 2.0  # steps that take this long are not repeated

_PARALLEL = "as PettingZoo's parallel interface has it"
_LISTED = "as envs of lists have it (docs/multi_agent.md)"


def examine_agents(env: AgentsEnv, name: str) -> EnvSpec:
    """Reset ``env``, called ``name``, step it up to STEPS times, over ends of episodes; returns its spec."""
    try:
        spec = env.spec
    except EnvError as error:
        raise EnvError(f"{name}: {error}") from None
    _check_forms(env, spec, name)
    try:
        _play(env, spec, name)
    except (BadAgents, BadObservation) as error:
        raise EnvError(f"{name}: {error}") from None
    return spec


def _check_forms(env: AgentsEnv, spec: EnvSpec, name: str) -> None:
    """One reset and one step of the env as it is, whose parts have the right form; the rest can then be said better."""
    if isinstance(env, ParallelAgents):
        _check_parallel(env, spec, name)
    elif isinstance(env, ListedAgents):
        _check_listed(env, spec, name)


def _check_parallel(agents: ParallelAgents, spec: EnvSpec, name: str) -> None:
    env: Any = agents.env
    reset = env.reset(seed=0)
    if not (isinstance(reset, tuple) and len(reset) == 2 and isinstance(reset[0], Mapping)):
        raise EnvError(f"{name}: reset() must return (dict of observations, dict of infos), {_PARALLEL}")
    if not env.agents:
        raise EnvError(f"{name}: no agent is in the env's agents after reset()")
    known = list(env.possible_agents)
    _require_known(reset[0], known, f"{name}: reset() gave an observation")
    missing = [agent for agent in env.agents if agent not in reset[0]]
    if missing:
        raise EnvError(f"{name}: reset() gave no observation of agent {missing[0]!r}, who is among the env's agents")
    actions = _some_actions(spec, agents)
    step = env.step({agent: actions[known.index(agent)] for agent in env.agents if agent in known})
    if not (isinstance(step, tuple) and len(step) == 5 and all(isinstance(part, Mapping) for part in step)):
        raise EnvError(
            f"{name}: step() must return dicts of observations, rewards, terminations, truncations and infos, "
            f"{_PARALLEL}"
        )
    whats = ("an observation", "a reward", "a termination", "a truncation", "an info")
    for what, part in zip(whats, step, strict=True):
        _require_known(part, known, f"{name}: step() gave {what}")


def _require_known(part: Mapping[Any, Any], known: Sequence[Any], what: str) -> None:
    for agent in part:
        if agent not in known:
            raise EnvError(f"{what} of {agent!r}, who is not among possible_agents {known}; name every agent there")


def _check_listed(agents: ListedAgents, spec: EnvSpec, name: str) -> None:
    env: Any = agents.env
    reset = env.reset(seed=0)
    if not (isinstance(reset, tuple) and len(reset) == 2):
        raise EnvError(f"{name}: reset() must return (list of observations, list of infos), {_LISTED}")
    _require_lists(("observations", "infos"), reset, spec, f"{name}: reset()")
    step = env.step(_some_actions(spec, agents))
    if not (isinstance(step, tuple) and len(step) == 5):
        raise EnvError(f"{name}: step() must return five lists, {_LISTED}")
    _require_lists(("observations", "rewards", "terminated", "truncated", "infos"), step, spec, f"{name}: step()")


def _require_lists(whats: Sequence[str], parts: Sequence[Any], spec: EnvSpec, where: str) -> None:
    for what, part in zip(whats, parts, strict=True):
        if isinstance(part, str | Mapping) or not hasattr(part, "__len__"):
            raise EnvError(f"{where} gave {what} as a {type(part).__name__}; it must be a list of one for each agent")
        if len(part) != spec.num_agents:
            raise EnvError(f"{where} gave {len(part)} {what} for {spec.num_agents} agents")
        if what == "infos" and not all(isinstance(info, Mapping) for info in part):
            raise EnvError(f"{where} gave infos that are not dicts; they must be one dict for each agent")


def _play(env: AgentsEnv, spec: EnvSpec, name: str) -> None:
    """Some steps, as training takes them."""
    writer, activity = AgentsWriter(spec, env.observation_space), AgentActivity(spec.num_agents)
    actions, deadline = _some_actions(spec, env), Deadline(_LONG_S)
    observations: Sequence[Any] = env.reset(seed=0)
    if len(observations) != spec.num_agents:
        raise EnvError(f"{name}: reset() gave {len(observations)} observations for {spec.num_agents} agents")
    activity.begin(observations)
    _check_shown(writer, spec, activity, observations, f"{name}, reset()")
    for number in range(1, STEPS + 1):
        where = f"{name}, step {number}"
        observations, rewards, change = env.step(actions)
        for what, values in (("observations", observations), ("rewards", rewards), *_lists_of(change)):
            if len(values) != spec.num_agents:
                raise EnvError(f"{where}: gave {len(values)} {what} for {spec.num_agents} agents")
        _check_rewards(rewards, spec, where)
        activity.showing = []
        over = change is not None and activity.change(change, observations).over
        _check_shown(writer, spec, activity, observations, where)
        if over:
            observations = env.reset()
            activity.begin(observations)
            _check_shown(writer, spec, activity, observations, f"{name}, reset() after step {number}")
        if deadline.passed:
            return


def _lists_of(change: Change | None) -> list[tuple[str, Sequence[Any]]]:
    """What ``change`` tells, by name."""
    return [] if change is None else list(change._asdict().items())


def _check_shown(
    writer: AgentsWriter, spec: EnvSpec, activity: AgentActivity, observations: Sequence[Any], where: str
) -> None:
    """Hold the observations that training would use to what the space promises."""
    shown = [agent for agent, acts in enumerate(activity.acting) if acts or agent in activity.showing]
    for agent in shown:
        writer.check(observations[agent], f"{where}, agent {spec.agents[agent]!r}")
    for place, flaw in writer.flaws([observations[agent] for agent in shown], len(shown)).items():
        raise EnvError(
            f"{where}, agent {spec.agents[shown[place]]!r}: observation {flaw.key!r} {flaw.text}; observations must be "
            "finite"
        )


def _check_rewards(rewards: Sequence[Any], spec: EnvSpec, where: str) -> None:
    for agent, reward in zip(spec.agents, rewards, strict=True):
        try:
            number = float(reward)
        except (TypeError, ValueError):
            raise EnvError(f"{where}: agent {agent!r} got the reward {reward!r}, which is no number") from None
        if not math.isfinite(number):
            raise EnvError(f"{where}: agent {agent!r} got the reward {number}; rewards must be finite")


def _some_actions(spec: EnvSpec, env: AgentsEnv) -> list[Any]:
    """A legal action for each agent, through the same translation that training uses."""
    rows = {head.key: np.zeros((spec.num_agents, *head.tensor.shape), head.tensor.dtype) for head in spec.actions}
    return action_reader(env.action_space)(rows)


_ENVS = 2  # the fewest that tell one env from many


def examine_vector(factory: EnvFactory) -> EnvSpec:
    """Make a vector env of two, reset and step it once; returns the spec of one env."""
    name = f"--env={factory.name}"
    env = factory.vector(_ENVS, seed=0)
    try:
        spec = EnvSpec.of_spaces(*single_spaces(env))
        autoreset_mode(env)
    except EnvError as error:
        raise EnvError(f"{name}: {error}") from None
    writer = BlockWriter(spec, single_spaces(env)[0])
    reset = env.reset(seed=0)
    if not (isinstance(reset, tuple) and len(reset) == 2 and isinstance(reset[1], dict)):
        raise EnvError(f"{name}: reset() must return (observations, infos dict), as Gymnasium's interface has it")
    _check(writer, spec, reset[0], f"{name}, reset()")
    step = env.step(_some_vector_actions(spec, env))
    if not (isinstance(step, tuple) and len(step) == 5):
        raise EnvError(f"{name}: step() must return (observations, rewards, terminated, truncated, infos)")
    _check(writer, spec, step[0], f"{name}, step()")
    for what, values in zip(("rewards", "terminated", "truncated"), step[1:4], strict=True):
        if np.shape(values) != (_ENVS,):
            raise EnvError(f"{name}: step() returned {what} of shape {np.shape(values)} for {_ENVS} envs")
    if not np.isfinite(np.asarray(step[1], np.float64)).all():
        raise EnvError(f"{name}: step() returned the rewards {step[1]}; rewards must be finite")
    close_env(env, name)
    return spec


def require_finite(writer: Writer, spec: EnvSpec, observations: Any, size: int, where: str) -> None:
    """Raise EnvError if one of the ``size`` observations, in the form that ``writer`` takes, is not finite."""
    rows = {key: np.zeros((size, *tensor.shape), tensor.dtype) for key, tensor in spec.obs}
    writer.write(observations, rows)
    for key, row in rows.items():
        if row.dtype.kind == "f" and not np.isfinite(row).all():
            raise EnvError(f"{where}: observation {key!r} holds NaN or infinity; observations must be finite")


def _check(writer: BlockWriter, spec: EnvSpec, observations: Any, where: str) -> None:
    writer.check_all(observations, _ENVS, where)
    require_finite(writer, spec, observations, _ENVS, where)


def _some_vector_actions(spec: EnvSpec, env: VectorEnv) -> Any:
    """Legal actions, through the same translation that training uses."""
    rows = {head.key: np.zeros((_ENVS, *head.tensor.shape), head.tensor.dtype) for head in spec.actions}
    return block_reader(single_spaces(env)[1])(rows)
