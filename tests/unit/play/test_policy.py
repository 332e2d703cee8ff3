"""A loaded policy acts as enjoy does, from a run, a checkpoint or an export, and imports no code of strangers."""

from __future__ import annotations

import json
import pickle
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import sfactory
from sfactory import export
from sfactory.checkpoint.directory import CheckpointDir
from sfactory.config.flags import config_of
from sfactory.config.saved_config import write_config
from sfactory.env.conversion import BadObservation
from sfactory.errors import CheckpointError, ConfigError, ExitCode, RunDirError
from sfactory.model.actor_critic import ActorCritic
from sfactory.plain_spaces import plain_space, space_of_plain
from sfactory.play.action_chooser import ActionChooser
from sfactory.play.player import Player
from sfactory.play.rendering import show_nothing
from sfactory.spec import EnvSpec
from tests.support.files import truncate
from tests.support.saved_run import payload, save_run

POINT = spaces.Box(-1, 1, (3,), np.float32)
BOUNDS = spaces.Box(np.array([0, -5], np.float32), np.array([1, np.inf], np.float32))
TREE = spaces.Dict(grip=spaces.Tuple((spaces.Discrete(3), BOUNDS)), mode=spaces.MultiDiscrete([2, 4]))
SEEN = spaces.Dict(where=POINT, kind=spaces.Discrete(3, start=2), name=spaces.Text(5))
MASKED = spaces.Dict(view=POINT, action_mask=spaces.MultiBinary(4))


