"""Networks of the user's own are computed as built-in ones are, and refused with their form if they do not fit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from sfactory.action_heads import BoxHead, DiscreteHead
from sfactory.config.schema import ModelConfig
from sfactory.config.trust import NETWORKS
from sfactory.errors import ConfigError
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.custom import space_of
from sfactory.planning.network_check import checked_model
from sfactory.spec import EnvSpec, TensorSpec

NUMBERS = EnvSpec((("obs", TensorSpec((6,), "float32")),), (DiscreteHead("action", 3),))
REALS = EnvSpec(NUMBERS.obs, (BoxHead("action", (2,), "float32", (-1.0,) * 2, (1.0,) * 2),))
PAIR = EnvSpec(NUMBERS.obs, NUMBERS.actions, agents=("a", "b"))
MEMORY = {"use_rnn": True, "rnn_size": 8}


def config_of(**flags: Any) -> ModelConfig:
    named = {part: f"tests.support.networks:{flags[part]}" for part in NETWORKS if part in flags}
    return ModelConfig(**{**flags, **named})


GOOD = {
    "encoder": config_of(encoder="Attention", model_kwargs={"size": 8}),
    "encoder with constants": config_of(encoder="Constants"),
    "encoder with a mask": config_of(encoder="Masked"),
    "encoder before a built-in core": config_of(encoder="Mlp", **MEMORY),
    "core": config_of(core="LeakyCore", **MEMORY),
    "decoder": config_of(decoder="Halves"),
    "all three, and the critic's": config_of(
        encoder="Attention",
        core="LeakyCore",
        decoder="Halves",
        model_kwargs={"encoder": {"size": 4}, "core": {"size": 6}},
        actor_critic_share_weights=False,
        **MEMORY,
    ),
    "model": config_of(model="Whole"),
    "model with memory": config_of(model="Whole", use_rnn=True, model_kwargs={"size": 8}),
}


@pytest.mark.parametrize("spec", [NUMBERS, REALS, PAIR])
@pytest.mark.parametrize("name", GOOD)
def test_unrolled_network_equals_single_steps_and_learns(name: str, spec: EnvSpec) -> None:
    model = checked_model(spec, GOOD[name])
    steps, rows, recurrence = 8, 3, 4
    torch.manual_seed(1)
    obs = torch.randn(steps + 1, rows, 6)
    is_first = torch.zeros(steps + 1, rows, dtype=torch.bool)
    is_first[5, 1] = True
    state, states, params, values = model.fresh_state(rows), [], [], []
    for t in range(steps + 1):
        state = torch.where(is_first[t].unsqueeze(-1), 0.0, state)
        if t in (0, recurrence):
            states.append(state)
        output = model({"obs": obs[t]}, state)
        state = output.state
        params.append(output.dist_params)
        values.append(output.value)

    unrolled = model.unroll({"obs": obs}, torch.stack(states).detach(), is_first, recurrence)

    torch.testing.assert_close(unrolled.dist_params, torch.cat(params[:-1]), rtol=1e-4, atol=1e-4)
    found = model.value_head.denormalize(unrolled.values)
    torch.testing.assert_close(found, torch.stack(values), rtol=1e-4, atol=1e-4)
    (unrolled.dist_params.square().sum() + unrolled.values.square().sum()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


OF_OTHER_DTYPES = {
    "an encoder before decoders": (config_of(encoder="BriefMlp", decoder_mlp_layers=(16,)), torch.float32),
    "an encoder before a core": (config_of(encoder="BriefMlp", **MEMORY), torch.float32),
    "a core before decoders": (config_of(core="BriefCore", decoder_mlp_layers=(16,), **MEMORY), torch.float32),
    "a core of actor and critic": (
        config_of(core="BriefCore", actor_critic_share_weights=False, **MEMORY),
        torch.float32,
    ),
    "a model": (config_of(model="BriefWhole"), torch.float32),
    "a model with memory": (config_of(model="BriefWhole", use_rnn=True, model_kwargs={"size": 8}), torch.float32),
    "a model in float64": (config_of(model="LongWhole"), torch.float32),
    "a decoder after an encoder in bfloat16": (config_of(decoder="Halves"), torch.bfloat16),
}


@pytest.mark.parametrize("name", OF_OTHER_DTYPES)
def test_network_that_gives_another_dtype_acts_and_learns_in_float32(name: str) -> None:
    config, dtype = OF_OTHER_DTYPES[name]
    checked_model(REALS, config)
    model = ActorCritic(REALS, config, dtype)
    obs, is_first = torch.randn(5, 3, 6), torch.zeros(5, 3, dtype=torch.bool)
    states = model.fresh_state(3)

    output = model.forward({"obs": obs[0]}, states)
    output = model.forward({"obs": obs[1]}, output.state)
    unrolled = model.unroll({"obs": obs}, torch.stack((states, states)), is_first, recurrence=2)

    assert {part.dtype for part in (*output, unrolled.dist_params, unrolled.values)} == {torch.float32}
    (unrolled.dist_params.square().sum() + unrolled.values.square().sum()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_observations_of_all_whole_numbers_of_64_bits_are_read(dtype: Any) -> None:
    limits = np.iinfo(dtype)
    space = spaces.Box(limits.min, limits.max, (6,), dtype)
    spec = EnvSpec.of_spaces(space, spaces.Discrete(3)).for_model(GOOD["encoder"])

    assert checked_model(spec, GOOD["encoder"]).obs_normalizer is not None


@pytest.mark.parametrize("shape", [(), (3,)])
def test_bounds_of_64_bits_are_given_as_they_are(shape: tuple[int, ...]) -> None:
    limits = np.iinfo(np.int64)
    for low in (0, limits.min):
        space = spaces.Box(low, limits.max, shape, np.int64)
        spec = EnvSpec.of_spaces(space, spaces.Discrete(3))

        assert space_of(spec.obs, (), spec.plain_spaces) == space


@pytest.mark.parametrize("share", [True, False])
def test_copy_of_the_default_network_is_bit_equal(share: bool) -> None:
    models = []
    for encoder in ("", "tests.support.networks:Mlp"):
        torch.manual_seed(3)
        models.append(ActorCritic(NUMBERS, ModelConfig(actor_critic_share_weights=share, encoder=encoder)))
    ours, theirs = (model.state_dict() for model in models)
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"encoder": "WrongSize"}, r"its output \(out_size is 7\) has the shape \(3, 512\), and must have \(3, 7\)"),
        ({"encoder": "Noisy"}, "must be deterministic .* call .eval()"),
        ({"encoder": "RandomConstants"}, "keeps random numbers outside of its state"),
        ({"encoder": "RandomBuffer", "actor_critic_share_weights": False}, "keeps random numbers outside of its state"),
        ({"core": "RandomDecay", **MEMORY}, "keeps random numbers outside of its state"),
        ({"encoder": "LateBuffer"}, "state that cannot be loaded .* in __init__: RuntimeError"),
        ({"encoder": "OverRows"}, "rows must not influence one another .* call .eval()"),
        ({"encoder": "Detached"}, "passes no gradient"),
        ({"encoder": "Raising"}, r"raised KeyError: 'camera' .*networks.py"),
        ({"encoder": "Sizeless"}, "has no attribute out_size, which must be an int;"),
        ({"encoder": "Extractor"}, r"must be an int \(features_dim is Stable-Baselines3's name of it\);"),
        ({"encoder": "Lazy"}, "has the lazy weight 'linear.weight', .*: give the layer its sizes"),
        ({"encoder": "ComplexWeight"}, r"has the complex weight 'phases', .*torch\.view_as_real"),
        ({"encoder": "no_module"}, "returned a str, which is no torch.nn.Module"),
        ({"encoder": "Mlp", "model_kwargs": {"wide": 3}}, r"raised TypeError: .*'wide'.* when it was made"),
        ({"encoder": "Ungraded"}, "passes no gradient"),
        ({"encoder": "Clips"}, "changes its observations in place"),
        ({"encoder": "Overflows"}, "holds NaN or infinity"),
        ({"encoder": "Bare"}, r"does not call super\(\).__init__\(\)"),
        ({"encoder": "Negative"}, "has out_size = -1, which must be at least 1"),
        ({"core": "LosesState", **MEMORY}, "gives another state after all steps at once"),
        ({"core": "CutsState", **MEMORY}, r"the state after all steps has the shape \(3, 7\)"),
        ({"model": "NoSize"}, "has no attribute state_size, which must be an int"),
        ({"model": "KeepsNoState", "use_rnn": True, "model_kwargs": {"size": 4}}, "is a NoneType, which is no tensor"),
        ({"core": "Forgetful", **MEMORY}, r"gives other outputs for all steps at once .* \(in step 2"),
    ],
)
def test_network_that_does_not_fit_is_refused_with_its_form(flags: dict[str, Any], words: str) -> None:
    config = config_of(**flags)
    (part,) = (part for part in NETWORKS if getattr(config, part))
    with pytest.raises(ConfigError) as refused:
        checked_model(NUMBERS, config)
    text = str(refused.value)
    assert text.startswith(f"--{part}=tests.support.networks:")
    assert re.search(words, text)
    assert f"class My{part.title()}(nn.Module)" in text


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (config_of(encoder="Nothing"), "has no 'Nothing'"),
        (
            ModelConfig(encoder="attention"),
            "must be module:Class, or a name of the entry-point group 'sfactory.models'",
        ),
        (ModelConfig(encoder="os:system"), "standard library"),
        (config_of(model="Whole", model_kwargs={"size": 8}), r"has a memory \(state_size 8\): add --use_rnn=True"),
        (
            config_of(encoder="Mlp", decoder="Halves", model_kwargs={"hidden": [4]}),
            r'write one object for each part: \{"encoder": \{\.\.\.\}, "decoder": \{\.\.\.\}\}',
        ),
    ],
)
def test_flags_that_name_no_network_are_refused(config: ModelConfig, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        checked_model(NUMBERS, config)


IDS = spaces.Dict(kinds=spaces.Box(0.0, 9.0, (2,), np.float32), count=spaces.Box(-5, 2**62, (2,), np.int64))


@pytest.mark.parametrize(
    ("space", "encoder", "out_size"),
    [
        (IDS, "Embeds", 8),
        (spaces.Box(0.0, 1e6, (6,), np.float32), "Mlp", 512),
        (spaces.Box(-np.inf, 3e38, (6,), np.float32), "Mlp", 512),
        (spaces.Box(-np.inf, np.inf, (6,), np.float32), "Frozen", 8),
    ],
)
def test_network_is_checked_with_observations_of_its_space(space: Any, encoder: str, out_size: int) -> None:
    config = config_of(encoder=encoder, normalize_input=False)
    spec = EnvSpec.of_spaces(space, spaces.Discrete(3)).for_model(config)

    found = checked_model(spec, config).tower.encoder.out_size

    assert (type(found), found) == (int, out_size)


def test_network_is_given_the_space_that_it_will_see() -> None:
    obs = (
        ("action_mask", TensorSpec((3,), "int8", layout="mask", heads=(3,))),
        ("camera", TensorSpec((8, 8, 3), "uint8", (256,), (0,))),
        ("flag", TensorSpec((2,), "bool")),
        ("place", TensorSpec((), "int64", (5,), (2,), True, "choices")),
        ("speed", TensorSpec((2,), "float64")),
    )
    space = space_of(obs, {"speed"})
    assert set(space) == {"camera", "flag", "place", "speed"}  # type: ignore[call-overload]
    assert space["camera"].high.max() == 255  # type: ignore[index]
    assert space["place"].start == 2  # type: ignore[index]
    assert space["speed"].dtype == np.float32  # type: ignore[index]
    assert space_of(NUMBERS.obs, ()).shape == (6,)


def test_network_is_given_the_bounds_of_the_env_where_nothing_is_normalized() -> None:
    half, low = np.array([0.5, np.inf], np.float32), np.array([-1.0, 0.0], np.float32)
    space = spaces.Dict(
        [("x", spaces.Box(low, half)), ("on", spaces.MultiBinary((2, 2))), ("h", spaces.Box(-1, 1, (2,), np.float16))]
    )
    spec = EnvSpec.of_spaces(space, spaces.Discrete(3))

    plain, normalized = (space_of(spec.obs, keys, spec.plain_spaces) for keys in ((), {"x", "on", "h"}))

    assert plain == spaces.Dict(
        [("x", spaces.Box(low, half)), ("on", spaces.MultiBinary((2, 2))), ("h", spaces.Box(-1, 1, (2,), np.float32))]
    )
    assert list(plain) == ["x", "on", "h"]  # type: ignore[call-overload]
    assert {leaf.dtype.name for leaf in normalized.values()} == {"float32"}  # type: ignore[attr-defined]
    assert not any(leaf.is_bounded() for leaf in normalized.values())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "flags",
    [
        {"encoder": "Alone"},
        {"encoder": "Alone", "actor_critic_share_weights": False, "critic_obs_keys": ("goal",)},
        {"encoder": "Alone", "core_inputs": ("action", "reward"), **MEMORY},
        {"encoder": "Alone", "obs_layout": ("units=entities",)},
        {"model": "Alone", "use_rnn": True},
    ],
)
def test_network_gets_the_observations_of_its_space_alone(flags: dict[str, Any]) -> None:
    space = spaces.Dict(
        [("units", spaces.Box(0, 1, (3, 2))), ("goal", spaces.Box(0, 1, (2,))), ("action_mask", spaces.MultiBinary(3))]
    )
    config = config_of(**flags)
    spec = EnvSpec.of_spaces(space, spaces.Discrete(3)).for_model(config)

    model = checked_model(spec, config)

    steps = {path: torch.ones(3, 2, *leaf.shape) for path, leaf in spec.obs}
    is_first = torch.zeros(3, 2, dtype=torch.bool)
    state = model.fresh_state(2)
    unrolled = model.unroll(steps, state.unsqueeze(0), is_first, recurrence=2)
    output = model.forward({path: leaf[0] for path, leaf in steps.items()}, state)
    torch.testing.assert_close(unrolled.dist_params[:2], output.dist_params)
