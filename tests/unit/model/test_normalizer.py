"""Running statistics equal numpy's over the valid rows, whatever the invalid ones hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfactory.model.flat_state import FlatState
from sfactory.model.normalizer import CLIP, EPS, ObsNormalizer, RunningNormalizer
from sfactory.spec import TensorSpec


def batches(seed: int, shape: tuple[int, ...], mean: float = 3.0, std: float = 2.0) -> list[tuple[Tensor, Tensor]]:
    """Six batches of differing sizes; about a third of the rows invalid, one batch wholly."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for rows in (1, 50, 7, 64, 20, 3):
        x = mean + std * torch.randn(rows, *shape, generator=generator)
        valid = torch.rand(rows, generator=generator) > 0.33
        made.append((x, valid if rows != 20 else torch.zeros_like(valid)))
    return made


def valid_rows(data: list[tuple[Tensor, Tensor]]) -> np.ndarray:
    return torch.cat([x[valid] for x, valid in data]).double().numpy()


def garbage_in_invalid_rows(x: Tensor, valid: Tensor, garbage: float) -> Tensor:
    return x.masked_fill(~valid.view(-1, *[1] * (x.dim() - 1)), garbage)


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
@pytest.mark.parametrize("garbage", [0.0, 1e30, math.nan, math.inf])
def test_statistics_equal_those_of_all_valid_rows(shape: tuple[int, ...], garbage: float) -> None:
    data = batches(0, shape)
    normalizer = RunningNormalizer(shape)

    for x, valid in data:
        normalizer.update(garbage_in_invalid_rows(x, valid, garbage), valid)

    rows = valid_rows(data)
    assert normalizer.count.item() == len(rows)
    np.testing.assert_allclose(normalizer.mean.numpy(), rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(normalizer.var.numpy(), rows.var(0), rtol=1e-12)


def test_statistics_are_right_where_the_mean_dwarfs_the_deviation() -> None:
    """Timestamps: a naive sum of squares would lose every digit of the variance."""
    data = [((x.double() + 1.7e9), valid) for x, valid in batches(1, (3,), 0.0, 1.0)]
    normalizer = RunningNormalizer((3,))

    for x, valid in data:
        normalizer.update(x, valid)

    np.testing.assert_allclose(normalizer.var.numpy(), valid_rows(data).var(0), rtol=1e-6)


@pytest.mark.parametrize("rows", [3, 2000])
def test_images_are_taken_in_as_bytes_block_by_block(rows: int) -> None:
    generator = torch.Generator().manual_seed(2)
    images = torch.randint(0, 256, (rows, 3, 16, 16), dtype=torch.uint8, generator=generator)
    valid = torch.rand(rows, generator=generator) > 0.4
    valid[0] = True
    normalizer = RunningNormalizer((3, 16, 16))

    normalizer.update(images, valid)

    rows_seen = images[valid].double().numpy()
    np.testing.assert_allclose(normalizer.mean.numpy(), rows_seen.mean(0), rtol=1e-12)
    np.testing.assert_allclose(normalizer.var.numpy(), rows_seen.var(0), rtol=1e-9, atol=1e-9)
    expected = (images.double() - normalizer.mean) / (normalizer.var + EPS).sqrt()
    normalized = normalizer(images)
    assert normalized.dtype == torch.float32
    torch.testing.assert_close(normalized, expected.clamp(-CLIP, CLIP).float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("row", [0, 9])
def test_a_batch_with_valid_garbage_changes_nothing(bad: float, row: int) -> None:
    normalizer, everything = RunningNormalizer((2,)), torch.ones(10, dtype=torch.bool)
    x = torch.randn(10, 2)
    poisoned = x.clone()
    poisoned[row, 1] = bad

    normalizer.update(poisoned, everything)
    untouched = {name: value.clone() for name, value in normalizer.state_dict().items()}
    normalizer.update(x, everything)
    normalizer.update(poisoned, everything)

    assert untouched["count"].item() == 0.0
    assert untouched["mean"].tolist() == [0.0, 0.0]
    assert untouched["var"].tolist() == [1.0, 1.0]
    assert normalizer.count.item() == 10.0
    np.testing.assert_allclose(normalizer.mean.numpy(), x.double().numpy().mean(0), rtol=1e-12)


def test_before_the_first_valid_row_values_are_only_clipped() -> None:
    normalizer = RunningNormalizer((2,))
    x = torch.tensor([[1.5, -2.0], [7.0, -100.0]])

    normalizer.update(torch.full((3, 2), math.nan), torch.zeros(3, dtype=torch.bool))

    expected = torch.tensor([[1.5, -2.0], [5.0, -5.0]])
    torch.testing.assert_close(normalizer(x), expected, rtol=1e-5, atol=0.0)
    assert torch.equal(normalizer(x), RunningNormalizer((2,))(x))


def test_normalized_values_have_mean_0_and_deviation_1_and_are_clipped() -> None:
    torch.manual_seed(3)
    x = 40.0 + 7.0 * torch.randn(5000, 3)
    normalizer = RunningNormalizer((3,))
    normalizer.update(x, torch.ones(5000, dtype=torch.bool))

    normalized = normalizer(x)

    assert normalized.mean(0).abs().max() < 1e-4
    assert (normalized.std(0) - 1.0).abs().max() < 1e-3
    assert normalizer(torch.full((1, 3), 1e6)).tolist() == [[CLIP] * 3]
    assert bool(normalizer(torch.full((1, 3), math.nan)).isnan().all())


def test_a_constant_becomes_0() -> None:
    normalizer = RunningNormalizer((1,))

    normalizer.update(torch.full((100, 1), 0.1), torch.ones(100, dtype=torch.bool))

    assert normalizer.var.item() == 0.0
    assert normalizer(torch.full((2, 1), 0.1)).abs().max() < 1e-5


def test_denormalize_undoes_forward_without_a_clip() -> None:
    torch.manual_seed(4)
    returns = -20.0 + 300.0 * torch.randn(64, 16)
    returns[0, 0] = 1e5
    normalizer = RunningNormalizer((), clip=None)
    normalizer.update(returns, torch.ones(64, 16, dtype=torch.bool))

    normalized = normalizer(returns)

    assert normalized.max() > CLIP
    torch.testing.assert_close(normalizer.denormalize(normalized), returns, rtol=1e-5, atol=1e-2)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        RunningNormalizer((3,)).update(torch.zeros(5, 4), torch.ones(5, dtype=torch.bool))
    with pytest.raises(ValueError, match="do not fit"):
        RunningNormalizer((3,)).update(torch.zeros(5, 3), torch.ones(4, dtype=torch.bool))


OBS = (
    ("image", TensorSpec((2, 4, 4), "uint8")),
    ("goal/position.x", TensorSpec((3,), "float32")),
    ("level", TensorSpec((), "int64")),
)


def observations(rows: int) -> dict[str, Tensor]:
    return {
        "image": torch.randint(0, 256, (rows, 2, 4, 4), dtype=torch.uint8),
        "goal/position.x": 5.0 + torch.randn(rows, 3),
        "level": torch.randint(10, 20, (rows,)),
    }


def test_observations_are_normalized_by_key() -> None:
    torch.manual_seed(5)
    normalizer, obs = ObsNormalizer(OBS), observations(200)

    normalizer.update(obs, torch.ones(200, dtype=torch.bool))
    normalized = normalizer(obs)

    assert list(normalized) == ["image", "goal/position.x", "level"]
    for key, leaf in normalized.items():
        assert leaf.dtype == torch.float32
        assert leaf.shape == obs[key].shape
        assert leaf.mean(0).abs().max() < 1e-3


def test_leaves_that_are_not_chosen_pass_as_they_are() -> None:
    normalizer, obs = ObsNormalizer(OBS, ["goal/position.x"]), observations(20)
    kept = obs["goal/position.x"].clone()

    normalizer.update(obs, torch.ones(20, dtype=torch.bool))
    normalized = normalizer(obs)

    assert normalizer.keys == ("goal/position.x",)
    assert normalized["image"] is obs["image"]
    assert normalized["level"] is obs["level"]
    assert normalized["goal/position.x"].mean().abs() < 1e-4
    assert torch.equal(obs["goal/position.x"], kept)


def test_statistics_travel_with_the_weights() -> None:
    torch.manual_seed(6)
    learner, actor = (nn.ModuleList([nn.Linear(2, 2), ObsNormalizer(OBS)]) for _ in range(2))
    published, adopted = FlatState(learner), FlatState(actor)
    obs = observations(100)
    ours, theirs = learner[1], actor[1]
    assert isinstance(ours, ObsNormalizer)
    assert isinstance(theirs, ObsNormalizer)

    ours.update(obs, torch.ones(100, dtype=torch.bool))
    adopted.adopt(published.block)

    assert theirs.normalizers[0].count == 100.0
    for key, leaf in theirs(obs).items():
        assert torch.equal(leaf, ours(obs)[key])
    restored = ObsNormalizer(OBS)
    restored.load_state_dict(ours.state_dict())
    assert torch.equal(restored(obs)["image"], ours(obs)["image"])
