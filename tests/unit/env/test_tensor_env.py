"""Actions of TensorEnvs are those of vector envs; makers are recognized, and what they make is checked."""

from __future__ import annotations

from typing import Any

import gymnasium
import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from sfactory.config.schema import ModelConfig, WrapperConfig
from sfactory.env.actions import block_reader
from sfactory.env.conversion import BadObservation
from sfactory.env.factory import EnvFactory
from sfactory.env.tensor_actions import tensor_reader
from sfactory.env.tensor_env import TensorEnv, TensorWriter
from sfactory.errors import EnvError
from sfactory.planning.tensor_env_check import check_tensor_env
from sfactory.spec import EnvSpec
from sfactory_envs.synthetic.counting_tensors import CountingTensors, counting_tensor_vector

HERE = __name__
SPACES = (
    spaces.Discrete(4, start=2),
    spaces.MultiDiscrete([3, 2, 5]),
    spaces.MultiBinary((2, 2)),
    spaces.Box(-1.5, np.array([2.0, np.inf], np.float32), (2,), np.float32),
    spaces.Box(0.0, 3.0, (2, 3), np.float64),
    spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple((spaces.Box(-2, 4, (1,)), spaces.Discrete(2)))}),
)


def leaves_of(value: Any) -> list[Any]:
    """The arrays or tensors in ``value``."""
    if isinstance(value, dict | tuple):
        return [leaf for part in (value.values() if isinstance(value, dict) else value) for leaf in leaves_of(part)]
    return [value]


@pytest.mark.parametrize("unit", ["env", "normalized", "squashed"])
def test_actions_are_those_of_vector_envs(unit: str) -> None:
    flags: dict[str, Any] = {"normalize_actions": unit != "env"}
    if unit == "squashed":
        flags["continuous_distribution"] = "squashed"
    generator = np.random.default_rng(5)
    for space in SPACES:
        spec = EnvSpec.of_spaces(spaces.Box(-1, 1, (2,)), space).for_model(ModelConfig(**flags))
        rows: dict[str, Any] = {}
        for head in spec.actions:
            shape = (50, *head.tensor.shape)
            drawn = generator.integers(head.n, size=shape) if hasattr(head, "n") else 3.0 * generator.normal(size=shape)
            rows[head.key] = drawn.astype(head.tensor.dtype)
        tensors = {key: torch.from_numpy(row) for key, row in rows.items()}

        due = leaves_of(block_reader(space, spec.actions)(rows))
        found = leaves_of(tensor_reader(space, spec.actions, torch.device("cpu"))(tensors))

        for one, other in zip(found, due, strict=True):
            assert one.numpy().dtype == other.dtype
            np.testing.assert_allclose(one.numpy(), other, rtol=0, atol=1e-6 if unit == "squashed" else 0)
            assert all(one.data_ptr() != tensor.data_ptr() for tensor in tensors.values())


def made(num_envs: int, device: str) -> TensorEnv:
    """A function that says what it returns."""
    env: TensorEnv = CountingTensors(num_envs, device, steps=20)
    return env


def silent(num_envs: int, device: str = "cpu"):  # type: ignore[no-untyped-def] # noqa: ANN201
    """One that does not."""
    return CountingTensors(num_envs, device, steps=20)


def deviceless(num_envs: int) -> TensorEnv:
    """One that takes no device."""
    return made(num_envs, "cpu")


def many(num_envs: int, device: str) -> TensorEnv:
    """One that makes too many."""
    return made(num_envs + 1, device)


def test_a_maker_says_that_it_makes_tensors() -> None:
    counting = "sfactory_envs.synthetic.counting_tensors"
    assert [EnvFactory(name).makes_tensors for name in (f"{counting}:CountingTensors", f"{HERE}:made")] == [True, True]
    assert not EnvFactory(f"{counting}:counting_tensor_vector").makes_tensors
    assert not EnvFactory("CartPole-v1").makes_tensors

    env = EnvFactory(f"{HERE}:made", {"num_envs": 9}).tensors(3)
    assert (env.num_envs, env.device.type) == (3, "cpu")
    assert check_tensor_env(env, "x").obs[0][1].shape == (8,)
    env = EnvFactory(f"{HERE}:made", device="meta").tensors(3)
    assert env.device.type == "meta"


@pytest.mark.parametrize(
    ("factory", "text"),
    [
        (EnvFactory(f"{HERE}:deviceless"), "it must take the argument device"),
        (EnvFactory(f"{HERE}:many"), "asked for num_envs=2, and returned 3"),
        (EnvFactory(f"{HERE}:made", {"device": "cpu"}), "leave the device out of --env_kwargs"),
        (EnvFactory(f"{HERE}:made", info_action_mask="on"), "action masks are observations"),
        (EnvFactory(f"{HERE}:made", wrappers=WrapperConfig(obs_grey=True)), "is a TensorEnv"),
    ],
)
def test_what_a_maker_cannot_do_is_refused(factory: EnvFactory, text: str) -> None:
    with pytest.raises(EnvError) as error:
        factory.tensors(2)
    assert text in str(error.value)


