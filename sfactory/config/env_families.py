"""Finds env families: packages that make environments by name and know good flags for them.

Families register under the entry-point group ``sfactory.envs``. The core imports none by name, so ours and third-party
families are found in the same way. This module asks them about names and flags; ``sfactory.env`` makes environments.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from sfactory import packages
from sfactory.errors import named
from sfactory.packages import lack_of

if TYPE_CHECKING:
    import gymnasium

ENTRY_POINT_GROUP = "sfactory.envs"
NUM_ENVS = "num_envs"  # a parameter of what makes many envs at once: a vector env or a TensorEnv
# Of a flag of wrappers; what stands in the braces says what the env is.
ONE_BY_ONE = (
    "cannot wrap this env, which {}; leave it out, or wrap the env with code of your own, which "
    "--wrapper=module:function names"
)


@runtime_checkable
class EnvFamily(Protocol):
    """What a package offers under the entry-point group ``sfactory.envs``: an object with these members.

    Importing the module that holds it must be light: every run asks every family whether a name is its own.

    A name with a colon counts as code that must be trusted (sfactory.config.trust). A family whose names begin with a
    word and a colon, and import nothing that they give, has that beginning as its attribute ``prefix``.

    A family whose environments run what some env_kwargs name (a program, a script, a class) has an attribute
    ``code_kwargs``: parts of the names of these, at any depth, in small letters and digits alone. Such env_kwargs of a
    run directory must be trusted as other code.

    A family whose environments do what flags of wrappers do (``env_framestack``, ``obs_resize``, ...) has an attribute
    ``own_wrappers``: by flag, the argument of ``make`` that gets its value (of ``obs_resize`` one number). One whose
    environments report statistics at the end of an episode has ``max_episode_steps`` there, a limit of their own steps:
    a wrapper would end episodes without them.

    A family of which a process can hold only one environment (or one vector environment) has an attribute
    ``one_per_process``: the flag that must be 1 for that, ``num_envs_per_worker`` (or ``worker_num_splits``).

    A family with something to say at the start of a run has a method ``warnings``, which gets the name of the
    environment and returns sentences. If that depends on flags, it has a method ``flag_warnings``, which also gets the
    values of those that are set, by name.

    A family whose defaults were measured has an attribute ``rows``: by name of an env, the rows of docs/results.md.

    A family of TensorEnvs has an attribute ``makes_tensors``, which is True; its ``make`` gets num_envs and device.

    A family whose environments need more than sfactory has two more attributes: ``modules``, the names of the modules
    (of top level) that all of them need, and ``extra``, the extra of sfactory that installs those, or ``page``, the
    address that says how they are installed. Without them its names are refused, with that command or address. If some
    need more than that, its method ``lacks`` returns sentences on what is not installed, which ``sfactory.envs`` shows.
    """

    @property
    def name(self) -> str:
        """The family's own name, shown as the source of its flag defaults."""

    def names(self) -> Sequence[str]:
        """Environment names to suggest when a name is misspelt."""

    def matches(self, env_name: str) -> bool:
        """Whether this family makes ``env_name``."""

    def make(self, env_name: str, **kwargs: object) -> gymnasium.Env[Any, Any]:
        """One environment; ``kwargs`` are ``--env_kwargs``, and ``render_mode`` if needed.

        A ``make`` with a parameter ``env_frameskip`` gets the flag of this name with each call, and its environments
        repeat an action for so many frames. Without it the flag only says how frames are counted.
        """

    def defaults(self, env_name: str) -> Mapping[str, object]:
        """Flag values with which ``--env=env_name`` alone works well, by flag name."""


class FamilySearch(NamedTuple):
    """The family of a name, if any, and a warning for every family that failed."""

    family: EnvFamily | None
    warnings: list[str]


def lack_of_family(family: EnvFamily) -> str:
    """What ``family`` needs that is not installed, and how to install it; "" if nothing is missing."""
    lack, page = lack_of(getattr(family, "modules", ()), getattr(family, "extra", "")), getattr(family, "page", "")
    return f"{lack}; to install it, see {page}" if lack and page else lack


