"""Agents are played by the policies that they have in training, at checkpoints that belong together."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from sfactory import export
from sfactory.checkpoint.directory import CheckpointDir
from sfactory.config.commands import PolicyFlags
from sfactory.config.flags import config_of
from sfactory.config.saved_config import write_config
from sfactory.env.factory import EnvFactory
from sfactory.errors import CheckpointError, ConfigError, ExitCode
from sfactory.experiment.saved_policy import SavedPolicy
from sfactory.exporting.exported_policy import read_export
from sfactory.model.actor_critic import ActorCritic
from sfactory.play.joint_policy import JointPolicy
from sfactory.play.player import Player
from sfactory.play.rendering import show_nothing
from sfactory.play.saved_policies import SavedPolicies
from tests.support.saved_run import SPEC as ONE_AGENT
from tests.support.saved_run import checkpoints, payload, save_run
from tests.support.scripted_agents import Changes, ScriptedAgents

ENV = "tests.support.unequal_agents:Unequal"
SPEC = EnvFactory(ENV).agents().spec
SAVED = {"guide": (100, 200), "mover_0": (110, 190)}  # env steps of the checkpoints of policies 0 and 1


BY_FUNCTION = "tests.unit.play.test_joint_policy:by_name"


def by_name(agent: str, episode: int, env: int) -> int:
    return int(agent == "bob")


def by_episode(agent: str, episode: int, env: int) -> int:
    return episode % 2


def in_two_envs(agent: str, episode: int, env: int) -> int:
    return (0, 1)[env]


@pytest.fixture
def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose policies have saved at different env steps, which are the number of their first weight."""
    monkeypatch.chdir(tmp_path)
    run_dir = Path("train_dir/run")
    run_dir.mkdir(parents=True)
    config = config_of({"env": ENV, "experiment": "run", "num_policies": 2, "encoder_mlp_layers": (4,)})
    write_config(run_dir, config, {})
    for policy, (kind, steps) in enumerate(SAVED.items()):
        model = ActorCritic(SPEC.part(kind).for_model(config.model), config.model)
        for env_steps in steps:
            weights = {**model.state_dict(), "value_head.linear.bias": torch.full((1,), float(env_steps))}
            saved = {**payload(1.0), "model": weights, "env_spec": model.spec.plain(), "env_steps": env_steps}
            CheckpointDir(run_dir / f"checkpoint_p{policy}", 2).save(saved, env_steps, env_steps)


def save_equal(mapping: str, policies: tuple[int, ...] = (0, 1)) -> None:
    """A run of two policies for equal agents; each always takes the action of its number."""
    run_dir, spec = Path("train_dir/run"), ScriptedAgents().spec
    run_dir.mkdir(parents=True)
    flags = {"env": "tests.support.scripted_agents:ScriptedAgents", "num_policies": 2, "policy_mapping": mapping}
    config = config_of({**flags, "experiment": "run", "encoder_mlp_layers": (4,)})
    write_config(run_dir, config, {})
    for policy in policies:
        model = ActorCritic(spec.for_model(config.model), config.model)
        model.policy_head.linear.bias.data[policy] = 1000.0
        saved = {**payload(1.0), "model": model.state_dict(), "env_spec": model.spec.plain(), "env_steps": 70}
        CheckpointDir(run_dir / f"checkpoint_p{policy}", 2).save(saved, 7, 70)


def played(policy: int = 0, trusted: bool = False) -> tuple[list[list[int]], float]:
    """The actions of an episode of two steps, and its return, with ``policy``."""
    return played_by(SavedPolicy.load(PolicyFlags("run", policy_index=policy, trust_run_dir=trusted)))


def played_by(saved: SavedPolicy) -> tuple[list[list[int]], float]:
    """The same with a policy that is loaded."""
    env = ScriptedAgents({2: Changes(terminated=(0, 1))})
    spec = saved.spec_of(env)
    player = Player(env, spec, SavedPolicies.of(saved).acting_model(spec), show_nothing, name="scripted")
    (episode,) = player.episodes(1, 9, seed=1)
    return [[int(action) for action in actions] for actions in env.taken], episode.episode_return


