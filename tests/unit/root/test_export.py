"""Weights are exported as numbers and text alone, and come back as they were."""

from __future__ import annotations

import json
import pickletools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from sfactory import __version__, export
from sfactory.config.commands import export_flags
from sfactory.errors import ExitCode
from tests.support.saved_run import BANDIT, CONTEXTS, checkpoints, payload, save_run

OUT = "weights.safetensors"


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def exported(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    """The result of an export that succeeds."""
    code = export.main(["--experiment=run", f"--out={OUT}", *argv])
    captured = capsys.readouterr()
    assert code == ExitCode.DONE, captured.err
    assert len(captured.out.splitlines()) == 1
    result: dict[str, Any] = json.loads(captured.out)
    return result


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    """What an export that is refused says; it leaves no file."""
    code = export.main(argv)
    captured = capsys.readouterr()
    assert code == ExitCode.REFUSED
    assert captured.out == ""
    return [line for line in captured.err.splitlines() if line.startswith("error: ")]


def metadata() -> dict[str, str]:
    with safe_open(OUT, "pt") as file:
        return dict(file.metadata())


def test_exported_weights_are_those_of_the_checkpoint_bit_by_bit(capsys: pytest.CaptureFixture[str]) -> None:
    save_run(certainty=3.0)
    saved = payload(3.0)["model"]

    result = exported(capsys)

    loaded = load_file(OUT)
    of_checkpoint = checkpoints().load()
    assert of_checkpoint is not None
    assert loaded.keys() == of_checkpoint.payload["model"].keys() == saved.keys()
    for name, tensor in of_checkpoint.payload["model"].items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)
    assert result["tensors"] == len(loaded)
    assert result["bytes"] == Path(OUT).stat().st_size
    assert result["checkpoint_env_steps"] == 70


def test_the_file_says_what_its_weights_are_of(capsys: pytest.CaptureFixture[str]) -> None:
    save_run()

    exported(capsys)

    told = metadata()
    assert (told["env"], told["env_steps"], told["policy"]) == (BANDIT, "70", "0")
    assert told["sfactory_version"] == __version__
    assert told["checkpoint"] == "checkpoint_000000007_70.pth"
    assert json.loads(told["env_kwargs"]) == {"num_contexts": CONTEXTS, "length": 5}
    assert json.loads(told["env_spec"]) == {
        "obs": {"obs": {"shape": [CONTEXTS], "dtype": "float32"}},
        "actions": [{"kind": "DiscreteHead", "key": "action", "n": CONTEXTS, "start": 0}],
    }
    assert json.loads(told["model_config"])["encoder_mlp_layers"] == []


def test_the_file_holds_no_pickle(capsys: pytest.CaptureFixture[str]) -> None:
    save_run()

    exported(capsys)

    content = Path(OUT).read_bytes()
    header = int.from_bytes(content[:8], "little")
    assert isinstance(json.loads(content[8 : 8 + header]), dict)
    assert len(content) - 8 - header == sum(tensor.nbytes for tensor in load_file(OUT).values())
    assert b"PK\x03\x04" not in content  # no archive of torch's
    with pytest.raises(ValueError, match=r"opcode|pickle"):
        pickletools.dis(content)


def test_the_best_checkpoint_one_of_an_env_step_and_another_policy_are_exported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_run(certainty=1.0)
    checkpoints().save_best(payload(2.0), train_step=3, env_steps=30, metric=5.0)
    checkpoints(policy=1).save(payload(4.0), train_step=7, env_steps=70)
    found = {}

    for flag in ("--load_checkpoint_kind=best", "--checkpoint_env_steps=70", "--policy_index=1"):
        exported(capsys, flag)
        found[flag] = float(load_file(OUT)["policy_head.linear.weight"].max())
        Path(OUT).unlink()

    assert found == {"--load_checkpoint_kind=best": 2.0, "--checkpoint_env_steps=70": 1.0, "--policy_index=1": 4.0}


def test_another_train_dir_is_looked_into(capsys: pytest.CaptureFixture[str]) -> None:
    save_run()
    Path("train_dir").rename("elsewhere")

    assert exported(capsys, "--train_dir=elsewhere")["checkpoint"].startswith("elsewhere/run/")


def test_without_the_package_it_is_refused_with_the_command_that_installs_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_run()
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)

    (line,) = refused(capsys, "--experiment=run", f"--out={OUT}")

    assert "pip install 'sfactory[safetensors]'" in line
    assert not Path(OUT).exists()


def test_a_file_that_is_there_is_not_written_over(capsys: pytest.CaptureFixture[str]) -> None:
    save_run()
    Path(OUT).write_text("mine")

    (line,) = refused(capsys, "--experiment=run", f"--out={OUT}")

    assert f"--out={OUT}: exists already" in line
    assert Path(OUT).read_text() == "mine"


@pytest.mark.parametrize("out", ["", "weights.pt", ".safetensors", "no_folder/weights.safetensors"])
def test_a_name_that_cannot_be_written_is_refused(capsys: pytest.CaptureFixture[str], out: str) -> None:
    save_run()

    (line,) = refused(capsys, "--experiment=run", f"--out={out}")

    assert line.startswith(f"error: --out={out}: ")


def test_weights_that_do_not_fit_the_env_as_it_is_now_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    save_run(env="CartPole-v1", env_kwargs={})

    (line,) = refused(capsys, "--experiment=run", f"--out={OUT}")

    assert "does not fit --env=CartPole-v1 as it is now" in line
    assert not Path(OUT).exists()


def test_a_run_that_is_not_there_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    save_run()

    (line,) = refused(capsys, "--experiment=rum", f"--out={OUT}")

    assert "did you mean run?" in line


def test_every_problem_of_a_line_is_told_and_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    lines = refused(capsys, "--experiment=a/b", "--policy_index=-1", "--gama=1")
    with pytest.raises(SystemExit) as caught:
        export.main(["--help"])

    assert len(lines) == 4  # and there is no --out
    assert caught.value.code == 0
    told = capsys.readouterr().out
    assert [name for name in export_flags() if f"--{name} " not in told] == []
