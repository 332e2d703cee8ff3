"""Every place in a run has a seed of its own, which is the same in every run with the same seed."""

from __future__ import annotations

from itertools import product

import numpy as np

from sfactory.seeds import Branch, seed_at

PLACES = [place for length in range(4) for place in product(range(3), repeat=length)]


def test_branches_and_places_of_two_runs_have_a_seed_each() -> None:
    seeds = {seed_at(seed, branch, *place) for seed in (0, 1) for branch in Branch for place in PLACES}

    # A place followed by zeros is another place: (), (0,) and (0, 0) are three.
    assert len(seeds) == 2 * len(Branch) * len(PLACES)


def test_seeds_are_what_they_were_in_earlier_runs() -> None:
    # A change of these numbers changes what every recorded seed stands for.
    sequence = np.random.SeedSequence(7, spawn_key=(4, 1, 20))

    assert seed_at(7, Branch.SHUFFLE, 1, 20) == int(sequence.generate_state(1, np.uint64)[0]) >> 1
    assert sorted(int(branch) for branch in Branch) == list(range(17))
    assert seed_at(1, Branch.ENV, 0, 0, 0, 0, bits=31) == 654_998_129
    assert seed_at(3, Branch.ENV, 5, bits=31) == seed_at(3, Branch.ENV, 5) >> 32
