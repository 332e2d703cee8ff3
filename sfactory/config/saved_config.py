"""Writes and reads config.json of a run, and decides what may change when the run is resumed.

NOTE [Resume rules]: flags that decide the shape or meaning of the weights, or of anything saved beside them (an
optimizer's moments), are frozen. A change of how the weights are trained, or of the seed, gives a warning. How fast,
how long and where a run trains may change freely. The weights to begin with stay those of the start without a
checkpoint; others give a warning.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from sfactory import atomic
from sfactory.config.env_names import env_name_of
from sfactory.config.flags import all_flags, assigned, coerce, shown, strict_json, value_text, values_of
from sfactory.config.schema import (
    BY_RANK,
    AlgoConfig,
    BenchmarkConfig,
    Config,
    LearnerConfig,
    ModelConfig,
    OptimConfig,
    PopulationConfig,
    TuningConfig,
    WrapperConfig,
)
from sfactory.errors import ConfigError, ResourceError

# In the folder of a run: its flags, sessions, rows, result, a copy of what is printed, videos of evaluations, its page.
CONFIG_NAME, RUN_NAME, METRICS_NAME = "config.json", "run.json", "metrics.jsonl"
SUMMARY_NAME, LOG_NAME, VIDEOS_NAME, PAGE_NAME = "summary.json", "sf_log.txt", "videos", "report.html"
RESTARTED, OVERWRITTEN = "_old", "_overwritten"  # begin what --restart_behavior adds to the name of an earlier run
_RENAMED = re.compile(rf"(.+)({RESTARTED}\d{{4,}}|{OVERWRITTEN}(\d{{4,}})?)")
FORMAT_VERSION = 1
SAVED_RUN = "saved run"  # the source of what a resumed run takes over
BY_ENV = "env"  # the source of what the env has decided
DRAWN = "drawn at random"  # the source of a seed that was not given
PRINTED = "printed"  # true in what ``config_json`` makes, whose defaults may depend on the env


def checkpoint_folder(run_dir: Path, policy: int) -> Path:
    """The folder of one policy's checkpoints in that of its run."""
    return run_dir / f"checkpoint_p{policy}"


def runs_in(train_dir: Path) -> list[str]:
    """The names of the runs whose folders are in ``train_dir``."""
    return sorted(path.parent.name for path in train_dir.glob(f"*/{CONFIG_NAME}"))


def list_of_runs(train_dir: Path) -> str:
    """For a message: the first runs in ``train_dir``, which exists."""
    if (train_dir / CONFIG_NAME).exists():
        return f"{train_dir} is itself a run"
    runs = runs_in(train_dir)
    return f"{train_dir} holds " + (f"the runs {', '.join(runs[:10])}" if runs else "no run at all")


def is_renamed(run_dir: Path) -> bool:
    """Whether the run in ``run_dir`` was renamed, as a later run has its name."""
    name = _RENAMED.fullmatch(run_dir.name)
    if name is None:
        return False
    try:
        return bool(atomic.read_json(run_dir / CONFIG_NAME)["config"]["experiment"] == name[1])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def run_dirs(words: Sequence[str], train_dir: str, any_folder: bool = False, says: bool = True) -> list[Path]:
    """The folders of runs. Each word is a folder in ``train_dir`` of that name, else a folder: of a run, or of runs.

    A folder of runs stands for those that were not renamed, as the others would look like more seeds of the same
    settings. A line on stderr names what is left out, if ``says``.
    any_folder: a word may be one of another kind, such as the --pbt_dir of a population. Raises ConfigError with a line
    for each word that is none.
    """
    found, problems = list[Path](), []
    for word in words:
        places = [path for path in (Path(train_dir) / word, Path(word)) if path.is_dir()][:1]
        if not (any_folder or any((place / CONFIG_NAME).exists() for place in places)):
            inside = [place / run for place in places for run in runs_in(place)]
            current = [run for run in inside if not is_renamed(run)]
            if says and current and len(current) < len(inside):
                renamed = ", ".join(run.name for run in inside if run not in current)
                print(f"{places[0]}: {renamed}: left out, as restarted since; name them to have them", file=sys.stderr)
            places = current or inside or [place for place in places if (place / METRICS_NAME).exists()]
        if not places:
            where = f"neither in {train_dir} nor as a folder of runs from {Path.cwd()}"
            problems.append(f"there is no run {shown(word)!r}, {where}")
        found += places
    if problems:
        raise ConfigError(problems)
    return list(dict.fromkeys(found))


