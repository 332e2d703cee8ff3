"""Batches of a vector env are translated to rows and back exactly as those of its envs one by one would be."""

from __future__ import annotations

from typing import Any

import gymnasium.spaces as spaces
import numpy as np
import pytest
from gymnasium.vector.utils import batch_space, iterate

from sfactory.env.conversion import BadObservation, BlockWriter, ObsWriter, action_reader, block_reader
from sfactory.spec import EnvSpec

N = 3
ACTIONS = [
    spaces.Discrete(4),
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([3, 2]),
    spaces.Box(-0.5, 0.5, (2, 2), np.float64),
    spaces.Dict({"move": spaces.Discrete(3, start=1), "push": spaces.Box(0, 1, (2,), np.float32)}),
    spaces.Tuple([spaces.Discrete(2), spaces.Dict({"a": spaces.MultiDiscrete([2, 2])})]),
]
OBSERVATIONS = [
    spaces.Box(-1, 1, (2,), np.float64),
    spaces.Discrete(5),
    spaces.Dict({"image": spaces.Box(0, 255, (4, 4, 1), np.uint8), "goal": spaces.Discrete(3)}),
    spaces.Tuple([spaces.MultiBinary(2), spaces.Box(0, 1, (), np.float32)]),
]


def rows_of(spec: EnvSpec) -> dict[str, Any]:
    return {key: np.zeros((N, *tensor.shape), tensor.dtype) for key, tensor in spec.obs}


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_actions_are_those_that_each_env_alone_would_get(space: spaces.Space[Any]) -> None:
    spec = EnvSpec.of_spaces(spaces.Discrete(2), space)
    rng = np.random.default_rng(1)
    rows = {
        head.key: (2 * rng.standard_normal((N, *head.tensor.shape))).astype(head.tensor.dtype) % 2
        for head in spec.actions
    }

    batch = block_reader(space)(rows)

    batched = batch_space(space, N)
    assert batch in batched
    for one, alone in zip(iterate(batched, batch), action_reader(space)(rows), strict=True):
        np.testing.assert_array_equal(spaces.flatten(space, one), spaces.flatten(space, alone))


def test_actions_are_the_envs_to_keep() -> None:
    rows = {"action": np.arange(N)}

    batch = block_reader(spaces.Discrete(N))(rows)
    rows["action"][:] = 0

    assert batch.tolist() == [0, 1, 2]


@pytest.mark.parametrize("space", OBSERVATIONS, ids=str)
def test_observations_become_the_rows_that_each_env_alone_would_give(space: spaces.Space[Any]) -> None:
    spec = EnvSpec.of_spaces(space, spaces.Discrete(2))
    batched = batch_space(space, N)
    batched.seed(1)
    batch = batched.sample()
    written, due = rows_of(spec), rows_of(spec)

    BlockWriter(spec, space).write(batch, written)
    ObsWriter(spec, space).write(list(iterate(batched, batch)), due)

    for key, row in due.items():
        np.testing.assert_array_equal(written[key], row)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (np.zeros((N, 3), np.float32), r"has shape \(3, 3\).*promise \(3, 2\)"),
        (np.zeros((N - 1, 2), np.float32), r"has shape \(2, 2\)"),
        (np.zeros((N, 2), np.complex64), "dtype complex64"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_with_what_was_due(batch: Any, words: str) -> None:
    space = spaces.Box(-1, 1, (2,), np.float32)
    writer = BlockWriter(EnvSpec.of_spaces(space, spaces.Discrete(2)), space)

    with pytest.raises(BadObservation, match=f"first reset: observation 'obs' .*{words}"):
        writer.check_all(batch, N, "first reset")


@pytest.mark.parametrize("batch", [np.zeros((N, 3), np.float32), np.zeros((N, 2), np.complex64), None, {"a": 1}])
def test_a_batch_that_does_not_fit_is_a_flaw_of_all_envs(batch: Any) -> None:
    space = spaces.Box(-1, 1, (2,), np.float32)
    writer = BlockWriter(EnvSpec.of_spaces(space, spaces.Discrete(2)), space)

    flaws = writer.flaws(batch, N)

    assert {env: flaw.key for env, flaw in flaws.items()} == dict.fromkeys(range(N), "obs")
    with pytest.raises(BadObservation, match="a step: observation 'obs'"):
        writer.write(batch, {"obs": np.zeros((N, 2), np.float32)})


def test_what_is_not_finite_is_a_flaw_of_its_own_env() -> None:
    space = OBSERVATIONS[3]
    writer = BlockWriter(EnvSpec.of_spaces(space, spaces.Discrete(2)), space)
    batch = (np.zeros((N, 2), np.int8), np.array([0.0, np.nan, 1.0], np.float32))

    assert {env: (flaw.key, flaw.text) for env, flaw in writer.flaws(batch, N).items()} == {
        1: ("1", "holds NaN or infinity")
    }
