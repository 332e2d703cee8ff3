"""Auxiliary losses: contrastive predictive coding conditioned on actions (CPC|A).

The memory at step t and the actions from there on should suffice to distinguish the observation k steps later from
observations of other times and rows. So memory and encoder learn about the world, rewarded or not. The weights of an
auxiliary loss belong to the learner: they are trained and saved with the network's, and acting does without them.

Source: Guo et al. 2018, "Neural predictive belief representations" (CPC|Action), after van den Oord et al. 2018,
"Representation learning with contrastive predictive coding". Our own choices: one classifier for all distances, 16
negatives that together weigh as much as the positive, and a draw among possible predictions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfactory.action_heads import ActionHead, BoxHead, DiscreteHead
from sfactory.config.schema import AlgoConfig
from sfactory.model.distributions import Actions
from sfactory.model.rnn import RecurrentCore


class Trace(NamedTuple):
    """T steps of R rows under the present weights.

    embeddings: [T, R, E] float of any format - the encoder's features of each observation; with gradients.
    memory: [T, R, H] float32 - the core's output after all observations up to this one; with gradients.
    actions: {key: [T, R] int64 or [T, R, size] float32} - of the step, unclipped.
    is_first: [T, R] bool - the observation is the first of an episode.
    valid: [T, R] bool - the step may be learned from. Other cells are arbitrary, and must change nothing.
    """

    embeddings: Tensor
    memory: Tensor
    actions: Actions
    is_first: Tensor
    valid: Tensor


NEGATIVES = 16
_WIDTH = 128  # hidden units of the classifier


class Predictions(NamedTuple):
    """The predicted futures: F of them from each of S steps of each of R rows.

    starts: [R, S] int64 - the step t. ahead: [R, S, F] int64 - k - 1: steps beyond t + 1.
    possible: [R, S, F] bool - steps t to t + k are valid and of one episode. Other predictions are ignored.
    """

    starts: Tensor
    ahead: Tensor
    possible: Tensor


class CpcAction(nn.Module):
    """CPC|A: a GRU continues from the memory of a step, fed with actions, and a classifier distinguishes the embedding
    that followed from ``NEGATIVES`` others. The loss is the mean cross-entropy: ln 2 before anything is learned.
    """

    def __init__(
        self, heads: tuple[ActionHead, ...], embedding_size: int, memory_size: int, config: AlgoConfig
    ) -> None:
        """``cpc_forward_steps`` is the largest k, ``cpc_time_subsample`` S, and ``cpc_forward_subsample`` F."""
        super().__init__()
        self._forward_steps = config.cpc_forward_steps
        self._time_subsample, self._forward_subsample = config.cpc_time_subsample, config.cpc_forward_subsample
        self._inputs = ActionInputs(heads)
        self.future = RecurrentCore("gru", self._inputs.size, memory_size, 1, "orthogonal")
        # The classifier is an MLP over both, joined; each part of its first layer is applied once per vector.
        self.of_future = nn.Linear(memory_size, _WIDTH)
        self.of_embedding = nn.Linear(embedding_size, _WIDTH, bias=False)
        self.score = nn.Linear(_WIDTH, 1)

    def loss(self, trace: Trace, generator: torch.Generator) -> Tensor:
        """0-dim mean loss, with gradients for embeddings, memory and the module's weights; 0 without valid steps.

        Only valid steps are predicted, predicted from, or given as negatives. ``generator``: on the device of the
        trace; the number of draws depends on shapes alone. Does not wait, see NOTE [No waiting for the device].
        """
        valid = trace.valid
        can = can_predict(trace.is_first, valid, self._forward_steps)
        chosen = choose(can, self._time_subsample, self._forward_subsample, generator)
        # The predicted cells t * R + r; arbitrary where no prediction is possible.
        steps, rows = valid.shape
        row = torch.arange(rows, device=valid.device).view(-1, 1, 1)
        targets = (chosen.starts.unsqueeze(-1) + 1 + chosen.ahead).clamp(max=steps - 1) * rows + row
        others, there_are_others = draw_others(valid, targets, NEGATIVES, generator)
        embeddings = torch.where(valid.unsqueeze(-1), trace.embeddings.float(), 0.0).flatten(0, 1)
        projected = self.of_embedding(embeddings)
        candidates = projected[torch.cat((targets.unsqueeze(-1), others), dim=-1)]  # [R, S, F, 1 + N, width]
        hidden = torch.relu(self.of_future(self._futures(trace, chosen)).unsqueeze(-2) + candidates)
        logits = self.score(hidden).squeeze(-1)
        positive, negative = F.softplus(-logits[..., 0]), F.softplus(logits[..., 1:]).mean(-1)
        counts = chosen.possible & there_are_others
        return torch.where(counts, 0.5 * (positive + negative), 0.0).sum() / counts.sum().clamp(min=1)

    def _futures(self, trace: Trace, chosen: Predictions) -> Tensor:
        """[R, S, F, H] - the GRU's state k steps after each start."""
        steps, rows = trace.valid.shape
        starts_per_row, device = chosen.starts.shape[1], trace.valid.device
        row = torch.arange(rows, device=device).unsqueeze(1)
        valid = trace.valid.unsqueeze(-1)
        actions = torch.where(valid, self._inputs(trace.actions), 0.0)
        belief = torch.where(valid, trace.memory.float(), 0.0)[chosen.starts, row].flatten(0, 1)  # [R * S, H]
        ahead = torch.arange(self._forward_steps, device=device).view(-1, 1, 1)
        times = (chosen.starts + ahead).clamp(max=steps - 1)  # [K, R, S]; beyond the end nothing is possible
        done = actions[times, row].flatten(1, 2)
        never = torch.zeros(done.shape[:2], dtype=torch.bool, device=device)
        after, _ = self.future.sequence(done, belief, never)
        after = after.view(self._forward_steps, rows, starts_per_row, -1)
        start = torch.arange(starts_per_row, device=device).view(1, -1, 1)
        return after[chosen.ahead, row.unsqueeze(-1), start]


