"""A run as training leaves it in ./train_dir, and calls of enjoy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from sfactory import enjoy
from sfactory.checkpoint.directory import CheckpointDir
from sfactory.config.flags import config_of
from sfactory.config.saved_config import write_config
from sfactory.config.schema import ModelConfig
from sfactory.learner.checkpointing import PAYLOAD_VERSION
from sfactory.model.actor_critic import ActorCritic
from sfactory.spec import EnvSpec

BANDIT = "sfactory_envs.synthetic.bandit:Bandit"
TRUSTED = "--trust_run_dir=True"  # of envs that config.json alone names
CONTEXTS, LENGTH = 4, 5  # a bandit's episode returns 5 if every choice is right

SPEC = EnvSpec.of_spaces(
    gymnasium.spaces.Box(0.0, 1.0, (CONTEXTS,), np.float32), gymnasium.spaces.Discrete(CONTEXTS)
).for_model(ModelConfig())


def checkpoints(experiment: str = "run", policy: int = 0) -> CheckpointDir:
    """Where a policy of the run is saved."""
    return CheckpointDir(Path("train_dir") / experiment / f"checkpoint_p{policy}", keep=2)


def payload(certainty: float) -> dict[str, Any]:
    """Of a policy that prefers the choice of the context's number by ``certainty`` logits."""
    config = config_of({"encoder_mlp_layers": ()})
    model = ActorCritic(SPEC, config.model)
    with torch.no_grad():
        model.policy_head.linear.weight.copy_(certainty * torch.eye(CONTEXTS))
    counts = {"train_step": 7, "env_steps": 70, "train_seconds": 1.0}
    best = {"best_metric": "reward", "best_objective": 0.0}
    return {"payload_version": PAYLOAD_VERSION, "model": model.state_dict(), **counts, **best}


def save_run(experiment: str = "run", env: str = BANDIT, certainty: float | None = 1.0, **flags: object) -> None:
    """A run's config.json and, unless ``certainty`` is None, one checkpoint of train step 7 and env step 70."""
    run_dir = Path("train_dir") / experiment
    run_dir.mkdir(parents=True)
    kwargs = {"num_contexts": CONTEXTS, "length": LENGTH}
    config = config_of({"env": env, "env_kwargs": kwargs, "encoder_mlp_layers": (), **flags})
    write_config(run_dir, config, {})
    if certainty is not None:
        checkpoints(experiment).save(payload(certainty), train_step=7, env_steps=70)


def play(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    """The result of a play that succeeds."""
    code = enjoy.main(["--experiment=run", TRUSTED, *argv])
    out = capsys.readouterr().out
    assert code == 0
    assert len(out.splitlines()) == 1
    return dict(json.loads(out))


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    """What a play that is refused says."""
    code = enjoy.main([TRUSTED, *argv])
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    return [line for line in captured.err.splitlines() if line.startswith("error: ")]
