"""Encoders compute in short formats if configured; sensitive parts and stored weights stay float32."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from sfactory.config.flags import config_of
from sfactory.config.schema import ModelConfig, OptimConfig
from sfactory.learner.gradient_step import GradientStep, LossScale, Rates
from sfactory.model import precision
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState, flat_bytes
from sfactory.model.precision import ActingTwin, Amp, attributes_at_hand, compute_dtype, warn_of_emulation
from sfactory.ranks.place import ONE_RANK
from sfactory.runner.first_lines import beside_the_usual
from sfactory.spec import EnvSpec
from tests.support.parts import VECTOR, random_batch, trainer_for

PIXELS = EnvSpec.of_spaces(Box(0, 255, (4, 36, 36), np.uint8), Discrete(3))
SMALL = ModelConfig(
    encoder_conv_architecture="convnet_atari",
    encoder_conv_mlp_layers=(32,),
    encoder_mlp_layers=(16, 16),
    decoder_mlp_layers=(16,),
    obs_scale=255.0,
    normalize_input=False,
    normalize_returns=False,
    rnn_size=8,
)
SHORT = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 3e-2), (torch.float16, 3e-3)])


def images(rows: int = 6) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {"obs": torch.randint(0, 256, (rows, 4, 36, 36), dtype=torch.uint8, generator=generator)}


def model_in(dtype: torch.dtype, spec: EnvSpec = PIXELS, **fields: Any) -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic(spec, dataclasses.replace(SMALL, **fields), dtype)


@pytest.mark.parametrize(
    ("amp", "device", "units", "dtype"),
    [
        ("off", "cpu", True, torch.float32),
        ("bf16", "cpu", False, torch.bfloat16),
        ("fp16", "cpu", False, torch.float16),
        ("auto", "cpu", True, torch.bfloat16),
        ("auto", "cpu", False, torch.float32),
        ("auto", "cuda", True, torch.bfloat16),
        ("auto", "cuda", False, torch.float32),
    ],
)
def test_auto_is_bfloat16_on_devices_with_units_for_it(
    amp: Amp, device: str, units: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "cpu_has_bf16", lambda: units)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0) if units else (7, 5))

    assert compute_dtype(amp, torch.device(device)) is dtype


@pytest.mark.parametrize(
    ("fields", "units", "warned"),
    [
        ({"amp": "off"}, False, 0),
        ({"amp": "bf16"}, True, 0),
        ({"amp": "bf16"}, False, 1),
        ({"amp": "bf16", "model": "my_parts:Model"}, False, 0),
        ({"amp": "bf16", "encoder": "my_parts:Encoder"}, False, 0),
        ({"amp": "bf16", "encoder": "my_parts:Encoder", "decoder_mlp_layers": (8,)}, False, 1),
    ],
)
def test_emulated_format_is_a_warning(
    fields: dict[str, Any],
    units: bool,
    warned: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(precision, "cpu_has_bf16", lambda: units)

    warn_of_emulation(ModelConfig(**fields), "cpu")

    assert caplog.text.count("--amp=bf16: this processor emulates") == warned


@pytest.mark.parametrize(("part", "said"), [("model", 1), ("encoder", 1), ("decoder", 1), ("core", 0)])
def test_a_format_is_said_to_be_for_built_in_layers_if_there_are_networks_of_the_users_own(
    part: str, said: int
) -> None:
    config = config_of({"env": "CartPole-v1", part: "my_parts:Own", "amp": "bf16"})

    sentences = list(beside_the_usual(config, ONE_RANK))

    assert sum("--amp=bf16 is for built-in layers" in sentence for sentence in sentences) == said


@SHORT
@pytest.mark.parametrize("use_rnn", [False, True])
@pytest.mark.parametrize("architecture", ["convnet_atari", "resnet_impala"])
def test_outputs_and_gradients_are_float32_and_near_those_of_float32(
    dtype: torch.dtype, tolerance: float, use_rnn: bool, architecture: str
) -> None:
    fields: dict[str, Any] = {"use_rnn": use_rnn, "encoder_conv_architecture": architecture}
    exact, short = model_in(torch.float32, **fields), model_in(dtype, **fields)

    expected, output = exact(images()), short(images())
    for result in (expected, output):
        result.value.square().sum().backward()

    assert {tensor.dtype for tensor in output} == {torch.float32}
    torch.testing.assert_close(output.value, expected.value, rtol=tolerance, atol=tolerance)
    assert not torch.equal(output.value, expected.value)  # otherwise nothing was computed in the format
    assert flat_bytes(short) == flat_bytes(exact)
    for mine, theirs in zip(short.tower.parameters(), exact.tower.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert mine.dtype is mine.grad.dtype is torch.float32
        assert (mine.grad - theirs.grad).norm() <= 10 * tolerance * theirs.grad.norm()


def test_plain_numbers_differ_beyond_the_precision_of_the_format() -> None:
    model = model_in(torch.bfloat16, VECTOR)
    near = torch.tensor([[100.0, 0.0, 0.0], [100.25, 0.0, 0.0]])  # the same number in bfloat16
    assert near[0, 0].bfloat16() == near[1, 0].bfloat16()

    values = model({"obs": near}).value

    assert values[0] != values[1]


def test_images_of_large_numbers_are_scaled_before_they_are_cast() -> None:
    deep = EnvSpec.of_spaces(Box(0, 65535, (1, 36, 36), np.uint16), Discrete(3))
    exact, short = (model_in(dtype, deep, obs_scale=65535.0) for dtype in (torch.float32, torch.float16))
    depth = {"obs": torch.linspace(0, 65535, 2 * 36 * 36).view(2, 1, 36, 36).to(torch.uint16)}

    torch.testing.assert_close(short(depth).value, exact(depth).value, rtol=1e-2, atol=1e-2)


@SHORT
def test_twin_acts_as_its_model_after_each_refresh(dtype: torch.dtype, tolerance: float) -> None:
    model = model_in(dtype)
    FlatState(model)  # as in ActingPolicy: weights become views of one block
    twin = ActingTwin(model)

    def difference() -> float:
        with torch.inference_mode():
            return float((twin.model(images()).value - model(images()).value).abs().max())

    assert difference() < tolerance

    with torch.no_grad():
        for parameter in model.tower.parameters():
            parameter.add_(0.05)

    assert difference() > 10 * tolerance
    twin.refresh()
    assert difference() < 10 * tolerance * float(model(images()).value.detach().abs().max())
    assert {parameter.dtype for parameter in twin.model.tower.encoder.parameters()} == {dtype}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_update_has_the_gradient_of_float32_whatever_scales_the_loss(dtype: torch.dtype) -> None:
    norms = {}
    for computed_in in (torch.float32, dtype):
        model = model_in(computed_in, VECTOR, nonlinearity="tanh")
        trainer = trainer_for(model, optim=OptimConfig(learning_rate=1e-3))
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        trainer.train(random_batch(model))
        norms[computed_in] = trainer.statistics()["grad_norm"]
        assert (trainer.train_step, trainer.stats.skipped) == (1, 0)
        assert any(not torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())

    assert norms[dtype] == pytest.approx(norms[torch.float32], rel=5e-2)


def test_loss_scale_halves_down_to_one_and_grows_again() -> None:
    scale, one = LossScale(torch.device("cpu")), torch.tensor(1.0)
    bad, good = torch.tensor(False), torch.tensor(True)

    excused = [bool(scale.after(bad)) for _ in range(12)]

    # 1,024 can be halved ten times; after that the format is not the cause.
    assert excused == [True] * 10 + [False] * 2
    assert float(scale.scaled(one)) == 1.0
    assert not any(bool(scale.after(good)) for _ in range(2000))
    assert float(scale.scaled(one)) == 2.0


def test_loss_scale_is_resumed() -> None:
    before, after, exact = (
        GradientStep(model_in(dtype), OptimConfig()) for dtype in (torch.float16, torch.float16, torch.float32)
    )
    before.backward(before.optimizer.parameters[0].sum() * torch.inf)
    assert bool(before.step(Rates(1e-3), torch.tensor(True)).excused)

    after.load(before.state())
    exact.load(before.state())  # another precision has none

    assert float(after.state()["loss_scale"]["scale"]) == 512.0  # half of the first
    assert int(after.state()["loss_scale"]["good"]) == 0
    assert "loss_scale" not in exact.state()


def test_plain_attributes_keep_names_and_follow_new_values() -> None:
    model, other = (model_in(torch.float32, VECTOR, normalize_input=True) for _ in range(2))
    names, obs = list(model.state_dict()), {"obs": torch.randn(4, 3)}
    attributes_at_hand(model)

    for mine, theirs in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        mine.add_(0.1)
        theirs.add_(0.1)

    assert torch.equal(model(obs).value, other(obs).value)
    assert list(model.state_dict()) == names
    assert {"weight", "bias"} <= set(model.value_head.linear.__dict__)
