"""Frames that are resized where they changed and stacked without copying equal those computed in full."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

cv2 = pytest.importorskip("cv2")

from sfactory_envs.atari.frame_ring import FrameRing  # noqa: E402
from sfactory_envs.atari.shrinker import Shrinker  # noqa: E402 - needs OpenCV

changes = st.lists(st.tuples(st.integers(0, 209), st.integers(0, 60)), min_size=1, max_size=6)


@given(changes=changes, size=st.sampled_from([84, 64, 42, 96, 37, 160, 182, 300]), color=st.booleans())
def test_small_frames_are_those_of_the_whole_screen(changes: list[tuple[int, int]], size: int, color: bool) -> None:
    rng = np.random.default_rng(size)
    screen = rng.integers(0, 256, (210, 160, 3) if color else (210, 160), np.uint8)
    shrinker = Shrinker(screen.shape, size)
    shrinker.shrink(screen)

    for first, rows in changes:
        part = screen[first : first + rows]
        part[:] = rng.integers(0, 256, part.shape, np.uint8)
        small = shrinker.shrink(screen)

        expected = cv2.resize(screen, (size, size), interpolation=cv2.INTER_AREA)
        assert small.shape == ((size, size, 3) if color else (size, size))
        assert np.array_equal(small, expected)


def test_first_screen_is_made_small_even_where_it_is_black() -> None:
    screen = np.zeros((210, 160), np.uint8)
    screen[100] = 200

    small = Shrinker(screen.shape, 84).shrink(screen)

    assert np.flatnonzero(small.any(axis=1)).tolist() == [40]
    assert small[40].tolist() == [80] * 84


@given(stack=st.integers(1, 5), restarts=st.lists(st.booleans(), max_size=60))
def test_ring_shows_the_last_frames_and_never_two_windows_in_one_place(stack: int, restarts: list[bool]) -> None:
    ring = FrameRing(stack, (1, 1, 2))
    ring.restart()[:] = 0
    ring.spread()
    frames, windows = [0] * stack, [(ring.window, [0] * stack)]

    for number, restart in enumerate(restarts, 1):
        if restart:
            ring.restart()[:] = number
            ring.spread()
            frames = [number] * stack
        else:
            ring.push()[:] = number
            frames = [*frames[1:], number]
        windows.append((ring.window, frames))
        for window, shown in windows[-3:-1] if sum(restarts[number - 2 : number]) < 2 else windows[-2:-1]:
            assert window[:, 0, 0].tolist() == shown
        assert ring.window[:, 0, 1].tolist() == frames
