"""CartPole-v1 is learned by the family's own defaults: the bar that every way of running has to reach.

Policies that are many updates old still teach with V-trace, and mislead without a correction.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from tests.support.hooks import SOLVED
from tests.support.long import long
from tests.support.warm_process import finished

STEPS = 500_000
LIMIT_S = 600.0  # of a training on a busy machine
PLAY_S = 240.0
RING = ["--minibatch_ring_size=2", "--num_batches_to_accumulate=3"]  # the family's own number of passes is 2
FRESH = "--num_batches_to_accumulate=0"  # local inference is ahead of the learner, and old data misleads these
REPLAY = ["--replay_proportion=0.5", "--replay_slots=256"]
WAYS = {
    "V-trace, central inference": ["--inference=central"],
    "V-trace, local inference": ["--inference=local"],
    "GAE, central inference": ["--with_vtrace=False", "--inference=central"],
    "GAE, synchronous": ["--with_vtrace=False", "--async_rl=False"],
    "V-trace, serial": ["--serial_mode=True"],
    "V-trace, GRU": ["--use_rnn=True", "--rnn_size=64"],
    "GAE, LSTM, gradients through 8 steps": [
        *("--with_vtrace=False", "--use_rnn=True", "--rnn_type=lstm", "--rnn_size=64", "--recurrence=8")
    ],
    "V-trace, bf16": ["--amp=bf16", "--inference=local"],
    "V-trace, separate actor and critic": ["--actor_critic_share_weights=False"],
    # The family's own rate is meant for the clipped loss, without which a seed may swing back; smaller batches make as
    # many updates in one pass as others do in two.
    "IMPALA": ["--policy_loss=pg", "--num_epochs=1", "--learning_rate=1e-3", "--batch_size=512", FRESH],
    "IMPACT": ["--use_target_net=True", *RING],
    "IMPACT, one replayed for two new": ["--use_target_net=True", *REPLAY, "--inference=central"],
    "ring of 2, 2 passes": RING,
    "one replayed for two new": REPLAY,
    "microbatches": ["--microbatch_size=256"],
    "RMSprop": ["--optimizer=rmsprop", "--rmsprop_eps=1e-5", "--learning_rate=1e-3"],
}
CASES = [long(flags, seed, id=f"{name}-{seed}") for name, flags in WAYS.items() for seed in (1, 2, 3)]
WITH_MEMORY, WITHOUT = 400.0, 150.0
# Weights are published every 20 updates, so that a step is up to 20 versions old, and more while it waits.
# The family's learning rate is twice this one; with such old steps it makes either of them swing.
OLD = [
    *("--env=CartPole-v1", "--device=cpu", "--publish_interval=20"),
    *("--policy_loss=pg", "--num_epochs=1", "--learning_rate=1e-3"),
]
LEARNED = 400.0  # a random policy holds the pole for about 20 steps


def run_module(module: str, train_dir: Path, *flags: str, within_s: float = LIMIT_S) -> dict[str, object]:
    done = finished(module, "--experiment=cartpole", f"--train_dir={train_dir}", *flags, within_s=within_s)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert isinstance(result, dict)
    return result


def test_cartpole_is_solved_within_200_000_steps(tmp_path: Path) -> None:
    flags = ["--env=CartPole-v1", "--seed=1", "--device=cpu", "--inference=central", "--train_for_env_steps=200000"]
    ends = ["--observers=tests.support.hooks:EndsWhenSolved", "--experiment_summaries_interval=0.5"]

    trained = run_module("sfactory.train", tmp_path, *flags, *ends)

    assert float(str(trained["best_episode_return_mean"])) >= SOLVED


@pytest.mark.parametrize(("flags", "seed"), CASES)
def test_cartpole_is_solved_within_half_a_million_steps(tmp_path: Path, flags: list[str], seed: int) -> None:
    trained = run_module("sfactory.train", tmp_path, "--env=CartPole-v1", f"--seed={seed}", "--device=cpu", *flags)

    # The limit is looked at between datasets, so the last one may go past it by its own 2,048 steps.
    assert trained["status"] == "done"
    assert STEPS <= int(str(trained["env_steps"])) < STEPS + 2048
    assert float(str(trained["best_episode_return_mean"])) >= SOLVED

    played = run_module(
        "sfactory.enjoy",
        tmp_path,
        "--load_checkpoint_kind=best",
        "--eval_deterministic=True",
        "--max_num_episodes=20",
        "--seed=7",
        within_s=PLAY_S,
    )

    assert played["episodes"] == 20
    assert float(str(played["episode_return_mean"])) >= SOLVED


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_without_velocities_it_takes_a_memory_to_balance(tmp_path: Path, seed: int) -> None:
    flags = ["--env=cartpole_without_velocities", f"--seed={seed}", "--device=cpu"]
    limit_s = LIMIT_S / 2  # of each, so that both fit into the limit of a test

    remembers = run_module("sfactory.train", tmp_path / "gru", *flags, within_s=limit_s)
    forgets = run_module("sfactory.train", tmp_path / "mlp", *flags, "--use_rnn=False", within_s=limit_s)

    assert float(str(remembers["best_episode_return_mean"])) >= WITH_MEMORY
    assert float(str(forgets["best_episode_return_mean"])) < WITHOUT


def best_mean(folder: Path, seed: int, *flags: str) -> float:
    """The best mean return over 100 episodes of a run with old policies."""
    result = run_module("sfactory.train", folder, f"--seed={seed}", *OLD, *flags)
    lag = result["policy_lag"]
    assert isinstance(lag, dict)
    assert 20 <= lag["max"] < 40  # of data that waits while the next ones are published, too
    return float(str(result["best_episode_return_mean"]))


@pytest.mark.long
def test_with_an_old_policy_v_trace_learns_where_plain_policy_gradient_is_worse(tmp_path: Path) -> None:
    corrected = [best_mean(tmp_path / f"vtrace_{seed}", seed) for seed in (1, 2, 3)]
    plain = [best_mean(tmp_path / f"plain_{seed}", seed, "--with_vtrace=False") for seed in (1, 2, 3)]

    assert median(corrected) >= LEARNED
    assert median(plain) < min(corrected)