def can_predict(is_first: Tensor, valid: Tensor, forward_steps: int) -> Tensor:
    """[R, T - 1, K] bool - all steps from t to t + k are valid and of one episode; k = 1 is first.

    is_first, valid: [T, R] bool. K = ``forward_steps``.
    """
    link = valid[:-1] & valid[1:] & ~is_first[1:]  # from t to t + 1
    reaches = [link]
    for ahead in range(1, forward_steps):
        further = torch.cat((link[ahead:], torch.zeros_like(link[:ahead])))
        reaches.append(reaches[-1] & further)
    return torch.stack(reaches, dim=-1).transpose(0, 1)


def choose(can: Tensor, starts: int, distances: int, generator: torch.Generator) -> Predictions:
    """Draw without replacement, for each row, ``starts`` steps that allow a prediction, and for each of them
    ``distances`` that are possible. If there are fewer, the rest is not ``possible``.

    can: [R, T - 1, K] bool, see can_predict.
    """
    chosen = _draw(can[:, :, 0], starts, generator)
    row = torch.arange(len(can), device=can.device).unsqueeze(1)
    can = can[row, chosen]  # [R, S, K]
    ahead = _draw(can, distances, generator)
    return Predictions(chosen, ahead, can.gather(-1, ahead))


def draw_others(valid: Tensor, targets: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """``count`` valid cells for each target, drawn uniformly from all but the target; and whether there are any.

    valid: [T, R] bool. targets: [...] int64 - valid cells t * R + r. Returns cells [..., count] int64 and a 0-dim bool.
    If a target is not valid, or there are no others, the result is an arbitrary cell.
    """
    up_to = valid.flatten().cumsum(0)
    total = up_to[-1]
    shape = (*targets.shape, count)
    # Ranks among the valid cells but one; from the target's own rank on, one further. Double: exact for any count.
    uniform = torch.rand(shape, generator=generator, device=valid.device, dtype=torch.float64)
    rank = (uniform * (total - 1)).long()
    rank = rank + (rank >= (up_to[targets] - 1).unsqueeze(-1))
    cells = torch.searchsorted(up_to, rank + 1).clamp(max=len(up_to) - 1)
    return cells, total > 1


def _draw(allowed: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """[..., count or N] int64 - different places in the last dimension of ``allowed`` [..., N] bool, in random order;
    allowed places come first."""
    scores = torch.rand(allowed.shape, generator=generator, device=allowed.device) + ~allowed
    return scores.argsort(dim=-1)[..., :count]


class ActionInputs(nn.Module):
    """Encodes actions as vectors of ``size`` numbers, head after head: discrete choices one-hot, Box actions clipped to
    their bounds and scaled to [-1, 1] where both bounds are finite."""

    _bounds: Tensor  # [4, sizes of all Boxes]: low, high, center, scale
    _bounded: Tensor  # [sizes of all Boxes] bool

    def __init__(self, heads: tuple[ActionHead, ...]) -> None:
        super().__init__()
        self._heads = heads
        self.size = sum(head.n if isinstance(head, DiscreteHead) else head.size for head in heads)
        boxes = [head for head in heads if isinstance(head, BoxHead)]
        low = torch.tensor([bound for head in boxes for bound in head.low], dtype=torch.float32)
        high = torch.tensor([bound for head in boxes for bound in head.high], dtype=torch.float32)
        bounded = torch.tensor([each for head in boxes for each in head.bounded], dtype=torch.bool)
        center = torch.where(bounded, 0.5 * (low + high), 0.0)
        scale = torch.where(bounded, 0.5 * (high - low), 1.0)
        # Not saved, since they follow from the spec.
        self.register_buffer("_bounded", bounded, persistent=False)
        self.register_buffer("_bounds", torch.stack((low, high, center, scale)), persistent=False)

    def forward(self, actions: Actions) -> Tensor:
        """[T, R, size] float32 of actions {key: [T, R] int64 or [T, R, n] float32}."""
        pieces, column = [], 0
        for head in self._heads:
            action = actions[head.key]
            if isinstance(head, DiscreteHead):
                choices = torch.arange(head.n, device=action.device)
                pieces.append((action.unsqueeze(-1) == choices).float())
            else:
                columns = slice(column, column + head.size)
                low, high, center, scale = self._bounds[:, columns]
                if head.squashed:
                    action = torch.where(self._bounded[columns], torch.tanh(action), action)
                pieces.append((torch.minimum(torch.maximum(action, low), high) - center) / scale)
                column += head.size
        return torch.cat(pieces, dim=-1)
