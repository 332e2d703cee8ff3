"""An exported policy acts as the policy in torch does, over many steps of an env."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
from collections.abc import Callable, Mapping
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from torch import Tensor

from sfactory.config.flags import config_of
from sfactory.config.schema import ModelConfig
from sfactory.env.actions import action_reader
from sfactory.env.factory import EnvFactory
from sfactory.env.multi_agent import AgentsEnv
from sfactory.errors import ConfigError
from sfactory.exporting.acting_function import (
    ActingFunction,
    _dtypes_of_env,
    action_leaves,
    onnx_bytes,
    torch_export_bytes,
)
from sfactory.exporting.numpy_arrays import npz_bytes
from sfactory.exporting.numpy_policy import Policy
from sfactory.model.actor_critic import Acted, ActorCritic
from sfactory.play.player import Player
from sfactory.play.rendering import AnyEnv, show_nothing
from sfactory.spec import ACTION_KEY, OBS_KEY, EnvSpec, key_of, leaves
from tests.support.long import long
from tests.support.random_env import NUMBERS

STEPS = 1000
Arrays = Mapping[str, np.ndarray[Any, Any]]
Function = Callable[[Arrays], Arrays]

SYNTHETIC = "sfactory_envs.synthetic"
RANDOM = "tests.support.random_env:random_env"


class Case(NamedTuple):
    """A policy: its env, and flags of the network."""

    env: str
    kwargs: Mapping[str, Any] = {}
    flags: Mapping[str, Any] = {}


def of_random(obs: str, actions: str, masked: bool = False, agents: str = "one", **flags: Any) -> Case:
    """A case with an env of random observations."""
    kwargs = {"obs": obs, "actions": actions, "masked": masked, "agents": agents}
    return Case(RANDOM, kwargs, {"encoder_conv_architecture": "resnet_impoola", **flags})


CASES = {
    "mlp": Case("CartPole-v1"),
    "tanh_layers": Case(
        "CartPole-v1",
        {},
        {"nonlinearity": "tanh", "use_layer_norm": True, "decoder_mlp_layers": (16,)}
        | {"normalize_input": False, "obs_scale": 2.0, "obs_subtract_mean": 0.5},
    ),
    "wide": Case("tests.support.random_env:wide_env"),
    "odd": Case("tests.support.random_env:odd_env"),
    "box": Case("Pendulum-v1", {}, {"normalize_actions": True, "continuous_tanh_scale": 2.0, "nonlinearity": "relu"}),
    "squashed": Case(
        "Pendulum-v1",
        {},
        {"continuous_distribution": "squashed", "adaptive_stddev": True, "use_spectral_norm": True},
    ),
    "table": Case("Taxi-v4", {}, {"one_hot_max": 8}),
    "masked": Case(f"{SYNTHETIC}.masked_arms:MaskedArms", {"heads": 2}, {"actor_critic_share_weights": False}),
    "dict_actions": of_random("numbers", "mixed", True, encoder_per_key=True),
    "tuple_actions": Case("tests.support.random_env:tuple_env", {}, {"use_rnn": False}),
    "tuple_memory": Case(
        "tests.support.random_env:tuple_env", {}, {"use_rnn": True, "core_inputs": ("action", "reward")}
    ),
    "nested": Case("tests.support.random_env:nested_env"),
    "choices": of_random("choices", "multi", True),
    "conv": Case(f"{SYNTHETIC}.catch:Catch", {}, {"encoder_conv_mlp_layers": (32,)}),
    "several": of_random("several", "mixed", True, obs_layout=("units=entities",), use_rnn=True, rnn_size=16),
    "gru": Case(
        f"{SYNTHETIC}.recall:Recall",
        {},
        {
            "use_rnn": True,
            "rnn_num_layers": 2,
            "core_inputs": ("action", "reward"),
            "actor_critic_share_weights": False,
        },
    ),
    "lstm": Case("cartpole_without_velocities", {}, {"use_rnn": True, "rnn_type": "lstm"}),
    "mingru": Case("cartpole_without_velocities", {}, {"use_rnn": True, "rnn_type": "mingru"}),
    "three_agents": of_random("numbers", "discrete", True, "three", use_rnn=True),
    "particles": Case("pettingzoo:mpe2.simple_spread_v3", {"max_cycles": 50}),
}
OF_MLPS = (
    *(
        "mlp",
        "tanh_layers",
        "wide",
        "odd",
        "box",
        "squashed",
        "table",
        "masked",
        "dict_actions",
        "tuple_actions",
        "choices",
    ),
    *("nested", "particles"),
)
QUICK = {
    "onnx": (),
    "torch_export": ("gru",),
    "numpy": ("tanh_layers", "squashed", "table", "dict_actions", "tuple_actions", "nested"),
}


class Compared:
    """A policy that acts in torch, and asserts at every step that an exported one does the same.

    Each has a state of its own, side by side, so that differences may add up.
    """

    def __init__(self, model: ActorCritic, exported: Function, env: AnyEnv) -> None:
        self._model, self._exported, self._space = model, exported, env.action_space
        self._dtypes = {key_of(path, OBS_KEY): space.dtype for path, space in leaves(env.observation_space)}
        self._read = action_reader(env.action_space, model.heads)
        self._size = model.tower.state_size
        self.steps, self.deviation = 0, 0.0

    def fresh_state(self, rows: int) -> Tensor:
        return torch.zeros(rows, self._model.state_size + self._size)

    def draw_privately(self) -> None:
        """Nothing is drawn."""

    def act(self, obs: dict[str, Tensor], state: Tensor, deterministic: bool = False) -> Acted:
        own, theirs = state.split([self._model.state_size, self._size], dim=1)
        acted = self._model.act(obs, own, deterministic=True)
        expected = self._model(obs, own)
        # As the env gives them.
        inputs = {path: leaf.numpy().astype(self._dtypes.get(path, np.float32)) for path, leaf in obs.items()}
        outputs = self._exported(inputs | ({"rnn_state": theirs.numpy()} if self._size else {}))

        self._assert_close(outputs["dist_params"], expected.dist_params.numpy())
        actions = self._read({key: action.numpy() for key, action in acted.actions.items()})
        for path, leaf in leaves(self._space):
            name = ACTION_KEY if not path else f"{ACTION_KEY}/{key_of(path, '')}"
            wanted = np.stack([np.asarray(reduce(getitem, path, action)) for action in actions])
            self._assert_close(outputs[name], wanted)
            assert outputs[name].dtype == (leaf.dtype if np.dtype(leaf.dtype).kind == "f" else np.int64)
        if self._size:
            self._assert_close(outputs["next_rnn_state"], acted.state[:, : self._size].numpy())
            acted = acted._replace(state=torch.cat((acted.state, torch.from_numpy(outputs["next_rnn_state"])), dim=1))
        self.steps += 1
        return acted

    def _assert_close(self, found: Any, wanted: np.ndarray[Any, Any]) -> None:
        # Above 1 it is relative: both round. Logits of "conv" are up to 22.5; torch and ONNX Runtime differ by 1.3e-5;
        # from the same network in float64 they differ by 9.3e-6 and 9.7e-6, or 5.6e-6 and 5.7e-6 of 1 + |value|.
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        self.deviation = max(self.deviation, float((np.abs(found - wanted) / (1.0 + np.abs(wanted))).max()))


def policy_of(case: Case) -> tuple[AnyEnv, ActorCritic, ModelConfig]:
    """The env, and a policy with drawn weights and statistics."""
    config = config_of(
        {"encoder_mlp_layers": (32,), "rnn_size": 32, **case.flags, "env": case.env, "env_kwargs": case.kwargs}
    )
    env = EnvFactory.of(config).either()
    of_sole = env.observation_space, env.action_space
    spec = (env.spec if isinstance(env, AgentsEnv) else EnvSpec.of_spaces(*of_sole)).for_model(config.model)
    torch.manual_seed(0)
    model = ActorCritic(spec, config.model).eval()
    with torch.no_grad():
        for parameter in model.policy_head.parameters():
            parameter.normal_()
    env.observation_space.seed(0)
    of_env = {key_of(path, OBS_KEY): space for path, space in leaves(env.observation_space)}
    obs = {
        path: torch.from_numpy(np.stack([of_env[path].sample() for _ in range(50)]).astype(leaf.dtype))
        if path in of_env
        else torch.randn(50, *leaf.shape)
        for path, leaf in spec.obs
    }
    model.observe(obs, torch.ones(50, dtype=torch.bool))
    return env, model, config.model


def exported(kind: str, model: ActorCritic, config: ModelConfig, folder: Path) -> Function:
    """The policy, written in a format and read by what reads it."""
    facts = {"env_steps": "70"}
    if kind == "numpy":
        file = folder / "policy.npz"
        file.write_bytes(npz_bytes(model, config, facts, "--format=numpy"))
        policy = Policy(str(file))
        assert policy.about == facts
        return policy
    function = ActingFunction(model)
    if kind == "torch_export":
        extra = {"sfactory.json": ""}
        program = torch.export.load(io.BytesIO(torch_export_bytes(function, facts, "")), extra_files=extra)
        assert json.loads(extra["sfactory.json"]) == facts
        module = program.module()

        def called(inputs: Arrays) -> Arrays:
            outputs = module({name: torch.from_numpy(inputs[name]) for name in function.inputs})
            return {name: leaf.numpy() for name, leaf in outputs.items()}

        return called
    import onnxruntime  # its import starts threads, which open files that tests of runs would see

    session = onnxruntime.InferenceSession(onnx_bytes(function, facts, ""))
    assert session.get_modelmeta().custom_metadata_map.items() >= facts.items()
    assert [each.name for each in session.get_inputs()] == list(function.inputs)
    names = [each.name for each in session.get_outputs()]
    assert names == function.outputs
    return lambda inputs: dict(zip(names, session.run(None, dict(inputs)), strict=True))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name) if name in QUICK[kind] else long(kind, name)
        for kind in QUICK
        for name in (OF_MLPS if kind == "numpy" else CASES)
    ],
)
def test_an_exported_policy_does_the_same_at_every_step(
    kind: str, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    env, model, config = policy_of(CASES[name])
    compared = Compared(model, exported(kind, model, config, tmp_path), env)
    player = Player(env, model.spec, compared, show_nothing, name=name)

    steps = STEPS if config.use_rnn else STEPS // 4  # only in a memory do differences add up

    for _ in player.episodes(steps, steps, seed=1):
        pass

    print(f"{kind} {name}: largest deviation {compared.deviation:.1e} of 1 + |value|")  # pytest -rP shows it
    assert compared.steps >= steps
    assert caplog.messages == []  # torch.onnx and onnxscript would say what each of their steps did


@pytest.mark.parametrize("name", ["conv", "gru"])
def test_numpy_refuses_what_is_no_mlp(name: str) -> None:
    _, model, config = policy_of(CASES[name])

    with pytest.raises(ConfigError, match="--format=onnx takes it"):
        npz_bytes(model, config, {}, "--format=numpy")


def test_outputs_have_the_paths_and_shapes_of_the_action_space() -> None:
    space = EnvFactory(CASES["nested"].env).either().action_space
    spec = EnvSpec.of_spaces(NUMBERS, space)

    found = {leaf.name: leaf.stacked for leaf in action_leaves(EnvSpec.of_plain(json.loads(json.dumps(spec.plain()))))}

    assert found == {
        "action/action": None,
        "action/hand/0": None,
        "action/hand/1/action": (2, 2),
        "action/hand/1/on": None,
        "action/keys": (2, 2),
    }
    older = dataclasses.replace(EnvSpec.of_spaces(NUMBERS, spaces.MultiDiscrete([2, 3])), plain_spaces=())
    assert [(leaf.name, leaf.stacked) for leaf in action_leaves(older)] == [("action", (2,))]


def test_observations_are_taken_in_the_dtypes_of_the_env() -> None:
    env, model, _ = policy_of(CASES["odd"])
    function = ActingFunction(model)

    found = {name: example.numpy().dtype for name, example in function.inputs.items()}

    assert found == {path: space.dtype for (path,), space in leaves(env.observation_space)}
    assert list(function(function.inputs)) == ["action", "dist_params"]
    older = dataclasses.replace(model.spec, plain_spaces=())
    assert set(_dtypes_of_env(older).values()) == {torch.float32, torch.float64, torch.int32, torch.int64}


def test_an_observation_may_have_the_name_of_an_output() -> None:
    env = gymnasium.spaces.Dict(action=NUMBERS, dist_params=NUMBERS, last_action=NUMBERS)
    spec = EnvSpec.of_spaces(env, gymnasium.spaces.Discrete(3)).for_model(ModelConfig())
    function = ActingFunction(ActorCritic(spec, ModelConfig(encoder_mlp_layers=())))

    outputs = function(function.inputs)

    assert list(outputs) == function.outputs == ["action_", "dist_params_"]
