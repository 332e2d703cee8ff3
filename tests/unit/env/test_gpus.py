"""Actors are dealt the GPUs that they were given, one each in turn, by the numbers that torch uses."""

from __future__ import annotations

import pytest

from sfactory.env.lifecycle import see_gpu_of
from sfactory.errors import EnvError

CUDA, EGL, MUJOCO = "CUDA_VISIBLE_DEVICES", "EGL_DEVICE_ID", "MUJOCO_EGL_DEVICE_ID"


def seen(worker: int, gpus: tuple[int, ...], **variables: str) -> dict[str, str]:
    see_gpu_of(worker, gpus, variables)
    return variables


def test_without_gpus_an_actor_sees_none_and_rendering_is_left_alone() -> None:
    assert seen(0, ()) == {CUDA: ""}
    assert seen(1, (), **{CUDA: "0,1", EGL: "1"}) == {CUDA: "", EGL: "1"}


def test_gpus_are_dealt_in_turn() -> None:
    assert [seen(worker, (2, 0))[CUDA] for worker in range(5)] == ["2", "0", "2", "0", "2"]
    assert seen(0, (2, 0)) == {CUDA: "2", EGL: "2", MUJOCO: "2"}


def test_gpus_are_numbered_within_those_that_are_visible() -> None:
    assert seen(1, (0, 1), **{CUDA: "6, 7"}) == {CUDA: "7", EGL: "7", MUJOCO: "7"}


def test_a_gpu_with_a_name_instead_of_a_number_is_rendered_on_by_its_place() -> None:
    assert seen(0, (1,), **{CUDA: "GPU-aa,GPU-bb"}) == {CUDA: "GPU-bb", EGL: "1", MUJOCO: "1"}


@pytest.mark.parametrize("visible", ["", "5"])
def test_a_gpu_that_is_not_visible_is_refused(visible: str) -> None:
    with pytest.raises(EnvError, match=r"--actor_worker_gpus: there is no GPU 1 within CUDA_VISIBLE_DEVICES"):
        seen(0, (1,), **{CUDA: visible})
