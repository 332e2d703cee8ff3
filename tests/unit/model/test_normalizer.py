"""Running statistics equal numpy's over the valid rows; invalid rows have no effect."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfactory.model.flat_state import FlatState
from sfactory.model.normalizer import CLIP, EPS, ObsNormalizer, RunningNormalizer
from sfactory.spec import TensorSpec
from tests.support.parts import observations


def batches(seed: int, shape: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    """Six batches of different sizes; about a third of the rows invalid, one batch completely."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for rows in (1, 50, 7, 64, 20, 3):
        x = 3.0 + 2.0 * torch.randn(rows, *shape, generator=generator)
        valid = torch.rand(rows, generator=generator) > 0.33
        made.append((x, valid if rows != 20 else torch.zeros_like(valid)))
    return made


def everything(rows: int) -> Tensor:
    return torch.ones(rows, dtype=torch.bool)


def valid_rows(data: list[tuple[Tensor, Tensor]]) -> np.ndarray:
    return torch.cat([x[valid] for x, valid in data]).double().numpy()


# Timestamps: a naive sum of squares would lose every digit of their variance.
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
@pytest.mark.parametrize("garbage", [0.0, 1e30, math.nan, math.inf])
@pytest.mark.parametrize(("offset", "rtol"), [(0.0, 1e-12), (1.7e9, 1e-6)], ids=["numbers", "timestamps"])
def test_statistics_equal_those_of_all_valid_rows(
    shape: tuple[int, ...], garbage: float, offset: float, rtol: float
) -> None:
    data = [(x.double() + offset, valid) for x, valid in batches(0, shape)]
    normalizer = RunningNormalizer(shape)

    for x, valid in data:
        normalizer.update(x.masked_fill(~valid.view(-1, *[1] * len(shape)), garbage), valid)

    rows = valid_rows(data)
    assert normalizer.count.item() == len(rows)
    np.testing.assert_allclose(normalizer.mean.numpy(), rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(normalizer.var.numpy(), rows.var(0), rtol=rtol)


@pytest.mark.parametrize("rows", [3, 2000])
def test_images_are_normalized_from_bytes(rows: int) -> None:
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
def test_batch_with_a_valid_number_that_is_not_finite_changes_nothing(bad: float, row: int) -> None:
    normalizer = RunningNormalizer((2,))
    x = torch.rand(10, 2)
    poisoned = x.clone()
    poisoned[row, 1] = bad

    normalizer.update(poisoned, everything(10))
    torch.testing.assert_close(normalizer(x), x, rtol=1e-5, atol=0.0)  # x lies within the clip
    assert normalizer.count.item() == 0.0
    normalizer.update(x, everything(10))
    normalizer.update(poisoned, everything(10))

    assert normalizer.count.item() == 10.0
    np.testing.assert_allclose(normalizer.mean.numpy(), x.double().numpy().mean(0), rtol=1e-12)


def test_normalized_values_have_mean_0_and_deviation_1_and_are_clipped() -> None:
    torch.manual_seed(3)
    x = 40.0 + 7.0 * torch.randn(5000, 3)
    x[:, 2] = 0.1  # a constant becomes 0
    normalizer = RunningNormalizer((3,))
    normalizer.update(x, everything(5000))

    normalized = normalizer(x)

    assert normalizer.var[2] == 0.0
    assert normalized.mean(0).abs().max() < 1e-4
    torch.testing.assert_close(normalized.std(0), torch.tensor([1.0, 1.0, 0.0]), rtol=0.0, atol=1e-3)
    assert normalizer(torch.full((1, 3), 1e6)).tolist() == [[CLIP] * 3]
    assert bool(normalizer(torch.full((1, 3), math.nan)).isnan().all())


def test_denormalize_inverts_forward_without_a_clip() -> None:
    torch.manual_seed(4)
    returns = -20.0 + 300.0 * torch.randn(64, 16)
    returns[0, 0] = 1e5
    normalizer = RunningNormalizer((), clip=None)
    normalizer.update(returns, torch.ones(64, 16, dtype=torch.bool))

    normalized = normalizer(returns)

    assert normalized.max() > CLIP
    torch.testing.assert_close(normalizer.denormalize(normalized), returns, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize(("columns", "rows"), [(4, 5), (3, 4)])
def test_wrong_shapes_are_refused(columns: int, rows: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        RunningNormalizer((3,)).update(torch.zeros(5, columns), everything(rows))


OBS = (
    ("image", TensorSpec((2, 4, 4), "uint8")),
    ("goal/position.x", TensorSpec((3,), "float32")),
    ("level", TensorSpec((), "int64")),
)


@pytest.mark.parametrize("keys", [None, ("goal/position.x",)])
def test_chosen_leaves_are_normalized_and_others_pass_unchanged(keys: tuple[str, ...] | None) -> None:
    torch.manual_seed(5)
    normalizer, obs = ObsNormalizer(OBS, keys), observations(OBS, 200, mean=5.0)
    before = {key: leaf.clone() for key, leaf in obs.items()}

    normalizer.update(obs, everything(200))
    normalized = normalizer(obs)

    assert normalizer.keys == (keys or tuple(obs))
    assert list(normalized) == list(obs)
    for key, leaf in normalized.items():
        assert torch.equal(obs[key], before[key])
        if key in normalizer.keys:
            assert (leaf.dtype, leaf.shape) == (torch.float32, obs[key].shape)
            assert leaf.mean(0).abs().max() < 1e-3
        else:
            assert leaf is obs[key]


def test_statistics_are_published_and_saved_with_the_weights() -> None:
    torch.manual_seed(6)
    ours, theirs = ObsNormalizer(OBS), ObsNormalizer(OBS)
    published, adopted = (FlatState(nn.ModuleList([nn.Linear(2, 2), normalizer])) for normalizer in (ours, theirs))
    obs = observations(OBS, 100)

    ours.update(obs, everything(100))
    adopted.adopt(published.block)

    restored = ObsNormalizer(OBS)
    restored.load_state_dict(ours.state_dict())
    for key, leaf in ours(obs).items():
        assert torch.equal(theirs(obs)[key], leaf)
        assert torch.equal(restored(obs)[key], leaf)
