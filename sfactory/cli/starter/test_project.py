"""Run it with ``pytest``, in this folder."""

import numpy as np
import sfactory
import torch
from gymnasium.utils.env_checker import check_env
from my_encoder import Encoder
from my_env import Catch


def test_the_env_keeps_to_the_interface_of_gymnasium():
    check_env(Catch(), skip_render_check=True)


def test_a_paddle_below_the_ball_is_rewarded():
    env = Catch(rows=5)
    obs, _ = env.reset(seed=1)
    total, ended = 0.0, False
    while not ended:
        ball, paddle = np.argmax(obs[:-1].sum(0)), np.argmax(obs[-1])
        obs, reward, ended, _, _ = env.step(1 + np.sign(ball - paddle))
        total += reward
    assert total == 1.0


def test_the_encoder_has_the_width_that_it_claims():
    encoder = Encoder(Catch().observation_space, size=8)
    assert encoder({"obs": torch.zeros(3, 10, 5)}).shape == (3, encoder.out_size)


def test_a_short_training_runs_to_its_end(tmp_path):
    flags = {"config": "config.yaml", "train_dir": tmp_path, "train_for_env_steps": 2048, "serial_mode": True}
    assert sfactory.run(flags).summary.env_steps >= 2048
