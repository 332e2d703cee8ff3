"""Bounds sums of ranks on a GPU, and goes back to what was before one that was cut off.

NOTE [Sums on a GPU]: NCCL's sums take place in the order of the device's work, and no host waits for them. If another
rank dies or hangs, a sum never ends, nor does the work behind it: a host that then asks for a result, or has given the
device too much work, would wait for ever. So a thread watches which sums have ended. It cuts off one that does not, by
which NCCL leaves it, and what follows is computed from an unfinished sum. None of that is used: a learner asks
``Ranks.confirm`` before it uses a result, and goes back to its last whole update.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sfactory.clock import BLOCK_S, Awake, Deadline, looks
from sfactory.errors import ExitCode, RankLost, first_line
from sfactory.ranks.ranks import Ranks
from sfactory.system.background import in_background
from sfactory.system.gpu import use_device

SILENT_S = 3.5  # after a sum has failed, and after a stop: who gives no sign of life for so long is named
_LOOK_S = 0.1

_log = logging.getLogger(__name__)


class SumWatch:
    """Cuts off sums where one has not ended ``timeout_s`` after that before it, or a rank is lost meanwhile.

    loss: why sums were cut off; "" as long as none was.
    """

    def __init__(
        self, timeout_s: float, blame: Callable[[float], str], abort: Callable[[], None], stops: Callable[[], bool]
    ) -> None:
        """blame: names the ranks that have failed, or been silent for so many seconds; "" if none has. abort: has the
        device leave all sums. stops: whether main has ordered a stop, after which it allows 8 s to save."""
        self._timeout_s, self._blame, self._abort, self._stops = timeout_s, blame, abort, stops
        self._under_way, self._idle = deque[Any](), deque[Any]()  # events behind sums; others that can be used again
        self._ended_at = 0.0  # when the last look has found that a sum has ended, or that none was under way
        self.loss = ""

    def begin(self, device: torch.device) -> None:
        """Look several times a second, in a thread, at sums on ``device``."""
        threading.Thread(target=self._run, args=(device,), name="sums", daemon=True).start()

    def follow(self) -> None:
        """Call after a sum was given to the present stream. Waits for nothing."""
        event = self._idle.pop() if self._idle else torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._under_way.append(event)

    def confirm(self) -> None:
        """See Ranks."""
        if self.loss:
            raise RankLost(self.loss)

    def settle(self) -> None:
        """See Ranks."""
        for _ in looks(lambda: bool(self.loss) or not self._under_way, _LOOK_S):  # ``look`` bounds it
            pass
        self.confirm()

    def look(self, moment: float) -> None:
        """See which sums have ended at ``moment``, and cut off the others if they take too long."""
        self._forget_ended(moment)
        waited = moment - self._ended_at
        if not self._under_way or waited < BLOCK_S:
            return
        cause = self._blame(SILENT_S if self._stops() else self._timeout_s)
        if not cause and waited > self._timeout_s:
            cause = self._blame(SILENT_S) or "a rank was lost, although all give signs of life"
        if cause and self._under_way:
            # Before results come that are computed from an unfinished sum.
            self.loss = f"{cause}; a sum had not ended after {waited:.0f} s (--rank_timeout_sec)"
            self._cut_off()

    def _forget_ended(self, moment: float) -> None:
        while self._under_way and self._under_way[0].query():
            self._idle.append(self._under_way.popleft())
            self._ended_at = moment
        if not self._under_way:
            self._ended_at = moment

    def _cut_off(self) -> None:
        """End this process if the device goes on with the sum: nothing else would."""
        in_background("abort", self._abort)
        deadline = Deadline(self._timeout_s)
        for _ in looks(lambda: deadline.passed or not self._under_way, _LOOK_S):
            self._forget_ended(0.0)
        if self._under_way:
            _log.critical("%s; the GPU does not leave the sum, so this process ends, and nothing is saved", self.loss)
            os._exit(int(ExitCode.LEARNER))

    def _run(self, device: torch.device) -> None:
        use_device(device)
        awake = Awake()
        self._ended_at = awake.seconds
        try:
            while not self.loss:
                self.look(awake.look())
                # While it waits for a sum it asks the store each time.
                time.sleep(BLOCK_S if awake.seconds - self._ended_at >= BLOCK_S else _LOOK_S)
        except RuntimeError as error:  # of a device that has failed, for which the learner ends by itself
            self.loss = f"sums on {device} are not watched any more: {first_line(error)}"


class WholeState:
    """The state of a learner after its last whole pass, which it goes back to where a sum was cut off.

    Nothing is kept, or waits, where sums are not late, see Ranks. Otherwise it is a copy on the device.
    """

    def __init__(self, ranks: Ranks, changing: Callable[[], Sequence[Tensor]], forget: Callable[[], None]) -> None:
        """changing: tensors that updates change in place; may become more, which ``forget`` takes back."""
        self._ranks, self._changing, self._forget = ranks, changing, forget
        self._originals: Sequence[Tensor] = ()
        self._copies: list[Tensor] = []
        self._is_settled = False

    def keep_first(self) -> None:
        """Call before the first sum."""
        if not self._copies:
            self.keep()

    @torch.no_grad()
    def keep(self) -> None:
        """Keep the present state; call it once the host has waited for the device. Raises RankLost as ``confirm``."""
        self.confirm()
        if not self._ranks.sums_are_late:
            return
        originals = self._changing()
        if [*map(id, originals)] != [*map(id, self._originals)]:
            self._originals, self._copies = originals, [torch.empty_like(tensor) for tensor in originals]
        _copy(self._copies, originals)

    def confirm(self) -> None:
        """As Ranks.confirm; a state that was gone back to is whole."""
        if not self._is_settled:
            self._ranks.confirm()

    @torch.no_grad()
    def settle(self) -> RankLost | None:
        """Wait until no sum is under way; if one was cut off, go back, and return why it was."""
        try:
            self._ranks.settle()
        except RankLost as loss:
            self._is_settled = True
            _copy(self._originals, self._copies)
            if not {*map(id, self._changing())} <= {*map(id, self._originals)}:
                self._forget()
            return loss
        return None


def _copy(to: Sequence[Tensor], of: Sequence[Tensor]) -> None:
    """By one kernel, or few, for each dtype."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in to):
        pairs = [pair for pair in zip(to, of, strict=True) if pair[0].dtype is dtype]
        torch._foreach_copy_([pair[0] for pair in pairs], [pair[1] for pair in pairs])
