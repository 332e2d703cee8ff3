"""What several env families share: a table of names, or names with one beginning, and flags with which they learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sfactory.errors import EnvError

if TYPE_CHECKING:
    import gymnasium

Rows = Mapping[str, tuple[str, ...]]

# PPO with a dataset of 2 x 16 x 64 steps, one round of two actors: what learned most in docs/task_defaults.md.
PPO: Mapping[str, object] = {
    "num_workers": 2,
    "num_envs_per_worker": 16,
    "worker_num_splits": 2,
    "rollout": 64,
    "batch_size": 256,
    "num_batches_per_epoch": 8,
    "num_epochs": 6,
    "num_batches_to_accumulate": 0,
    "with_vtrace": False,
    "shuffle_minibatches": True,
    "learning_rate": 5e-4,
    "ppo_clip_ratio": 0.2,
    "max_grad_norm": 0.5,
}
# With a network this small an update of 1,024 steps takes hardly longer than one of 256.
LARGE_MINIBATCHES: Mapping[str, object] = {
    "encoder_mlp_layers": (64, 64),
    "batch_size": 1024,
    "num_batches_per_epoch": 2,
}


def require_frameskip(env_name: str, env_frameskip: int, argument: str, kwargs: Mapping[str, object]) -> None:
    """Raise EnvError if ``kwargs`` have another frameskip, by the name of ``argument``, than the flag, which counts."""
    if kwargs.get(argument, env_frameskip) != env_frameskip:
        raise EnvError(
            f"--env={env_name}: --env_frameskip={env_frameskip}, but --env_kwargs say {argument}={kwargs[argument]!r}; "
            "--env_frameskip decides, leave the other out"
        )


@dataclass(frozen=True)
class RegisteredFamily:
    """The env family of ``tasks``: flags by name, which is Gymnasium's id unless a subclass makes the environments.

    modules, extra: what the environments need beyond Gymnasium; rows: where they were measured; see EnvFamily.
    """

    name: str
    tasks: Mapping[str, Mapping[str, object]]
    modules: tuple[str, ...] = ()
    extra: str = ""
    rows: Rows = field(default_factory=dict)

    def names(self) -> Sequence[str]:
        """Those of ``tasks``."""
        return tuple(self.tasks)

    def matches(self, env_name: str) -> bool:
        """Whether ``env_name`` is one of them."""
        return env_name in self.tasks

    def make(self, env_name: str, **kwargs: object) -> gymnasium.Env[Any, Any]:
        """The environment as Gymnasium registers it."""
        from sfactory.env.registered import make_gymnasium_env

        return make_gymnasium_env(env_name, **kwargs)

    def defaults(self, env_name: str) -> Mapping[str, object]:
        """Flags with which ``--env=env_name`` alone learns."""
        return self.tasks[env_name]


@dataclass(frozen=True)
class PrefixedFamily:
    """For families with names of ``prefix`` and more, and the same flags for all of them.

    suggested: some names, without the prefix. modules, extra, page: what the environments need; rows: where they were
    measured; see EnvFamily.
    """

    name: str
    prefix: str
    suggested: tuple[str, ...]
    flags: Mapping[str, object] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    extra: str = ""
    page: str = ""
    rows: Rows = field(default_factory=dict)

    def names(self) -> Sequence[str]:
        """Some of them."""
        return tuple(f"{self.prefix}{rest}" for rest in self.suggested)

    def matches(self, env_name: str) -> bool:
        """Whether ``env_name`` begins with the prefix."""
        return env_name.startswith(self.prefix)

    def defaults(self, env_name: str) -> Mapping[str, object]:
        """Flags to begin with, for any of them."""
        return self.flags
