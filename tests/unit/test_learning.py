"""What a learner tells of its datasets."""

from __future__ import annotations

import torch

from sfactory.config.flags import config_of
from sfactory.layout import Layout
from sfactory.learner.learning import Learning
from sfactory.learner.staging import Staging
from sfactory.messages import TrainStats
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import flat_bytes
from sfactory.run.wiring import Wiring
from tests.support.parts import VECTOR

FLAGS = {
    "env": "any",
    "num_workers": 1,
    "num_envs_per_worker": 4,
    "worker_num_splits": 1,
    "rollout": 5,
    "batch_size": 20,
    "encoder_mlp_layers": (8,),
    "max_policy_lag": 3,
}


def test_the_policy_lag_that_is_reported_covers_steps_that_are_too_old_to_learn_from_and_no_others() -> None:
    config = config_of(FLAGS)
    layout = Layout.plan(config.sampling, config.learner, "central")
    wiring = Wiring(VECTOR, layout, flat_bytes(ActorCritic(VECTOR, config.model)))
    learning = Learning(wiring.learner(0, config, 1, "cpu", 1, None), wiring.status.row("sf-learner-0"))
    learning.begin()
    staging = Staging(VECTOR, layout, pin=False)
    staging.obs["obs"].normal_()
    staging.scalars["valid"].fill_(True)
    # The learner is at update 0: versions below 0 stand for steps that waited for so many updates.
    staging.scalars["policy_version"][:] = torch.tensor([0, -1, -3, -7], dtype=torch.int32)
    staging.scalars["valid"][2, :] = False  # never taken: what lies there is garbage
    staging.scalars["policy_version"][2, :] = torch.tensor([1, -99, -99, -99], dtype=torch.int32)

    learning.learn(staging)
    learning.report()

    (stats,) = [message for message in wiring.to_main[1].get(1) if isinstance(message, TrainStats)]
    assert (stats.lag_min, stats.lag_mean, stats.lag_max) == (0.0, (0 + 1 + 3 + 7) / 4, 7.0)
    assert learning.progress.env_steps == 2 * 4
