"""Room: what makes the environments of a name. In: ``--env``. Out: a ``Maker``: something to call, and what it takes.

A name is looked up in this order: an env family, ``module:function``, a Gymnasium id.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfactory.config.families import find_family
from sfactory.config.references import Unresolved, find_callable, import_current_directory
from sfactory.errors import EnvError

if TYPE_CHECKING:
    import gymnasium

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
