"""Networks beside the policy: an auxiliary loss, or the bonus of random network distillation, which needs one.

Their weights are trained and saved with those of the policy, but neither published nor acted with.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from sfactory.algo.gae import gae
from sfactory.config.schema import AlgoConfig, ModelConfig
from sfactory.learner.batch import Batch
from sfactory.learner.train_stats import INTRINSIC
from sfactory.model.actor_critic import ActorCritic, Unrolled
from sfactory.model.cpc import CpcAction, Trace
from sfactory.model.rnd import Rnd, first_visits
from sfactory.seeds import Branch, seed_at


def make_auxiliary(model: ActorCritic, config: AlgoConfig, networks: ModelConfig) -> CpcAction | Rnd | None:
    """The auxiliary loss of the flags, if any. Create it after ``model``, to draw no random numbers before."""
    if config.rnd:
        return Rnd(model.spec.obs, model.value_head.linear.in_features, networks)
    if not config.use_cpc:
        return None
    return CpcAction(model.heads, model.tower.encoder.out_size, model.tower.memory_size, config)


class AuxiliaryTask:
    """An auxiliary loss with its random generator. Its weights, of ``module``, are trained and saved, not published."""

    def __init__(self, module: nn.Module, seed: int, policy: int) -> None:
        self.module = module
        self._seed, self._policy = seed, policy
        self._generator = torch.Generator(next(module.parameters()).device)

    def begin(self, train_step: int) -> None:
        """Begin the pass at ``train_step``; it draws the same numbers if a run is resumed there."""
        self._generator.manual_seed(seed_at(self._seed, Branch.AUXILIARY, self._policy, train_step))

    def coefficient(self, config: AlgoConfig) -> float:
        """The weight of the loss."""
        return config.aux_loss_coeff

    def draw(self, batch: Batch, config: AlgoConfig) -> Tensor | None:
        """[T, R] float32 - what each step of a whole minibatch counts in ``loss``; None: ``loss`` itself draws."""
        return None

    def loss(self, batch: Batch, unrolled: Unrolled, config: AlgoConfig, drawn: Tensor | None) -> Tensor:
        """The loss of a part of a minibatch, 0-dim, before its coefficient: a mean, times the number of valid steps.

        drawn: of ``draw``, the part's. CPC takes whole minibatches of whole rollouts. Each call draws other numbers.
        """
        assert isinstance(self.module, CpcAction)
        steps = batch.valid.shape[0]
        trace = Trace(
            embeddings=unrolled.embeddings[:steps],
            memory=unrolled.memory[:steps],
            actions=batch.actions,
            is_first=batch.is_first[:steps],
            valid=batch.valid,
        )
        return self.module.loss(trace, self._generator) * batch.valid.sum()


class Exploration(AuxiliaryTask):
    """The bonus of random network distillation, see ``Rnd``: intrinsic returns of datasets, and the loss.

    _sums: [3] float64 on the device - of rewards and returns over the fresh steps since ``clear``, and their number.
    """

    def __init__(self, module: Rnd, seed: int, policy: int) -> None:
        super().__init__(module, seed, policy)
        self.rnd = module
        self._sums = torch.zeros(3, dtype=torch.float64, device=next(module.parameters()).device)

    @torch.no_grad()
    def add_returns(self, model: ActorCritic, batch: Batch, config: AlgoConfig, parts: int) -> Batch:
        """``batch`` with intrinsic returns and advantages; ``parts``: the dataset is passed through so many at a time.

        The reward of step t is the predictor's error at obs[t+1], whether an episode ended there or not: the intrinsic
        value of a state does not know ends (section 2.3 of the source). With ``rnd_first_only`` it is 0 where the
        episode has given that observation earlier in the rollout. Targets are those of GAE with present values. Steps
        that were not taken, which show the last observation of an episode, are passed over.
        """
        rnd, following = self.rnd, {path: leaf[1:] for path, leaf in batch.obs.items()}
        rnd.normalizer.update(following, batch.fresh)
        width = -(-batch.rows // parts)
        rewards, values = [], []
        for start in range(0, batch.rows, width):
            part = batch.columns(slice(start, start + width))
            unrolled = model.unroll(part.obs, part.rnn_states[:-1], part.is_first, part.recurrence, part.held)
            values.append(rnd.value.denormalize(rnd.value.forward(unrolled.features)))
            rewards.append(rnd.error({path: leaf[1:] for path, leaf in part.obs.items()}))
            if config.rnd_first_only:
                rewards[-1] *= first_visits({path: part.obs[path] for path in rnd.seen}, part.is_first)[1:]
        reward, value = torch.cat(rewards, dim=1), torch.cat(values, dim=1)
        targets = gae(
            discounts=torch.full_like(reward, config.rnd_gamma),
            rewards=reward,
            values=value[:-1],
            bootstrap_value=value[-1],
            valid=batch.taken,
            lambda_=config.gae_lambda,
            held=~batch.taken,
        )
        fresh = batch.fresh
        rnd.value.observe(targets.returns, fresh)
        counted = (reward, targets.returns, torch.ones_like(reward))
        self._sums += torch.stack([torch.where(fresh, each, 0.0).sum() for each in counted])
        assert rnd.value.returns is not None
        advantages = targets.advantages * rnd.value.returns.scale  # as if rewards were divided by the deviation
        return replace(batch, intrinsic_returns=targets.returns, intrinsic_advantages=advantages)

    def coefficient(self, config: AlgoConfig) -> float:
        """See AuxiliaryTask."""
        return 1.0

    def draw(self, batch: Batch, config: AlgoConfig) -> Tensor:
        """See AuxiliaryTask. The predictor learns from a share of the steps, which count as much as all valid ones.

        It also learns the observations of steps that were not taken: the last ones of episodes, which pay.
        """
        valid = batch.valid
        chosen = torch.rand(valid.shape, generator=self._generator, device=valid.device) < config.rnd_share
        chosen &= valid | ~batch.taken
        return chosen * (valid.sum() / chosen.sum().clamp(min=1))

    def loss(self, batch: Batch, unrolled: Unrolled, config: AlgoConfig, drawn: Tensor | None) -> Tensor:
        """See AuxiliaryTask: the error of the predictor over the drawn steps, plus that of intrinsic values."""
        assert drawn is not None
        assert batch.intrinsic_returns is not None
        valid, steps = batch.valid, batch.valid.shape[0]
        error = self.rnd.error({path: leaf[:steps] for path, leaf in batch.obs.items()})
        prediction = torch.where(drawn > 0.0, drawn * error, 0.0).sum()
        off = self.rnd.value.forward(unrolled.features[:steps]) - self.rnd.value.normalize(batch.intrinsic_returns)
        return prediction + config.value_loss_coeff * torch.where(valid, off.square(), 0.0).sum()

    def statistics(self) -> dict[str, float]:
        """Means since the last ``clear``; NaN without a step."""
        rewards, returns, steps = self._sums.tolist()
        means = (rewards / steps, returns / steps) if steps else (math.nan, math.nan)
        return dict(zip(INTRINSIC, means, strict=True))

    def clear(self) -> None:
        """Start new means."""
        self._sums.zero_()


def task_of(module: CpcAction | Rnd | None, seed: int, policy: int) -> AuxiliaryTask | None:
    """The task of a module that ``make_auxiliary`` has made."""
    if isinstance(module, Rnd):
        return Exploration(module, seed, policy)
    return None if module is None else AuxiliaryTask(module, seed, policy)
