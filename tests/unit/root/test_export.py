"""Weights are exported as numbers and text alone, and come back as they were."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from sfactory import __version__, export
from sfactory.errors import ExitCode
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
        *(([f"--out={out}"], f"--out={out}: ") for out in ("", "weights.pt", ".safetensors", f"no_folder/{OUT}")),
        (["--out=mine.safetensors"], "exists already"),
        ([f"--out={OUT}", "--experiment=rum"], "did you mean run?"),
        ([f"--out={OUT}", "--experiment=of_another_env"], "does not fit --env=CartPole-v1"),
        ([f"--out={OUT}"], "[safetensors]'"),
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

    code = export.main([TRUSTED, *argv, *(() if "--experiment" in argv[-1] else ("--experiment=run",))])

    captured = capsys.readouterr()
    (line,) = (line for line in captured.err.splitlines() if line.startswith("error: "))
    assert (code, captured.out) == (ExitCode.REFUSED, "")
    assert word in line
    assert not Path(OUT).exists()
    assert Path("mine.safetensors").read_text() == "mine"
