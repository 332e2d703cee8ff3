"""A network of your own: it maps observations to vectors. Heads for actions and values come after it."""

from torch import nn


class Encoder(nn.Module):
    """Two convolutions over the grid, and a linear layer."""

    def __init__(self, observation_space, size=64):
        super().__init__()
        rows, columns = observation_space.shape
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * rows * columns, size),
            nn.ReLU(),
        )
        self.out_size = size

    def forward(self, obs):
        return self.layers(obs["obs"].unsqueeze(1))  # [B, rows, columns] to [B, size]
