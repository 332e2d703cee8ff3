"""A policy goes to a hub and comes back; only HTTP is answered by a server of the test."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors import safe_open
from safetensors.torch import load, load_file, save_file

from sfactory import enjoy, export
from sfactory.checkpoint.directory import Kind
from sfactory.config.commands import PolicyFlags
from sfactory.errors import ExitCode
from sfactory.experiment.saved_policy import SavedPolicy
from sfactory.experiment.summary import Summary
from sfactory.exporting.model_card import model_card
from tests.support.hub_server import TOKEN, HubServer, hub_server
from tests.support.saved_run import BANDIT, TRUSTED, checkpoints, payload, save_run
from tests.support.warm_process import finished

OUT = "policy.safetensors"
HUB = "somebody/bandit"
FIRST = f"--env={BANDIT}"
PLAYED = {
    "policy_env_steps": 70,
    "episodes": 30,
    "episode_return_mean": 4.5,
    "episode_return_min": 4.0,
    "episode_return_max": 5.0,
}


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(name="hub")
def _hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with hub_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.setenv(name, "127.0.0.1")
        yield server


def command(module: str, *argv: str) -> dict[str, Any]:
    """The result of a command that succeeds."""
    done = finished(module, *argv, cwd=Path.cwd())
    assert done.returncode == ExitCode.DONE, done.stderr
    return dict(json.loads(done.stdout))


def test_a_pushed_policy_is_loaded_and_plays_as_its_run(hub: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    save_run(certainty=8.0, gamma=0.5, num_batches_to_accumulate=0)
    Summary("done", 70, 70, 70, 1.0, evaluation=PLAYED).write(Path("train_dir/run/summary.json"))

    result = command("sfactory.export", "--experiment=run", FIRST, f"--push_to_hub={HUB}")

    assert (result["pushed_to"], result["file"]) == (f"{hub.address}/{HUB}", None)
    assert hub.files[HUB].keys() == {OUT, "README.md"}
    assert load(hub.files[HUB][OUT]).keys() >= {"policy_head.linear.weight"}
    assert {token for method, _, token in hub.requests if method == "POST"} == {f"Bearer {TOKEN}"}
    card = hub.files[HUB]["README.md"].decode()
    head = yaml.safe_load(card.split("---\n")[1])
    assert head["tags"][-1] == BANDIT
    assert head["model-index"][0]["name"] == "PPO with V-trace, synchronous sampling"
    assert head["model-index"][0]["results"][0]["metrics"][0]["value"].startswith("4.50, between 4.00 and 5.00 in 30")
    settings = json.loads(card.partition("```json\n")[2].partition("```")[0])
    assert (settings["gamma"], settings["env"]) == (0.5, BANDIT)
    assert "experiment" not in settings
    words = next(line for line in card.splitlines() if line.startswith("python -m sfactory.enjoy")).split()[3:]
    assert words == [f"--load_from_hub={HUB}", FIRST]

    limits = ("--seed=3", "--max_num_episodes=4")
    theirs = command("sfactory.enjoy", *words, *limits)
    assert enjoy.main(["--experiment=run", FIRST, *limits]) == ExitCode.DONE
    ours = json.loads(capsys.readouterr().out)

    assert {**ours, "checkpoint": "", "policy": None} == {**theirs, "checkpoint": "", "policy": None}
    assert load_file(theirs["checkpoint"]).keys() == load(hub.files[HUB][OUT]).keys()


def test_a_model_card_has_the_return_of_its_checkpoint_or_none() -> None:
    save_run()
    summary = Summary("done", 70, 70, 70, 1.0, episode_return_mean=3.0, evaluation=PLAYED)
    later, best = payload(1.0) | {"env_steps": 80}, payload(1.0) | {"env_steps": 60, "best_objective": 2.5}
    checkpoints().save_best(best, 6, 60, 2.5)
    checkpoints().save_milestone(payload(1.0) | {"env_steps": 50}, 5, 50)

    def shown(summary: Summary, kind: Kind = "latest", steps: int | None = None) -> str:
        summary.write(Path("train_dir/run/summary.json"))
        wanted = PolicyFlags("run", load_checkpoint_kind=kind, checkpoint_env_steps=steps, trust_run_dir=True)
        card = model_card(SavedPolicy.load(wanted), HUB)
        return card.partition("| return | ")[2].partition(" |")[0].partition(" in ")[0]

    assert shown(summary) == "4.50, between 4.00 and 5.00"
    of_60 = {**PLAYED, "policy_env_steps": 60}
    assert shown(replace(summary, evaluation=of_60)) == "3.00, the mean of the last episodes of training"
    assert shown(replace(summary, evaluation=of_60), steps=60) == "4.50, between 4.00 and 5.00"
    assert shown(summary, "best") == "2.50, the mean of the last episodes of training when it was best"
    assert shown(summary, steps=60) == "2.50, the mean of the last episodes of training when it was best"
    assert shown(summary, "milestone") == "not known"
    policies = [{"env_steps": 70, "episode_return_mean": 2.0}, {"env_steps": 90, "episode_return_mean": 1.0}]
    assert shown(replace(summary, env_steps=160, policies=policies)).startswith("2.00, the mean")
    checkpoints().save_best(best | {"best_metric": "true_objective"}, 6, 60, 2.5)
    assert shown(summary, "best") == "not known"
    checkpoints().save_best(best | {"best_metric": "eval_return"}, 6, 60, 2.5)
    assert shown(summary, "best") == "2.50, the mean of an evaluation"
    checkpoints().save(later, 8, 80)  # the run goes on, and its summary is that of the session before
    assert shown(summary) == "not known"


def test_an_exported_file_is_played_as_its_run_and_code_in_it_needs_trust(capsys: pytest.CaptureFixture[str]) -> None:
    save_run(certainty=1.0, env_framestack=1, max_episode_steps=3)
    assert export.main(["--experiment=run", FIRST, f"--out={OUT}"]) == ExitCode.DONE
    results = []
    for source in ("--experiment=run", f"--policy_file={OUT}"):
        assert enjoy.main([source, FIRST, "--seed=3", "--max_num_episodes=4"]) == ExitCode.DONE
        results.append(json.loads(capsys.readouterr().out.splitlines()[-1]))

    assert results[0]["episode_length_mean"] == 3.0
    same = [{**result, "checkpoint": "", "policy": None} for result in results]
    assert same[0] == same[1]
    assert enjoy.main([f"--policy_file={OUT}"]) == ExitCode.REFUSED
    assert f"only {OUT} names this code" in capsys.readouterr().err


def test_a_description_of_another_size_takes_no_memory(capsys: pytest.CaptureFixture[str]) -> None:
    save_run()
    assert export.main(["--experiment=run", FIRST, f"--out={OUT}"]) == ExitCode.DONE
    with safe_open(OUT, "pt") as file:
        facts = file.metadata()
    facts["model_config"] = json.dumps({**json.loads(facts["model_config"]), "encoder_mlp_layers": [10**7, 10**7]})
    save_file(load_file(OUT), OUT, facts)

    assert enjoy.main([f"--policy_file={OUT}", FIRST]) == ExitCode.REFUSED

    assert "are not those of the network that it describes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--policy_file=none.safetensors"], "is not a policy that sfactory.export wrote"),
        (["--policy_file=bad.safetensors"], "is not a policy that sfactory.export wrote"),
        (["--policy_file=bad.safetensors", "--experiment=run"], "leave out one of them"),
        (["--policy_file=bad.safetensors", "--policy_index=1"], "holds one policy"),
        (["--load_from_hub=bandit"], "must be of the form USER/NAME"),
    ],
)
def test_what_is_no_exported_policy_is_refused(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.safetensors").write_bytes(b"\x00" * 100)

    assert enjoy.main([TRUSTED, *argv]) == ExitCode.REFUSED

    assert text in capsys.readouterr().err