@pytest.mark.usefixtures("_run")
@pytest.mark.parametrize(("chosen", "played"), [(None, [200, 190]), (100, [100, 110]), (200, [200, 190])])
def test_other_policies_play_as_they_were_nearest_to_the_chosen_checkpoint(
    chosen: int | None, played: list[int]
) -> None:
    saved = SavedPolicy.load(PolicyFlags("run", checkpoint_env_steps=chosen))

    joint = SavedPolicies.of(saved).acting_model(SPEC.for_model(saved.config.model))

    assert isinstance(joint, JointPolicy)
    models = [model for model, _, _ in joint._parts if isinstance(model, ActorCritic)]
    assert [model.state_dict()["value_head.linear.bias"].item() for model in models] == played


@pytest.mark.usefixtures("_run")
def test_a_checkpoint_that_is_named_as_a_file_is_played_with_the_nearest_of_others() -> None:
    (path,) = Path("train_dir/run/checkpoint_p0").glob("*_100.pth")
    saved = SavedPolicy.of_file(path, trust_run_dir=True)

    assert [each.state.env_steps for each in SavedPolicies.of(saved).by_number.values()] == [100, 110]


@pytest.mark.parametrize("mapping", ["ann=0,bob=1", "b*=1,*=0", BY_FUNCTION])
def test_equal_agents_are_played_by_the_policies_of_their_names_and_returns_are_those_of_its_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mapping: str
) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO)
    save_equal(mapping)

    assert played(0, trusted=True) == ([[0, 1]] * 2, 0.5 + 10.5)
    assert "policy 0 plays ann; policy 1 plays bob; returns are those of the agents of policy 0" in caplog.messages
    assert played(1, trusted=True) == ([[0, 1]] * 2, 1.5 + 11.5)


def test_the_agent_of_an_env_of_one_is_played_by_the_policy_that_a_function_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_run(num_policies=2, policy_mapping=BY_FUNCTION)
    checkpoints(policy=1).save(payload(1.0), train_step=7, env_steps=70)

    joint = SavedPolicies.of(SavedPolicy.load(PolicyFlags("run", trust_run_dir=True))).acting_model(ONE_AGENT)

    assert isinstance(joint, JointPolicy)
    assert joint.own == [0]


@pytest.mark.parametrize("mapping", ["ann=0,bob=1", BY_FUNCTION])
def test_an_exported_policy_says_that_it_plays_agents_of_others_and_returns_are_those_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mapping: str
) -> None:
    monkeypatch.chdir(tmp_path)
    save_equal(mapping)
    assert export.main(["--experiment=run", "--policy_index=1", "--out=bob.safetensors"]) == ExitCode.DONE

    saved = read_export(Path("bob.safetensors"), trusted=True)
    assert played_by(saved) == ([[1, 1]] * 2, 1.5 + 11.5)

    said = (
        "policy 1 plays all agents, as bob.safetensors holds no other; returns are those of bob, which it was made for"
    )
    assert said in caplog.messages


def test_an_exported_policy_calls_no_function_of_a_file_that_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    save_equal("no_such_module:function")
    assert export.main(["--experiment=run", "--policy_index=1", "--out=bob.safetensors"]) == ExitCode.DONE

    actions, _ = played_by(read_export(Path("bob.safetensors"), trusted=False))

    assert actions == [[1, 1]] * 2
    assert any("a function chose their policies in training" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("mapping", "trusted", "said"),
    [
        (BY_FUNCTION, False, f"a function chose their policies in training (--policy_mapping={BY_FUNCTION})"),
        (BY_FUNCTION.replace("by_name", "by_episode"), True, "does not give each one policy for good"),
        (BY_FUNCTION.replace("by_name", "in_two_envs"), True, "does not give each one policy for good"),
        ("agent", False, ""),
    ],
)
def test_one_policy_plays_all_agents_where_none_has_agents_of_its_own_or_a_function_is_not_trusted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    mapping: str,
    trusted: bool,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    save_equal(mapping)

    actions, _ = played(1, trusted)

    assert actions == [[1, 1]] * 2
    assert any("policy 1 plays all agents" in message and said in message for message in caplog.messages) == bool(said)


def test_a_policy_that_is_missing_or_plays_no_agent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_equal("*=0,bob=1")
    with pytest.raises(ConfigError, match="--policy_index=1: this policy plays none of ann, bob"):
        played(1)
    Path("train_dir/run").rename("train_dir/other")
    save_equal("ann=0,bob=1", policies=(0,))

    with pytest.raises(CheckpointError, match="policy 1, which plays some of the agents, has saved nothing"):
        played(0)
