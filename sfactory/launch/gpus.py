"""Room: GPUs dealt out to runs. In: devices, how many runs share one. Out: the device of a run."""

from __future__ import annotations

from collections.abc import Sequence

from sfactory.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"


class Gpus:
    """At most ``per_gpu`` runs on each of ``devices``."""

    def __init__(self, devices: Sequence[str], per_gpu: int) -> None:
        self._runs = dict.fromkeys(devices, 0)
        self._per_gpu = per_gpu

    def take(self) -> str | None:
        """The device with the fewest runs, which has one more now; None if all are full."""
        device = min(self._runs, key=self._runs.__getitem__)
        if self._runs[device] >= self._per_gpu:
            return None
        self._runs[device] += 1
        return device

    def give_back(self, device: str) -> None:
        """A run on ``device`` has ended."""
        self._runs[device] -= 1


def devices(count: int, visible: str | None) -> list[str]:
    """Names of the first ``count`` devices that the launcher sees; ``visible``: its CUDA_VISIBLE_DEVICES, if it is set.

    Raises ConfigError if these are fewer. Without the variable nobody knows before a run asks.
    """
    if visible is None:
        return [str(number) for number in range(count)]
    seen = [name for name in (part.strip() for part in visible.split(",")) if name]
    if len(seen) < count:
        raise ConfigError([f"--num_gpus={count}: {VISIBLE}={visible} shows {len(seen)}; lower --num_gpus"])
    return seen[:count]
