"""A policy plays against its past versions: whole runs, their matches, and rock, paper, scissors."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sfactory.checkpoint.directory import CheckpointDir
from sfactory.config.flags import config_of
from sfactory.errors import ExitCode
from sfactory.model.actor_critic import ActorCritic
from sfactory.spec import EnvSpec
from tests.support.long import long
from tests.support.trainer import RunTrainer, TrainerRun
from tests.support.warm_process import finished

RPS = "sfactory_envs.synthetic.rock_paper_scissors:RockPaperScissors"
POOL, EVERY = 2, 500
LIMIT_S = 900.0  # of a long training on a busy machine
FLAGS: dict[str, Any] = {
    "env": RPS,
    "encoder_mlp_layers": (8,),
    "num_envs_per_worker": 8,
    "rollout": 10,
    "batch_size": 320,
    "opponent_pool": POOL,
    "opponent_snapshot_env_steps": EVERY,
}


def snapshots(run: TrainerRun) -> list[int]:
    """Env steps of those that were saved."""
    return CheckpointDir(run.run_dir / "checkpoint_p0", 1).env_steps_of("milestone")


@pytest.mark.parametrize("flags", [{"inference": "central"}, long({"inference": "local"}), long({"serial_mode": True})])
def test_opponents_are_saved_rated_and_come_back_when_the_run_is_resumed(
    run_trainer: RunTrainer, flags: dict[str, object]
) -> None:
    run = run_trainer(**FLAGS, **flags, train_for_env_steps=3_000).done()

    assert f"in 50% of episodes the opponents are drawn from the last {POOL} versions of the policy" in run.stderr
    saved = snapshots(run)
    assert saved[0] == 0
    assert len(saved) > POOL + 1
    assert all(later // EVERY > sooner // EVERY for sooner, later in itertools.pairwise(saved))
    table = json.loads((run.run_dir / "matches.json").read_text())
    rated = {row["env_steps"]: row for row in table["opponents"]}
    assert rated.keys() <= set(saved)
    assert sum(row["won"] + row["drawn"] + row["lost"] for row in rated.values()) > 0
    last = run.metrics()[-1]
    assert last["match/rating"] == table["rating"]
    points = [row["match/points"] for row in run.metrics()]
    assert all(share is None or 0.0 <= share <= 1.0 for share in points)
    ages = [last[f"match/opponent_{place}_env_steps"] for place in range(POOL)]
    assert ages == saved[: -POOL - 1 : -1]
    # Each env step has one row of the policy, and where it plays itself a second one.
    assert last["env_steps"] < run.result()["agent_steps"] < 2 * last["env_steps"]

    again = run_trainer(**{**run.flags, "train_for_env_steps": 3_500}).done()

    assert snapshots(again)[: len(saved)] == saved
    resumed = json.loads((run.run_dir / "matches.json").read_text())["opponents"]
    assert [row for row in resumed if row["env_steps"] in saved[: -POOL - 2]] == [
        row for row in table["opponents"] if row["env_steps"] in saved[: -POOL - 2]
    ]
    # A saved one may have its first match only now.
    assert [row["env_steps"] for row in resumed if row["env_steps"] in rated] == sorted(rated)


def match(*words: str) -> tuple[int, dict[str, Any], str]:
    done = finished("sfactory.match", *words)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def test_a_match_rates_the_snapshots_of_a_run_and_refuses_what_cannot_meet(
    run_trainer: RunTrainer, tmp_path: Path
) -> None:
    run = run_trainer(**FLAGS, serial_mode=True, train_for_env_steps=2_000).done()
    where = (f"--train_dir={run.flags['train_dir']}", f"--env={RPS}", "--episodes=6")
    first = snapshots(run)[0]

    code, result, _ = match("run", f"run:0:{first}", "--snapshots=2", *where)

    assert code == ExitCode.DONE
    names = [player["name"] for player in result["players"]]
    # The last of the snapshots is the newest checkpoint.
    assert snapshots(run)[-1] == result["players"][2]["env_steps"]
    assert names == [f"run:0:{first}", f"run:0:{snapshots(run)[-2]}", "run", f"run:0:{first}"]
    assert sum(player["rating"] for player in result["players"]) == pytest.approx(0.0, abs=1.0)
    for i, row in enumerate(result["points"]):
        assert row[i] is None
        for j in set(range(len(row))) - {i}:
            assert row[j] + result["points"][j][i] == pytest.approx(1.0)
    assert match("run", f"run:0:{first}", "--snapshots=2", *where)[1] == result
    for words, refusal in (
        (("absent",), "there is no run 'absent'"),
        (("run", "--episodes=7"), "--episodes=7: must be even"),
    ):
        code, _, stderr = match(*words, *where[: 3 - len(words[1:])])
        assert code == ExitCode.REFUSED
        assert refusal in stderr


def strategies(run: TrainerRun, count: int) -> torch.Tensor:
    """[count, 3] - how often each of the last snapshots chooses rock, paper and scissors."""
    directory, found = CheckpointDir(run.run_dir / "checkpoint_p0", 1), []
    spec = EnvSpec.of_plain(run.payload()["env_spec"])
    model = ActorCritic(spec, config_of({"encoder_mlp_layers": (8,), "normalize_input": False}).model)
    for env_steps in snapshots(run)[-count:]:
        model.load_state_dict(directory.load_at(env_steps, "milestone").payload["model"])
        with torch.no_grad():
            found.append(torch.softmax(model({"obs": torch.ones(1, 1)}).dist_params[0], -1))
    return torch.stack(found)


def distance(strategy: torch.Tensor) -> float:
    """Total variation distance to the uniform strategy: 0 to 2/3."""
    return 0.5 * float((strategy - 1 / 3).abs().sum())


@pytest.mark.long
@pytest.mark.parametrize("seed", [1])
def test_a_pool_finds_the_mixed_strategy_that_play_against_the_newest_self_runs_around(
    run_trainer: RunTrainer, seed: int
) -> None:
    pool, long_run = 20, {**FLAGS, "opponent_pool": 20, "opponent_snapshot_env_steps": 4_000, "seed": seed}
    # In serial mode, to be repeatable, and with a lag of some updates: without it the circles grow more slowly.
    long_run |= {"serial_mode": True, "publish_interval": 4, "inference": None, "normalize_input": False}
    long_run |= {"num_workers": 1, "num_envs_per_worker": 32, "worker_num_splits": 1}
    long_run |= {"learning_rate": 0.03, "exploration_loss_coeff": 0.01, "num_batches_per_epoch": 1, "num_epochs": 1}
    long_run |= {"batch_size": 100, "train_for_env_steps": 160_000, "save_every_sec": 30}
    # With such a share no opponent is ever drawn, but the same snapshots are saved.
    newest = run_trainer(**long_run, experiment="newest", opponent_share=1e-9)
    newest.assert_ended(ExitCode.DONE, LIMIT_S)
    against_pool = run_trainer(**long_run, experiment="pool", opponent_sampling="pfsp")
    against_pool.assert_ended(ExitCode.DONE, LIMIT_S)

    latest_only, mixed = strategies(newest, pool), strategies(against_pool, pool)

    assert distance(mixed.mean(0)) < 0.2
    # Nearly pure strategies are at 0.67.
    assert max(distance(each) for each in latest_only) > 0.6
