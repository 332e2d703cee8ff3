"""Weights are exported as numbers and text alone, and come back as they were."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from sfactory import __version__, enjoy, export
from sfactory.config.flags import config_of
from sfactory.config.resolve import read_command_line
from sfactory.config.saved_config import BEFORE_FLAGS
from sfactory.env.factory import EnvFactory
from sfactory.errors import ExitCode
from sfactory.model.actor_critic import ActorCritic
from sfactory.spec import EnvSpec
from tests.support.saved_run import BANDIT, CONTEXTS, SPEC, TRUSTED, checkpoints, payload, save_run

OUT = "weights.safetensors"


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_exported_weights_are_those_of_the_checkpoint_and_are_described(capsys: pytest.CaptureFixture[str]) -> None:
    save_run(certainty=3.0)

    assert export.main(["--experiment=run", TRUSTED, f"--out={OUT}"]) == ExitCode.DONE

    (line,) = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    of_checkpoint = checkpoints().load()
    assert of_checkpoint is not None
    loaded, saved = load_file(OUT), of_checkpoint.payload["model"]
    assert loaded.keys() == saved.keys()
    assert all(loaded[name].dtype == saved[name].dtype for name in saved)
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)
    assert result["tensors"] == len(loaded)
    assert result["bytes"] == Path(OUT).stat().st_size
    assert result["checkpoint_env_steps"] == 70
    with safe_open(OUT, "pt") as file:
        facts = dict(file.metadata())
    assert (facts["env"], facts["env_steps"], facts["policy"]) == (BANDIT, "70", "0")
    assert facts["sfactory_version"] == __version__
    assert facts["checkpoint"] == "checkpoint_000000007_70.pth"
    assert json.loads(facts["env_kwargs"]) == {"num_contexts": CONTEXTS, "length": 5}
    spec = json.loads(facts["env_spec"])
    assert {name: spec["obs"]["obs"][name] for name in ("shape", "dtype", "layout")} == {
        "shape": [CONTEXTS],
        "dtype": "float32",
        "layout": "flat",
    }
    assert spec["actions"] == [{"kind": "DiscreteHead", "key": "action", "n": CONTEXTS, "start": 0}]
    assert json.loads(facts["model_config"])["encoder_mlp_layers"] == []


def test_a_checkpoint_with_the_spec_of_its_env_is_exported_without_the_env(capsys: pytest.CaptureFixture[str]) -> None:
    save_run()
    assert export.main(["--experiment=run", TRUSTED, "--out=made.safetensors"]) == ExitCode.DONE
    save_run("gone", env="no_such_module_here:make", certainty=None)
    saved = payload(1.0) | {"env_spec": SPEC.plain()}
    checkpoints("gone").save(saved, train_step=7, env_steps=70)

    assert export.main(["--experiment=gone", f"--out={OUT}"]) == ExitCode.DONE

    with safe_open("made.safetensors", "pt") as made, safe_open(OUT, "pt") as file:
        assert dict(file.metadata())["env_spec"] == dict(made.metadata())["env_spec"]
    assert load_file(OUT).keys() == load_file("made.safetensors").keys()


def test_arrays_act_by_numpy_alone_and_nothing_is_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    save_run(certainty=3.0)
    argv = ["--experiment=run", TRUSTED, "--format=numpy"]

    assert export.main(argv) == ExitCode.DONE

    result = json.loads(capsys.readouterr().out)
    assert (result["file"], result["inputs"], result["outputs"]) == ("run.npz", ["obs"], ["action", "dist_params"])
    module = runpy.run_path("run.py")
    policy = module["Policy"]("run.npz")
    assert policy({"obs": np.eye(CONTEXTS)})["action"].tolist() == list(range(CONTEXTS))
    assert (policy.about["env"], policy.about["env_steps"]) == (BANDIT, "70")
    Path("run.npz").unlink()
    assert export.main(argv) == ExitCode.REFUSED
    assert "--out=run.npz: run.py exists already" in capsys.readouterr().err
    assert not Path("run.npz").exists()


def test_the_module_beside_arrays_can_be_imported_whatever_their_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    save_run("Cart.Pole-v1")
    save_run("class")

    for words, module in (
        ("--experiment=Cart.Pole-v1", "Cart_Pole_v1"),
        ("--experiment=class", "class_"),
        ("--experiment=class --out=2-x².npz", "_2_x_"),
    ):
        assert export.main([*words.split(), TRUSTED, "--format=numpy"]) == ExitCode.DONE
        result = json.loads(capsys.readouterr().out)
        assert result["module"] == f"{module}.py"
        assert importlib.import_module(module).Policy(result["file"]).about["env"] == BANDIT


OLDER = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

class Grid(gymnasium.Env):
    observation_space = Dict({"grid": Box(0, 1, (36, 40, 3)), "grey": Box(0, 255, (36, 36), np.uint8)})
    action_space = Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {name: np.zeros(box.shape, box.dtype) for name, box in self.observation_space.items()}, {}

    def step(self, action):
        return self.reset()[0], 1.0, True, False, {}
"""


