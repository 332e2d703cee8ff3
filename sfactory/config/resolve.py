"""Resolves argv, config file, saved run and env family into the config of a run.

NOTE [Layers]: a value comes from the strongest source that gives one. From strong to weak: command line, config file,
the saved run that is resumed, defaults of the env family, defaults of the schema. Benchmarks and runs that restart
under an old name resume nothing, so they have no saved run. A saved value that autotune chose keeps that source. Sizes
that the user has not set are fitted to those that are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from sfactory.config.ancestors import ancestor_hint
from sfactory.config.argv import ALGO, CONFIG, PRINT_CONFIG, CommandLine, say_arguments, scan
from sfactory.config.config_file import ConfigFile, read_config_file
from sfactory.config.env_families import EnvFamily, search_families
from sfactory.config.env_names import env_name_of
from sfactory.config.flags import Reading, all_flags, assigned, config_of, config_with, values_of
from sfactory.config.help_text import train_help
from sfactory.config.run_rules import experiment_of, fitted, spread, without_lesser_limits
from sfactory.config.saved_config import (
    BY_ENV,
    CONFIG_NAME,
    FROZEN,
    NOT_RESUMED,
    SAVED_RUN,
    SavedConfig,
    check_resume,
    config_json,
    kept_workers,
    read_config,
)
from sfactory.config.schema import AUTO, Config
from sfactory.config.trust import TRUST, untrusted
from sfactory.config.validation import Problem, check_env_name, find_problems, warnings_of
from sfactory.errors import ConfigError, named
from sfactory.packages import other_versions
from sfactory.system.cores import Cores

DEFAULT = "default"
GIVEN_EARLIER = "given at an earlier start"
AUTOTUNE = "autotune"
CONFIG_FILE = "config file"
COMMAND_LINE = "command line"
FAMILY = "env family"  # and its name

# Sources of values that the user set at any earlier start of a resumed run.
_GIVEN = (CONFIG_FILE, COMMAND_LINE, GIVEN_EARLIER)
# Sources of values that config.json of the resumed run holds.
_SAVED = (SAVED_RUN, GIVEN_EARLIER, AUTOTUNE)
# A family knows how to train its environments, not which run this is.
_NOT_FOR_FAMILIES = NOT_RESUMED | {"env", "env_kwargs"}
_BY_KIND = (
    "a run may have other values than these defaults: no family knows this env, and the defaults for its kind of task "
    "(docs/task_defaults.md) are chosen once it is made"
)


@dataclass(frozen=True)
class Resolved:
    """A config that passed every check, the source of each value by flag name, and lines worth logging.

    given: names of the flags that the user set, on the command line or in a config file, now or at an earlier start of
    the resumed run. changed: a text for each setting of training that differs from that of the resumed run. saved: of
    that run; it has no values if there is nothing to resume.
    """

    config: Config
    sources: Mapping[str, str]
    warnings: list[str]
    given: frozenset[str] = frozenset()
    changed: Sequence[str] = ()
    saved: SavedConfig = field(default_factory=SavedConfig)

    @property
    def tuned(self) -> dict[str, object]:
        """The values that autotune chose for the resumed run, by flag name."""
        return {name: value for name, value in values_of(self.config).items() if self.sources[name] == AUTOTUNE}

    @property
    def set_by_file(self) -> list[str]:
        """Names of the flags that the config file sets to other values than their defaults."""
        values, flags = values_of(self.config), all_flags()
        of_file = [name for name, source in self.sources.items() if source == CONFIG_FILE]
        return [name for name in of_file if values[name] != flags[name].default]

    @property
    def awaits_kind(self) -> bool:
        """Whether flags may get defaults by kind of task, which is known once the env is made."""
        by_family = any(source.startswith(FAMILY) for source in self.sources.values())
        settled = by_family or self.saved.values
        return self.config.run.task_defaults and not settled and DEFAULT in self.sources.values()

    def replaced(self, values: Mapping[str, object], source: str) -> Resolved:
        """The same with other values of some flags, which come from ``source``."""
        config = config_with(self.config, values)
        return replace(self, config=config, sources={**self.sources, **dict.fromkeys(values, source)})


@dataclass
class _Findings:
    """Collected problems. broken: flags with unreadable values. chosen: flags set now. changed: see Resolved."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    chosen: set[str] = field(default_factory=set)
    changed: list[str] = field(default_factory=list)


