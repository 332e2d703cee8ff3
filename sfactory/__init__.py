"""sfactory: fast, dependable reinforcement learning on one machine."""

__version__ = "0.1.0"
