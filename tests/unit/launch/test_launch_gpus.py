"""GPUs are assigned evenly and within their capacity."""

from __future__ import annotations

import pytest

from sfactory.errors import ConfigError
from sfactory.launch.run_processes import Gpus, devices


def test_run_gets_the_gpu_with_the_fewest_runs() -> None:
    gpus = Gpus(["0", "1"], per_gpu=2)

    assert [gpus.take() for _ in range(5)] == ["0", "1", "0", "1", None]
    gpus.give_back("1")
    assert [gpus.take(), gpus.take()] == ["1", None]


def test_devices_are_the_visible_ones() -> None:
    assert devices(2, None) == ["0", "1"]
    assert devices(2, "3, 5,7") == ["3", "5"]
    assert devices(1, "GPU-8a") == ["GPU-8a"]


@pytest.mark.parametrize("visible", ["", "0", "0,"])
def test_more_devices_than_visible_are_refused(visible: str) -> None:
    with pytest.raises(ConfigError, match="--num_gpus=2: CUDA_VISIBLE_DEVICES="):
        devices(2, visible)
