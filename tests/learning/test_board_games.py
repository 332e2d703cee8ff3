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
    # The first version, which plays at random, stays in the pool: what beats weak players is not forgotten.
    *("--opponent_pool=2", "--opponent_snapshot_env_steps=150000", "--opponent_share=0.8"),
)


@pytest.mark.long
def test_random_moves_are_beaten_in_95_of_100_games(tmp_path: Path) -> None:
    common = ("--serial_mode=True", "--device=cpu", "--seed=1", "--train_for_env_steps=300000")
    run_module("sfactory.train", tmp_path, ENV, *common, *FLAGS)

    won, lost = np.transpose([Games(tmp_path, player).shares() for player in range(2)])

    # The most that is possible, by all moves of the game: 99.5 of 100 as first player, 93.9 as second.
    assert won.mean() >= 0.95
    assert max(lost) <= 0.05


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


class Games:
    """All games of a saved policy, which takes its best move, against every legal move of the other player."""

    def __init__(self, train_dir: Path, player: int) -> None:
        saved = SavedPolicy.load(wanted := read_enjoy_line([f"--train_dir={train_dir}", "--experiment=cartpole", ENV]))
        agents: Any = saved.env_factory(wanted).agents()
        spec, self._game = saved.spec_of(agents), agents.env
        self._model, self._writer = saved.model(spec), ObsWriter(spec, agents.observation_space)
        self._rows = {key: np.zeros((1, *leaf.shape), leaf.dtype) for key, leaf in spec.obs}
        self._own = self._game.possible_agents[player]

    def shares(self, moves: tuple[int, ...] = ()) -> np.ndarray:
        """Shares of games that are won and lost from the position after ``moves`` on, if the other moves at random."""
        game = self._game
        game.reset()
        for move in moves:
            game.step(move)
        if any(game.terminations.values()):
            return np.array([game.rewards[self._own] > 0, game.rewards[self._own] < 0], float)
        obs = game.observe(game.agent_selection)
        legal = np.flatnonzero(obs["action_mask"]).tolist()
        if game.agent_selection == self._own:
            legal = [self._best(obs)]
        shares: np.ndarray = np.mean([self.shares((*moves, move)) for move in legal], axis=0)
        return shares

    def _best(self, obs: dict[str, Any]) -> int:
        self._writer.write([obs], self._rows)
        seen = {key: torch.from_numpy(row) for key, row in self._rows.items()}
        with torch.inference_mode():
            action = int(self._model.act(seen, self._model.fresh_state(1), deterministic=True).actions["action"])
        assert obs["action_mask"][action]
        return action