def read_command_line(argv: Sequence[str], several_ranks: bool = False) -> Resolved:
    """The config that ``argv`` (without the program's name) asks for.

    several_ranks: whether torchrun has started this process with others.

    Raises ConfigError with every problem, from parsing to rules. With ``--help`` prints flags to stdout and raises
    SystemExit(0), whatever else is wrong; with ``--print_config`` does so with their values, if nothing is wrong.
    """
    line, file, renamed = _given(argv)
    given = {**file.values, **line.values}
    if line.help is not None:
        print(_help(line.help, str(given.get("env", ""))), end="", flush=True)
        raise SystemExit(0)
    say_arguments(line, str(given.get("env", "")))
    prints = line.words.get(PRINT_CONFIG.name) is True
    findings = _Findings([*line.problems, *file.problems], renamed, line.broken | (file.broken - line.values.keys()))
    findings.chosen.update(line.values, () if file.of_run else file.values)
    _judge_algo(line.words.get(ALGO.name), findings)
    saved = _saved_run(given, findings)
    layers = _layers(line, file, saved, findings)
    values, sources = _merged(layers)
    if sources["num_workers"] == SAVED_RUN and saved.sources.get("num_workers") == DEFAULT:
        findings.warnings += kept_workers(values["num_workers"], layers[DEFAULT]["num_workers"])
    limits, lines = without_lesser_limits(values, sources, findings.chosen | layers[GIVEN_EARLIER].keys())
    values, sources = values | limits, sources | dict.fromkeys(limits, DEFAULT)
    findings.warnings += lines
    if values["pbt_dir"]:  # a run may be resumed from another current directory
        values["pbt_dir"] = str(Path(str(values["pbt_dir"])).absolute())
    config = config_of(values)
    _check(config, saved, sources, findings, several_ranks)
    findings.problems += _untrusted(line, file, saved, values, sources)
    if findings.problems:
        raise ConfigError(findings.problems)
    chosen = {*layers[CONFIG_FILE], *layers[COMMAND_LINE], *_of_sources(saved, *_GIVEN)}
    resolved = Resolved(config, sources, findings.warnings, frozenset(chosen), findings.changed, saved)
    if prints:
        print(config_json(config, sources, saved.sources), flush=True)
        if resolved.awaits_kind:
            print(_BY_KIND, file=sys.stderr)
        raise SystemExit(0)
    resolved.warnings.extend(warnings_of(config, findings.chosen, _unsure(resolved)))
    return resolved


def with_critic_group(resolved: Resolved, has_groups: bool) -> Resolved:
    """``resolved`` without ``critic_obs_keys=auto``, now that the env is known.

    has_groups: its observations have the groups policy and critic. A network that the user has actor and critic share
    does not use them, unless the user has set ``auto``, too, as a file with all values does: then the env decides.
    """
    model, free = resolved.config.model, _free(resolved.sources)
    if model.critic_obs_keys != AUTO:
        return resolved
    shares = "critic_obs_keys" in free and "actor_critic_share_weights" not in free and model.actor_critic_share_weights
    if not has_groups or shares or model.model:
        return resolved.replaced({"critic_obs_keys": ()}, BY_ENV)
    return resolved.replaced({"critic_obs_keys": ("critic",), "actor_critic_share_weights": False}, BY_ENV)


def fitted_to_agents(resolved: Resolved, agents: int) -> Resolved:
    """``resolved`` with sizes that fit an env of so many agents, which is known only once it was made."""
    sizes = fitted(values_of(resolved.config), _free(resolved.sources), agents)
    return replace(resolved, config=config_with(resolved.config, sizes))


def _free(sources: Mapping[str, str]) -> set[str]:
    """Flags that neither the user has set nor autotune."""
    return {name for name, source in sources.items() if source not in (*_GIVEN, AUTOTUNE)}


def _untrusted(
    line: CommandLine, file: ConfigFile, saved: SavedConfig, values: Mapping[str, object], sources: Mapping[str, str]
) -> list[str]:
    """Problems of values that name code and come from a run's files alone."""
    path = str(line.words.get(CONFIG.name, ""))
    of_run = file.of_run or Path(path).name == CONFIG_NAME  # it may be given in the form of any other file
    if (line.values if of_run else {**file.values, **line.values}).get(TRUST) is True:
        return []
    files: dict[str, Path | str] = {name: saved.path for name, source in sources.items() if source in _SAVED}
    if of_run:
        files |= {name: path for name in file.values if name not in line.values}
    return untrusted(values, files)


def resumed_dir(argv: Sequence[str]) -> Path | None:
    """The directory of the run that ``argv`` would resume or begin, whatever else is wrong with it; None if none."""
    line, file, _ = _given(argv)
    return _resumed_dir({**file.values, **line.values}, line.broken | (file.broken - line.values.keys()))