def test_a_maker_that_does_not_say_it_is_advised_to() -> None:
    with pytest.raises(EnvError, match="def make\\(num_envs: int, device: str\\) -> TensorEnv"):
        EnvFactory(f"{HERE}:silent").vector(2, seed=0)


def test_a_tensor_env_can_be_played_as_other_envs() -> None:
    factory = EnvFactory(f"{HERE}:made")
    single, vector = factory.either(), factory.vector(2, seed=0)

    assert isinstance(single, gymnasium.Env)
    obs, _ = single.reset(seed=4)
    assert single.observation_space.contains(obs)
    total, over = 0.0, False
    info: dict[str, Any] = {}
    while not over:
        obs, reward, terminated, truncated, info = single.step(np.int64(1))
        total, over = total + float(reward), terminated or truncated
    assert total > 0
    assert info["episode_extra_stats"] == {"action": 1.0}
    vector.reset(seed=4)
    assert vector.step(np.array([1, 2]))[0].shape == (2, 8)
    assert counting_tensor_vector(2, autoreset_mode="SameStep").metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


class Flawed(CountingTensors):  # type: ignore[misc]
    """Does not keep to the interface, as ``flaw`` says."""

    def __init__(self, flaw: str) -> None:
        super().__init__(2, "cpu", steps=20)
        self._flaw = flaw
        if flaw == "mode":
            self.autoreset_mode = AutoresetMode.DISABLED
        if flaw == "space":
            self.single_observation_space = None

    def reset(self, seed: int) -> Any:
        obs = super().reset(seed)
        return {"seed": obs + torch.rand(1), "obs": obs[:1], "nan": obs * torch.nan}.get(self._flaw, obs)

    def step(self, actions: Any) -> Any:
        step = super().step(actions)
        changed: dict[str, Any] = {
            "tuple": tuple(step)[:4],
            "reward": step._replace(rewards=step.rewards[:1]),
            "stats": step._replace(stats={"x": torch.zeros(3)}),
        }
        return changed.get(self._flaw, step)


def test_integers_come_in_a_dtype_of_which_the_row_holds_all() -> None:
    space = spaces.Dict(x=spaces.Box(-128, 127, (2,), np.int8), action_mask=spaces.MultiBinary(2))
    writer = TensorWriter(EnvSpec.of_spaces(space, spaces.Discrete(2)), space)
    rows = {"x": torch.zeros(3, 2, dtype=torch.int8), "action_mask": torch.zeros(3, 2, dtype=torch.int8)}
    mask = torch.ones(3, 2, dtype=torch.int64)

    writer.write({"x": torch.full((3, 2), -5, dtype=torch.int8), "action_mask": mask}, rows)
    with pytest.raises(BadObservation, match=r"'x' has dtype torch.int64.* torch.int8 .*to\(torch.int8\)"):
        writer.write({"x": torch.full((3, 2), 200), "action_mask": mask}, rows)

    assert rows["x"].tolist() == [[-5, -5]] * 3
    assert rows["action_mask"].all()


def test_unsigned_integers_of_16_bits_take_those_of_8_and_no_signed_ones() -> None:
    space: Any = spaces.Box(0, 65535, (2,), np.uint16)
    writer = TensorWriter(EnvSpec.of_spaces(space, spaces.Discrete(2)), space)
    rows = {"obs": torch.zeros(3, 2, dtype=torch.uint16)}

    writer.write(torch.full((3, 2), 200, dtype=torch.uint8), rows)
    assert rows["obs"].tolist() == [[200, 200]] * 3
    with pytest.raises(BadObservation, match=r"has dtype torch.int32.* torch.uint16"):
        writer.write(torch.full((3, 2), 200, dtype=torch.int32), rows)


@pytest.mark.parametrize(
    ("flaw", "text"),
    [
        ("mode", "NEXT_STEP or SAME_STEP"),
        ("space", "its single_observation_space is None"),
        ("seed", "returned different observations 'obs'"),
        ("obs", "observation 'obs' has shape (1, 8)"),
        ("nan", "reset(): 'obs' holds NaN"),
        ("tuple", "step() returned a tuple; it must return a TensorStep"),
        ("reward", "the reward of step() has shape (1,)"),
        ("stats", "stats['x'] of step() has shape (3,)"),
    ],
)
def test_an_env_that_does_not_keep_to_the_interface_is_refused(flaw: str, text: str) -> None:
    with pytest.raises(EnvError) as error:
        check_tensor_env(Flawed(flaw), "--env=mine")
    assert str(error.value).startswith("--env=mine: ")
    assert text in str(error.value)
