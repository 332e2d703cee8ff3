"""A bandit of which 90% of the arms are illegal is solved without an illegal pull, in every layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.learning.test_cartpole import LIMIT_S
from tests.support.long import long
from tests.support.warm_process import finished

ARMS = "sfactory_envs.synthetic.masked_arms:MaskedArms"
STRICT = "tests.unit.env.test_action_masks"  # envs that raise on an illegal action
MILLION = "--train_for_env_steps=1000000"
COMMON = (
    *("--device=cpu", "--seed=1", "--max_env_restarts=0"),  # an env that raises fails the run
    *("--encoder_mlp_layers=64", "--gamma=0.5", "--learning_rate=2e-3", "--num_workers=2", "--num_envs_per_worker=64"),
    *("--rollout=10", "--batch_size=1280", "--num_batches_per_epoch=2", "--num_epochs=2"),
)
LAYOUTS = {
    "local": (f"--env={ARMS}", "--inference=local", MILLION),
    "central": (f"--env={ARMS}", "--inference=central", MILLION),
    "serial": (f"--env={ARMS}", "--serial_mode=True", MILLION),
    "masks in infos": (f"--env={ARMS}", '--env_kwargs={"mask": "info"}', MILLION),
    "two at once": (f"--env={ARMS}", '--env_kwargs={"heads": 2}', MILLION),
    "GRU": (f"--env={ARMS}", "--use_rnn=True", "--rnn_size=32", MILLION),
    "vector env": (f"--env={STRICT}:strict_vector", MILLION),
    "agents": (f"--env={STRICT}:Pair", "--train_for_env_steps=500000"),
    "agents in turn": (f"--env={STRICT}:PairInTurn", "--use_rnn=True", "--rnn_size=32", "--train_for_env_steps=500000"),
}
CASES = [long(flags, id=name) for name, flags in LAYOUTS.items()]


@pytest.mark.parametrize(
    "flags", [pytest.param((f"--env={ARMS}", "--train_for_env_steps=6000"), id="short run"), *CASES]
)
def test_no_illegal_arm_is_pulled(tmp_path: Path, flags: tuple[str, ...]) -> None:
    done = finished("sfactory.train", f"--train_dir={tmp_path}", *COMMON, *flags, within_s=LIMIT_S)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert result["episode_extra_stats"]["illegal"] == 0.0
    if MILLION in flags:
        assert float(result["best_episode_return_mean"]) >= 9.5  # of 10 steps
