"""The command ``python -m sfactory.remote_actors``: actors of this machine for a run on another one."""

from sfactory.remote_actors.command import main

__all__ = ["main"]
