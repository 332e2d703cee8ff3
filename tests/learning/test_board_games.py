"""Board games, learned by play against oneself and one's past: random moves are beaten, and ratings rise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfactory.config.enjoy import read_enjoy_line
from sfactory.env.conversion import ObsWriter
from sfactory.experiment.saved_policy import SavedPolicy
from tests.learning.test_cartpole import run_module
from tests.support.warm_process import finished

ENV, CONNECT_FOUR = "--env=pettingzoo:classic.tictactoe_v3", "--env=pettingzoo:classic.connect_four_v3"
FLAGS = (
    *("--num_workers=1", "--num_envs_per_worker=64", "--batch_size=4096", "--learning_rate=0.002"),
    "--lr_schedule=linear_decay",
    # The pool holds all versions from the first on, which plays at random: what beats weak players is not forgotten.
    *("--opponent_pool=13", "--opponent_snapshot_env_steps=20000", "--opponent_share=0.8"),
)
GAMES = 1000  # as either player


@pytest.mark.long
def test_random_moves_are_beaten_in_95_of_100_games(tmp_path: Path) -> None:
    common = ("--serial_mode=True", "--device=cpu", "--seed=1", "--train_for_env_steps=250000")
    run_module("sfactory.train", tmp_path, ENV, *common, *FLAGS)

    results = [play(tmp_path, player) for player in range(2)]

    # The most that is possible, by all moves of the game: 99.5 of 100 as first player, 93.9 as second.
    assert sum(won for won, _ in results) / 2 >= 0.95
    assert all(lost <= 0.05 for _, lost in results)


@pytest.mark.long
def test_each_snapshot_of_connect_four_is_better_than_those_before_it(tmp_path: Path) -> None:
    flags = (
        "--serial_mode=True",
        "--device=cpu",
        "--seed=1",
        "--train_for_env_steps=250000",
        "--encoder_mlp_layers=128",
    )
    sizes = ("--num_workers=1", "--num_envs_per_worker=64", "--batch_size=4096", "--learning_rate=0.001")
    pool = ("--opponent_pool=8", "--opponent_snapshot_env_steps=25000")
    run_module("sfactory.train", tmp_path, CONNECT_FOUR, *flags, *sizes, *pool)

    where = (f"--train_dir={tmp_path}", CONNECT_FOUR, "--snapshots=5", "--episodes=60")
    table = json.loads(finished("sfactory.match", "cartpole", *where).stdout)

    ratings = [player["rating"] for player in table["players"]]
    assert len(ratings) == 6
    assert ratings == sorted(ratings)
    assert ratings[-1] - ratings[0] > 400  # ten times the points


def play(train_dir: Path, player: int) -> tuple[float, float]:
    """Shares of games that the saved policy wins and loses as ``player``; asserts that its moves are legal."""
    saved = SavedPolicy.load(wanted := read_enjoy_line([f"--train_dir={train_dir}", "--experiment=cartpole", ENV]))
    agents: Any = saved.env_factory(wanted).agents()
    spec, game, rng = saved.spec_of(agents), agents.env, np.random.default_rng(player)
    model, writer = saved.model(spec), ObsWriter(spec, agents.observation_space)
    rows = {key: np.zeros((1, *leaf.shape), leaf.dtype) for key, leaf in spec.obs}
    own, won, lost = game.possible_agents[player], 0, 0
    for _ in range(GAMES):
        game.reset()
        for agent in game.agent_iter():
            obs, reward, terminated, truncated, _ = game.last()
            if terminated or truncated:
                won += agent == own and reward > 0
                lost += agent == own and reward < 0
                game.step(None)
                continue
            action = int(rng.choice(np.flatnonzero(obs["action_mask"])))
            if agent == own:
                writer.write([obs], rows)
                seen = {key: torch.from_numpy(row) for key, row in rows.items()}
                with torch.inference_mode():
                    action = int(model.act(seen, model.fresh_state(1), deterministic=True).actions["action"])
                assert obs["action_mask"][action]
            game.step(action)
    return won / GAMES, lost / GAMES
