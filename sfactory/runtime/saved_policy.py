"""Room: a policy as its run left it on the disk. In: a run directory. Out: the run's config, a model with its weights.

Reads only, and takes no lock: a run that is still training can be looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from sfactory.checkpoint import CheckpointDir, Kind, Loaded, Payload
from sfactory.config.check import check_env_name, find_problems
from sfactory.config.flags import assigned, config_of, did_you_mean
from sfactory.config.saved import CONFIG_NAME, read_config
from sfactory.config.schema import Config
from sfactory.env.api import EnvFactory
from sfactory.errors import CheckpointError, ConfigError, RunDirError
from sfactory.learner.progress import READABLE_VERSIONS
from sfactory.model.actor_critic import ActorCritic
from sfactory.spec import EnvSpec

# What a kind of checkpoint is called, and the flag of train that says when it is saved.
_SAVED_BY: Mapping[Kind, tuple[str, str]] = MappingProxyType(
    {"best": ("best checkpoint", "save_best_after"), "milestone": ("milestone", "save_milestones_sec")}
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """Which checkpoint of a run: of which policy, of what kind, and if ``env_steps`` is given, exactly that one's.

    With ``env_steps`` the kind "latest" stands for any kind.
    """

    kind: Kind = "latest"
    policy: int = 0
    env_steps: int | None = None


@dataclass(frozen=True)
class SavedPolicy:
    """A run's config and the content of one of its checkpoints."""

    config: Config
    checkpoint: Path
    payload: Payload

    @staticmethod
    def load(train_dir: Path | str, experiment: str, choice: Choice) -> SavedPolicy:
        """Read what the run saved.

        Raises RunDirError if there is no such run, ConfigError if its config.json is damaged or it has no such
        policy, and CheckpointError if it has no such checkpoint, or none that can be loaded.
        """
        run_dir = Path(train_dir) / experiment
        config = _read_run_config(Path(train_dir), experiment)
        _check_policy(run_dir, choice.policy)
        directory = CheckpointDir(_policy_dir(run_dir, choice.policy), config.checkpoint.keep_checkpoints)
        loaded = _load(directory, choice)
        if loaded.payload.get("payload_version") not in READABLE_VERSIONS:
            raise CheckpointError(
                f"{loaded.path} was written by another version of sfactory; play it with the version that wrote it"
            )
        return SavedPolicy(config, loaded.path, loaded.payload)

    @property
    def env_steps(self) -> int:
        """Env steps that the weights were trained on."""
        return int(self.payload["env_steps"])

    @property
    def env_factory(self) -> EnvFactory:
        """Makes the environment that the run was trained on."""
        return EnvFactory.of(self.config.run, self.config.sampling)

    def model(self, spec: EnvSpec) -> ActorCritic:
        """The network on the CPU; raises CheckpointError if an env of ``spec`` is not what it was trained on."""
        model = ActorCritic(spec, self.config.model)
        try:
            model.load_state_dict(self.payload["model"])
        except (RuntimeError, KeyError) as error:
            raise CheckpointError(
                f"{self.checkpoint} does not fit --env={self.config.run.env} as it is now: {error}; put back the "
                "version of the environment that the run was trained on"
            ) from error
        return model.eval()


def _read_run_config(train_dir: Path, experiment: str) -> Config:
    saved = read_config(train_dir / experiment)
    if saved is None:
        raise RunDirError(_no_run(train_dir, experiment))
    for warning in saved.warnings:
        _log.warning("%s", warning)
    config = config_of({**saved.values, "experiment": experiment, "train_dir": str(train_dir)})
    problems = [f"{problem.text} (this value comes from {saved.path})" for problem in find_problems(config)]
    problems += [f"{text} (this value comes from {saved.path})" for text in check_env_name(config.run.env)]
    if problems:
        raise ConfigError(problems)
    return config


def _no_run(train_dir: Path, experiment: str) -> str:
    where = (
        f"{assigned('experiment', experiment)}: there is no such run: {train_dir / experiment / CONFIG_NAME} is missing"
    )
    if not train_dir.is_dir():
        return f"{where}, and so is {train_dir}; say with --train_dir where runs are kept"
    runs = sorted(path.parent.name for path in train_dir.glob(f"*/{CONFIG_NAME}"))
    near = did_you_mean(experiment, runs)
    if near:
        return where + near
    return f"{where}; {train_dir} holds " + (f"the runs {', '.join(runs[:10])}" if runs else "no run at all")


def _policy_dir(run_dir: Path, policy: int | str) -> Path:
    return run_dir / f"checkpoint_p{policy}"


def _check_policy(run_dir: Path, policy: int) -> None:
    """Raise ConfigError if other policies have saved something, and this one has not; of several, tell which it is."""
    found = [path.name.removeprefix("checkpoint_p") for path in run_dir.glob(_policy_dir(run_dir, "*").name)]
    policies = sorted(int(name) for name in found if name.isdecimal())
    several = f"the policies {', '.join(map(str, policies))}"
    if policies and policy not in policies:
        there = several if len(policies) > 1 else f"policy {policies[0]} alone"
        raise ConfigError([f"--policy_index={policy}: {run_dir} holds {there}"])
    if len(policies) > 1:
        _log.info("policy %d of %s (--policy_index chooses)", policy, several)


def _load(directory: CheckpointDir, choice: Choice) -> Loaded:
    if choice.env_steps is not None:
        return directory.load_at(choice.env_steps, None if choice.kind == "latest" else choice.kind)
    loaded = directory.load_to_go_on(choice.kind)
    if loaded is None:
        raise CheckpointError(_no_checkpoint(directory.path, choice.kind))
    return loaded


def _no_checkpoint(directory: Path, kind: Kind) -> str:
    if kind != "latest" and CheckpointDir(directory, 1).load("latest") is not None:
        what, when = _SAVED_BY[kind]
        return (
            f"{directory} holds no {what}: the run has not saved one yet (see train's --{when}); "
            "play its newest with --load_checkpoint_kind=latest"
        )
    return f"{directory} holds no checkpoint: the run has not saved one yet (see train's --save_every_sec)"
