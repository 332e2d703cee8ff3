"""An actor and a critic that read different observations: each computes from its own, in steps and unrolled."""

from __future__ import annotations

from typing import Any

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from torch import Tensor

from sfactory.config.schema import ModelConfig
from sfactory.errors import EnvError
from sfactory.model.actor_critic import ActorCritic
from sfactory.planning.network_check import checked_model
from sfactory.spec import EnvSpec
from sfactory.tensor_spec import describe

SPACE = spaces.Dict(
    action_mask=spaces.MultiBinary(3),
    critic=spaces.Dict(screen=spaces.Box(0, 255, (36, 36, 3), np.uint8), state=spaces.Box(-1, 1, (5,))),
    noisy=spaces.Box(-1, 1, (2,)),
    policy=spaces.Box(-1, 1, (4,)),
)
NETWORKS = "tests.support.networks"
ROWS, STEPS = 4, 6
BUILT_IN: dict[str, Any] = {"encoder_mlp_layers": (8,), "encoder_conv_mlp_layers": (8,)}
MEMORY = {"use_rnn": True, "rnn_size": 8}
FLAGS: dict[str, dict[str, Any]] = {
    "built in": BUILT_IN,
    "GRU": {**BUILT_IN, **MEMORY},
    "LSTM": {**BUILT_IN, **MEMORY, "rnn_type": "lstm"},
    "minGRU": {**BUILT_IN, **MEMORY, "rnn_type": "mingru", "decoder_mlp_layers": (8,)},
    "own, which read all they are given": {"encoder": f"{NETWORKS}:AllKeys", "normalize_input": False},
    "own, with a memory of another size each": {
        **MEMORY,
        "encoder": f"{NETWORKS}:AllKeys",
        "core": f"{NETWORKS}:AsWide",
    },
}


def config_of(**flags: Any) -> ModelConfig:
    apart = {"critic_obs_keys": ("critic",), "actor_obs_keys": ("noisy",), "actor_critic_share_weights": False}
    return ModelConfig(**{**apart, **flags})


def spec_of(config: ModelConfig) -> EnvSpec:
    return EnvSpec.of_spaces(SPACE, spaces.Discrete(3)).for_model(config)


def drawn() -> dict[str, Tensor]:
    """Observations of all steps, and one more: {path: [STEPS + 1, ROWS, ...]}."""
    SPACE.seed(1)
    steps = [[SPACE.sample() for _ in range(ROWS)] for _ in range(STEPS + 1)]
    return {
        path: torch.from_numpy(np.array([[read(sample) for sample in step] for step in steps]))
        for path, read in {
            "action_mask": lambda sample: sample["action_mask"] | np.array([1, 0, 0], np.int8),
            "critic/screen": lambda sample: sample["critic"]["screen"],
            "critic/state": lambda sample: sample["critic"]["state"],
            "noisy": lambda sample: sample["noisy"],
            "policy": lambda sample: sample["policy"],
        }.items()
    }


@pytest.mark.parametrize("name", FLAGS)
def test_each_reads_its_own_alone_and_unrolled_equals_step_by_step(name: str) -> None:
    config = config_of(**FLAGS[name])
    model = checked_model(spec_of(config), config).eval()
    obs, is_first = drawn(), torch.zeros(STEPS + 1, ROWS, dtype=torch.bool)
    is_first[2, 1] = True

    def stepped(obs: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        state, params, values, states = model.fresh_state(ROWS), [], [], []
        for t in range(STEPS + 1):
            state = torch.where(is_first[t].unsqueeze(-1), 0.0, state)
            states.append(state)
            output = model({path: leaf[t] for path, leaf in obs.items()}, state)
            state = output.state
            params.append(output.dist_params)
            values.append(output.value)
        return torch.stack(params), torch.stack(values), torch.stack(states)

    params, values, states = stepped(obs)
    blind_params, blind_values, _ = stepped({**obs, **{path: 0 * obs[path] for path in obs if "critic" in path}})
    quiet_params, quiet_values, _ = stepped({**obs, "noisy": 0 * obs["noisy"]})
    unrolled = model.unroll(obs, states[:STEPS:3].detach(), is_first, 3)

    assert torch.equal(params, blind_params)
    assert not torch.isclose(values, blind_values).any()
    assert torch.equal(values, quiet_values)
    assert not torch.isclose(params, quiet_params).all(-1).any()
    torch.testing.assert_close(unrolled.dist_params, params[:-1].flatten(0, 1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.value_head.denormalize(unrolled.values), values, rtol=1e-5, atol=1e-5)
    unrolled.dist_params.square().sum().backward()
    assert all(parameter.grad is None for parameter in model.critic_parameters())
    assert all(parameter.grad is not None for parameter in model.tower.parameters())


def test_the_first_weights_and_statistics_of_the_actor_are_those_without_a_critic() -> None:
    torch.manual_seed(0)
    apart = config_of(**BUILT_IN)
    spec = spec_of(apart)
    full = ActorCritic(spec, apart).state_dict()
    torch.manual_seed(0)
    alone = ActorCritic(spec.of_actor(), ModelConfig(**BUILT_IN)).state_dict()

    assert all(full[name].shape == alone[name].shape for name in alone if not name.startswith("value_head"))
    assert all(torch.equal(full[name], alone[name]) for name in alone if name.startswith("tower"))


def test_the_start_says_who_reads_a_leaf() -> None:
    spec = spec_of(config_of())
    said = [describe(path, leaf, normalized=False, apart=spec.reads_apart) for path, leaf in spec.obs]

    readers = ["", "the critic alone", "the critic alone", "the actor alone", "actor and critic"]
    assert [text.partition(" is read by ")[2].partition(" as ")[0] for text in said] == readers


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            {"critic_obs_keys": ("state",)},
            "--critic_obs_keys=state: there is no such observation; there are action_mask",
        ),
        ({"actor_obs_keys": ("state",)}, "--actor_obs_keys=state: there is no such observation"),
        ({"critic_obs_keys": ("critic", "noisy", "policy"), "actor_obs_keys": ()}, "leaves the actor no observation"),
        ({"critic_obs_keys": (), "actor_obs_keys": ("critic", "noisy", "policy")}, "leaves the critic no observation"),
        ({"critic_obs_keys": ("critic", "noisy")}, "both name noisy"),
        ({"critic_obs_keys": ("action_mask",)}, "names the action mask action_mask, without which"),
    ],
)
def test_keys_that_cannot_be_read_so_are_refused(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(EnvError, match=words):
        spec_of(config_of(**flags))


def test_keys_of_one_reader_are_read_besides_those_chosen() -> None:
    spec = spec_of(config_of(obs_keys=("policy",), ignore_obs_keys=("critic/screen",)))

    assert [path for path, _ in spec.obs] == ["action_mask", "critic/state", "noisy", "policy"]
    assert [path for path, _ in spec.read_by("critic")] == ["action_mask", "critic/state", "policy"]
    assert [path for path, _ in spec.of_actor().obs] == ["action_mask", "noisy", "policy"]
    assert not spec.of_actor().reads_apart
