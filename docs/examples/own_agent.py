import gymnasium as gym
from torch import nn

import sfactory


class Echo(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.shown = self.np_random.integers(4)
        return self.shown, {}

    def step(self, action):
        return self.shown, float(action == self.shown), True, False, {}


class Encoder(nn.Embedding):
    out_size = 16

    def __init__(self, observation_space):
        super().__init__(observation_space.n, self.out_size)

    def forward(self, obs):
        return super().forward(obs["obs"])


if __name__ == "__main__":
    path = sfactory.train(env=Echo, encoder=Encoder, train_for_env_steps=50_000).run_dir
    print(sfactory.evaluate(path, trust_run_dir=True).mean, sfactory.load(path, trust_run_dir=True).act(2)[0])
