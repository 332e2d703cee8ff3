"""Sample Factory on CartPole of the bench folder, with its score during training. Run by time_to_score.py.

It runs in Sample Factory's own environment, from the bench folder, with Sample Factory's flags behind it:

    cd BENCH && PEERS/sf/bin/python scripts/score_sample_factory.py --batch_size=1024 ...

Each line ``SCORE {...}`` on stdout holds the mean return of the last 100 episodes and the seconds of training.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import Any

sys.path.insert(0, os.getcwd())

from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

import envs

EPISODES = 100
EVERY_S = 0.1


class ScoreReporter(AlgoObserver):  # type: ignore[misc]
    """Tells the score after training steps. Training begins when the samplers are started."""

    def __init__(self) -> None:
        self._since = self._printed = time.monotonic()

    def on_start(self, runner: Runner) -> None:
        """Start the clock."""
        self._since = time.monotonic()

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        """Tell the score, unless it was printed just now or there are too few episodes."""
        now = time.monotonic()
        returns = list(runner.policy_avg_stats.get("reward", [[]])[0])[-EPISODES:]
        if now - self._printed < EVERY_S or len(returns) < EPISODES:
            return
        self._printed = now
        score = {"mean": float(sum(returns)) / EPISODES, "train_s": now - self._since}
        print("SCORE", json.dumps({**score, "env_steps": int(sum(runner.env_steps.values()))}), flush=True)


def make_env(full_env_name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> Any:
    """An environment of the bench."""
    return envs.make(full_env_name)


def main() -> None:
    """Train until the process is ended."""
    register_env("cartpole", make_env)
    with tempfile.TemporaryDirectory() as folder:
        given = ["--env=cartpole", "--experiment=score", f"--train_dir={folder}", "--device=cpu", *sys.argv[1:]]
        parser, _ = parse_sf_args(given)
        _, runner = make_runner(parse_full_cfg(parser, given))
        runner.register_observer(ScoreReporter())
        runner.init()
        runner.run()


if __name__ == "__main__":
    main()
