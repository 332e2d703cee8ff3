"""Networks of the user's own train, resume and play; a run directory of a stranger cannot bring them along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sfactory.errors import ExitCode
from tests.support.long import long
from tests.support.trainer import RunTrainer, assert_resumes, learned_by
from tests.support.warm_process import finished

HERE = "tests.support.networks"
SERIAL = {"serial_mode": True, "seed": 5, "num_batches_per_epoch": 1, "num_epochs": 1}
FRAMES = {
    "env": "sfactory_envs.synthetic.costfree:CostFree",
    "env_kwargs": '{"obs_shape": [4, 84, 84], "obs_dtype": "uint8", "num_actions": 6}',
    "encoder_conv_architecture": "convnet_atari",
    "normalize_input": False,
    "num_envs_per_worker": 2,
    "rollout": 8,
    "batch_size": 32,
    "train_for_env_steps": 640,
}
MLP = {"encoder_mlp_layers": (512, 512), "nonlinearity": "elu", "batch_size": 256, "train_for_env_steps": 20 * 256}


@pytest.mark.parametrize(("copy", "flags"), [("Mlp", MLP), long("NatureCnn", FRAMES)])
def test_copies_of_built_in_networks_give_bit_equal_weights_after_20_updates(
    run_trainer: RunTrainer, copy: str, flags: dict[str, Any]
) -> None:
    own = {name: value for name, value in flags.items() if not name.startswith("encoder_")}
    runs = [
        run_trainer(experiment="ours", **SERIAL, **flags),
        run_trainer(experiment="theirs", **SERIAL, **own, encoder=f"{HERE}:{copy}", encoder_mlp_layers=None),
    ]
    for run in runs:
        run.assert_ended(ExitCode.DONE, 240.0)

    ours, theirs = map(learned_by, runs)

    assert runs[0].payload()["train_step"] >= 20
    assert torch.equal(ours, theirs)


def test_own_attention_trains_resumes_plays_and_is_exported_and_trusted_only_by_name(
    run_trainer: RunTrainer, tmp_path: Path
) -> None:
    own = {"encoder": f"{HERE}:Attention", "core": f"{HERE}:LeakyCore", "use_rnn": True, "encoder_mlp_layers": None}
    kwargs = {"model_kwargs": {"encoder": {"size": 8}, "core": {"size": 4}}, "core_inputs": ("action", "reward")}
    run = run_trainer(**own, **kwargs, inference="local", train_for_env_steps=2_000).done()
    assert f"the encoder of the network is {HERE}:Attention" in run.stderr
    weights = run.payload()["model"]
    assert weights["tower.encoder.place"].shape == (4, 8)
    assert weights["tower.core.decay"].shape == (4,)
    assert weights["tower.core.linear.weight"].shape == (4, 8 + 2 + 1)  # features, the last action and reward

    assert_resumes(run, run_trainer)
    again = run_trainer(**{**run.flags, "model_kwargs": {"encoder": {"size": 9}, "core": {"size": 4}}})
    assert again.wait() == ExitCode.REFUSED
    assert "--model_kwargs" in again.stderr

    where = (f"--train_dir={run.flags['train_dir']}", "--experiment=run")
    out = tmp_path / "policy.safetensors"
    for module, *more in (("sfactory.enjoy", "--max_num_episodes=1"), ("sfactory.export", f"--out={out}")):
        refused = finished(module, *where, *more)
        assert refused.returncode == ExitCode.REFUSED
        assert f"--encoder={HERE}:Attention: only" in refused.stderr
        assert "--trust_run_dir=True" in refused.stderr
        assert finished(module, *where, *more, "--trust_run_dir=True").returncode == ExitCode.DONE
    assert out.exists()