def _given(argv: Sequence[str]) -> tuple[CommandLine, ConfigFile, list[str]]:
    """The content of the command line and of the config file that it names; that the env has another name, if so."""
    words = {flag.name: flag for flag in (CONFIG, PRINT_CONFIG, ALGO)}
    line = scan(argv, {**words, **all_flags()})
    line.words = {name: line.values.pop(name) for name in words if name in line.values}
    path = line.words.get(CONFIG.name)
    file = ConfigFile() if path is None else read_config_file(str(path))
    renamed: list[str] = []
    by_env = DEFAULT, experiment_of(str(file.values.get("env", "")))
    if (file.printed.get("experiment"), file.values.get("experiment")) == by_env:
        del file.values["experiment"]  # it stays a default, of the env that is given now
    for source in (file, line):
        if not source.values.get("experiment", True):
            del source.values["experiment"]  # empty: as if it were not given
        if "env" in source.values:
            source.values["env"] = name = env_name_of(env := str(source.values["env"]))
            renamed = [f"{assigned('env', env)} is {name}"] if name != env else []
    return line, file, renamed


def _layers(
    line: CommandLine, file: ConfigFile, saved: SavedConfig, findings: _Findings
) -> dict[str, Mapping[str, object]]:
    """Values by source, weakest first (see NOTE [Layers])."""
    given = {**saved.resumable, **file.values, **line.values}
    env = str(given.get("env", ""))
    defaults = {name: flag.default for name, flag in all_flags().items()}
    defaults["num_workers"] = Cores.available().count  # of a rank, fewer than when the schema was imported
    layers: dict[str, Mapping[str, object]] = {DEFAULT: {**defaults, "experiment": experiment_of(env)}}
    search = search_families(env, given)
    findings.warnings += search.warnings
    if search.family is not None:
        findings.warnings += other_versions(getattr(search.family, "extra", ""))
        layers[f"{FAMILY} {search.family.name}"] = _family_defaults(search.family, env, findings)
    chosen = _without_defaults(file, layers)
    by_env = saved.defaults_by_env({**chosen, **line.values})
    return {
        **layers,
        SAVED_RUN: saved.resumable,
        GIVEN_EARLIER: _of_sources(saved, *_GIVEN),
        AUTOTUNE: _of_sources(saved, AUTOTUNE),
        CONFIG_FILE: {name: value for name, value in chosen.items() if name not in by_env},
        COMMAND_LINE: {name: value for name, value in line.values.items() if name not in by_env},
    }


