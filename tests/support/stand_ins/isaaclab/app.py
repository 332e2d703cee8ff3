"""Starts the simulator, once in a process."""

from __future__ import annotations

import os
from typing import Any, ClassVar


class AppLauncher:
    """Tasks may be imported once there is one."""

    started: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, launcher_args: dict[str, Any] | None = None, **kwargs: Any) -> None:
        assert not self.started
        assert os.environ.get("CUDA_VISIBLE_DEVICES") != "", "the simulator finds no GPU: all are hidden"
        self.started.append({**(launcher_args or {}), **kwargs})
        self.app = object()
