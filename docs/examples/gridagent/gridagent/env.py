"""The env ``grid_corridor``, and the family that makes it by name."""

import gymnasium
import numpy as np
from gymnasium import spaces

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left


class Corridor(gymnasium.Env):
    """A corridor with a door up and a door down at its end; a sign at the start says which one is open.

    Observation: ``view``, the 3 x 3 cells around the agent, 1 is floor; ``sign``, 0 unless at the start, 1 up, 2 down.
    Reward: 1 for the open door, -1 for the other one, -0.01 for each step.
    """

    observation_space = spaces.Dict(view=spaces.MultiBinary((3, 3)), sign=spaces.Discrete(3))
    action_space = spaces.Discrete(len(MOVES))

    def __init__(self, length: int = 6) -> None:
        self.floor = np.zeros((5, length + 2), np.int8)
        self.floor[2, 1:-1] = 1
        self.floor[1:4, -2] = 1  # the doors
        self.most_steps = 4 * length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.row, self.column, self.steps = 2, 1, 0
        self.open_row = int(self.np_random.choice((1, 3)))
        return self._observation(), {}

    def step(self, action):
        row, column = self.row + MOVES[action][0], self.column + MOVES[action][1]
        if self.floor[row, column]:
            self.row, self.column = row, column
        self.steps += 1
        at_door, right = self.row != 2, self.row == self.open_row
        reward = -0.01 + (1.0 if right else -1.0 if at_door else 0.0)
        truncated = not at_door and self.steps >= self.most_steps
        info = {"right_door": right} if at_door or truncated else {}
        return self._observation(), reward, at_door, truncated, info

    def _observation(self):
        view = self.floor[self.row - 1 : self.row + 2, self.column - 1 : self.column + 2]
        sign = (1 if self.open_row == 1 else 2) if self.steps == 0 else 0
        return {"view": view.copy(), "sign": sign}


class GridFamily:
    """What sfactory asks about names: see ``sfactory.config.env_families.EnvFamily``."""

    name = "gridagent"

    def names(self):
        return ["grid_corridor"]

    def matches(self, env_name):
        return env_name == "grid_corridor"

    def make(self, env_name, **kwargs):
        return Corridor(**kwargs)

    def defaults(self, env_name):
        """Flags with which training works well."""
        return {
            "use_rnn": True,
            "num_envs_per_worker": 16,
            "rollout": 32,
            "batch_size": 512,
            "num_batches_per_epoch": 2,
            "num_epochs": 4,
            "ppo_clip_ratio": 0.2,
            "learning_rate": 2e-3,
            "gamma": 0.97,
            "exploration_loss_coeff": 0.01,
            "normalize_returns": False,
            "train_for_env_steps": 200_000,
        }


FAMILY = GridFamily()
