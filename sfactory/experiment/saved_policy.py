"""Loads a policy that a run saved.

Loading only reads and takes no lock, so a run that is still training can be looked at.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sfactory.checkpoint.directory import CheckpointDir, Kind, Loaded
from sfactory.checkpoint.file import Unusable, read
from sfactory.config.commands import PolicyFlags
from sfactory.config.env_names import env_name_of
from sfactory.config.flags import all_flags, assigned, config_of, did_you_mean, values_of
from sfactory.config.saved_config import CONFIG_NAME, checkpoint_folder, list_of_runs, read_config, runs_in
from sfactory.config.schema import Config
from sfactory.config.trust import NETWORKS, untrusted
from sfactory.config.validation import check_env_name, find_problems
from sfactory.env.factory import EnvFactory
from sfactory.env.multi_agent import AgentsEnv
from sfactory.errors import CheckpointError, ConfigError, RunDirError, clean, named
from sfactory.learner.checkpointing import SavedState
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.custom import own_parts
from sfactory.model.torch_state import OwnTorchState
from sfactory.spec import EnvSpec
from sfactory.tensor_spec import other_places

if TYPE_CHECKING:
    from sfactory.env.factory import Env

# How a kind of checkpoint is called, and the flag of train that decides when it is saved.
_SAVED_BY: Mapping[Kind, tuple[str, str]] = {
    "best": ("best checkpoint", "save_best_after"),
    "milestone": ("milestone", "save_milestones_sec"),
}


class Typed(NamedTuple):
    """What the user types, for errors: for a run ("": its flag), for a policy of it, and for a kind of checkpoint."""

    run: str = ""
    policy: Callable[[int], str] = "--policy_index={}".format
    kind: Callable[[Kind], str] = "--load_checkpoint_kind={}".format


_FLAGS = Typed()

ENV_FLAGS = ("env_frameskip", "info_action_mask")  # flags of sampling that make the env what it is
AGENT_FLAGS = ("num_policies", "policy_mapping")  # flags of the population that say who plays whom
_PLACE = ("experiment", "train_dir")
_SHOWN = 5  # properties in which another env differs

_log = logging.getLogger(__name__)


def checkpoints_of(wanted: PolicyFlags) -> dict[int, Kind]:
    """The env steps of every checkpoint of the policy, each with a kind that it is saved as."""
    directory = CheckpointDir(checkpoint_folder(Path(wanted.train_dir) / wanted.experiment, wanted.policy_index), 1)
    kinds: tuple[Kind, ...] = ("latest", "milestone", "best")
    return {steps: kind for kind in kinds for steps in directory.env_steps_of(kind)}


@dataclass(frozen=True)
class SavedPolicy:
    """A run's config and one of its checkpoints, or what a file of ``sfactory.export`` has of both.

    named_in: the file that names the env and the networks. wanted: the flags that it was loaded with.
    """

    config: Config
    checkpoint: Path
    state: SavedState
    named_in: Path
    wanted: PolicyFlags

    @staticmethod
    def load(wanted: PolicyFlags, is_partner: bool = False, typed: Typed = _FLAGS) -> SavedPolicy:
        """Read the checkpoint that the flags name; with ``checkpoint_env_steps`` the kind "latest" stands for any kind.

        is_partner: it plays beside the policy that was chosen, and no line says which one it is. typed: if not flags.
        Raises RunDirError without such a run, ConfigError for a damaged config.json or without such a policy, and
        CheckpointError without such a checkpoint that can be loaded.
        """
        run_dir = Path(wanted.train_dir) / wanted.experiment
        config = _read_run_config(Path(wanted.train_dir), wanted.experiment, typed.run)
        require_trusted_networks(config, run_dir / CONFIG_NAME, wanted.trust_run_dir)
        _check_policy(run_dir, wanted.policy_index, is_partner, typed)
        folder = checkpoint_folder(run_dir, wanted.policy_index)
        directory = CheckpointDir(folder, config.checkpoint.keep_checkpoints, typed.kind)
        loaded = _load(directory, wanted.load_checkpoint_kind, wanted.checkpoint_env_steps, typed)
        state = SavedState.of(loaded.payload, loaded.path)
        return SavedPolicy(config, loaded.path, state, run_dir / CONFIG_NAME, wanted)._of_actor()

    @staticmethod
    def load_all(wanted: PolicyFlags) -> Iterator[SavedPolicy]:
        """Every checkpoint of the policy, one of each env step, oldest first, one in memory at a time.

        Damaged ones are skipped with a warning. Otherwise raises as ``load``.
        """
        found = checkpoints_of(wanted)
        if not found:
            yield SavedPolicy.load(wanted)
        for steps, kind in sorted(found.items()):
            try:
                saved = SavedPolicy.load(
                    dataclasses.replace(wanted, load_checkpoint_kind=kind, checkpoint_env_steps=steps)
                )
            except CheckpointError as error:
                _log.warning("%s", error)
                continue
            yield saved

    @staticmethod
    def of_file(path: Path, trust_run_dir: bool) -> SavedPolicy:
        """Read one checkpoint, in the folder of its run. Raises as ``load``."""
        run_dir = next((folder for folder in path.absolute().parents[:3] if (folder / CONFIG_NAME).exists()), None)
        if run_dir is None:
            raise RunDirError(
                f"{path}: there is no {CONFIG_NAME} of its run in the folders above: leave it in that of the run, "
                "or take along a safetensors file of python -m sfactory.export, which needs no other"
            )
        config = _read_run_config(run_dir.parent, run_dir.name)
        require_trusted_networks(config, run_dir / CONFIG_NAME, trust_run_dir)
        try:
            payload = read(path)
        except Unusable as error:
            raise CheckpointError(f"{path} cannot be used: {clean(str(error))}") from error
        number = path.absolute().relative_to(run_dir.absolute()).parts[0].removeprefix("checkpoint_p")
        policy = int(number) if number.isdecimal() else 0
        state = SavedState.of(payload, path)
        wanted = PolicyFlags(
            *(run_dir.name, str(run_dir.parent)),
            checkpoint_env_steps=state.env_steps,
            policy_index=policy,
            trust_run_dir=trust_run_dir,
        )
        return SavedPolicy(config, path, state, run_dir / CONFIG_NAME, wanted)._of_actor()

    def _of_actor(self) -> SavedPolicy:
        """The actor alone if the critic has observations of its own, which need not be there; its value is 0."""
        config, spec = self.config.model, self.state.spec
        if not config.critic_only or spec is None:
            return self
        spec = spec.of_actor()
        keys = tuple(path for path in config.normalize_input_keys if path in dict(spec.obs))
        of_env = {path: leaf.layout for path, leaf in spec.obs if not leaf.is_core_input}
        config = dataclasses.replace(
            config,
            obs_keys=tuple(of_env),
            ignore_obs_keys=(),
            critic_obs_keys=(),
            actor_obs_keys=(),
            obs_layout=tuple(f"{path}={layout}" for path, layout in of_env.items() if layout != "present"),
            normalize_input=config.normalize_input and bool(keys or not config.normalize_input_keys),
            normalize_input_keys=keys,
            actor_critic_share_weights=True,
        )
        with OwnTorchState():
            own = ActorCritic(spec, config).state_dict()
        value = {name: weight for name, weight in own.items() if name.startswith("value_head.")}
        for name in ("value_head.linear.weight", "value_head.linear.bias"):
            value[name].zero_()
        weights = {name: weight for name, weight in self.state.model.items() if name in own} | value
        state = dataclasses.replace(self.state, model=weights, spec=spec)
        return dataclasses.replace(self, config=dataclasses.replace(self.config, model=config), state=state)

    def env_factory(self, wanted: PolicyFlags) -> EnvFactory:
        """Makes the run's env, or another one that ``wanted`` names, without the run's env_kwargs, see ``spec_of``.

        Raises ConfigError if it is unknown, or if it is code that only config.json names.
        """
        path, is_other = self.named_in, self._is_other(wanted.env)
        factory = dataclasses.replace(EnvFactory.of(self.config), env_steps=self.state.env_steps)
        origin = f" (this value comes from {path})"
        if is_other:
            if self.state.spec is None:  # of an older version: nothing to compare spaces with
                require_same_env(self.config, wanted.env)
            factory, origin = dataclasses.replace(factory, name=env_name_of(wanted.env), kwargs={}), ""
        problems = [f"{text}{origin}" for text in check_env_name(factory.name)]
        if not wanted.trust_run_dir:
            of_env = {"env", "env_kwargs"} if not wanted.env else set() if is_other else {"env_kwargs"}
            problems += untrusted(values_of(self.config), dict.fromkeys({*of_env, "wrapper"}, path), known=("env",))
        if problems:
            raise ConfigError(problems)
        if is_other:
            trained, alone = assigned("env", self.config.run.env), "in the run's wrappers without its --env_kwargs"
            text = "%s is played, if its spaces are equal, %s: the policy was trained with %s"
            _log.warning(text, assigned("env", wanted.env), alone, trained)
        return factory

    def spec_of(self, env: Env | AgentsEnv, name: str = "", says: bool = True) -> EnvSpec:
        """The spec of an env that the policy acts in; name: of the env, if it may be another than the run's. says: log
        a warning if the run's env has other observations now.

        Raises ConfigError, which names what differs, if another env has other spaces than the run's.
        """
        spaces = env.observation_space, env.action_space
        spec = env.spec if isinstance(env, AgentsEnv) else EnvSpec.of_spaces(*spaces)
        spec, trained = spec.for_model(self.config.model), self.state.spec
        if trained is None:
            return spec
        own = spec.part(trained.part_of)
        if self._is_other(name):
            require_same_env(self.config, name, own.differences(trained))
        elif says and (text := other_places(self.checkpoint, trained.obs, own.obs)):
            _log.warning("%s", text)
        return spec

    def _is_other(self, env: str) -> bool:
        return bool(env) and env_name_of(env) != env_name_of(self.config.run.env)

    def model(self, spec: EnvSpec) -> ActorCritic:
        """The network on the CPU, for an env of ``spec``.

        Raises ConfigError if its code cannot be used, and CheckpointError if the weights do not fit.
        """
        try:
            with OwnTorchState():
                model = ActorCritic(spec, self.config.model)
                model.load_state_dict(self.state.model)
        except ConfigError as error:
            needed = f"{self.named_in} names code that is needed as it was in training"
            raise ConfigError([f"{needed}: {problem}" for problem in error.problems]) from error
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            code = {"env": self.config.run.env, **own_parts(self.config.model)}
            named_code = " or ".join(assigned(flag, name) for flag, name in code.items())
            raise CheckpointError(
                f"{self.checkpoint} does not fit {named_code} as it is now: {named(error)}; restore the version that "
                "the run was trained with"
            ) from error
        return model.eval()


def require_same_env(config: Config, given: str, differing: Sequence[str] | None = None) -> None:
    """Raise ConfigError if ``given``, unless it is empty, is another env than that of the run.

    differing: in what their spaces differ, if these are known; an env that differs in nothing is as good.
    """
    if given and env_name_of(given) != env_name_of(config.run.env) and differing != []:
        trained = f"{assigned('env', given)}: the policy was trained with {assigned('env', config.run.env)}"
        more = f"; and {len(differing) - _SHOWN} more" if differing and len(differing) > _SHOWN else ""
        what = f", which differs: {'; '.join(differing[:_SHOWN])}{more}" if differing else ""
        raise ConfigError([f"{trained}{what}; leave --env out, or repeat the one of the run"])


def require_valid(config: Config, path: Path) -> None:
    """Raise ConfigError if a value in ``config``, all of which come from ``path``, is wrong for a policy that plays.

    Rules of training are left out: they may depend on the machine, such as on a package of the optimizer, and the file
    of an export does not have the sizes of its run.
    """
    sections = {name for name, flag in all_flags().items() if flag.section in ("wrappers", "model")}
    problems = find_problems(config, within={"env", "env_kwargs", *ENV_FLAGS, *AGENT_FLAGS, *_PLACE, *sections})
    if found := [f"{problem.text} (this value comes from {path})" for problem in problems]:
        raise ConfigError(found)


def require_trusted_networks(config: Config, path: Path, trust_run_dir: bool) -> None:
    """Raise ConfigError if networks are code that only the file ``path`` names."""
    if not trust_run_dir and (problems := untrusted(values_of(config), dict.fromkeys(NETWORKS, path), ())):
        raise ConfigError(problems)


def _read_run_config(train_dir: Path, experiment: str, typed: str = "") -> Config:
    saved = read_config(train_dir / experiment)
    if saved is None:
        raise RunDirError(_no_run(train_dir, experiment, typed or assigned("experiment", experiment)))
    for warning in saved.warnings:
        _log.warning("%s", warning)
    config = config_of({**saved.values, "experiment": experiment, "train_dir": str(train_dir)})
    require_valid(config, saved.path)
    return config


def _no_run(train_dir: Path, experiment: str, typed: str) -> str:
    missing = train_dir / experiment / CONFIG_NAME
    where = f"{typed}: there is no such run: {missing} is missing"
    if not train_dir.is_dir():
        return f"{where}, and so is {train_dir}; say with --train_dir where runs are kept"
    return where + (did_you_mean(experiment, runs_in(train_dir)) or f"; {list_of_runs(train_dir)}")


def _check_policy(run_dir: Path, policy: int, is_partner: bool, typed: Typed) -> None:
    """Raise ConfigError if only other policies have saved something; log which of several it is."""
    numbers = [path.name.removeprefix("checkpoint_p") for path in run_dir.glob("checkpoint_p*")]
    policies = sorted(int(number) for number in numbers if number.isdecimal())
    several = f"the policies {', '.join(map(str, policies))}"
    if policies and policy not in policies:
        there = several if len(policies) > 1 else f"policy {policies[0]} alone"
        raise ConfigError([f"{typed.policy(policy)}: {run_dir} holds {there}"])
    if len(policies) > 1 and not is_partner:
        other = next(each for each in policies if each != policy)
        _log.info("policy %d of %s (another one: %s)", policy, several, typed.policy(other))


def _load(directory: CheckpointDir, kind: Kind, env_steps: int | None, typed: Typed) -> Loaded:
    if env_steps is not None:
        return directory.load_at(env_steps, None if kind == "latest" else kind)
    loaded = directory.load_to_resume(kind)
    if loaded is None:
        what, when = _SAVED_BY.get(kind, ("checkpoint", "save_every_sec"))
        advice = ""
        if kind != "latest" and directory.load("latest") is not None:
            advice = f"; for its newest: {typed.kind('latest')}"
        raise CheckpointError(
            f"{directory.path} holds no {what}: the run has not saved one yet (see train's --{when}){advice}"
        )
    return loaded
