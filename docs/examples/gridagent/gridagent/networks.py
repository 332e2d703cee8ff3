"""The encoder ``grid_view`` and the core ``grid_memory``."""

import torch
from torch import nn


class GridView(nn.Module):
    """One layer over the view and the sign: [B, size]."""

    def __init__(self, observation_space, size=32):
        super().__init__()
        self.view = nn.Linear(9, size)
        self.sign = nn.Embedding(int(observation_space["sign"].n), size)
        self.out_size = size

    def forward(self, obs):
        return torch.relu(self.view(obs["view"].flatten(1).float()) + self.sign(obs["sign"].long()))


class GatedMemory(nn.Module):
    """Each number of the memory keeps its value or takes a new one, as a gate says: m' = g m + (1 - g) w."""

    def __init__(self, in_size, size=32):
        super().__init__()
        self.gate, self.write = nn.Linear(in_size, size), nn.Linear(in_size, size)
        nn.init.constant_(self.gate.bias, 2.0)  # keeps most at first
        self.out_size, self.state_size = in_size + size, size

    def step(self, x, state):
        """[B, in_size], [B, size] -> [B, out_size], [B, size]"""
        gate = torch.sigmoid(self.gate(x))
        state = gate * state + (1 - gate) * torch.tanh(self.write(x))
        return torch.cat((x, state), dim=-1), state

    def sequence(self, x, state, is_first, held=None):
        """The same over T steps; ``is_first`` starts a memory of zeros, ``held`` keeps it as it is."""
        outputs = []
        for t in range(len(x)):
            state = torch.where(is_first[t].unsqueeze(-1), 0.0, state)
            output, after = self.step(x[t], state)
            state = after if held is None else torch.where(held[t].unsqueeze(-1), state, after)
            outputs.append(output)
        return torch.stack(outputs), state
