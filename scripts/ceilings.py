"""The rate of the model alone: forward passes or training, in this process, on random data that is made before.

bench.py runs it once for each number of threads, with nothing else running. Behind ``--`` stand the flags of a run:

    python scripts/ceilings.py forward --threads 1 --seconds 5 -- --env=CartPole-v1 --inference=local
    python scripts/ceilings.py train --threads 2 --seconds 5 -- --env=CartPole-v1 --inference=local

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from sfactory.action_heads import DiscreteHead
from sfactory.clock import now
from sfactory.config.resolve import read_command_line
from sfactory.config.schema import Config
from sfactory.env.factory import EnvFactory
from sfactory.inference.acting_policy import ActingPolicy
from sfactory.layout import Layout
from sfactory.learner.batch import Batch
from sfactory.learner.coefficients import standing_still
from sfactory.learner.staging import Staging
from sfactory.learner.trainer import Trainer
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState, flat_bytes
from sfactory.model.precision import compute_dtype, torch_dtype
from sfactory.shared.weights import SharedWeights
from sfactory.spec import EnvSpec, TensorSpec

sys.path.append(str(Path(__file__).resolve().parents[1]))
from scripts.command import split_flags

_WARMUP_S = 1.0
_SHARE_OF_ENDS = 0.01  # of steps that end an episode
_CPU = torch.device("cpu")


class Subject:
    """The model of a run on the CPU, and data of the shapes that it would see."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._spec = _spec_of(config)
        self._model = ActorCritic(self._spec, config.model, compute_dtype(config.model.amp, _CPU))
        self._layout = Layout.plan(config.sampling, config.learner, "local", self._model.state_size)

    def forward(self) -> tuple[Callable[[], object], int]:
        """One forward pass over the rows of a split with local inference; and how many env steps that is."""
        rows = self._layout.rows
        flat = FlatState(self._model)
        weights = SharedWeights(flat_bytes(self._model))
        weights.publish(flat.to_host(), 0)
        policy = ActingPolicy(self._spec, self._config.model, weights, _CPU)
        policy.refresh()
        obs = {key: _random(rows, tensor) for key, tensor in self._spec.obs}
        state = policy.fresh_state(rows)
        return lambda: policy.act(obs, state), rows

    def train(self) -> tuple[Callable[[], object], int]:
        """Training on one dataset; and how many env steps that is."""
        config, layout = self._config, self._layout
        staging = Staging(self._spec, layout, pin=False)
        _make_up(staging, self._spec)
        trainer = Trainer(
            self._model,
            config.algo,
            standing_still(config.optim),  # one dataset, again and again
            config.learner,
            seed=0,
            policy=0,
            total_env_steps=config.run.train_for_env_steps,
        )
        batch = Batch.of(staging, config.algo, config.learner, trainer.train_step, _CPU)
        return lambda: trainer.train(batch), layout.rollout * layout.dataset_rows


def calls_per_second(call: Callable[[], object], seconds: float) -> float:
    """How often ``call`` can be called, after a warm-up."""
    warm = now() + min(_WARMUP_S, seconds)
    while now() < warm:
        call()
    calls, start = 0, now()
    while now() - start < seconds:
        call()
        calls += 1
    return calls / (now() - start)


def _spec_of(config: Config) -> EnvSpec:
    env = EnvFactory.of(config)()
    spec = EnvSpec.of_spaces(env.observation_space, env.action_space)
    env.close()
    return spec


def _random(rows: int, tensor: TensorSpec) -> Tensor:
    """[rows, ...]: bytes from 0 to 255, other integers 0 or 1, normal reals."""
    dtype = torch_dtype(tensor.dtype)
    shape = (rows, *tensor.shape)
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype)
    return torch.randint(0, 256 if dtype == torch.uint8 else 2, shape).to(dtype)


def _make_up(staging: Staging, spec: EnvSpec) -> None:
    """Fill a staging area with steps of the current policy version, episodes' ends among them."""
    for obs, (_, tensor) in zip(staging.obs.values(), spec.obs, strict=True):
        obs.copy_(_random(math.prod(obs.shape[:2]), tensor).view(obs.shape))
    for head in spec.actions:
        actions = staging.actions[head.key]
        if isinstance(head, DiscreteHead):
            actions.random_(0, head.n)
        else:
            actions.normal_()
    scalars = staging.scalars
    scalars["log_prob"].fill_(-1.0)
    for name in ("value", "reward"):
        scalars[name].normal_()
    scalars["valid"].fill_(True)
    scalars["terminated"].bernoulli_(_SHARE_OF_ENDS)
    staging.is_first[1:] = scalars["terminated"]


def main() -> None:
    """Measure, and print the result."""
    own, flags = split_flags(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("forward", "train"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args(own)

    torch.manual_seed(0)
    torch.set_num_threads(given.threads)
    subject = Subject(read_command_line(flags).config)
    call, steps = subject.forward() if given.what == "forward" else subject.train()
    rate = steps * calls_per_second(call, given.seconds)
    result = {"what": given.what, "threads": given.threads, "steps_per_call": steps}
    print(json.dumps({**result, "env_steps_per_second": round(rate, 1)}))


if __name__ == "__main__":
    main()
