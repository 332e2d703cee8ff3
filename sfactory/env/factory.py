"""Room: making environments from their name.

In: ``--env``, ``--env_kwargs`` and ``--env_frameskip``. Out: a ``gymnasium.Env``, or a ``gymnasium.vector.VectorEnv``
of many, or an EnvError that says what to do.

Room: what makes the environments of a name. In: ``--env``. Out: a ``Maker``: something to call, and what it takes.

A name is looked up in this order: an env family, ``module:function``, a Gymnasium id.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sfactory.config.env_families import EnvFamily, find_family
from sfactory.config.import_strings import Unresolved, described, find_callable, import_current_directory
from sfactory.config.schema import RunConfig, SamplingConfig
from sfactory.errors import EnvError, named, raised_at

if TYPE_CHECKING:
    import gymnasium

    from sfactory.env.multi_agent import AgentsEnv
    from sfactory.env.vector import VectorEnv

    Env = gymnasium.Env[Any, Any]

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Maker:
    """Makes the environments of one name.

    title: what errors call it. parameters: what it can be passed by name. own_parameters: whether these tell everything
    that it takes, ``render_mode`` included, as with a user's function; others pass on what they do not know.
    """

    title: str
    make: Callable[..., object]
    parameters: Mapping[str, inspect.Parameter]
    own_parameters: bool


def find_maker(env_name: str) -> Maker:
    """The maker of ``env_name``; raises EnvError if it is a function that cannot be imported."""
    family = find_family(env_name)
    if family is not None:
        make = functools.partial(family.make, env_name)
        return Maker(f"env family {family.name!r}", make, _parameters(family.make), own_parameters=False)
    _, colon, function = env_name.partition(":")
    if colon and function.isidentifier():
        factory = _find_factory(env_name)
        return Maker(env_name, factory, _parameters(factory), own_parameters=True)
    return Maker("gymnasium.make", functools.partial(make_gymnasium_env, env_name), {}, own_parameters=False)


def make_gymnasium_env(env_id: str, **kwargs: object) -> Env:
    """``gymnasium.make`` without the two wrappers that only look for mistakes in the caller's code.

    On CartPole-v1 PassiveEnvChecker takes 0.7 and OrderEnforcing 0.3 of 7.3 us a step; a run is checked before it
    starts. TimeLimit stays: it is what truncates episodes. ``kwargs`` are gymnasium.make's, ``max_episode_steps``
    among them. For use by env families too.
    """
    import gymnasium

    import_current_directory()
    module, colon, bare_id = env_id.rpartition(":")
    if colon:
        importlib.import_module(module)
    spec = copy.copy(gymnasium.spec(_with_version(bare_id)))
    spec.order_enforce = False
    options: dict[str, Any] = {"disable_env_checker": True, **kwargs}
    env: Env = gymnasium.make(spec, **options)
    return env


def _with_version(env_id: str) -> str:
    """The id with the highest registered version added where it names none, as gymnasium.make does."""
    from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id

    namespace, bare, version = parse_env_id(env_id)
    return get_env_id(namespace, bare, find_highest_version(namespace, bare) if version is None else version)


def _find_factory(name: str) -> Callable[..., object]:
    try:
        return find_callable(name)
    except Unresolved as error:
        raise EnvError(f"--env={name}: {error}") from error.__cause__


def _parameters(factory: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """What can be passed to ``factory`` by name."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        # Some builtins have no signature; then nothing tells what they take.
        return {}
    return {name: parameter for name, parameter in parameters.items() if parameter.kind in _BY_NAME}


__all__ = [
    "SPANS_FRAMES",
    "EnvFactory",
    "EnvFamily",
    "find_family",
    "make_env",
    "make_gymnasium_env",
    "make_vector_env",
    "takes_frameskip",
    "takes_num_envs",
]

_FRAMESKIP, _NUM_ENVS, _SEED = "env_frameskip", "num_envs", "seed"
# Key of an env's metadata, True: what an observation shows depends on env_frameskip, as in a stack of frames.
SPANS_FRAMES = "observation_spans_frames"


