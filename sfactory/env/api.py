"""Room: making one environment from its name.

In: ``--env``, ``--env_kwargs`` and ``--env_frameskip``. Out: a ``gymnasium.Env``, or an EnvError that says what to
do. A name is looked up in this order: an env family, ``module:function``, a Gymnasium id.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sfactory.config.families import EnvFamily, find_family
from sfactory.config.schema import RunConfig, SamplingConfig
from sfactory.errors import EnvError, named

if TYPE_CHECKING:
    import gymnasium

    Env = gymnasium.Env[Any, Any]

__all__ = [
    "SPANS_FRAMES",
    "EnvFactory",
    "EnvFamily",
    "find_family",
    "make_env",
    "make_gymnasium_env",
    "takes_frameskip",
]

_FRAMESKIP = "env_frameskip"
# Key of an env's metadata, True: what an observation shows depends on env_frameskip, as in a stack of frames.
SPANS_FRAMES = "observation_spans_frames"
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


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

    def __call__(self, render_mode: str | None = None) -> Env:
        """One new environment; raises EnvError."""
        return make_env(self.name, self.kwargs, render_mode, self.env_frameskip)


def make_env(
    env_name: str, env_kwargs: Mapping[str, object], render_mode: str | None = None, env_frameskip: int = 1
) -> Env:
    """One environment, made by its family, its ``module:function``, or Gymnasium.

    ``env_frameskip`` is passed on to a family's ``make`` or a function that has a parameter of this name, so that
    one flag both makes the env skip and counts what it skipped. Gymnasium ids and all others are not told of it. An
    env whose observations are made of several frames says so in its metadata, see SPANS_FRAMES.

    Raises EnvError, with whatever the factory raised as its cause, if it cannot be made or is no gymnasium.Env.
    """
    import gymnasium

    kwargs = dict(env_kwargs) if render_mode is None else {**env_kwargs, "render_mode": render_mode}
    family = find_family(env_name)
    module, colon, function = env_name.partition(":")
    if family is not None:
        maker = f"env family {family.name!r}"
        if _takes_frameskip(family.make):
            kwargs[_FRAMESKIP] = _agreed_frameskip(env_name, env_kwargs, env_frameskip)
        env: object = _guarded(maker, env_name, env_kwargs, lambda: family.make(env_name, **kwargs))
    elif colon and function.isidentifier():
        maker = f"{module}:{function}"
        env = _call_factory(module, function, env_kwargs, render_mode, env_frameskip)
    else:
        maker = "gymnasium.make"
        env = _guarded(maker, env_name, env_kwargs, lambda: make_gymnasium_env(env_name, **kwargs))
    if not isinstance(env, gymnasium.Env):
        raise EnvError(
            f"--env={env_name}: {maker} returned {_described(env)}; it must return an instance of gymnasium.Env "
            "(the package gymnasium, not the older gym)"
        )
    return env


def takes_frameskip(env_name: str) -> bool:
    """Whether what makes ``env_name`` is told ``--env_frameskip``; raises EnvError if it cannot be imported."""
    family = find_family(env_name)
    if family is not None:
        return _takes_frameskip(family.make)
    module, colon, function = env_name.partition(":")
    return bool(colon) and function.isidentifier() and _takes_frameskip(_find_factory(module, function))


def make_gymnasium_env(env_id: str, **kwargs: object) -> Env:
    """``gymnasium.make`` without the two wrappers that only look for mistakes in the caller's code.

    On CartPole-v1 PassiveEnvChecker takes 0.7 and OrderEnforcing 0.3 of 7.3 us a step; a run is checked before it
    starts. TimeLimit stays: it is what truncates episodes. ``kwargs`` are gymnasium.make's, ``max_episode_steps``
    among them. For use by env families too.
    """
    import gymnasium

    _import_current_directory()
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


def _agreed_frameskip(env_name: str, env_kwargs: Mapping[str, object], env_frameskip: int) -> int:
    also = env_kwargs.get(_FRAMESKIP, env_frameskip)
    if also != env_frameskip:
        raise EnvError(
            f"--env={env_name}: --env_frameskip={env_frameskip}, but --env_kwargs say env_frameskip={also!r}; "
            "set it with --env_frameskip alone, which frames are counted by"
        )
    return env_frameskip


def _call_factory(
    module: str, function: str, env_kwargs: Mapping[str, object], render_mode: str | None, env_frameskip: int
) -> object:
    name = f"{module}:{function}"
    factory = _find_factory(module, function)
    kwargs = dict(env_kwargs)
    if _takes_frameskip(factory):
        kwargs[_FRAMESKIP] = _agreed_frameskip(name, env_kwargs, env_frameskip)
    mode = _parameters(factory).get("render_mode")
    if mode is not None and (render_mode is not None or mode.default is inspect.Parameter.empty):
        kwargs.setdefault("render_mode", render_mode)
    return _guarded(f"{name}({_listed(kwargs)})", name, env_kwargs, lambda: factory(**kwargs))


def _find_factory(module: str, function: str) -> Callable[..., object]:
    name = f"{module}:{function}"
    _import_current_directory()
    try:
        holder = importlib.import_module(module)
    # The user's module may raise anything while it is imported, and may even call sys.exit.
    except (Exception, SystemExit) as error:
        advice = "mend the module"
        if isinstance(error, ModuleNotFoundError):
            missing = error.name or module
            own = module == missing or module.startswith(f"{missing}.")
            advice = "run the command in the folder that holds it" if own else f"install {missing!r}, which it imports"
        raise EnvError(
            f"--env={name}: module {module!r} cannot be imported from {os.getcwd()}: {named(error)}; {advice}"
        ) from error
    factory = getattr(holder, function, None)
    if callable(factory):
        return factory  # type: ignore[no-any-return]
    if factory is not None:
        raise EnvError(f"--env={name}: {function!r} is {_described(factory)}; it must be a function or class")
    near = difflib.get_close_matches(function, [n for n in vars(holder) if callable(getattr(holder, n))], n=1)
    raise EnvError(
        f"--env={name}: module {module!r} ({getattr(holder, '__file__', None) or 'no file'}) has no {function!r}"
        + (f"; did you mean {module}:{near[0]}?" if near else "; name a function or class that makes an env")
    )


def _takes_frameskip(factory: Callable[..., object]) -> bool:
    return _FRAMESKIP in _parameters(factory)


def _parameters(factory: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """What can be passed to ``factory`` by name."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        # Some builtins have no signature; then nothing tells what they take.
        return {}
    return {name: parameter for name, parameter in parameters.items() if parameter.kind in _BY_NAME}


def _guarded(maker: str, env_name: str, env_kwargs: Mapping[str, object], make: Callable[[], object]) -> object:
    """``make()``, with whatever it raises turned into an EnvError that names the maker."""
    try:
        return make()
    except EnvError:
        raise
    # Foreign code may raise anything, and may even call sys.exit.
    except (Exception, SystemExit) as error:
        fits = "; do --env_kwargs fit its parameters?" if isinstance(error, TypeError) and env_kwargs else ""
        raise EnvError(f"--env={env_name}: {maker} raised {named(error)}{fits}") from error


def _import_current_directory() -> None:
    """Make the user's own modules importable, ahead of installed ones, as with ``python -m``."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def _described(value: object) -> str:
    return "None" if value is None else f"a {type(value).__module__}.{type(value).__qualname__}"


def _listed(kwargs: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in kwargs.items())
