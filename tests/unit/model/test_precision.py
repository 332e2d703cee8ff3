"""Encoders compute in short formats where that is chosen; what is sensitive, and what is kept, stays float32."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from sfactory.config.schema import AlgoConfig, LearnerConfig, ModelConfig, OptimConfig
from sfactory.learner.gradient_step import GradientStep, LossScale, Rates
from sfactory.model import precision
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.encoders import ConvEncoder
from sfactory.model.flat_state import FlatState, flat_bytes
from sfactory.model.precision import ActingTwin, Amp, compute_dtype, warn_of_emulation
from sfactory.spec import EnvSpec
from tests.support.parts import random_batch, trainer_for

CPU = torch.device("cpu")
PIXELS = EnvSpec.of_spaces(Box(0, 255, (4, 36, 36), np.uint8), Discrete(3))
NUMBERS = EnvSpec.of_spaces(Box(-np.inf, np.inf, (3,), np.float32), Discrete(3))
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


def model_in(dtype: torch.dtype, spec: EnvSpec = PIXELS, config: ModelConfig = SMALL) -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic(spec, config, dtype)


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
def test_auto_is_bfloat16_where_the_device_has_units_for_it(
    amp: Amp, device: str, units: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "cpu_has_bf16", lambda: units)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0) if units else (7, 5))

    assert compute_dtype(amp, torch.device(device)) is dtype


@pytest.mark.parametrize(("amp", "units", "warned"), [("off", False, 0), ("bf16", True, 0), ("bf16", False, 1)])
def test_a_format_that_the_processor_only_emulates_is_warned_of(
    amp: Amp, units: bool, warned: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(precision, "cpu_has_bf16", lambda: units)

    warn_of_emulation(amp, "cpu")

    assert caplog.text.count("--amp=bf16: this processor emulates") == warned


@SHORT
@pytest.mark.parametrize("use_rnn", [False, True])
@pytest.mark.parametrize("architecture", ["convnet_atari", "resnet_impala"])
def test_outputs_are_float32_and_near_those_of_float32(
    dtype: torch.dtype, tolerance: float, use_rnn: bool, architecture: str
) -> None:
    config = dataclasses.replace(SMALL, use_rnn=use_rnn, encoder_conv_architecture=architecture)  # type: ignore[arg-type]
    exact, short = model_in(torch.float32, config=config), model_in(dtype, config=config)

    expected, output = exact(images()), short(images())

    assert {tensor.dtype for tensor in output} == {torch.float32}
    torch.testing.assert_close(output.value, expected.value, rtol=tolerance, atol=tolerance)
    assert not torch.equal(output.value, expected.value)  # or nothing was computed in it


@SHORT
def test_weights_and_their_gradients_stay_float32(dtype: torch.dtype, tolerance: float) -> None:
    exact, short = model_in(torch.float32), model_in(dtype)

    for model in (exact, short):
        model(images()).value.square().sum().backward()

    for mine, theirs in zip(short.tower.parameters(), exact.tower.parameters(), strict=True):
        assert mine.dtype is torch.float32
        assert mine.grad is not None
        assert theirs.grad is not None
        assert mine.grad.dtype is torch.float32
        error = (mine.grad - theirs.grad).norm() / theirs.grad.norm()
        assert error < 3 * tolerance
    assert flat_bytes(short) == flat_bytes(exact)


def test_plain_numbers_are_told_apart_beyond_the_precision_of_the_format() -> None:
    model = model_in(torch.bfloat16, NUMBERS)
    near = torch.tensor([[100.0, 0.0, 0.0], [100.25, 0.0, 0.0]])  # the same number in bfloat16
    assert near[0, 0].bfloat16() == near[1, 0].bfloat16()

    values = model({"obs": near}).value

    assert values[0] != values[1]


@SHORT
def test_a_twin_acts_as_its_model_with_weights_cast_once(dtype: torch.dtype, tolerance: float) -> None:
    model = model_in(dtype)
    FlatState(model)  # as in ActingPolicy: weights become views of one block
    twin = ActingTwin(model)

    def differ() -> float:
        with torch.inference_mode():
            return float((twin.model(images()).value - model(images()).value).abs().max())

    assert differ() < tolerance

    with torch.no_grad():
        for parameter in model.tower.parameters():
            parameter.add_(0.05)

    assert differ() > 10 * tolerance
    twin.refresh()
    assert differ() < 10 * tolerance * float(model(images()).value.detach().abs().max())
    encoder = twin.model.tower.encoder
    assert isinstance(encoder, ConvEncoder)
    assert {parameter.dtype for parameter in encoder.parameters()} == {dtype}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_update_has_the_gradient_of_float32_whatever_the_loss_was_scaled_by(dtype: torch.dtype) -> None:
    norms = {}
    for computed_in in (torch.float32, dtype):
        torch.manual_seed(0)
        model = ActorCritic(
            EnvSpec.of_spaces(Box(-1, 1, (3,), np.float32), Discrete(3)),
            dataclasses.replace(SMALL, nonlinearity="tanh"),
            computed_in,
        )
        trainer = trainer_for(model, AlgoConfig(), OptimConfig(learning_rate=1e-3), LearnerConfig())
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        trainer.train(random_batch(model))
        norms[computed_in] = trainer.statistics()["grad_norm"]
        assert (trainer.train_step, trainer.stats.skipped) == (1, 0)
        assert any(not torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())

    assert norms[dtype] == pytest.approx(norms[torch.float32], rel=5e-2)


def test_images_of_large_numbers_are_scaled_before_they_become_short() -> None:
    deep = EnvSpec.of_spaces(Box(0, 65535, (1, 36, 36), np.uint16), Discrete(3))
    config = dataclasses.replace(SMALL, obs_scale=65535.0)
    exact, short = model_in(torch.float32, deep, config), model_in(torch.float16, deep, config)
    depth = {"obs": torch.linspace(0, 65535, 2 * 36 * 36).view(2, 1, 36, 36).to(torch.uint16)}

    torch.testing.assert_close(short(depth).value, exact(depth).value, rtol=1e-2, atol=1e-2)


def test_the_scale_of_losses_halves_down_to_one_and_grows_again() -> None:
    scale, one = LossScale(CPU), torch.tensor(1.0)
    bad, good = torch.tensor(False), torch.tensor(True)

    excused = [bool(scale.after(bad)) for _ in range(12)]

    # 1,024 can be halved ten times; after that the format is not to blame.
    assert excused == [True] * 10 + [False] * 2
    assert float(scale.scaled(one)) == 1.0
    assert not any(bool(scale.after(good)) for _ in range(2000))
    assert float(scale.scaled(one)) == 2.0


def test_a_resumed_run_goes_on_with_the_scale_of_losses_that_it_had() -> None:
    def updater(dtype: torch.dtype) -> GradientStep:
        torch.manual_seed(0)
        return GradientStep(model_in(dtype), OptimConfig())

    before, after, exact = updater(torch.float16), updater(torch.float16), updater(torch.float32)
    infinite = before.optimizer.parameters[0].sum() * torch.inf
    before.backward(infinite)
    assert bool(before.step(Rates(1e-3), torch.tensor(True)).excused)

    after.load(before.state())
    exact.load(before.state())  # another precision has none

    assert float(after.state()["loss_scale"]["scale"]) == 512.0  # half of the first
    assert int(after.state()["loss_scale"]["good"]) == 0
    assert "loss_scale" not in exact.state()
