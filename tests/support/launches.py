"""Describes launches of short runs."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tests.support.trainer import to_argv

# Flags of runs that start, learn and end in a few seconds, in one process each but for what probes the environment.
SHORT: Mapping[str, object] = {
    "env": "sfactory_envs.synthetic.bandit:Bandit",
    "inference": "central",
    "task_defaults": False,
    "num_workers": 1,
    "num_envs_per_worker": 8,
    "rollout": 16,
    "batch_size": 128,
    "encoder_mlp_layers": (8,),
    "normalize_input": False,
    "normalize_returns": False,
    "device": "cpu",
    "with_tensorboard": False,
    "report_interval_sec": 0.5,
    "experiment_summaries_interval": 0.5,
    "save_every_sec": 0.5,
}


def description(name: str, flags: Mapping[str, object], varied: str) -> str:
    """A TOML file of one experiment called ``run``; ``varied``: its last lines."""
    words = to_argv({**SHORT, **flags})
    return f"run_name = {json.dumps(name)}\n[[experiments]]\nbase_name = 'run'\ncmd = {json.dumps(words)}\n{varied}\n"
