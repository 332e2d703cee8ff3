"""Derives a seed for each place in a run from the run's one seed.

Every source of randomness has a place: its branch and its coordinates. Seeds of different places are independent
(numpy's SeedSequence), those of the same place are the same in every run with the same seed.
"""

from __future__ import annotations

import random
import sys
from enum import IntEnum

import numpy as np

ENV_SEED_BITS = 31  # what env.reset and the seeds of spaces accept everywhere


class Branch(IntEnum):
    """What a seed is for, and the coordinates of its places."""

    ENV = 0  # actor, generation (two parts), env
    ACTING = 1  # actor, generation (two parts), and env while it warms up: actions that an actor draws itself
    INFERENCE = 2  # policy, worker, generation: actions of a policy worker
    LEARNER = 3  # policy: initial weights
    SHUFFLE = 4  # policy, train step: minibatches of the dataset that is begun at that step
    # None: the env of a play; its actions are drawn by the seed itself. Episode, discarded games: after invalid data.
    PLAY = 5
    LIBRARIES = 6  # actor, generation (two parts): what envs draw from random, numpy and torch without asking
    REPLAY = 7  # policy, train step at the start of its learner: which trajectories are replayed
    AUXILIARY = 8  # policy, train step: what an auxiliary loss draws over the dataset that is begun at that step
    EVALUATION = 9  # evaluator, generation, number (0 while its env is made): a play beside training
    ASSIGNMENT = 11  # actor, generation (two parts), split: which policies play its episodes
    AFTER_FAULT = 10  # actor, generation (two parts), attempt, env, count: a reset of an env that had failed
    POPULATION = 12  # policy, turn: what a member of a population draws in that turn
    STICKY_ACTIONS = 14  # none, of the seed of an env: when it takes its last action again
    RANK = 15  # rank: the seed of one of several ranks but the first, in place of the run's
    REMOTE = 16  # generation (two parts), number: the seed of one of several remote actors, in place of the run's
    MATCH = 13  # two policies of a match, side: a play of the one on that side against the other


def seed_at(seed: int, branch: Branch, *place: int, bits: int = 63) -> int:
    """The seed of a place, of that many bits (at most 63)."""
    sequence = np.random.SeedSequence(seed, spawn_key=(int(branch), *place))
    return int(sequence.generate_state(1, np.uint64)[0]) >> (64 - bits)


def seed_libraries(seed: int) -> None:
    """Seed the generators that belong to a whole process: Python's, numpy's and, if it is loaded, torch's.

    A process that is forked inherits their states, and so does every other one, until this is called.
    """
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
