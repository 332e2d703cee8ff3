"""Every command and all code of docs/export.md run as they stand."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch

from sfactory.config.schema import ModelConfig
from sfactory.env.factory import EnvFactory
from sfactory.errors import ExitCode
from sfactory.model.actor_critic import ActorCritic
from sfactory.spec import EnvSpec
from tests.support.hub_server import TOKEN, hub_server
from tests.support.pages import blocks, python_of
from tests.support.saved_run import checkpoints, payload, save_run
from tests.support.warm_process import finished

PAGE = "docs/export.md"
COMMANDS = [command for block in blocks(PAGE) for command in block.commands]


@pytest.mark.long
def test_every_command_and_all_code_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    env = EnvFactory("CartPole-v1")()
    spec = EnvSpec.of_spaces(env.observation_space, env.action_space).for_model(ModelConfig())
    save_run("cartpole", env="CartPole-v1", env_kwargs={}, encoder_mlp_layers=(512, 512), certainty=None)
    model = ActorCritic(spec, ModelConfig())
    checkpoints("cartpole").save({**payload(1.0), "model": model.state_dict()}, train_step=7, env_steps=70)
    assert len(COMMANDS) == 7

    with hub_server() as hub:
        for name, value in (("HF_ENDPOINT", hub.address), ("HF_HOME", str(tmp_path / "cache")), ("HF_TOKEN", TOKEN)):
            monkeypatch.setenv(name, value)
        for command in COMMANDS:
            module, *argv = shlex.split(command.replace("USER", "somebody"))[2:]
            done = finished(module, *argv, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["env"] == "CartPole-v1"
        other = finished("sfactory.enjoy", "--load_from_hub=somebody/else", cwd=tmp_path)
        assert other.returncode == ExitCode.REFUSED
        assert "policy.safetensors was not downloaded" in other.stderr
    names: dict[str, object] = {}
    actions = []
    for code in python_of(PAGE):
        exec(code, names)
        actions.append(names["action"])

    onnx, exported, plain = actions
    assert len({int(action[0]) for action in (exported, plain)}) == 1  # type: ignore[index]
    assert len(onnx) == 1  # type: ignore[arg-type]
    assert isinstance(exported, torch.Tensor)