class Anything(gymnasium.Env[Any, Any]):
    """Shows samples of its space, in episodes of 5 steps; observations and taken actions are kept."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.shown: list[Any] = []
        self.taken: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.observation_space.seed(seed)
        self.steps = 0
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken.append(action)
        self.steps += 1
        return self._observed(), 0.5 * self.steps, self.steps == 5, False, {}

    def _observed(self) -> Any:
        self.shown.append(self.observation_space.sample())
        if isinstance(self.shown[-1], dict) and "action_mask" in self.shown[-1]:
            self.shown[-1]["action_mask"][1] = 1
        return self.shown[-1]


def saved_run(spec: EnvSpec, flags: dict[str, Any], experiment: str = "run", policy: int = 0) -> ActorCritic:
    """A run with weights drawn at random in ./train_dir; returns the model."""
    run_dir = Path("train_dir") / experiment
    run_dir.mkdir(parents=True, exist_ok=True)
    config = config_of({"env": "CartPole-v1", "experiment": experiment, **flags})
    write_config(run_dir, config, {})
    model = ActorCritic(spec.for_model(config.model), config.model).eval()
    saved = {**payload(1.0), "model": model.state_dict(), "env_spec": model.spec.plain()}
    CheckpointDir(run_dir / f"checkpoint_p{policy}", 2).save(saved, train_step=7, env_steps=70)
    return model


def _numbers(action: Any) -> list[float]:
    """All numbers of actions of any structure."""
    if isinstance(action, dict | list | tuple):
        return [
            number for part in (action.values() if isinstance(action, dict) else action) for number in _numbers(part)
        ]
    return list(np.ravel(action).astype(float))


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("seen", "chosen", "flags"),
    [
        (POINT, spaces.Discrete(4, start=-1), {}),
        (SEEN, TREE, {"ignore_obs_keys": ("name",), "use_rnn": True, "core_inputs": ("action", "reward")}),
        (MASKED, spaces.Discrete(4), {"use_rnn": True, "rnn_type": "lstm"}),
        (spaces.Box(0, 255, (36, 36, 3), np.uint8), BOUNDS, {"continuous_distribution": "squashed"}),
    ],
    ids=["vector", "tree", "masked", "image"],
)
def test_it_acts_as_a_player_does(
    seen: spaces.Space[Any], chosen: spaces.Space[Any], flags: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    env = Anything(seen, chosen)
    flags = {"encoder_mlp_layers": (8,), "rnn_size": 8, **flags}
    model = saved_run(EnvSpec.of_spaces(seen, chosen), flags)
    list(Player(env, model.spec, model, show_nothing, name="any", deterministic=True).episodes(2, 99, seed=1))
    assert export.main(["--experiment=run", "--out=one.safetensors"]) == 0
    (checkpoint,) = Path("train_dir/run/checkpoint_p0").glob("*.pth")

    for source in ("train_dir/run", checkpoint, "one.safetensors"):
        policy = sfactory.load(source)
        assert policy.action_space == chosen
        assert source != checkpoint or plain_space(policy.observation_space)[:1] == plain_space(seen)[:1]
        taken = []
        for first in (0, 6):
            state = None
            for step in range(5):
                action, state = policy.act(env.shown[first + step], state, deterministic=True)
                state.reward = 0.5 * (step + 1)
                taken.append(action)
        assert str(taken) == str(env.taken)
        assert all(map(chosen.contains, taken))
    batch, _ = policy.act_batch([env.shown[0], env.shown[6]], deterministic=True)
    assert np.allclose(_numbers(batch), _numbers([env.taken[0], env.taken[5]]), atol=1e-5)
    capsys.readouterr()


def test_a_batch_of_a_vector_env_gives_a_batch_and_rows_begin_episodes() -> None:
    saved_run(EnvSpec.of_spaces(POINT, TREE), {"use_rnn": True, "encoder_mlp_layers": (8,), "rnn_size": 8})
    policy = sfactory.load("train_dir/run", seed=1)
    batch = np.random.default_rng(1).uniform(-1, 1, (3, 3)).astype(np.float32)

    actions, state = policy.act_batch(batch)
    assert actions["mode"].shape == (3, 2)
    assert actions["grip"][1].shape == (3, 2)
    again, _ = policy.act_batch(batch, state, first=[True, False, True], deterministic=True)
    fresh, _ = policy.act_batch(batch, deterministic=True)
    went_on, _ = policy.act_batch(batch, state, deterministic=True)

    assert str(again["grip"][1][[0, 2]]) == str(fresh["grip"][1][[0, 2]])
    assert str(again["grip"][1][1]) == str(went_on["grip"][1][1])
    assert str(again["grip"][1][1]) != str(fresh["grip"][1][1])
    with pytest.raises(ValueError, match="of 3 episodes"):
        policy.act_batch(batch[:2], state)
    with pytest.raises(BadObservation, match="shape"):
        policy.act(np.zeros(4, np.float32))


def test_a_batch_of_a_vector_env_may_begin_with_what_is_not_read() -> None:
    flags = {"ignore_obs_keys": ("goal",), "encoder_mlp_layers": (8,)}
    seen = spaces.Dict([("goal", spaces.Text(9, min_length=5)), ("where", POINT)])
    saved_run(EnvSpec.of_spaces(seen, spaces.Discrete(4)), flags)
    policy = sfactory.load("train_dir/run", seed=1)
    vector = gymnasium.vector.SyncVectorEnv([lambda: Anything(seen, spaces.Discrete(4))] * 3)
    batch, _ = vector.reset(seed=1)
    assert next(iter(batch)) == "goal"

    actions, _ = policy.act_batch(batch)

    assert actions.shape == (3,)
    assert policy.forward(batch).values.shape == (3,)
    for wrong in ({"goal": batch["goal"]}, {"where": 0.5}, ()):
        with pytest.raises(BadObservation, match="'where'"):
            policy.act_batch(wrong)
    nothing: Any
    for nothing in ([], {"goal": (), "where": batch["where"][:0]}):
        with pytest.raises(ValueError, match="there is no observation"):
            policy.act_batch(nothing)


def test_observations_that_do_not_fit_are_answered_with_what_fits() -> None:
    saved_run(EnvSpec.of_spaces(POINT, TREE), {"encoder_mlp_layers": (8,)})
    saved_run(EnvSpec.of_spaces(spaces.Dict(at=POINT, kind=spaces.Discrete(3)), TREE), {}, "tree")
    policy, of_tree = sfactory.load("train_dir/run"), sfactory.load("train_dir/tree")
    one, batch = np.zeros(3), np.zeros((4, 3))

    cases: list[tuple[Callable[[Any], object], Any, str]] = [
        (policy.act, batch, "^this is a batch of 4 observations: give it to act_batch$"),
        (policy.act_batch, [batch], "^this is a batch of 4 observations: give it to act_batch$"),
        (of_tree.act, {"at": batch, "kind": [0] * 4}, "^this is a batch of 4 observations: give it to act_batch$"),
        (policy.act_batch, one, "^this is one observation: give it to act, or "),
        (policy.act_batch, one.tolist(), "^this is one observation: give it to act, or "),
        (policy.forward, one, "^this is one observation: give it to act, or "),
        (of_tree.act_batch, {"at": one, "kind": 0}, "^this is one observation: give it to act, or "),
        (policy.act, np.zeros(5), r"'obs' has shape \(5,\) .* the policy was trained with \(3,\) and float32$"),
        (policy.act, 0.0, r"'obs' has shape \(\) .* the policy was trained with \(3,\) and float32$"),
        (policy.act_batch, np.zeros((2, 5)), r" has shape \(2, 5\) .* \(3,\) and float32 in each of 2 rows$"),
        (of_tree.act_batch, {"at": batch, "kind": [0]}, r"'kind' has shape \(1,\) .* in each of 4 rows$"),
        (of_tree.act, {"kind": 0}, "'at' is missing or no array: KeyError"),
    ]
    for function, given, text in cases:
        with pytest.raises(BadObservation, match=text) as caught:
            function(given)
        assert "env" not in str(caught.value)


def test_no_action_is_chosen_for_invalid_numbers_or_without_a_legal_one() -> None:
    saved_run(EnvSpec.of_spaces(MASKED, spaces.Discrete(4)), {"encoder_mlp_layers": (8,)})
    waiting = EnvSpec.of_spaces(MASKED, spaces.Discrete(4), ("a", "b"))
    saved_run(waiting, {"encoder_mlp_layers": (8,)}, "waiting")
    policy, of_agents = sfactory.load("train_dir/run"), sfactory.load("train_dir/waiting")
    good: dict[str, Any] = {"view": np.zeros(3, np.float32), "action_mask": np.ones(4, np.int8)}
    infinite, beyond = {**good, "view": np.array([0, np.inf, 0])}, {**good, "view": np.array([0, 0, 1e300])}
    none_legal = {**good, "action_mask": np.zeros(4, np.int8)}
    batch = {key: np.stack([each[key] for each in (good, good, infinite)]) for key in good}

    cases: list[tuple[Callable[[Any], object], Any, str]] = [
        (policy.act, {**good, "view": np.full(3, np.nan)}, "^observation 'view' holds NaN or infinity$"),
        (policy.act, beyond, "^observation 'view' holds NaN or infinity$"),
        (policy.act, none_legal, "^observation 'action_mask' allows no action$"),
        (policy.act_batch, [good, none_legal], "^observation 'action_mask' of row 1 allows no action: "),
        (policy.act_batch, batch, "^observation 'view' of row 2 holds NaN or infinity: "),
        (policy.forward, batch, "^observation 'view' of row 2 holds NaN or infinity: "),
        (of_agents.act_batch, [none_legal, infinite], "^observation 'view' of row 1 holds NaN or infinity: "),
    ]
    for function, given, text in cases:
        with pytest.raises(ValueError, match=text):
            function(given)
    assert len(of_agents.act_batch([none_legal, good])[0]) == 2  # the first one waits
    assert len(policy.forward([none_legal, good]).values) == 2


def test_the_network_says_what_it_acts_by() -> None:
    model = saved_run(
        EnvSpec.of_spaces(MASKED, spaces.Dict(go=spaces.Discrete(4), push=BOUNDS)),
        {"use_rnn": True, "encoder_mlp_layers": (8,), "rnn_size": 8, "obs_layout": ("action_mask=mask",)},
    )
    policy = sfactory.load("train_dir/run", seed=1)
    seen = [{"view": np.full(3, x, np.float32), "action_mask": np.array([1, 0, 1, 0], np.int8)} for x in (0.2, 0.9)]
    state: sfactory.PolicyState | None = None
    for _ in range(2):
        output = policy.forward(seen, state)
        actions, acted = policy.act_batch(seen, state, deterministic=True)

        assert torch.equal(output.state.memory, acted.memory)
        assert {key: tuple(each.shape) for key, each in output.parameters.items()} == {"go": (2, 4), "push": (2, 4)}
        assert list(output.probabilities) == ["go"]
        probable = output.probabilities["go"]
        assert torch.allclose(probable.sum(-1), torch.ones(2))
        assert torch.equal(probable[:, [1, 3]], torch.zeros(2, 2))
        assert probable.argmax(-1).tolist() == [action["go"] for action in actions]
        assert output.values.shape == (2,)
        state = output.state
    with torch.inference_mode():
        obs = {"view": torch.tensor([[0.2] * 3]), "action_mask": torch.tensor([[1, 0, 1, 0]], dtype=torch.int8)}
        assert torch.allclose(model.forward(obs).value, policy.forward(seen[:1]).values)


def test_threads_get_what_the_network_says_of_their_own_observations() -> None:
    saved_run(EnvSpec.of_spaces(POINT, BOUNDS), {"encoder_mlp_layers": (64, 64)})
    policy = sfactory.load("train_dir/run")
    shown = np.random.default_rng(1).uniform(-1, 1, (4, 1, 3)).astype(np.float32)
    right = [policy.forward(obs).values.item() for obs in shown]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(shown)) as threads:
            found = threads.map(lambda obs: {policy.forward(obs).values.item() for _ in range(50)}, shown)
            assert list(found) == [{value} for value in right]
    finally:
        sys.setswitchinterval(interval)


def test_memory_that_is_an_observation_stays_as_it_was() -> None:
    flags = {"model": "tests.support.networks:LastSeen", "use_rnn": True, "normalize_input": False}
    saved_run(EnvSpec.of_spaces(POINT, spaces.Discrete(4)), flags)
    policy = sfactory.load("train_dir/run", trust_run_dir=True)
    first, second = np.full((1, 3), 0.25, np.float32), np.full((1, 3), 0.75, np.float32)

    _, acted = policy.act_batch(first)
    policy.act_batch(second, acted)
    said = policy.forward(first).state
    policy.forward(second, said)

    assert acted.memory.tolist() == first.tolist()
    assert said.memory.tolist() == first.tolist()


def test_buffers_are_kept_for_the_last_eight_sizes_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: weakref.WeakSet[ActionChooser] = weakref.WeakSet()
    made: list[int] = []

    class Counted(ActionChooser):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            kept.add(self)
            made.append(args[-1])

    monkeypatch.setattr("sfactory.play.policy.ActionChooser", Counted)
    saved_run(EnvSpec.of_spaces(POINT, BOUNDS), {"encoder_mlp_layers": (8,)})
    policy = sfactory.load("train_dir/run")

    for size in (*range(1, 9), 1, 9, 1, 2):
        policy.forward([np.zeros(3)] * size)

    assert made == [*range(1, 10), 2]
    assert len(kept) == 8


def test_policy_that_has_acted_goes_on_the_same_in_another_process() -> None:
    flags = {"ignore_obs_keys": ("name",), "use_rnn": True, "core_inputs": ("action", "reward")}
    saved_run(EnvSpec.of_spaces(SEEN, TREE), {"encoder_mlp_layers": (8,), "rnn_size": 8, **flags})
    policy = sfactory.load("train_dir/run", seed=1)
    obs = {"where": np.zeros(3, np.float32), "kind": 3, "name": "any"}
    _, state = policy.act(obs)
    state.reward = 1.0

    again, sent = pickle.loads(pickle.dumps((policy, state)))

    for _ in range(3):
        action, state = policy.act(obs, state)
        other, sent = again.act(obs, sent)
        state.reward = sent.reward = 1.0
        assert str(other) == str(action)


def test_it_acts_where_numpy_raises_floating_point_errors() -> None:
    flags = {"use_rnn": True, "rnn_size": 8, "core_inputs": ("reward",)}
    saved_run(EnvSpec.of_spaces(POINT, BOUNDS), flags)
    policy = sfactory.load("train_dir/run")

    with np.errstate(all="raise"):
        _, state = policy.act(np.full(3, 1e-50))
        state.reward = 1e-50
        action, _ = policy.act(np.full(3, 1e-50), state)

    assert BOUNDS.contains(action)


def test_observations_of_the_env_may_have_the_names_of_core_inputs() -> None:
    policies = []
    for read, shown in (("action", "last_reward"), ("reward", "last_action")):
        saved_run(EnvSpec.of_spaces(spaces.Dict({shown: POINT}), TREE), {"use_rnn": True, "core_inputs": (read,)}, read)
        policies.append(sfactory.load(f"train_dir/{read}"))
    of_action, of_reward = policies
    obs = {"last_reward": np.zeros(3, np.float32)}

    _, state = of_action.act(obs)
    _, second = of_action.act(obs, state)  # without a reward

    assert not torch.equal(second.memory, state.memory)
    batch = {"last_action": np.zeros((1, 3), np.float32)}
    state = of_reward.forward(batch).state
    state.reward = 1.0
    second = of_reward.forward(batch, state).state  # without an action
    assert not torch.equal(second.memory, state.memory)


def test_a_policy_that_reads_its_action_does_not_go_on_without_one() -> None:
    saved_run(EnvSpec.of_spaces(POINT, TREE), {"use_rnn": True, "core_inputs": ("action",)})
    policy, obs = sfactory.load("train_dir/run"), np.zeros((1, 3), np.float32)

    state = policy.forward(obs).state

    with pytest.raises(ValueError, match="forward chooses none"):
        policy.forward(obs, state)
    policy.forward(obs, state, first=[True])


def test_a_policy_that_reads_rewards_wants_them() -> None:
    saved_run(EnvSpec.of_spaces(POINT, TREE), {"use_rnn": True, "core_inputs": ("reward",)})
    policy = sfactory.load("train_dir/run")

    _, state = policy.act(np.zeros(3, np.float32))

    with pytest.raises(ValueError, match=r"state\.reward"):
        policy.act(np.zeros(3, np.float32), state)


def test_policies_of_a_run_and_of_unequal_agents_are_loaded_by_number() -> None:
    whole = EnvSpec.of_spaces(
        spaces.Dict(cat=POINT, dog=spaces.Dict(smell=BOUNDS), action_mask=spaces.Dict(dog=spaces.MultiBinary(4))),
        spaces.Dict(cat=BOUNDS, dog=spaces.Discrete(4)),
    )
    flags = {"num_policies": 2, "encoder_mlp_layers": (8,), "normalize_input": False}
    for number, kind in enumerate(("cat", "dog")):
        saved_run(whole.part(kind), flags, policy=number)

    cat, dog = (sfactory.load("train_dir/run", policy=number) for number in (0, 1))

    assert (cat.observation_space, cat.action_space) == (POINT, BOUNDS)
    assert cat.act(np.zeros(3, np.float32))[0].shape == (2,)
    smelled = spaces.Dict([("smell", BOUNDS), ("action_mask", spaces.MultiBinary(4))])
    assert (dog.observation_space, dog.action_space) == (smelled, spaces.Discrete(4))
    only = {"smell": np.zeros(2, np.float32), "action_mask": np.array([0, 0, 1, 0], np.int8)}
    assert {int(dog.act(only)[0]) for _ in range(9)} == {2}
    with pytest.raises(ConfigError, match="policy=2"):
        sfactory.load("train_dir/run", policy=2)


def test_what_cannot_be_loaded_is_refused_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    save_run("older")
    flags = {"encoder": "tests.support.networks:Attention", "encoder_mlp_layers": (512, 512)}
    saved_run(EnvSpec.of_spaces(POINT, TREE), flags, "own")
    export.main(["--experiment=own", "--trust_run_dir=True", "--out=own.safetensors"])
    Path("damaged.safetensors").write_bytes(b"12345678 no such file")
    Path("alone.pth").write_bytes(b"")
    capsys.readouterr()

    for source, error, text in (
        ("train_dir/no", RunDirError, "there is no such folder"),
        ("train_dir/older", CheckpointError, "resume the run"),
        ("train_dir/own", ConfigError, "trust_run_dir=True"),
        ("own.safetensors", ConfigError, "trust_run_dir=True"),
        ("damaged.safetensors", CheckpointError, "is not a policy that"),
        ("alone.pth", RunDirError, r"config\.json"),
    ):
        with pytest.raises(error, match=text) as caught:
            sfactory.load(source)
        assert "--" not in str(caught.value).replace("--encoder", "")
    assert sfactory.load("train_dir/own", trust_run_dir=True).observation_space == POINT


def test_files_of_formats_for_other_programs_are_refused_with_the_one_that_can_be_loaded() -> None:
    saved_run(EnvSpec.of_spaces(POINT, spaces.Discrete(4)), {"encoder_mlp_layers": (8,)})
    assert export.main(["--experiment=run", "--format=numpy", "--out=alone.npz"]) == ExitCode.DONE
    for name in ("alone.onnx", "train_dir/run/beside.pt2"):
        Path(name).write_bytes(b"")

    for name, form in (("alone.npz", "numpy"), ("alone.onnx", "onnx"), ("train_dir/run/beside.pt2", "torch_export")):
        with pytest.raises(ConfigError, match=f"^{name} is .* --format={form}.* --format=safetensors"):
            sfactory.load(name)


def test_a_policy_plays_where_its_run_could_not_train(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EnvSpec.of_spaces(POINT, TREE)
    sizes = {"num_envs_per_worker": 1, "worker_num_splits": 1}  # more than one is refused for this family
    saved_run(spec, {"env": "retro:Airstriker-Genesis-v0", **sizes}, "retro")
    saved_run(spec, {"optimizer": "muon"}, "muon")
    saved_run(spec, {"actor_critic_share_weights": False}, "network")
    config = Path("train_dir/network/config.json")
    config.write_text(config.read_text().replace('"encoder_entity_heads": 4', '"encoder_entity_heads": 7'))
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None if name == "pytorch_optimizer" else Path)

    assert export.main(["--experiment=retro", "--out=retro.safetensors"]) == ExitCode.DONE
    for source in ("retro.safetensors", "train_dir/retro", "train_dir/muon"):
        assert sfactory.load(source).observation_space == POINT
    with pytest.raises(ConfigError, match=r"encoder_entity_heads.*\(this value comes from .*config\.json\)"):
        sfactory.load("train_dir/network")


def test_advice_on_another_policy_or_checkpoint_is_given_as_arguments() -> None:
    saved_run(EnvSpec.of_spaces(POINT, TREE), {})
    Path("train_dir/nothing").mkdir()

    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"kind": "best"}, CheckpointError, r'; for its newest: kind="latest"$'),
        ({"kind": "Best"}, ConfigError, "^kind='Best': must be one of latest, best, milestone$"),
        ({"policy": 3}, ConfigError, "^policy=3: .* holds policy 0 alone$"),
        ({"path": "train_dir/nothing"}, RunDirError, "^train_dir/nothing: there is no such run"),
    ]
    for arguments, error, text in cases:
        with pytest.raises(error, match=text):
            sfactory.load(**{"path": "train_dir/run", **arguments})
    directory = CheckpointDir("train_dir/run/checkpoint_p0", keep=1)
    directory.save_milestone(payload(1.0), train_step=1, env_steps=10)
    (latest,) = Path("train_dir/run/checkpoint_p0").glob("*.pth")
    truncate(latest)
    with pytest.raises(CheckpointError, match=r'Nothing was deleted\. There is a milestone one: kind="milestone"$'):
        sfactory.load("train_dir/run")


@pytest.mark.parametrize(
    "space", [POINT, TREE, SEEN, MASKED, spaces.MultiBinary([2, 3]), spaces.Box(0, 9, (2,), np.int64)]
)
def test_spaces_are_as_before_in_json(space: spaces.Space[Any]) -> None:
    again = space_of_plain(json.loads(json.dumps(plain_space(space))))

    if space is SEEN:
        assert again["where"] == POINT  # type: ignore[index]
    else:
        assert again == space
    for wrong in (None, [], ["Box", 1], ["Dict", 3], ["Discrete", "x", 1, "int64"]):
        with pytest.raises(ValueError, match="not"):
            space_of_plain(wrong)


def test_play_names_observations_that_have_changed_places(caplog: pytest.LogCaptureFixture) -> None:
    flags = {"encoder_mlp_layers": (8,)}
    saved_run(EnvSpec.of_spaces(spaces.Dict(goal=POINT, pos=POINT), spaces.Discrete(4)), flags)
    saved = sfactory.load("train_dir/run").saved

    for keys in (("goal", "pos"), ("agent_pos", "goal")):
        saved.spec_of(Anything(spaces.Dict([(key, POINT) for key in keys]), spaces.Discrete(4)), saved.config.run.env)

    (warning,) = caplog.messages
    assert "'agent_pos' (float32) in the place of 'goal' (float32)" in warning


class Curriculum(Anything):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__(POINT, spaces.Discrete(4))
        self.received: list[Any] = []

    def set_training_info(self, info: Any) -> None:
        self.received.append(dict(info))


def test_an_env_that_is_made_for_a_policy_is_as_far_in_its_curriculum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"{__name__}:Curriculum"
    saved_run(EnvSpec.of_spaces(POINT, spaces.Discrete(4)), {"env": name, "encoder_mlp_layers": (8,)})

    env = sfactory.load("train_dir/run", trust_run_dir=True).make_env()

    assert isinstance(env, Curriculum)
    assert env.received == [{"env_steps": 70}]
