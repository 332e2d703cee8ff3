"""Environments made for tests and measurements: what they do is known exactly, so what a trainer did can be checked.

``counting`` numbers every observation, ``bandit`` is learnable in seconds, ``faulty`` fails on demand,
``costfree`` costs next to nothing per step.
"""
