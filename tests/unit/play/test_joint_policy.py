"""Agents of different spaces are played by the policy of each kind, at checkpoints that belong together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sfactory.checkpoint.directory import CheckpointDir
from sfactory.config.commands import PolicyFlags
from sfactory.config.flags import config_of
from sfactory.config.saved_config import write_config
from sfactory.env.factory import EnvFactory
from sfactory.experiment.saved_policy import SavedPolicy
from sfactory.model.actor_critic import ActorCritic
from sfactory.play.joint_policy import acting_model
from tests.support.saved_run import payload

ENV = "tests.support.unequal_agents:Unequal"
SPEC = EnvFactory(ENV).agents().spec
SAVED = {"guide": (100, 200), "mover_0": (110, 190)}  # env steps of the checkpoints of policies 0 and 1


@pytest.fixture(autouse=True)
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


@pytest.mark.parametrize(("chosen", "played"), [(None, [200, 190]), (100, [100, 110]), (200, [200, 190])])
def test_other_policies_play_as_they_were_nearest_to_the_chosen_checkpoint(
    chosen: int | None, played: list[int]
) -> None:
    saved = SavedPolicy.load(PolicyFlags("run", checkpoint_env_steps=chosen))

    joint = acting_model(saved, SPEC.for_model(saved.config.model))

    parts = [policy.state_dict()["value_head.linear.bias"].item() for policy, _ in joint._policies]  # type: ignore[attr-defined]
    assert parts == played