def test_a_run_older_than_the_flag_of_layouts_is_played_exported_and_resumed_as_it_was_trained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    Path("older_grids.py").write_text(OLDER)
    env = EnvFactory("older_grids:Grid")()
    # Then a float array of three dimensions was an image, and a grey image was numbers.
    layouts = {"grid": "hwc", "grey": "flat"}
    trained = config_of({"obs_layout": tuple(f"{key}={layout}" for key, layout in layouts.items())}).model
    spec = EnvSpec.of_spaces(env.observation_space, env.action_space)
    save_run("older", env="older_grids:Grid", env_kwargs={}, encoder_mlp_layers=(512, 512), certainty=None)
    weights = ActorCritic(spec.for_model(trained), trained).state_dict()
    checkpoints("older").save({**payload(1.0), "model": weights}, train_step=7, env_steps=70)
    file = Path("train_dir/older/config.json")
    saved = json.loads(file.read_text())
    for name in BEFORE_FLAGS:
        del saved["config"][name]
    file.write_text(json.dumps(saved))
    of_run = ["--experiment=older", "--env=older_grids:Grid"]

    assert enjoy.main([*of_run, "--max_num_episodes=1"]) == ExitCode.DONE
    assert export.main([*of_run, f"--out={OUT}"]) == ExitCode.DONE

    assert "1 of 1 episodes, mean return 1.000" in capsys.readouterr().err
    assert all(torch.equal(tensor, weights[name]) for name, tensor in load_file(OUT).items())
    resumed = spec.for_model(read_command_line(of_run).config.model)
    assert {key: tensor.layout for key, tensor in resumed.obs} == layouts


@pytest.mark.parametrize(
    "change",
    [{"obs": {}}, {"obs": {"obs": {"shape": "x"}}}, {"obs": 3}, {"actions": [{"kind": "EnvSpec"}]}, {"agents": 3}],
    ids=str,
)
def test_a_spec_that_is_none_is_refused(change: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    save_run(certainty=None)
    saved = payload(1.0) | {"env_spec": {**SPEC.plain(), **change}}
    checkpoints().save(saved, train_step=7, env_steps=70)

    assert export.main(["--experiment=run", TRUSTED, f"--out={OUT}"]) == ExitCode.REFUSED

    error = capsys.readouterr().err
    assert "checkpoint_000000007_70.pth" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        *(([f"--out={out}"], f"--out={out}: ") for out in ("weights.pt", ".safetensors", f"no_folder/{OUT}")),
        (["--out=mine.safetensors"], "exists already"),
        (["--format=onnx", "--out=mine.npz"], "or say --format=numpy"),
        (["--format=onnx", "--push_to_hub=somebody/run"], "--push_to_hub=somebody/run: weights go to the Hub as"),
        (["--push_to_hub=run"], "must be of the form USER/NAME"),
        ([f"--out={OUT}", "--experiment=rum"], "did you mean run?"),
        ([f"--out={OUT}", "--experiment=of_another_env"], "does not fit --env=CartPole-v1"),
        ([f"--out={OUT}"], "[safetensors]'"),
        ([f"--out={OUT}", "--push_to_hub=somebody/run"], "[hub]'"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, argv: list[str], word: str
) -> None:
    save_run(env="CartPole-v1", env_kwargs={})
    Path("train_dir/run").rename("train_dir/of_another_env")
    save_run()
    Path("mine.safetensors").write_text("mine")
    if "safetensors]" in word:
        monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    if "hub]" in word:
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    code = export.main([TRUSTED, *argv, *(() if "--experiment" in argv[-1] else ("--experiment=run",))])

    captured = capsys.readouterr()
    (line,) = (line for line in captured.err.splitlines() if line.startswith("error: "))
    assert (code, captured.out) == (ExitCode.REFUSED, "")
    assert word in line
    assert not Path(OUT).exists()
    assert Path("mine.safetensors").read_text() == "mine"
