"""Passes orders and settings from main to its children through shared memory.

Main writes to no queue: a ring with a lock that died with a process could hang main, which must end the run. Children
read the flags at least every BLOCK_S. See NOTE [Who may block] and NOTE [Saving waits for no ring].

NOTE [Reward shaping]: main writes a reward shaping and then increments its version. An actor that sees a version other
than the applied one reads it. If main is writing it at that time, the version differs afterwards, and the actor reads
it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

from sfactory.errors import EnvError
from sfactory.shared.memory import SharedArrays, SharedTexts
from sfactory.spec import TensorSpec


class Stop(IntEnum):
    """The stop order."""

    NO = 0
    SAVE = 1  # finish the step, save, exit
    NOW = 2  # exit without saving


class Control:
    """Stop orders to all processes, and of each policy the objective, by which learners find their best weights, and
    the number of its episodes, which checkpoints hold. has_enough: a stop is an observer's, and ends as a limit does.
    """

    def __init__(self, num_policies: int) -> None:
        one = TensorSpec((1,), "int64")
        of_each = {
            "objective": TensorSpec((num_policies,), "float64"),
            "episodes": TensorSpec((num_policies,), "int64"),
        }
        self.__setstate__(SharedArrays("control", {"stop": one, "has_enough": one, **of_each}))
        self._shared["objective"][:] = float("-inf")

    def __getstate__(self) -> SharedArrays:
        return self._shared

    def __setstate__(self, shared: SharedArrays) -> None:
        self._shared = shared
        self._stop = shared["stop"]

    @property
    def stop(self) -> Stop:
        return Stop(int(self._stop[0]))

    @property
    def stopping(self) -> bool:
        return bool(self._stop[0])

    def order_stop(self, stop: Stop) -> None:
        """Order a stop; an order can only become stricter."""
        self._stop[0] = max(int(self._stop[0]), int(stop))

    @property
    def has_enough(self) -> bool:
        return bool(self._shared["has_enough"][0])

    def tell_enough(self) -> None:
        """Say that the stop that comes next is as at a limit, so that other ranks are done, too."""
        self._shared["has_enough"][0] = 1

    def tell_objective(self, policy: int, objective: float) -> None:
        """Send the mean of ``save_best_metric`` over the last stats_avg episodes to the learner of ``policy``."""
        self._shared["objective"][policy] = objective

    def tell_episodes(self, policy: int, episodes: int) -> None:
        """Send the number of episodes of ``policy`` in all sessions to its learner."""
        self._shared["episodes"][policy] = episodes

    def episodes(self, policy: int) -> int:
        """The number of episodes in all sessions; 0 before main has sent it."""
        return int(self._shared["episodes"][policy])

    def objective(self, policy: int) -> float:
        """The mean of ``save_best_metric`` over the last stats_avg episodes; -inf before that many episodes."""
        return float(self._shared["objective"][policy])


_COMMAND_BYTES = 65_536


@dataclass(frozen=True)
class LearnerCommand:
    """A command to save, to change hyperparameters, or to load the weights and optimizer of another policy."""

    save: bool = False  # save a checkpoint first
    copy_to: str | None = None  # folder for another one, of which the newest two stay
    parent: str | None = None  # checkpoint folder of the policy to copy, None to keep the own weights
    hyperparameters: Mapping[str, float] | None = None  # new values by flag


class LearnerCommands:
    """One command and one answer per policy: its writer writes the text first and then its number."""

    def __init__(self, num_policies: int) -> None:
        numbers = TensorSpec((num_policies,), "int64")
        self._shared = SharedArrays("commands", {"given": numbers, "answered": numbers})
        self._commands = SharedTexts("command-texts", num_policies, _COMMAND_BYTES)
        self._answers = SharedTexts("answers", num_policies, _COMMAND_BYTES)

    def give(self, policy: int, command: LearnerCommand) -> None:
        """Called by main: give ``policy``'s learner a command, only after it has answered the previous one."""
        assert self.answer(policy) is not None, f"policy {policy} has a command that it has not answered"
        self._commands.write(policy, json.dumps(asdict(command)).encode())
        self._shared["given"][policy] += 1

    def answer(self, policy: int) -> str | None:
        """Called by main: why the last command failed, "" if it succeeded, None while it is in progress."""
        return self._answers.read(policy) if self._is_answered(policy) else None

    def waiting(self, policy: int) -> LearnerCommand | None:
        """Called by the learner: the command to execute now, or None."""
        return None if self._is_answered(policy) else LearnerCommand(**json.loads(self._commands.read(policy)))

    def answered(self, policy: int, problem: str = "") -> None:
        """Called by the learner: report that the command is done, or why it failed."""
        self._answers.write(policy, problem.encode(errors="replace")[:_COMMAND_BYTES])
        self._shared["answered"][policy] = self._shared["given"][policy]

    def _is_answered(self, policy: int) -> bool:
        return bool(self._shared["answered"][policy] == self._shared["given"][policy])


_SHAPING_BYTES = 16_384
_LONGEST = -1.2345678901234567e-100


class SharedRewardShaping:
    """The reward shaping of each policy; version 0 is the env's default. See NOTE [Reward shaping]."""

    def __init__(self, num_policies: int) -> None:
        numbers = TensorSpec((num_policies,), "int64")
        self._shared = SharedArrays("shaping", {"begun": numbers, "version": numbers})
        self._texts = SharedTexts("shaping-texts", num_policies, _SHAPING_BYTES)

    def set(self, policy: int, shaping: Mapping[str, Any]) -> None:
        """Set the shaping of ``policy``; called by main. Raises EnvError if its text is too long."""
        # It must still fit after mutations.
        if (most := len(json.dumps(_at_most(shaping)).encode())) > _SHAPING_BYTES:
            raise EnvError(
                f"the env's reward shaping is too large: {most} characters of JSON, if every number has as many digits "
                f"as one can have; {_SHAPING_BYTES} are possible"
            )
        self._shared["begun"][policy] += 1
        self._texts.write(policy, json.dumps(shaping).encode())
        self._shared["version"][policy] += 1

    def version(self, policy: int) -> int:
        return int(self._shared["version"][policy])

    def read(self, policy: int) -> Mapping[str, Any] | None:
        """The shaping of ``policy``; None while main writes it (try again later)."""
        version = self._shared["version"][policy]
        text = self._texts.read(policy)
        if self._shared["begun"][policy] != version:
            return None
        shaping: Mapping[str, Any] = json.loads(text)
        return shaping


def _at_most(tree: object) -> object:
    """Copy ``tree`` with the longest possible number in place of everything that is shorter as JSON."""
    if isinstance(tree, Mapping):
        return {name: _at_most(part) for name, part in tree.items()}
    if isinstance(tree, list | tuple):
        return [_at_most(part) for part in tree]
    return max(tree, _LONGEST, key=lambda leaf: len(json.dumps(leaf)))
