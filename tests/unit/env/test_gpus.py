"""Each actor gets one of its GPUs in turn, by the numbers that torch uses; MuJoCo draws without a screen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sfactory.env import lifecycle
from sfactory.env.lifecycle import draw_without_screen, see_gpu_of
from sfactory.errors import EnvError

CUDA, EGL, MUJOCO = "CUDA_VISIBLE_DEVICES", "EGL_DEVICE_ID", "MUJOCO_EGL_DEVICE_ID"


@pytest.mark.parametrize(
    ("worker", "gpus", "before", "after"),
    [
        (0, (), {}, {CUDA: ""}),
        (1, (), {CUDA: "0,1", EGL: "1"}, {CUDA: "", EGL: "1"}),
        (0, (2, 0), {}, {CUDA: "2", EGL: "2", MUJOCO: "2"}),
        (3, (2, 0), {}, {CUDA: "0", EGL: "0", MUJOCO: "0"}),
        (1, (0, 1), {CUDA: "6, 7"}, {CUDA: "7", EGL: "7", MUJOCO: "7"}),
        (0, (1,), {CUDA: "GPU-aa,GPU-bb"}, {CUDA: "GPU-bb", EGL: "1", MUJOCO: "1"}),
    ],
)
def test_gpus_are_assigned_in_turn_by_their_place_among_the_visible_ones(
    worker: int, gpus: tuple[int, ...], before: dict[str, str], after: dict[str, str]
) -> None:
    variables = dict(before)
    see_gpu_of(worker, gpus, variables)
    assert variables == after


@pytest.mark.parametrize("visible", ["", "5"])
def test_a_gpu_that_is_not_visible_is_refused(visible: str) -> None:
    with pytest.raises(EnvError, match=r"--actor_worker_gpus: there is no GPU 1 within CUDA_VISIBLE_DEVICES"):
        see_gpu_of(0, (1,), {CUDA: visible})


@pytest.mark.parametrize(
    ("libraries", "before", "chosen"),
    [
        (("EGL", "OSMesa"), {}, "egl"),
        (("OSMesa",), {"DISPLAY": ""}, "osmesa"),
        ((), {}, None),
        (("EGL",), {"DISPLAY": ":0"}, None),
        (("EGL",), {"WAYLAND_DISPLAY": "wayland-0"}, None),
        (("EGL",), {"MUJOCO_GL": "glfw"}, "glfw"),
    ],
)
def test_mujoco_draws_by_what_is_installed_where_there_is_no_screen(
    libraries: Sequence[str], before: dict[str, str], chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "find_library", lambda name: f"lib{name}.so" if name in libraries else None)
    variables = dict(before)

    draw_without_screen(variables)

    assert variables.get("MUJOCO_GL") == chosen
