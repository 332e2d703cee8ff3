"""Stacks the last frames of a game without copying.

Frames are written one after the other into a strip that is four stacks long. A stack is a window of the strip; at its
end, the last frames are copied back to the start.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Frame = npt.NDArray[np.uint8]

_STACKS = 4


class FrameRing:
    """The last ``stack`` frames of ``shape`` [C, H, W] uint8, oldest first.

    A window stays unchanged during one restart and one more frame, in either order.
    """

    def __init__(self, stack: int, shape: tuple[int, int, int]) -> None:
        self._stack = stack
        self._strip = np.zeros((_STACKS * stack, *shape), np.uint8)
        channels, height, width = shape
        self._windows = [
            self._strip[last - stack + 1 : last + 1].reshape(stack * channels, height, width)
            for last in range(stack - 1, len(self._strip))
        ]
        self._last = stack - 1

    @property
    def window(self) -> Frame:
        """[stack * C, H, W] uint8 - the last frames; a view."""
        return self._windows[self._last - self._stack + 1]

    def push(self) -> Frame:
        """The place of the next frame, which the caller fills; the oldest frame leaves the window."""
        kept = self._stack - 1
        if self._last + 1 == len(self._strip):
            self._strip[:kept] = self._strip[len(self._strip) - kept :]
            self._last = kept
        else:
            self._last += 1
        frame: Frame = self._strip[self._last]
        return frame

    def restart(self) -> Frame:
        """The place of the first frame of an episode; the caller fills it and then calls ``spread``."""
        self._last += self._stack
        if self._last >= len(self._strip):
            self._last = self._stack - 1
        frame: Frame = self._strip[self._last]
        return frame

    def spread(self) -> None:
        """Copy the last frame to all others of the window."""
        self._strip[self._last - self._stack + 1 : self._last] = self._strip[self._last]
