"""Room: which configurations are refused, and what would be right instead.

In: a ``Config``, or the name of an environment. Out: one line per problem, all of them at once. Nothing is
changed, made or executed here; devices, memory and the environment itself are examined when a run starts.

Room: settings that work and are seldom meant. In: a ``Config`` without problems. Out: one line for each.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import math
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from sfactory.config.env_families import load_families, search_families
from sfactory.config.field import FlagInfo
from sfactory.config.flags import Flag, all_flags, assigned, did_you_mean, is_of_type, type_text, values_of
from sfactory.config.rules import RULES
from sfactory.config.schema import Config

# Counters and shapes are 64-bit integers everywhere below.
_LARGEST_INT = 2**63 - 1


@dataclass(frozen=True)
class Problem:
    """One refused setting. ``flags``: the flag that ``text`` blames, then the others that it depends on."""

    flags: tuple[str, ...]
    text: str


def check(config: Config, chosen: Collection[str] = ()) -> list[str]:
    """All problems of ``config``, one line each, of the form ``--gamma=1.5: must be at most 1.0``; [] if it is fine.

    chosen: see ``find_problems``.
    """
    return [problem.text for problem in find_problems(config, chosen=chosen)]


def find_problems(config: Config, skip: Collection[str] = (), chosen: Collection[str] = ()) -> list[Problem]:
    """Like ``check``, with the flags that each problem is about.

    ``skip`` names flags whose value is known to be wrong already: neither they nor rules that need them are
    checked, since a second complaint would be about a value that nobody chose. ``chosen`` names flags that somebody
    set: of these alone it is a problem to have no effect, for the defaults of an env family suit several settings.
    """
    values = values_of(config)
    problems: list[Problem] = []
    bad = set(skip)
    for name, flag in all_flags().items():
        text = None if name in skip else value_problem(flag, values[name])
        if text is not None:
            problems.append(Problem((name,), f"{assigned(name, values[name])}: {text}"))
            bad.add(name)
    for rule in RULES:
        passed_over = bad.intersection(rule.flags) or (rule.idle and rule.flags[0] not in chosen)
        text = None if passed_over else rule.find(config)
        if text is not None:
            problems.append(Problem(rule.flags, f"{assigned(rule.flags[0], values[rule.flags[0]])}: {text}"))
    return problems


def value_problem(flag: Flag, value: object) -> str | None:
    """What is wrong with one value by itself (type, choice, range), or None."""
    if not is_of_type(flag.type, value):
        return f"must be one of {', '.join(flag.choices)}" if flag.choices else f"must be of type {type_text(flag)}"
    elements = value if isinstance(value, tuple) else (value,)
    for element in elements:
        if isinstance(element, bool) or not isinstance(element, int | float):
            continue
        text = _number_problem(flag.info, element)
        if text is not None:
            return f"every element {text}" if isinstance(value, tuple) else text
    return None


def range_text(info: FlagInfo) -> str:
    """The accepted range in words, or '' if every finite number is accepted."""
    bounds = (("at least", info.ge), ("greater than", info.gt), ("at most", info.le), ("less than", info.lt))
    return " and ".join(f"{words} {bound}" for words, bound in bounds if bound is not None)


def _number_problem(info: FlagInfo, number: int | float) -> str | None:
    if isinstance(number, float) and not math.isfinite(number):
        allowed = range_text(info)
        return f"must be a finite number{', ' + allowed if allowed else ''}"
    broken = (
        (f"at least {info.ge}", info.ge is not None and number < info.ge),
        (f"greater than {info.gt}", info.gt is not None and number <= info.gt),
        (f"at most {info.le}", info.le is not None and number > info.le),
        (f"less than {info.lt}", info.lt is not None and number >= info.lt),
        ("at most 2^63 - 1", isinstance(number, int) and number > _LARGEST_INT),
    )
    for words, violated in broken:
        if violated:
            both = range_text(info)
            return f"must be {words}" + (f" (accepted: {both})" if " and " in both else "")
    return None


def check_env_name(name: str) -> list[str]:
    """What is wrong with ``--env=name`` as far as can be told without executing any of the user's code.

    A name is known if a family claims it, if its module can be found (``module:function``, or Gymnasium's
    ``module:Id-v0``), or if it is registered with Gymnasium. An empty name is ``check``'s affair.
    """
    if not name or search_families(name).family is not None:
        return []
    module, colon, rest = name.partition(":")
    if not colon:
        text = _gymnasium_id_problem(name)
    elif not module or not rest or ":" in rest:
        text = "must read module:function, for example --env=my_envs:make, or module:Id-v0 for a Gymnasium id"
    else:
        text = _module_problem(module)
    return [] if text is None else [f"{assigned('env', name)}: {text}"]


def _module_problem(module: str) -> str | None:
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        return f"{module!r} is not the name of a module; write it as in an import, my_package.my_envs"
    where = f"cannot be found from {Path.cwd()} nor among the installed packages"
    spec = _find_top_module(parts[0])
    if spec is None:
        advice = "run the command in the folder that holds it, or install its package"
        return f"module {parts[0]!r} {where}; {advice}"
    for depth in range(1, len(parts)):
        if not spec.submodule_search_locations:
            return f"{'.'.join(parts[:depth])!r} is a module, not a package, so {module!r} cannot be in it"
        package, child = ".".join(parts[:depth]), ".".join(parts[: depth + 1])
        try:
            spec = importlib.machinery.PathFinder.find_spec(child, spec.submodule_search_locations)
        except KeyError:
            # A namespace package in one that was not imported: it is there, and only importing can tell what it holds.
            return None
        if spec is None:
            return f"module {child!r} {where}: package {package!r} does not hold it"
    return None


def _find_top_module(name: str) -> importlib.machinery.ModuleSpec | None:
    """Where ``import name`` would look with the current directory first; nothing is imported."""
    try:
        return importlib.machinery.PathFinder.find_spec(name, [os.getcwd()]) or importlib.util.find_spec(name)
    except (ImportError, ValueError):
        # ValueError: a module that is loaded but came from no file, such as __main__.
        return None


def _gymnasium_id_problem(name: str) -> str | None:
    # Imported late: half a second that a wrong command line with module:function need not wait for.
    from gymnasium import error
    from gymnasium.envs.registration import find_highest_version, parse_env_id, registry

    if name in registry:
        return None
    suggestible = [*registry, *(known for family in load_families().families for known in family.names())]
    near = did_you_mean(name, suggestible)
    unknown = f"no environment of this name is registered{near}"
    try:
        namespace, bare, version = parse_env_id(name)
    except error.Error:
        return f"{unknown}; give a Gymnasium id such as CartPole-v1, a family name, or module:function"
    if version is None and find_highest_version(namespace, bare) is not None:
        return None
    versions = [known.id for known in registry.values() if (known.namespace, known.name) == (namespace, bare)]
    if versions:
        return f"this version is not registered; there are {', '.join(versions)}"
    return unknown if near else f"{unknown}; if a package registers it, name that too, as in --env=package:{name}"


def warnings_of(config: Config) -> list[str]:
    """What is worth a second look, of the form ``--num_batchers=3: ...``."""
    found = (
        ("publish_interval", config.learner.publish_interval, _publication(config)),
        ("vtrace_rho", config.algo.vtrace_rho, _clips(config)),
        ("num_batchers", config.learner.num_batchers, _batchers(config)),
        ("minibatch_ring_size", config.learner.minibatch_ring_size, _ring(config)),
    )
    return [f"{assigned(name, value)}: {text}" for name, value, text in found if text is not None]


def _publication(config: Config) -> str | None:
    learner = config.learner
    # It is looked at after whole passes.
    updates = learner.publish_interval + learner.num_batches_per_epoch - 1
    if updates <= learner.max_policy_lag:
        return None
    return (
        f"weights may be {updates} updates old when they are replaced, and steps are masked from max_policy_lag "
        f"({learner.max_policy_lag}) on"
    )


def _clips(config: Config) -> str | None:
    algo = config.algo
    rho, c = (math.inf if clip is None else clip for clip in (algo.vtrace_rho, algo.vtrace_c))
    if not algo.with_vtrace or rho >= c:
        return None
    return f"is below vtrace_c ({algo.vtrace_c}): V-trace is known to converge for vtrace_rho >= vtrace_c"


def _batchers(config: Config) -> str | None:
    batchers, workers = config.learner.num_batchers, config.sampling.num_workers
    if batchers == 1 or 2 * batchers <= workers:
        return None
    return f"more than half of num_workers ({workers}): one batcher assembles what several workers collect"


def _ring(config: Config) -> str | None:
    if config.learner.minibatch_ring_size == 1 or config.learner.num_epochs > 1:
        return None
    return "with --num_epochs=1 each dataset is passed over once, so that turning over several changes nothing"
