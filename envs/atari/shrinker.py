"""Resizes the screens of a game to small frames, only where they changed.

Resizing a whole screen costs nearly as much as emulating a frame, but most rows do not change in a step: only 6 of the
57 games change more than half of their rows, and half of the games at most a quarter. So the screen is cut into bands
that become whole rows of the small frame, and only changed bands are resized. The result is equal to resizing the whole
screen, bit by bit.
"""

from __future__ import annotations

import math

import cv2
import numpy as np
import numpy.typing as npt

Frame = npt.NDArray[np.uint8]

# Beyond this share of changed bands, picking them out costs more than making the whole screen small.
_MOST = 0.8


class Shrinker:
    """Makes screens of ``shape`` [height, width, ...] uint8 to squares of ``size``, each pixel the mean of its area."""

    def __init__(self, shape: tuple[int, ...], size: int) -> None:
        height, rest = shape[0], shape[1:]
        # Enlarged screens are interpolated over the borders of bands: then there is just one.
        self._bands = bands = math.gcd(height, size) if size <= min(shape[:2]) else 1
        self._size = size
        self._by_band = (bands, height // bands, *rest)
        self._last = np.zeros(shape, np.uint8)
        self._differs = np.zeros(shape, np.bool_)
        self._differs_by_band = self._differs.reshape(bands, -1)
        self._small = np.zeros((size, size, *rest[1:]), np.uint8)
        self._small_by_band = self._small.reshape(bands, -1)

    def shrink(self, screen: Frame) -> Frame:
        """[size, size, ...] uint8 - ``screen`` made small; a buffer that the next call writes over."""
        np.not_equal(screen, self._last, out=self._differs)
        changed = np.flatnonzero(self._differs_by_band.any(axis=1))
        if len(changed) > _MOST * self._bands:
            cv2.resize(screen, (self._size, self._size), dst=self._small, interpolation=cv2.INTER_AREA)
        elif len(changed):
            rows = screen.reshape(self._by_band)[changed].reshape(-1, *screen.shape[1:])
            height = len(changed) * (self._size // self._bands)
            small = cv2.resize(rows, (self._size, height), interpolation=cv2.INTER_AREA)
            self._small_by_band[changed] = small.reshape(len(changed), -1)
        self._last[:] = screen
        return self._small
