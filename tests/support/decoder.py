"""Reads video files with OpenCV."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt


class Decoded(NamedTuple):
    """pictures: [frames, height, width, 3] uint8, in blue, green, red. fps: frames per second."""

    pictures: npt.NDArray[np.uint8]
    fps: float


def decode(path: Path | str) -> Decoded:
    """Every frame of the file, read with OpenCV's own decoder."""
    capture = cv2.VideoCapture(str(path))
    pictures: list[Any] = []
    while True:
        good, picture = capture.read()
        if not good:
            return Decoded(np.stack(pictures), float(capture.get(cv2.CAP_PROP_FPS)))
        pictures.append(picture)
