"""Makes environments from ``--env``, ``--env_kwargs`` and ``--env_frameskip``.

A name is looked up in this order: env family, ``module:function``, Gymnasium id. The result is a ``gymnasium.Env``, an
``AgentsEnv`` with several agents, or a ``gymnasium.vector.VectorEnv``. EnvErrors say how to fix the problem.
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

    title: its name in errors
    parameters: parameters that can be passed by name
    own_parameters: True if ``parameters`` is complete (including ``render_mode``), as for a user's function; False if
        the maker passes unknown arguments on
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
    """``gymnasium.make`` without the two wrappers that only check the caller's code.

    On CartPole-v1, PassiveEnvChecker takes 0.7 us and OrderEnforcing 0.3 us of a 7.3 us step; envs are checked before
    the run starts. TimeLimit stays because it truncates episodes. ``kwargs`` are those of gymnasium.make, such as
    ``max_episode_steps``. Env families may use this function too.
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
    """Add the highest registered version to an id without a version, as gymnasium.make does."""
    from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id

    namespace, bare, version = parse_env_id(env_id)
    return get_env_id(namespace, bare, find_highest_version(namespace, bare) if version is None else version)


def _find_factory(name: str) -> Callable[..., object]:
    try:
        return find_callable(name)
    except Unresolved as error:
        raise EnvError(f"--env={name}: {error}") from error.__cause__


def _parameters(factory: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """Parameters that can be passed to ``factory`` by name."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        # Some builtins have no signature, so their parameters are unknown.
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
# Metadata key of an env; True if observations depend on env_frameskip, for example as stacked frames.
SPANS_FRAMES = "observation_spans_frames"


@dataclass(frozen=True)
class EnvFactory:
    """Makes the environments of a run. Picklable, so that it can be sent to actor processes."""

    name: str
    kwargs: Mapping[str, object] = field(default_factory=dict)
    env_frameskip: int = 1

    @staticmethod
    def of(run: RunConfig, sampling: SamplingConfig) -> EnvFactory:
        """The factory that the flags describe."""
        return EnvFactory(run.env, dict(run.env_kwargs), sampling.env_frameskip)

    @property
    def makes_vectors(self) -> bool:
        """True if the maker returns vector envs, see ``make_vector_env``; raises EnvError if it cannot be imported."""
        return takes_num_envs(self.name)

    def __call__(self, render_mode: str | None = None) -> Env:
        """Make one single-agent environment; raises EnvError."""
        return make_env(self.name, self.kwargs, render_mode, self.env_frameskip)

    def either(self, render_mode: str | None = None) -> Env | AgentsEnv:
        """Make one single-agent or multi-agent environment; raises EnvError."""
        return make_either_env(self.name, self.kwargs, render_mode, self.env_frameskip)

    def agents(self) -> AgentsEnv:
        """Make one multi-agent environment; raises EnvError."""
        from sfactory.env.multi_agent import AgentsEnv

        env = self.either()
        if not isinstance(env, AgentsEnv):
            raise EnvError(f"--env={self.name}: made an env of one agent where it had made one of many")
        return env

    def vector(self, num_envs: int, seed: int) -> VectorEnv:
        """Make one vector env of ``num_envs`` environments; raises EnvError."""
        return make_vector_env(self.name, self.kwargs, num_envs, seed, self.env_frameskip)


def make_env(
    env_name: str, env_kwargs: Mapping[str, object], render_mode: str | None = None, env_frameskip: int = 1
) -> Env:
    """Make one single-agent environment with its family, its ``module:function``, or Gymnasium.

    ``env_frameskip`` is passed on if the family's ``make`` or the function has a parameter of this name, so that one
    flag both sets frame skipping and counts the skipped frames. Other makers, such as Gymnasium, do not get it. An env
    with several frames in one observation sets SPANS_FRAMES in its metadata. If the maker returns vector envs, the
    result wraps a vector env of size 1.

    Raises EnvError if the env cannot be made or is not a gymnasium.Env; its cause is the factory's exception.
    """
    import gymnasium

    env = make_either_env(env_name, env_kwargs, render_mode, env_frameskip)
    if not isinstance(env, gymnasium.Env):
        raise EnvError(f"--env={env_name}: has {len(env.agents)} agents, where one of one agent is needed")
    return env


def make_either_env(
    env_name: str, env_kwargs: Mapping[str, object], render_mode: str | None = None, env_frameskip: int = 1
) -> Env | AgentsEnv:
    """Like ``make_env``, but returns an AgentsEnv for a multi-agent env, see ``agents_env_of``."""
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
    """Make a vector env of ``num_envs``, with a family's ``make`` or a function that has a parameter ``num_envs``.

    A parameter ``seed`` gets ``seed``, because some vector envs can only be seeded here. Raises EnvError as
    ``make_env`` does, and if the result is not a gymnasium.vector.VectorEnv of ``num_envs`` envs.
    """
    maker = find_maker(env_name)
    kwargs = _kwargs(maker, env_name, env_kwargs, None, env_frameskip) | {_NUM_ENVS: num_envs}
    if _SEED in maker.parameters:
        kwargs.setdefault(_SEED, seed)
    return _vector_env(maker, env_name, env_kwargs, kwargs)


def takes_frameskip(env_name: str) -> bool:
    """True if the maker of ``env_name`` gets ``--env_frameskip``; raises EnvError if it cannot be imported."""
    return _FRAMESKIP in find_maker(env_name).parameters


def takes_num_envs(env_name: str) -> bool:
    """True if the maker of ``env_name`` returns vector envs; raises EnvError if it cannot be imported."""
    return _NUM_ENVS in find_maker(env_name).parameters


def _kwargs(
    maker: Maker, env_name: str, env_kwargs: Mapping[str, object], render_mode: str | None, env_frameskip: int
) -> dict[str, object]:
    """Keyword arguments for ``maker``."""
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
            "set only --env_frameskip, which is also used to count frames"
        )
    return env_frameskip


def _guarded(maker: Maker, env_name: str, env_kwargs: Mapping[str, object], kwargs: Mapping[str, object]) -> object:
    """Call ``maker``; turn any exception into an EnvError that names the maker."""
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
