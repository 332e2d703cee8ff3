"""Room: requests of several splits as one batch. In: slots and steps. Out: obs on the device; replies in slots."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sfactory.inference.rows import ObsRows
from sfactory.messages import ActRequest
from sfactory.model.actor_critic import Acted
from sfactory.model.dtypes import torch_dtype
from sfactory.shared.trajectories import Slot
from sfactory.spec import EnvSpec


class Gather:
    """Reusable host memory for up to ``max_rows`` observations, and the copies to and from slots."""

    def __init__(self, spec: EnvSpec, slots: Sequence[Slot], max_rows: int, device: torch.device) -> None:
        self._slots, self._device, self._rows = slots, device, ObsRows()
        on_gpu = device.type != "cpu"
        self._staging = {
            key: torch.empty((max_rows, *tensor.shape), dtype=torch_dtype(tensor.dtype), pin_memory=on_gpu)
            for key, tensor in spec.obs
        }
        self._views = {key: tensor.numpy() for key, tensor in self._staging.items()}

    def obs(self, requests: Sequence[ActRequest]) -> dict[str, Tensor]:
        """{key: [B, ...]} on the device: the requested rows of all requests, one after the other."""
        if len(requests) == 1 and self._device.type == "cpu":
            request = requests[0]
            return self._rows.row(self._slots[request.slot], request.t)
        end = 0
        for request in requests:
            slot = self._slots[request.slot]
            start = end
            for key, block in slot.obs.items():
                row = block[request.t]
                end = start + len(row)
                self._views[key][start:end] = row
        return {key: staged[:end].to(self._device, non_blocking=True) for key, staged in self._staging.items()}

    def scatter(self, requests: Sequence[ActRequest], acted: Acted, version: int) -> None:
        """Write actions, log-probs, values and the policy version into the requested rows."""
        actions = {key: tensor.cpu().numpy() for key, tensor in acted.actions.items()}
        log_prob, value = acted.log_prob.cpu().numpy(), acted.value.cpu().numpy()
        start = 0
        for request in requests:
            slot, t = self._slots[request.slot], request.t
            end = start + slot.value.shape[1]
            for key, block in slot.actions.items():
                block[t] = actions[key][start:end]
            slot.log_prob[t] = log_prob[start:end]
            slot.value[t] = value[start:end]
            slot.policy_version[t] = version
            start = end
