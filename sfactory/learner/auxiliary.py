"""Room: the auxiliary loss of a learner. In: its flags; minibatches and what the network made of them. Out: a loss.

Its weights belong to the learner alone: the same optimiser trains them and checkpoints hold them, but they are not
published, and neither actors nor enjoy know them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig
from sfactory.learner.batch import Batch
from sfactory.model.actor_critic import ActorCritic, Unrolled
from sfactory.model.auxiliary import Auxiliary, Trace
from sfactory.model.cpc import CpcAction
from sfactory.seeds import Branch, seed_at


def make_auxiliary(model: ActorCritic, config: AlgoConfig) -> Auxiliary | None:
    """The auxiliary loss that the flags ask for, on torch's default device, if any. Another one gets its line here.

    Make it after ``model``, whose first weights are then what they are without it.
    """
    if not config.use_cpc:
        return None
    return CpcAction(
        model.heads,
        embedding_size=model.tower.encoder.out_size,
        memory_size=model.tower.core.out_size,
        forward_steps=config.cpc_forward_steps,
        time_subsample=config.cpc_time_subsample,
        forward_subsample=config.cpc_forward_subsample,
    )


class AuxiliaryTask:
    """An auxiliary loss with its place in the seed tree. ``module``: what is trained and saved."""

    def __init__(self, module: Auxiliary, seed: int, policy: int) -> None:
        self.module = module
        self._seed, self._policy = seed, policy
        self._generator = torch.Generator(next(module.parameters()).device)

    def begin(self, train_step: int) -> None:
        """Begin the dataset that is learned from at ``train_step``; it draws the same if a run is resumed there."""
        self._generator.manual_seed(seed_at(self._seed, Branch.AUXILIARY, self._policy, train_step))

    def loss(self, batch: Batch, unrolled: Unrolled) -> Tensor:
        """The loss of a minibatch of whole rollouts, 0-dim, before its coefficient. Each call draws anew."""
        steps = batch.valid.shape[0]
        trace = Trace(
            embeddings=unrolled.embeddings[:steps],
            memory=unrolled.memory[:steps],
            actions=batch.actions,
            is_first=batch.is_first[:steps],
            valid=batch.valid,
        )
        return self.module.loss(trace, self._generator)
