"""Room: how many faults a run survives. In: one fault after another. Out: whether one more is forgiven."""

from __future__ import annotations


class Budget:
    """Counts what was forgiven, up to ``most``; over all generations of a run, see ``Generations``."""

    def __init__(self, flag: str, most: int) -> None:
        """``flag``: its name, for texts."""
        self._flag, self.most = flag, most
        self.spent = 0

    def spend(self) -> bool:
        """One more, if one is left; whether it was."""
        if self.spent >= self.most:
            return False
        self.spent += 1
        return True

    def __str__(self) -> str:
        return f"{self.spent} of --{self._flag}={self.most}"
