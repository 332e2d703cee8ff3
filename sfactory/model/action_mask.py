"""Makes illegal actions impossible, as the masks among the observations say."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfactory.model.distributions import IMPOSSIBLE, first_columns, num_params
from sfactory.spec import EnvSpec, masked_heads


class ActionMask(nn.Module):
    """Replaces the logits of illegal choices, so that log-probabilities, entropies and divergences leave them out.

    Source: Huang and Ontanon 2022, "A closer look at invalid action masking in policy gradient algorithms".
    """

    columns: Tensor  # [M] int64 - the column in the parameters of each of the M elements of all masks

    def __init__(self, spec: EnvSpec) -> None:
        """``spec`` has at least one mask."""
        super().__init__()
        first = first_columns(spec.actions)
        masked = [head for path, _ in spec.masks for head in masked_heads(path, spec.actions)]
        columns = [column for head in masked for column in range(first[head.key], first[head.key] + head.n)]
        self._paths = tuple(path for path, _ in spec.masks)
        self._covers_all = columns == list(range(num_params(spec.actions)))
        # Not saved, since it follows from the spec.
        self.register_buffer("columns", torch.tensor(columns, dtype=torch.int64), persistent=False)

    def forward(self, params: Tensor, obs: dict[str, Tensor]) -> Tensor:
        """params [B, P], see ActionDistribution, with illegal choices impossible.

        obs: {path: [B, ...]} - masks are nonzero where a choice is legal. A row in which a head has no legal choice, as
        in padding, makes all choices of that head equally probable.
        """
        masks = [obs[path].flatten(1) != 0 for path in self._paths]
        legal = masks[0] if len(masks) == 1 else torch.cat(masks, dim=1)
        if not self._covers_all:
            everything = torch.ones(params.shape, dtype=torch.bool, device=params.device)
            legal = everything.index_copy_(1, self.columns, legal)
        return torch.where(legal, params, IMPOSSIBLE)
