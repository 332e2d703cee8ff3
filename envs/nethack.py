"""NetHack by way of the package nle, the NetHack Learning Environment (Kuettler et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .registered import RegisteredFamily

if TYPE_CHECKING:
    import gymnasium

# What the policies of the paper read, and the line of text above the map.
_READ = ("glyphs", "blstats", "message")

# Entropy and a memory of one LSTM as in the paper; its batches were collected by hundreds of actors. At its rate, 2e-4,
# the score was that of random actions after 1.2M steps.
_COMMON: Mapping[str, object] = {
    "num_workers": 2,
    "num_envs_per_worker": 16,
    "worker_num_splits": 2,
    "rollout": 64,
    "batch_size": 1024,
    "num_batches_per_epoch": 2,
    "num_epochs": 2,
    "num_batches_to_accumulate": 0,
    "with_vtrace": False,
    "encoder": "nethack",
    "model_kwargs": {"embedding": 8},  # for CPUs; the paper has 32
    "use_rnn": True,
    "rnn_type": "lstm",
    "rnn_size": 256,
    "normalize_input": False,  # the encoder scales what it reads
    "gamma": 0.999,
    "learning_rate": 1e-3,
    "lr_schedule": "linear_decay",
    "exploration_loss_coeff": 0.001,
    "train_for_env_steps": 100_000_000,
}
_SELDOM_PAID = ("Staircase", "StaircasePet", "Oracle")
# The paper has 0.999 for all. So, at half the rate, the score was 32 after 350k steps; it was 39 with 0.99.
_SHORT_SIGHTED: Mapping[str, object] = {**_COMMON, "gamma": 0.99}
_OFTEN_PAID = ("Score", "Gold", "Eat", "Scout", "Challenge")
_WITHOUT_SEEDS = ("NetHackChallenge-v0",)


@dataclass(frozen=True)
class NetHack(RegisteredFamily):
    """The env family of NetHack's tasks."""

    def make(self, env_name: str, **kwargs: object) -> gymnasium.Env[Any, Any]:
        """The task; ``kwargs``: those of NLE, such as character and observation_keys, and max_episode_steps."""
        import nle  # noqa: F401 - which registers the ids

        from .nethack_env import NetHackEnv

        # The moon of the day would change the luck of all games.
        env = super().make(env_name, **{"observation_keys": _READ, "fix_moon_phase": True, **kwargs})
        has_limit = kwargs.get("max_episode_steps") is not None  # which Gymnasium has set, not nle
        return NetHackEnv(env, has_limit, takes_seeds=env_name not in _WITHOUT_SEEDS)

    def warnings(self, env_name: str) -> Sequence[str]:
        """Says of Challenge that seeds do not decide on its games."""
        if env_name not in _WITHOUT_SEEDS:
            return ()
        return (f"--env={env_name} refuses seeds, so --seed does not repeat its games; NetHackScore-v0 takes them",)


_DEFAULTS = dict.fromkeys(_OFTEN_PAID, _SHORT_SIGHTED) | dict.fromkeys(_SELDOM_PAID, _COMMON)
FAMILY = NetHack(
    "nethack",
    {f"NetHack{task}-v0": flags for task, flags in _DEFAULTS.items()},
    modules=("nle",),
    extra="nethack",
    rows={"NetHackScore-v0": ("nethack",)},
)