def install_advice(module: str) -> str:
    """``; run: pip install ...`` if the package of ``module`` is known, such as one that a family needs; else ""."""
    families = [family for family in load_families()[0] if getattr(family, "extra", "")]
    needed = {name: str(getattr(family, "extra", "")) for family in families for name in getattr(family, "modules", ())}
    return packages.install_advice(module, {**packages.EXTRAS, **needed})


@functools.cache
def load_families() -> tuple[list[EnvFamily], list[str]]:
    """All installed families by entry-point name, and a warning for each that cannot be loaded.

    Loaded once per process: reading the metadata of installed packages takes milliseconds.
    """
    families: list[EnvFamily] = []
    warnings: list[str] = []
    for point in sorted(metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda p: (p.name, p.value)):
        where = f"env family {point.name!r} of package {point.dist.name if point.dist else '?'} ({point.value})"
        try:
            family = point.load()
        # A foreign module may raise anything while it is imported; it must not stop runs that do not use it.
        except Exception as error:
            warnings.append(f"{where} cannot be imported and is left out: {named(error)}")
            continue
        if isinstance(family, EnvFamily):
            families.append(family)
        else:
            kind = type(family).__name__
            warnings.append(f"{where} is a {kind} without the members of an EnvFamily; it is left out")
    return families, warnings


def search_families(env_name: str, flags: Mapping[str, object] | None = None) -> FamilySearch:
    """The first family that matches ``env_name``. Families that fail become warnings.

    flags: those that are set, if what a family says of them is wanted, too.
    """
    families, failed = load_families()
    warnings = list(failed)
    found: list[EnvFamily] = []
    for family in families:
        try:
            if family.matches(env_name):
                own = [*getattr(family, "warnings", lambda _: ())(env_name)]
                if flags is not None:
                    own += getattr(family, "flag_warnings", lambda *_: ())(env_name, flags)
                found.append(family)
                warnings += own
        # As above: foreign code, and the run may not need it.
        except Exception as error:
            warnings.append(
                f"env family {family.name!r} failed when asked for {env_name!r} and is left out: {named(error)}"
            )
    if len(found) > 1:
        names = ", ".join(repr(family.name) for family in found)
        warnings.append(f"env families {names} all claim {env_name!r}; {found[0].name!r} is used")
    return FamilySearch(found[0] if found else None, warnings)


def find_family(env_name: str) -> EnvFamily | None:
    """The family that makes ``env_name``, or None."""
    return search_families(env_name).family


def arguments_of(env_name: str) -> set[str]:
    """Names of ``--env_kwargs`` that ``env_name`` has for sure: those of its family and of its class in Gymnasium."""
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    family, registered = find_family(env_name), gymnasium.registry.get(env_name)
    names = set() if family is None else {*getattr(family, "own_wrappers", {}).values()}
    makers: list[Callable[..., object]] = [] if family is None else [family.make]
    with contextlib.suppress(Exception):  # foreign code, whose package may be missing
        if registered is not None and registered.entry_point is not None:
            makers.append(load_env_creator(str(registered.entry_point)))
    for maker in makers:
        with contextlib.suppress(TypeError, ValueError):  # some builtins have no signature
            parameters = inspect.signature(maker).parameters.values()
            names |= {each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD}
    return names - {"env_name", NUM_ENVS}


def suggested_names() -> list[str]:
    """The names that all families suggest; one that fails suggests none."""
    names: list[str] = []
    for family in load_families()[0]:
        # As above: foreign code, and the run may not need it.
        with contextlib.suppress(Exception):
            names += family.names()
    return names


def versions_of(task: str) -> dict[int, str]:
    """Suggested names of ``task`` with a version, such as LunarLander-v3, by version."""
    version = re.compile(rf"{re.escape(task)}-v(\d+)")
    return {int(match[1]): match[0] for match in map(version.fullmatch, suggested_names()) if match}


def makes_many_at_once(family: EnvFamily | None) -> bool:
    """Whether ``family`` makes vector envs or TensorEnvs."""
    return family is not None and NUM_ENVS in inspect.signature(family.make).parameters


def flag_that_stays_one(family: EnvFamily | None) -> str:
    """The ``one_per_process`` of ``family``; "" without one."""
    return str(getattr(family, "one_per_process", ""))