@dataclass(frozen=True)
class EnvFactory:
    """How to make the environments of a run: picklable, so that it can be sent to the processes that step them."""

    name: str
    kwargs: Mapping[str, object] = field(default_factory=dict)
    env_frameskip: int = 1

    @staticmethod
    def of(run: RunConfig, sampling: SamplingConfig) -> EnvFactory:
        """The factory that the flags describe."""
        return EnvFactory(run.env, dict(run.env_kwargs), sampling.env_frameskip)

    @property
    def makes_vectors(self) -> bool:
        """Whether envs come many at a time, see ``make_vector_env``; raises EnvError if that cannot be found out."""
        return takes_num_envs(self.name)

    def __call__(self, render_mode: str | None = None) -> Env:
        """One new environment of one agent; raises EnvError."""
        return make_env(self.name, self.kwargs, render_mode, self.env_frameskip)

    def either(self, render_mode: str | None = None) -> Env | AgentsEnv:
        """One new environment, of one agent or of many; raises EnvError."""
        return make_either_env(self.name, self.kwargs, render_mode, self.env_frameskip)

    def agents(self) -> AgentsEnv:
        """One new environment of many agents; raises EnvError."""
        from sfactory.env.multi_agent import AgentsEnv

        env = self.either()
        if not isinstance(env, AgentsEnv):
            raise EnvError(f"--env={self.name}: made an env of one agent where it had made one of many")
        return env

    def vector(self, num_envs: int, seed: int) -> VectorEnv:
        """``num_envs`` new environments in one; raises EnvError."""
        return make_vector_env(self.name, self.kwargs, num_envs, seed, self.env_frameskip)


def make_env(
    env_name: str, env_kwargs: Mapping[str, object], render_mode: str | None = None, env_frameskip: int = 1
) -> Env:
    """One environment, made by its family, its ``module:function``, or Gymnasium.

    ``env_frameskip`` is passed on to a family's ``make`` or a function that has a parameter of this name, so that
    one flag both makes the env skip and counts what it skipped. Gymnasium ids and all others are not told of it. An
    env whose observations are made of several frames says so in its metadata, see SPANS_FRAMES. If envs of this name
    come many at a time, it is a vector env of one.

    Raises EnvError, with whatever the factory raised as its cause, if it cannot be made or is no gymnasium.Env.
    """
    import gymnasium

    env = make_either_env(env_name, env_kwargs, render_mode, env_frameskip)
    if not isinstance(env, gymnasium.Env):
        raise EnvError(f"--env={env_name}: has {len(env.agents)} agents, where one of one agent is needed")
    return env


def make_either_env(
    env_name: str, env_kwargs: Mapping[str, object], render_mode: str | None = None, env_frameskip: int = 1
) -> Env | AgentsEnv:
    """As ``make_env``; what has many agents is an AgentsEnv, see ``agents_env_of``."""
    import gymnasium

    maker = find_maker(env_name)
    kwargs = _kwargs(maker, env_name, env_kwargs, render_mode, env_frameskip)
    if _NUM_ENVS in maker.parameters:
        from sfactory.env.vector import SoleEnv

        return SoleEnv(_vector_env(maker, env_name, env_kwargs, {**kwargs, _NUM_ENVS: 1}))
    env = _guarded(maker, env_name, env_kwargs, kwargs)
    if (many := _agents_env_of(env, env_name)) is not None:
        return many
    if not isinstance(env, gymnasium.Env):
        raise EnvError(
            f"--env={env_name}: {maker.title} returned {described(env)}; it must return an instance of gymnasium.Env "
            "(the package gymnasium, not the older gym), or an env of many agents (docs/multi_agent.md)"
        )
    return env


def make_vector_env(
    env_name: str, env_kwargs: Mapping[str, object], num_envs: int, seed: int, env_frameskip: int = 1
) -> VectorEnv:
    """``num_envs`` environments in one, made by a family's ``make`` or a function with a parameter ``num_envs``.

    One with a parameter ``seed`` is given ``seed``: some vector envs can be seeded at no other time.
    Raises EnvError as ``make_env`` does, and if it is no gymnasium.vector.VectorEnv of so many.
    """
    maker = find_maker(env_name)
    kwargs = _kwargs(maker, env_name, env_kwargs, None, env_frameskip) | {_NUM_ENVS: num_envs}
    if _SEED in maker.parameters:
        kwargs.setdefault(_SEED, seed)
    return _vector_env(maker, env_name, env_kwargs, kwargs)