def _names(*sections: type) -> frozenset[str]:
    return frozenset(each.name for section in sections for each in dataclasses.fields(section))


# amp and cuda_graphs change how the network computes, not its float32 weights. The auxiliary loss and each policy have
# weights of their own, and each kind of optimizer has its own moments.
_OTHER_WEIGHTS = {"env", "use_cpc", "rnd", "optimizer", "separate_value_optimizer", "num_policies"}
_OTHER_OBS = {"obs_grey", "obs_resize", "env_framestack", "flatten_obs"}
FROZEN = _names(ModelConfig) - {"amp", "cuda_graphs"} | _OTHER_WEIGHTS | _OTHER_OBS
OF_ENV = _names(WrapperConfig) | {"env_kwargs", "env_frameskip"}  # what makes an env what it is, beside its name
NOTED = (_names(AlgoConfig, OptimConfig, LearnerConfig, PopulationConfig) | OF_ENV) - FROZEN
# How one start begins is not a setting of the run: the next start resumes it.
OF_ONE_START = frozenset({"load_checkpoint_kind", "restart_behavior", "trust_run_dir"})
OF_NEW_RUNS = ("init_from", "init_parts")  # without effect where there is a checkpoint
# A run keeps the settings that autotune found, not the flag. A command that resumes it with --autotune=True tunes again
# only if the tuning was interrupted.
OF_TUNING = _names(TuningConfig)
NOT_SAVED = OF_ONE_START | OF_TUNING
# A run may have been moved, so its place is where it was found; benchmarks are not part of a run. It may go on with
# other ranks.
NOT_RESUMED = _names(BenchmarkConfig) | NOT_SAVED | {"experiment", "train_dir", "learner_devices"}


# What runs did before these flags existed: the defaults are others, and the weights fit only this.
BEFORE_FLAGS: Mapping[str, object] = MappingProxyType(
    {"normalize_actions": False, "one_hot_max": 0, "obs_layout": BY_RANK, "critic_obs_keys": ()}
)


@dataclass(frozen=True)
class SavedConfig:
    """The content of config.json: values and their sources by flag name, and a warning for each ignored key."""

    path: Path = Path()
    values: Mapping[str, object] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def resumable(self) -> dict[str, object]:
        """The values that a resumed run takes over."""
        return {name: value for name, value in self.values.items() if name not in NOT_RESUMED}

    def defaults_by_env(self, given: Mapping[str, object]) -> set[str]:
        """Names of the defaults among ``given`` that the env replaced when the run began, as it would now.

        Weights that are shared gave way only beside a default of ``critic_obs_keys``, see ``with_critic_group``.
        """
        by_env = {name for name, source in self.sources.items() if source == BY_ENV and name in given}
        by_env = {name for name in by_env if given[name] == all_flags()[name].default}
        return by_env if "critic_obs_keys" in by_env else by_env - {"actor_critic_share_weights"}


def write_config(
    run_dir: Path, config: Config, sources: Mapping[str, str], earlier: Mapping[str, str] = MappingProxyType({})
) -> Path:
    """Write config.json into ``run_dir``, which exists; returns its path. Flags in NOT_SAVED get their defaults.

    earlier: sources in the config.json of a resumed run, which stay those of what it takes over. The file is replaced
    atomically. Raises ResourceError if it cannot be written.
    """
    path = run_dir / CONFIG_NAME
    values = values_of(config) | {name: all_flags()[name].default for name in NOT_SAVED}
    taken_over = {name: earlier.get(name, source) for name, source in sources.items() if source == SAVED_RUN}
    kept = {name: source for name, source in {**sources, **taken_over}.items() if name not in NOT_SAVED}
    try:
        atomic.write_json(path, {"format_version": FORMAT_VERSION, "config": values, "sources": kept})
    except OSError as error:
        raise ResourceError(
            f"{path} cannot be written: {error.strerror or error}; check the rights and free space of {run_dir}, "
            "or choose another --train_dir"
        ) from error
    return path