def _without_defaults(file: ConfigFile, defaults: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    """What the config file gives. Of one that --print_config has written, without what is a default here, too.

    That stays a default, as in the command that has printed it: what fits the env takes its place. defaults: of the
    schema and of the family.
    """
    unsure = {name for name, source in file.printed.items() if source == DEFAULT or source.startswith(FAMILY)}
    chosen = {name: value for name, value in file.values.items() if name not in unsure}
    values, _ = _merged({**defaults, CONFIG_FILE: chosen})
    return {name: value for name, value in file.values.items() if name in chosen or value != values[name]}


def _merged(layers: Mapping[str, Mapping[str, object]]) -> tuple[dict[str, object], dict[str, str]]:
    """The values of all flags, and their sources."""
    values = {name: value for layer in layers.values() for name, value in layer.items()}
    sources = {name: source for source, layer in layers.items() for name in layer}
    by_family = {name for name, source in sources.items() if source.startswith(FAMILY)}
    family = next((layer for source, layer in layers.items() if source.startswith(FAMILY)), {})
    values |= spread(values, family, by_family, cores=cast(int, layers[DEFAULT]["num_workers"]))
    return values | fitted(values, _free(sources)), sources


def _of_sources(saved: SavedConfig, *sources: str) -> dict[str, object]:
    """The values of a resumed run that came from one of ``sources``."""
    return {name: value for name, value in saved.resumable.items() if saved.sources.get(name) in sources}


def _judge_algo(algo: object, findings: _Findings) -> None:
    if algo is None:
        return
    if str(algo).upper() in (ALGO.default, "PPO"):
        findings.warnings.append(f"{assigned(ALGO.name, algo)} is what sfactory does in any case; it may be left out")
    else:
        findings.problems.append(f"{assigned(ALGO.name, algo)}: {ancestor_hint(ALGO.name, all_flags(), prefix='--')}")


def _saved_run(given: Mapping[str, object], findings: _Findings) -> SavedConfig:
    """The saved config of the run that ``given`` names; it has no values if there is nothing to resume."""
    directory = _resumed_dir(given, findings.broken)
    if directory is None:
        return SavedConfig()
    try:
        saved = read_config(directory) or SavedConfig()
    except ConfigError as error:
        findings.problems += error.problems
        return SavedConfig()
    findings.warnings += saved.warnings
    return saved


def _resumed_dir(given: Mapping[str, object], broken: Collection[str]) -> Path | None:
    """The directory of the run that ``given`` names, if it would be resumed. broken: flags with unreadable values."""
    named = {"experiment": experiment_of(str(given.get("env", ""))), **given}
    probe = config_of(named)
    if probe.run.restart_behavior != "resume" and "restart_behavior" not in broken:
        return None
    where = ("experiment", "train_dir", "benchmark")
    unusable = any(problem.flags[0] in where for problem in find_problems(probe, broken))
    if not probe.run.experiment or probe.benchmark.benchmark is True or unusable or not set(where).isdisjoint(broken):
        return None
    return Path(probe.run.train_dir) / probe.run.experiment


def _family_defaults(family: EnvFamily, env: str, findings: _Findings) -> dict[str, object]:
    """The flag defaults of a family; flags it may not set and wrong values are ignored with a warning."""
    reading = Reading()
    offered: Mapping[str, object] = {}
    try:
        offered = dict(family.defaults(env))
    # Foreign code: without its defaults the run still works.
    except Exception as error:
        findings.warnings.append(
            f"env family {family.name!r} failed when asked for defaults of {env!r}: {named(error)}"
        )
    for name, data in offered.items():
        if name not in all_flags() or name in _NOT_FOR_FAMILIES:
            findings.warnings.append(f"env family {family.name!r} sets {name!r}, which it may not; it is ignored")
        else:
            reading.take(all_flags()[name], data, f"; this default of env family {family.name!r} is ignored")
    findings.warnings += reading.problems
    return reading.values


def _check(
    config: Config, saved: SavedConfig, sources: Mapping[str, str], findings: _Findings, several_ranks: bool
) -> None:
    """Add the problems of the values themselves, of the environment's name, and of resuming."""
    values = values_of(config)
    frozen = {name for name in FROZEN.intersection(saved.values) if saved.values[name] != values[name]}

    def found(config: Config) -> list[Problem]:
        return find_problems(config, findings.broken, findings.chosen, several_ranks)

    def left_out(problem: Problem, name: str) -> str:
        """How a flag that the user did not type is left out; "" if that does not solve the problem."""
        default = all_flags()[name].default
        may_change = name not in FROZEN or sources[name] not in _SAVED
        is_solved = problem.flags not in [other.flags for other in found(config_with(config, {name: default}))]
        return f"; to leave it out: {assigned(name, default)}" if may_change and is_solved else ""

    for problem in found(config):
        if sources[problem.flags[0]] in _SAVED and not frozen.isdisjoint(problem.flags):
            continue  # the run's own value is fine with the one that must be kept, see ``check_resume``
        findings.problems.append(problem.text + _origin(problem, values, sources, left_out))
    if config.run.learner_devices and "device" in findings.chosen:
        both = f"{assigned('device', config.run.device)}: {assigned('learner_devices', config.run.learner_devices)}"
        findings.problems.append(f"{both} names the devices; leave one of the two out")
    if "env" not in findings.broken:
        findings.problems += check_env_name(config.run.env)
    # With a broken restart_behavior it is unknown whether the run is resumed.
    if "restart_behavior" not in findings.broken:
        try:
            findings.changed += check_resume(saved, config)
        except ConfigError as error:
            findings.problems += error.problems


def _origin(
    problem: Problem, values: Mapping[str, object], sources: Mapping[str, str], left_out: Callable[[Problem, str], str]
) -> str:
    """Where a refused value comes from if the user did not type it, or else a value that it does not go with."""
    typed = (DEFAULT, COMMAND_LINE)
    blamed, *others = problem.flags
    if (source := sources[blamed]) not in typed:
        return f" (this value comes from: {source}{left_out(problem, blamed)})"
    for name in others:
        if sources[name] not in (*typed, CONFIG_FILE) and (advice := left_out(problem, name)):
            return f" ({assigned(name, values[name])} comes from: {sources[name]}{advice})"
    return ""


def _help(topic: str, env: str) -> str:
    family = search_families(env).family if env else None
    if family is None:
        if env:
            print(_BY_KIND, file=sys.stderr)
        return train_help(topic)
    defaults = _family_defaults(family, env, _Findings())
    values = values_of(config_of({**defaults, "env": env}))
    return train_help(topic, family.name, defaults | spread(values, defaults, defaults, Cores.available().count))


def _unsure(resolved: Resolved) -> set[str]:
    """Flags that may get other values by the kind of task."""
    from sfactory.config.task_defaults import TASK_DEFAULTS  # it imports this module

    by_kind = {name for defaults in TASK_DEFAULTS.values() for name in defaults}
    return {name for name in by_kind if resolved.sources[name] == DEFAULT} if resolved.awaits_kind else set()
