"""Environments for tests and measurements with known behaviour, so that the work of a trainer can be checked.

``counting`` numbers every observation, ``bandit`` is learnable in seconds, ``faulty`` fails on demand,
``costfree`` costs next to nothing per step.
"""
