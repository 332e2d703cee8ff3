"""Starts the simulator, once in a process."""

from __future__ import annotations

from typing import Any, ClassVar


class AppLauncher:
    """Tasks may be imported once there is one."""

    started: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, launcher_args: dict[str, Any] | None = None, **kwargs: Any) -> None:
        assert not self.started
        self.started.append({**(launcher_args or {}), **kwargs})
        self.app = object()
