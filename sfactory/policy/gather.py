"""Room: requests of several splits as one batch. In: places. Out: obs on the device; replies in slots."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sfactory.inference.rows import ObsRows
from sfactory.model.actor_critic import Acted
from sfactory.model.dtypes import torch_dtype
from sfactory.policy.place import Place
from sfactory.spec import EnvSpec


class Gather:
    """Reusable host memory for up to ``max_rows`` observations, and the copies to and from slots."""

    def __init__(self, spec: EnvSpec, max_rows: int, device: torch.device) -> None:
        self._device, self._rows = device, ObsRows()
        on_gpu = device.type != "cpu"
        self._staging = {
            key: torch.empty((max_rows, *tensor.shape), dtype=torch_dtype(tensor.dtype), pin_memory=on_gpu)
            for key, tensor in spec.obs
        }
        self._views = {key: tensor.numpy() for key, tensor in self._staging.items()}

    def obs(self, places: Sequence[Place]) -> dict[str, Tensor]:
        """{key: [B, ...]} on the device: the rows of all places, one after the other."""
        if len(places) == 1 and self._device.type == "cpu" and isinstance(places[0].rows, slice):
            return self._rows.row(places[0].slot, places[0].request.t)
        end = 0
        for request, slot, rows, width in places:
            start, end = end, end + width
            for key, block in slot.obs.items():
                self._views[key][start:end] = block[request.t, rows]
        return {key: staged[:end].to(self._device, non_blocking=True) for key, staged in self._staging.items()}

    def scatter(self, places: Sequence[Place], acted: Acted, version: int) -> None:
        """Write actions, log-probs, values and the policy version into the rows. ``acted``: on the host."""
        actions = {key: tensor.numpy() for key, tensor in acted.actions.items()}
        log_prob, value = acted.log_prob.numpy(), acted.value.numpy()
        end = 0
        for request, slot, rows, width in places:
            start, end, t = end, end + width, request.t
            for key, block in slot.actions.items():
                block[t, rows] = actions[key][start:end]
            slot.log_prob[t, rows] = log_prob[start:end]
            slot.value[t, rows] = value[start:end]
            slot.policy_version[t, rows] = version