def takes_frameskip(env_name: str) -> bool:
    """Whether what makes ``env_name`` is told ``--env_frameskip``; raises EnvError if it cannot be imported."""
    return _FRAMESKIP in find_maker(env_name).parameters


def takes_num_envs(env_name: str) -> bool:
    """Whether what makes ``env_name`` makes many at a time; raises EnvError if it cannot be imported."""
    return _NUM_ENVS in find_maker(env_name).parameters


def _kwargs(
    maker: Maker, env_name: str, env_kwargs: Mapping[str, object], render_mode: str | None, env_frameskip: int
) -> dict[str, object]:
    """What to call ``maker`` with."""
    kwargs = dict(env_kwargs)
    if _FRAMESKIP in maker.parameters:
        kwargs[_FRAMESKIP] = _agreed_frameskip(env_name, env_kwargs, env_frameskip)
    if not maker.own_parameters:
        return kwargs if render_mode is None else {**kwargs, "render_mode": render_mode}
    mode = maker.parameters.get("render_mode")
    if mode is not None and (render_mode is not None or mode.default is inspect.Parameter.empty):
        kwargs.setdefault("render_mode", render_mode)
    return kwargs


def _vector_env(
    maker: Maker, env_name: str, env_kwargs: Mapping[str, object], kwargs: Mapping[str, object]
) -> VectorEnv:
    import gymnasium

    env = _guarded(maker, env_name, env_kwargs, kwargs)
    if not isinstance(env, gymnasium.vector.VectorEnv):
        if _agents_env_of(env, env_name) is not None:
            raise EnvError(
                f"--env={env_name}: {maker.title} takes num_envs, and returned an env of many agents, "
                f"{described(env)}; envs of many agents are made one by one: leave num_envs out of its parameters"
            )
        raise EnvError(
            f"--env={env_name}: {maker.title} takes num_envs, and returned {described(env)}; it must return an "
            "instance of gymnasium.vector.VectorEnv (or not take num_envs)"
        )
    if env.num_envs != kwargs[_NUM_ENVS]:
        raise EnvError(
            f"--env={env_name}: {maker.title} was asked for num_envs={kwargs[_NUM_ENVS]}, and returned {env.num_envs}"
        )
    return env


def _agents_env_of(env: object, env_name: str) -> AgentsEnv | None:
    from sfactory.env.multi_agent_adapters import agents_env_of

    try:
        return agents_env_of(env)
    except EnvError as error:
        raise EnvError(f"--env={env_name}: {error}") from None


def _agreed_frameskip(env_name: str, env_kwargs: Mapping[str, object], env_frameskip: int) -> int:
    also = env_kwargs.get(_FRAMESKIP, env_frameskip)
    if also != env_frameskip:
        raise EnvError(
            f"--env={env_name}: --env_frameskip={env_frameskip}, but --env_kwargs say env_frameskip={also!r}; "
            "set it with --env_frameskip alone, which frames are counted by"
        )
    return env_frameskip


def _guarded(maker: Maker, env_name: str, env_kwargs: Mapping[str, object], kwargs: Mapping[str, object]) -> object:
    """What ``maker`` makes, with whatever it raises turned into an EnvError that names it."""
    try:
        return maker.make(**kwargs)
    except EnvError:
        raise
    # Foreign code may raise anything, and may even call sys.exit.
    except (Exception, SystemExit) as error:
        call = f"{maker.title}({_listed(kwargs)})" if maker.own_parameters else maker.title
        fits = "; do --env_kwargs fit its parameters?" if isinstance(error, TypeError) and env_kwargs else ""
        raise EnvError(f"--env={env_name}: {call} raised {named(error)}{raised_at(error)}{fits}") from error


def _listed(kwargs: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in kwargs.items())
