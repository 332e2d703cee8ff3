"""Policies that meet play in one env; which runs were trained in another one, or with roles, is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfactory import match
from sfactory.env.factory import EnvFactory
from sfactory.env.multi_agent_adapters import agents_env_of
from sfactory.errors import ConfigError
from tests.support.saved_run import BANDIT, checkpoints, payload, save_run
from tests.support.unequal_agents import Unequal


def test_runs_of_an_env_with_other_settings_are_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    save_run("one")
    save_run("same", learning_rate=0.5)
    save_run("other", env_frameskip=4, action_repeat=2)
    save_run("named", num_policies=2, policy_mapping="red=0,blue=1")

    assert match.main(["named", "named:0:latest", "same", "--trust_run_dir=True"]) == 2
    trained = "named was trained with --policy_mapping=red=0,blue=1: here each of its policies plays either side"
    assert sum(trained in message for message in caplog.messages) == 1
    caplog.clear()
    assert match.main(["one", "same", "other", "other:0:latest", "--trust_run_dir=True"]) == 2  # a bandit has one agent

    said = [message for message in caplog.messages if "was trained with" in message]
    other = "--env_frameskip=4 --action_repeat=2"
    assert said == [f"other was trained with {other}, and plays in the env of one, which differs in that"]


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("one:0:best", "; for its newest: one:0:latest"),
        ("one:3", "one:3: {folder}/one holds policy 0 alone"),
        ("one:0:Best", "there is no run 'one:0:Best', neither"),
        ("one:0:Best", "of RUN:POLICY:KIND, KIND is latest, best, milestone or a number of env steps"),
        ("nothing", "nothing: there is no such run: {folder}/nothing/config.json is missing"),
    ],
)
def test_advice_on_another_policy_or_checkpoint_is_given_as_words(
    run: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_run("one")
    Path("train_dir/nothing").mkdir()

    assert match.main([run, "--trust_run_dir=True"]) == 2

    error = capsys.readouterr().err
    assert said.format(folder=tmp_path / "train_dir") in error
    assert "--policy_index" not in error
    assert "--load_checkpoint_kind" not in error


@pytest.mark.parametrize(("given", "named"), [("", "two"), (BANDIT, "two"), ("CartPole-v1", "one")])
def test_a_run_of_another_env_is_named(
    given: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_run("one")
    save_run("two", env="CartPole-v1")

    assert match.main(["one", "two", "--trust_run_dir=True", *([f"--env={given}"] if given else [])]) == 2

    trained = {"one": BANDIT, "two": "CartPole-v1"}
    error = capsys.readouterr().err
    assert (
        f"error: {named} was trained with --env={trained[named]}, and the match is in --env={given or BANDIT}" in error
    )


def test_of_agents_that_differ_the_refusal_alone_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    env = agents_env_of(Unequal())
    assert env is not None
    name, mapping = "tests.support.unequal_agents:Unequal", "guide=0,mover_*=1"
    save_run("run", name, None, env_kwargs={}, num_policies=2, policy_mapping=mapping)
    spec = {"env_spec": env.spec.part("guide").plain()}
    checkpoints("run").save(payload(1.0) | spec, train_step=7, env_steps=70)

    assert match.main(["run", "run:0:latest", "--trust_run_dir=True"]) == 2

    assert "its agents have different spaces" in capsys.readouterr().err
    assert not any("plays either side" in message for message in caplog.messages)


def test_a_curriculum_is_at_the_difficulty_of_the_newest_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def either(factory: EnvFactory) -> None:
        made.append(factory.env_steps)
        raise ConfigError(["no env is needed"])

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(EnvFactory, "either", either)
    save_run("older")
    save_run("newer")
    checkpoints("newer").save(payload(1.0) | {"env_steps": 90}, train_step=9, env_steps=90)

    match.main(["older", "newer", "--trust_run_dir=True"])

    assert made == [90]