def config_json(config: Config, sources: Mapping[str, str], earlier: Mapping[str, str] = MappingProxyType({})) -> str:
    """What ``--config`` reads from a .json file: all values, with their sources.

    earlier: as for ``write_config``. A drawn seed that a resumed run takes over stays a drawn one.
    """
    drawn = {name: DRAWN for name, source in sources.items() if (source, earlier.get(name)) == (SAVED_RUN, DRAWN)}
    values, shown_sources = values_of(config), {**sources, **drawn}
    content = {"format_version": FORMAT_VERSION, PRINTED: True, "config": values, "sources": shown_sources}
    return json.dumps(content, indent=2, default=dict)


def read_config(run_dir: Path) -> SavedConfig | None:
    """The saved config of a run, or None for a new run.

    Ignores keys that this version does not know, with a warning. Raises ConfigError, naming the file and what to do, if
    it cannot be read, is not valid JSON, or holds a value of the wrong type.
    """
    path = run_dir / CONFIG_NAME
    try:
        text = atomic.read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(path, str(error)) from error
    try:
        content = strict_json(text)
    except ValueError as error:
        raise _unreadable(path, f"it is not valid JSON ({error})") from error
    return _parse(path, content)


def _unreadable(path: Path, reason: str) -> ConfigError:
    advice = (
        "restore a copy of this file, or move it away to resume with the flags you give now (they must match the "
        "saved weights), or choose another --experiment"
    )
    return ConfigError([f"{path} cannot be read: {reason}; {advice}"])


def _parse(path: Path, content: object) -> SavedConfig:
    if not isinstance(content, Mapping) or not isinstance(content.get("config"), Mapping):
        raise _unreadable(path, "it holds no object under the key 'config'")
    if content.get("format_version") != FORMAT_VERSION:
        found = f"has format_version {content.get('format_version')!r}, this version of sfactory reads {FORMAT_VERSION}"
        advice = "resume with the version that wrote it, or choose another --experiment"
        raise ConfigError([f"{path}: {found}; {advice}"])
    values: dict[str, object] = dict(BEFORE_FLAGS)
    warnings: list[str] = []
    for name, data in content["config"].items():
        if name not in all_flags():
            warnings.append(f"{path}: {shown(name)!r} is not a flag of this version and is ignored")
            continue
        try:
            values[name] = coerce(all_flags()[name], data)
        except ValueError as error:
            raise _unreadable(path, f"{assigned(name, value_text(data))} {error}") from error
    if "env" in values:  # of a run that began with an id without a version
        values["env"] = env_name_of(str(values["env"]))
    sources = content.get("sources")
    kept = {str(k): str(v) for k, v in sources.items()} if isinstance(sources, Mapping) else {}
    return SavedConfig(path, values, kept, tuple(warnings))


def kept_workers(kept: object, default: object) -> list[str]:
    """A line if a resumed run keeps a ``num_workers`` that was the default where it began and is another one here."""
    if kept == default:
        return []
    there, here = assigned("num_workers", kept), assigned("num_workers", default)
    return [f"the run keeps {there}, the default of the cores where it began; for those here the default is {here}"]


def check_resume(saved: SavedConfig, config: Config) -> list[str]:
    """Judge what differs between a saved run and the config to resume it with (see NOTE [Resume rules]).

    Returns a text for each noted flag and for another seed; raises ConfigError with a line for each frozen one.
    """
    problems: list[str] = []
    noted: list[str] = []
    for name, new in values_of(config).items():
        if name not in saved.values or saved.values[name] == new:
            continue
        now, before = assigned(name, new), assigned(name, saved.values[name])
        if name in FROZEN:
            problems.append(
                f"{now}: the run {config.run.experiment!r} was started with {before} and its checkpoints fit only "
                "that; keep the old value, or start a new run with another --experiment"
            )
        elif name in NOTED or (name == "seed" and None not in (new, saved.values[name])):
            noted.append(f"{now}: the run was started with {before}")
    if problems:
        raise ConfigError(problems)
    return noted
