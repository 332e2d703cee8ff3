"""Checks configs and names of environments: one line per problem, all of them at once, and warnings.

Nothing is changed, made or executed here; devices, memory and the environment itself are examined when a run starts.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import math
import os
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from sfactory.config.env_families import install_advice, lack_of_family, search_families, suggested_names
from sfactory.config.env_names import GYMNASIUM_IDS
from sfactory.config.field import FlagInfo
from sfactory.config.flags import Flag, all_flags, assigned, did_you_mean, is_of_type, type_text, values_of
from sfactory.config.import_strings import module_of, standard_library_problem
from sfactory.config.population_rules import AUXILIARY_RULES, FEW_TURNS, POPULATION_RULES, ROLES_COMPARED
from sfactory.config.rule import WAITING, Rule, idle_if, idle_unless, is_default, refuse, waits_for_learner
from sfactory.config.run_rules import RANK_RULES, REMOTE_RULES, RUN_RULES, SAMPLING_RULES
from sfactory.config.schema import Config, keys_and_layouts
from sfactory.config.training_rules import KL_ADAPTIVE, LEARNING_RULES, NETWORK_RULES, OBJECTIVE_RULES, OPTIMIZER_RULES
from sfactory.packages import env_plugin

RULES = (
    *RUN_RULES,
    *SAMPLING_RULES,
    *REMOTE_RULES,
    *LEARNING_RULES,
    *NETWORK_RULES,
    *OBJECTIVE_RULES,
    *OPTIMIZER_RULES,
    *AUXILIARY_RULES,
    *POPULATION_RULES,
)

# Counters and shapes are 64-bit integers everywhere below.
_LARGEST_INT = 2**63 - 1


@dataclass(frozen=True)
class Problem:
    """One refused setting. ``flags``: the flag that ``text`` blames, then the others that the rule reads."""

    flags: tuple[str, ...]
    text: str


def check(config: Config, chosen: Collection[str] = ()) -> list[str]:
    """The texts of ``find_problems``, of the form ``--gamma=1.5: must be at most 1.0``; [] if ``config`` is fine."""
    return [problem.text for problem in find_problems(config, chosen=chosen)]


def find_problems(
    config: Config,
    skip: Collection[str] = (),
    chosen: Collection[str] = (),
    several_ranks: bool = False,
    within: Collection[str] | None = None,
) -> list[Problem]:
    """All problems of ``config``.

    skip: flags with a value that is known to be wrong. Neither they nor rules that read them are checked. chosen: flags
    that the user set. Only for these a lack of effect is a problem: the defaults of an env family suit many settings.
    several_ranks: true also where ``config`` has devices for them. within: if given, rules are checked that read these
    flags alone; values by themselves are always checked.
    """
    values = values_of(config)
    checked = frozenset(all_flags() if within is None else within)
    problems: list[Problem] = []
    bad = set(skip)
    for name, flag in all_flags().items():
        text = None if name in skip or values[name] is flag.default else value_problem(flag, values[name])
        if text is not None:
            problems.append(Problem((name,), f"{assigned(name, values[name])}: {text}"))
            bad.add(name)
    several_ranks |= "learner_devices" not in bad and "," in config.run.learner_devices
    for rule in (*RULES, *(RANK_RULES if several_ranks else ())):
        passed_over = bad.intersection(rule.flags) or (rule.idle and rule.flags[0] not in chosen)
        text = None if passed_over or not checked.issuperset(rule.flags) else rule.find(config)
        if text is not None:
            problems.append(Problem(rule.flags, f"{assigned(rule.flags[0], values[rule.flags[0]])}: {text}"))
    return problems


def value_problem(flag: Flag, value: object) -> str | None:
    """The problem of one value by itself (type, choice, range), or None."""
    if not is_of_type(flag.type, value):
        return f"must be one of {', '.join(flag.choices)}" if flag.choices else f"must be of type {type_text(flag)}"
    for element in value if isinstance(value, tuple) else (value,):
        is_number = isinstance(element, int | float) and not isinstance(element, bool)
        if is_number and (text := _number_problem(flag.info, element)) is not None:
            return f"every element {text}" if isinstance(value, tuple) else text
    return None


def _number_problem(info: FlagInfo, number: int | float) -> str | None:
    if isinstance(number, float) and not math.isfinite(number):
        return ", ".join(filter(None, ("must be a finite number", info.range_text())))
    broken = info.broken_bound(number)
    if broken is None and isinstance(number, int) and number > _LARGEST_INT:
        broken = "at most 2^63 - 1"
    if broken is None:
        return None
    accepted = info.range_text()
    return f"must be {broken}" + (f" (accepted: {accepted})" if " and " in accepted else "")


def check_env_name(name: str) -> list[str]:
    """The problems of ``--env=name``, found without executing any of the user's code.

    A name is known if a family claims it that lacks no package, if its module can be found (``module:function``, or
    Gymnasium's ``module:Id-v0``), or if it is registered with Gymnasium. ``check`` reports an empty name.
    """
    if not name:
        return []
    text: str | None
    module, colon, rest = name.partition(":")
    if (family := search_families(name).family) is not None:
        text = lack_of_family(family) or None
    elif not colon:
        text = _gymnasium_id_problem(name)
    elif not module or not rest or ":" in rest:
        text = "must read module:function, for example --env=my_envs:make, or module:Id-v0 for a Gymnasium id"
    elif (text := _module_problem(module_of(module), rest)) is not None and module.endswith(".py"):
        text = f"there is no {module} below {Path.cwd()}, from where a file is named by its path"
    return [] if text is None else [f"{assigned('env', name)}: {text}"]


def _module_problem(module: str, name: str) -> str | None:
    if module == "__main__":  # of each process another one, which is sent what a notebook defines
        if hasattr(sys.modules[module], name):
            return None
        return "name the file of the program, without .py, as in --env=my_program:make; a program of no file is unknown"
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        return f"{module!r} is not the name of a module; write it as in an import, my_package.my_envs"
    if problem := standard_library_problem(module):
        return problem
    where = f"cannot be found from {Path.cwd()} nor among the installed packages"
    spec = _find_top_module(parts[0])
    if spec is None:
        advice = install_advice(parts[0]) or "; run the command in the folder that holds it, or install its package"
        return f"module {parts[0]!r} {where}{advice}"
    for depth in range(1, len(parts)):
        if not spec.submodule_search_locations:
            return f"{'.'.join(parts[:depth])!r} is a module, not a package, so {module!r} cannot be in it"
        package, child = ".".join(parts[:depth]), ".".join(parts[: depth + 1])
        try:
            spec = importlib.machinery.PathFinder.find_spec(child, spec.submodule_search_locations)
        except KeyError:
            # A namespace package in one that was not imported: it exists, and only importing shows its content.
            return None
        if spec is None:
            return f"module {child!r} {where}: package {package!r} does not hold it"
    return _lack_in_source(module, spec.origin, name) if name.isidentifier() else None


# With these a module can have names that its source does not show.
_HIDES_NAMES = re.compile(r"import \*|__getattr__|__dict__|\b(?:globals|locals|vars|setattr|exec|eval)\b")


def _lack_in_source(module: str, file: str | None, name: str) -> str | None:
    """That the module in ``file`` has no ``name``, but one like it: sure only of a source without this word."""
    try:
        source = Path(file or "").read_text(encoding="utf-8")
        body = ast.parse(source).body
    except (OSError, ValueError, SyntaxError):  # an extension module, a namespace package, or what its import reports
        return None
    if re.search(rf"\b{name}\b", source) or _HIDES_NAMES.search(source):
        return None
    own = [each.name for each in body if isinstance(each, ast.FunctionDef | ast.ClassDef)]
    near = did_you_mean(name, own, prefix=f"{module}:")
    return f"module {module!r} ({file}) has no {name!r}{near}" if near else None


def _find_top_module(name: str) -> importlib.machinery.ModuleSpec | None:
    """Where ``import name`` would look with the current directory first; nothing is imported."""
    try:
        return importlib.machinery.PathFinder.find_spec(name, [os.getcwd()]) or importlib.util.find_spec(name)
    except (ImportError, ValueError):
        # ValueError: a module that is loaded but came from no file, such as __main__.
        return None


_LEAST_NAME = 4  # letters of an id that suggest others


def _gymnasium_id_problem(name: str) -> str | None:
    # Imported late: it takes half a second, which a command line with module:function can save.
    from gymnasium import error
    from gymnasium.envs.registration import find_highest_version, parse_env_id, registry

    if name in registry:
        return None
    suggestible = [*registry, *GYMNASIUM_IDS, *suggested_names()]
    near, typed = did_you_mean(name, suggestible), re.sub(r"-v\d+$", "", name).casefold()
    # The nearest to Pong-v5 is Ant-v5, as both end so.
    has_it = [each for each in suggestible if typed in each.casefold()]
    if has_it and len(typed) >= _LEAST_NAME and typed not in near.casefold():
        near = did_you_mean(typed, has_it)
    unknown = f"no environment of this name is registered{near}"
    try:
        namespace, bare, version = parse_env_id(name)
    except error.Error:
        return f"{unknown}; give a Gymnasium id such as CartPole-v1, a family name, or module:function"
    if (version is None and find_highest_version(namespace, bare) is not None) or env_plugin(namespace) is not None:
        return None
    versions = [known.id for known in registry.values() if (known.namespace, known.name) == (namespace, bare)]
    if versions:
        return f"this version is not registered; there are {', '.join(versions)}"
    return unknown if near else f"{unknown}; if a package registers it, name that too, as in --env=package:{name}"


def warnings_of(config: Config, chosen: Collection[str] = (), unsure: Collection[str] = ()) -> list[str]:
    """Settings of a ``config`` without problems that work and are seldom meant, one line each.

    chosen: the flags that the user set, as for ``find_problems``. unsure: flags that may get other values; rules that
    read them are left out.
    """
    values = values_of(config)
    rules = (rule for rule in _WARNINGS if not rule.idle or rule.flags[0] in chosen)
    rules = (rule for rule in rules if not set(rule.flags).intersection(unsure))
    found = ((rule.flags[0], rule.find(config)) for rule in rules)
    return [f"{assigned(name, values[name])}: {text}" for name, text in found if text is not None]


def _publication(config: Config) -> str | None:
    # Weights are published after whole passes.
    updates = config.learner.publish_interval + config.learner.num_batches_per_epoch - 1
    limit = config.learner.max_policy_lag
    masked = f"steps are masked from max_policy_lag ({limit}) on"
    return f"weights may be {updates} updates old when they are replaced, and {masked}" if updates > limit else None


def _rest_of_a_round(config: Config) -> str | None:
    # Without async_rl a dataset is whole rounds (see ``rounds_misfit``).
    sampling, learner = config.sampling, config.learner
    around = sampling.num_workers * sampling.num_envs_per_worker * sampling.rollout // config.population.num_policies
    dataset = learner.batch_size * learner.num_batches_per_epoch
    if not waits_for_learner(config) or around <= dataset:
        return None
    fitting = -(-around // (learner.num_batches_per_epoch * sampling.rollout)) * sampling.rollout
    return (
        f"a dataset of {dataset} steps (batch_size x num_batches_per_epoch) is less than the {around} that the actors "
        "collect at a time (num_workers x num_envs_per_worker x rollout), so the rest is learned from when its policy "
        f"is many updates old: --batch_size={fitting} takes all"
    )


def _no_best(config: Config) -> str | None:
    """Why no best policy is saved, if training ends before the first could be."""
    limit, after = config.run.most_env_steps(config.frames_per_step), config.checkpoint.save_best_after
    if after <= limit:
        return None
    return (
        f"a best policy is saved from save_best_after ({after}) env steps on, and training ends after {limit}: none "
        "is saved; --save_best_after=0 saves one from the start"
    )


def _lacks_normalizer(config: Config, parts: tuple[str, ...]) -> bool:
    """Whether ``parts`` have what reads observations, and not the statistics by which these are normalized."""
    return config.model.normalize_input and not {"encoder", "model"}.isdisjoint(parts) and "normalizer" not in parts


_WARNINGS = (
    Rule(
        ("batch_size", "num_batches_per_epoch", "num_workers", "num_envs_per_worker", "rollout", *WAITING),
        _rest_of_a_round,
    ),
    FEW_TURNS,
    ROLES_COMPARED,
    Rule(("publish_interval", "num_batches_per_epoch", "max_policy_lag"), _publication),
    refuse(
        ("vtrace_rho", "vtrace_c", "with_vtrace"),
        lambda config: (
            config.algo.with_vtrace and (config.algo.vtrace_rho or math.inf) < (config.algo.vtrace_c or math.inf)
        ),
        "is below vtrace_c ({vtrace_c}): V-trace is known to converge for vtrace_rho >= vtrace_c",
    ),
    refuse(
        ("num_batchers", "num_workers"),
        lambda config: config.learner.num_batchers > max(1, config.sampling.num_workers // 2),
        "more than half of num_workers ({num_workers}): one batcher assembles what several workers collect",
    ),
    refuse(
        ("minibatch_ring_size", "num_epochs"),
        lambda config: config.learner.minibatch_ring_size > 1 and config.learner.num_epochs == 1,
        "with --num_epochs=1 each dataset gets one pass, so a ring of several changes nothing",
    ),
    refuse(
        ("learning_rate", "lr_schedule", "lr_adaptive_min", "lr_adaptive_max"),
        lambda config: (
            config.optim.lr_schedule in KL_ADAPTIVE
            and not config.optim.lr_adaptive_min <= config.optim.learning_rate <= config.optim.lr_adaptive_max
        ),
        "{lr_schedule} keeps rates within lr_adaptive_min ({lr_adaptive_min}) and lr_adaptive_max ({lr_adaptive_max}), "
        "and begins at the nearer one",
    ),
    refuse(
        ("obs_layout",),
        lambda config: len(dict(keys_and_layouts(config.model.obs_layout))) < len(config.model.obs_layout),
        "a key has two layouts, of which the last one counts: leave the other out",
    ),
    refuse(
        ("init_parts", "init_from", "normalize_input"),
        lambda config: bool(config.checkpoint.init_from) and _lacks_normalizer(config, config.checkpoint.init_parts),
        "if its run has normalized observations, what it has learned is of those, and here they are normalized by new "
        "statistics: add normalizer",
    ),
    refuse(
        ("freeze", "normalize_input"),
        lambda config: _lacks_normalizer(config, config.optim.freeze),
        "its inputs are normalized by statistics that go on changing, and so does what it makes of them: add "
        "normalizer, if it comes from another run (--init_from) or an earlier session",
    ),
    Rule(("save_best_metric", "save_best_after", "train_for_env_steps", "train_for_frames"), _no_best, idle=True),
    Rule(
        ("save_best_every_sec", "save_best_metric", "save_best_after", "train_for_env_steps", "train_for_frames"),
        lambda config: _no_best(config) if is_default(config, "save_best_metric") else None,
        idle=True,
    ),
    # Not refused, since published commands of Sample Factory have them.
    idle_if(("gae_lambda", "with_vtrace", "rnd"), lambda config: not config.algo.uses_gae, "--with_vtrace=False"),
    *idle_unless(("exploration_loss_coeff",), "exploration_loss", lambda loss: loss != "none", "entropy"),
    *idle_unless(("recurrence", "rnn_type", "rnn_size", "rnn_num_layers"), "use_rnn"),
)
