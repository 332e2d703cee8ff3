"""Encodes what remote actors and a run send each other, and checks all that arrives before it is used.

NOTE [Remote protocol]: a message has two frames, its kind and its content. Contents are JSON (handshake), one fixed
struct, or a struct and a block of bytes of a size that both sides have computed: nothing is unpickled. A remote says
HELLO and gets WELCOME, with the settings of the run, or REFUSED. Then each TRAJECTORY and each ASK says which weights
the remote has. An ASK, and each trajectory that the learner has freed, is answered by COUNTS and, if there are newer
ones, WEIGHTS. COUNTS has the number of trajectories of this link that were freed: so many are acknowledged, the oldest
first. A remote never sends a trajectory twice. When a link is lost, it drops those that were not acknowledged, whether
they had arrived or not; so each counts once at most.
"""

from __future__ import annotations

import json
import logging
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

import numpy as np

from sfactory.action_heads import DiscreteHead
from sfactory.clock import Every
from sfactory.config.flags import strict_json
from sfactory.errors import SFactoryError
from sfactory.layout import Layout
from sfactory.messages import ToMain
from sfactory.shared.trajectories import NOBODY, Array, trajectory_fields
from sfactory.spec import EnvSpec

PROTOCOL = 1
_MOST_JSON = 2**20  # bytes of a handshake
_NUMBER_BYTES, _MOST_NUMBERS = 8, 2
_MOST_REPORTS = 1000
_SAYS_SO_S = 30.0

_log = logging.getLogger(__name__)


class BadFrame(SFactoryError):
    """Bytes from the network that are no message of the protocol, or not one that fits this run."""


class Kind(Enum):
    """The kind of a message, which its first frame names, and what the second one holds.

    types: of the values of a JSON object. count: otherwise, of numbers of 8 bytes, which a block of bytes may follow.
    """

    # Of a remote. joins: False of one that asks for the settings first. Numbers: the publication of the weights that
    # it has, 0 before the first. Blocks: a slot; a message to main, as messages.TO_MAIN encodes it.
    HELLO = b"hello", {"protocol": int, "version": str, "env": str, "name": str, "joins": bool}
    TRAJECTORY = b"trajectory", 1
    REPORT = b"report", 0
    ASK = b"ask", 1
    BYE = b"bye", 0
    # Of a run. envs: of a slot. window: trajectories that may wait for acknowledgement. seed: for this remote alone.
    WELCOME = (
        b"welcome",
        {"settings": dict, "shapes": dict, "spec": str, "weight_bytes": int, "envs": int, "window": int, "seed": int},
    )
    REFUSED = b"refused", {"reason": str}
    COUNTS = b"counts", 2  # trajectories of this link that were taken, env steps that the run has trained on
    WEIGHTS = b"weights", 2  # publication and policy version of the weights in the block
    LOST = b"lost", 0  # it no longer knows this link
    END = b"end", 0  # the session is over

    def __init__(self, frame: bytes, form: Mapping[str, type] | int) -> None:
        self.frame = frame
        self.types: Mapping[str, type] = {} if isinstance(form, int) else form
        self._count = form if isinstance(form, int) else 0

    @staticmethod
    def of(frames: Sequence[bytes]) -> Kind:
        """The kind of a message. Raises BadFrame if it is none."""
        if len(frames) != 2 or frames[0] not in _KINDS:
            raise BadFrame(f"a message of an unknown kind, of {len(frames)} frames")
        return _KINDS[frames[0]]

    def message(self, *numbers: int, block: bytes = b"") -> tuple[bytes, bytes]:
        """Both frames."""
        return self.frame, struct.pack(f"<{self._count}q", *numbers) + block

    def handshake(self, **values: object) -> tuple[bytes, bytes]:
        """Both frames, of a kind that holds JSON."""
        return self.frame, json.dumps(values, default=dict).encode()

    def numbers(self, content: bytes, block: int = 0) -> tuple[tuple[int, ...], memoryview]:
        """The numbers in a second frame, and the ``block`` bytes after them. Raises BadFrame for what does not fit."""
        size = _NUMBER_BYTES * self._count
        if len(content) != size + block:
            raise BadFrame(f"{self.name} with {len(content)} bytes, not {size + block}")
        numbers = struct.unpack_from(f"<{self._count}q", content)
        if min(numbers, default=0) < 0:
            raise BadFrame(f"{self.name} with a number below 0")
        return numbers, memoryview(content)[size:]

    def values(self, content: bytes) -> dict[str, Any]:
        """The JSON object in a second frame, which has the keys and types of this kind. Raises BadFrame."""
        if len(content) > _MOST_JSON:
            raise BadFrame(f"a handshake of {len(content)} bytes, more than {_MOST_JSON}")
        try:
            values = strict_json(content)
        except ValueError as error:
            raise BadFrame(f"a handshake that is no JSON: {error}") from None
        if not isinstance(values, Mapping):
            raise BadFrame("a handshake that is no JSON object")
        for name, kind in self.types.items():
            value = values.get(name)
            if type(value) is not kind or (isinstance(value, int) and not 0 <= value < 2**63):
                raise BadFrame(f"a handshake with a {name} that cannot be")
        return dict(values)


_KINDS = {kind.frame: kind for kind in Kind}


def most_bytes(block: int) -> int:
    """The bytes of the longest frame, if a block has so many."""
    return max(_MOST_JSON, _NUMBER_BYTES * _MOST_NUMBERS + block)


class ReportQueue:
    """Reports on episodes that wait to be sent; of too many the oldest are dropped, which a warning counts."""

    def __init__(self) -> None:
        self._waiting: deque[ToMain] = deque(maxlen=_MOST_REPORTS)
        self._dropped, self._says_so = 0, Every(_SAYS_SO_S)

    def add(self, report: ToMain) -> None:
        """Add one."""
        self._dropped += len(self._waiting) == _MOST_REPORTS
        self._waiting.append(report)

    def send(self, send: Callable[[ToMain], bool]) -> None:
        """Send them, the oldest first, until ``send`` returns False."""
        while self._waiting and send(self._waiting[0]):
            self._waiting.popleft()
        if self._dropped and (not self._waiting or self._says_so.due()):
            _log.warning("%d reports on episodes were dropped: %d waited", self._dropped, _MOST_REPORTS)
            self._dropped = 0


class SlotFormat:
    """The bytes of one slot: its fields without gaps, in the order of ``trajectory_fields``.

    nbytes: their number. shapes: dtype and shape of each field by name, for comparison.
    """

    def __init__(self, spec: EnvSpec, layout: Layout) -> None:
        one = replace(layout, num_actors=1, splits=1, slots_per_split=1)
        self._fields = trajectory_fields(spec, one)
        self.nbytes = sum(field.nbytes for field in self._fields.values())
        self.shapes = {name: [field.dtype, *field.shape[1:]] for name, field in self._fields.items()}
        self._choices = {f"action:{head.key}": head.n for head in spec.actions if isinstance(head, DiscreteHead)}

    def pack(self, arrays: Mapping[str, Array]) -> bytes:
        """The bytes of the fields of a slot (``TrajectoryBuffer.arrays``)."""
        return b"".join(arrays[name].tobytes() for name in self._fields)

    def unpack(self, block: memoryview) -> dict[str, Array]:
        """Read-only views of the fields in ``block``, whose values fit. Raises BadFrame."""
        if len(block) != self.nbytes:
            raise BadFrame(f"a trajectory of {len(block)} bytes, not {self.nbytes}")
        views, start = {}, 0
        for name, field in self._fields.items():
            view: Array = np.ndarray(field.shape[1:], field.dtype, block, start)
            self._require_legal(name, view)
            views[name] = view
            start += field.nbytes
        return views

    def _require_legal(self, name: str, view: Array) -> None:
        """Raise BadFrame for values that no actor writes, of which some would be an index."""
        low, high = 0, None
        if view.dtype == np.bool_:
            view, high = view.view(np.uint8), 1
        elif view.dtype.kind == "f":
            if not np.isfinite(view).all():
                raise BadFrame(f"a trajectory with numbers in {name} that are not finite")
            return
        elif name in self._choices:
            high = self._choices[name] - 1
        elif name == "policy_id":
            low, high = NOBODY, 0
        elif name != "policy_version":
            return
        if view.size and (view.min() < low or (high is not None and view.max() > high)):
            raise BadFrame(f"a trajectory with values in {name} out of their range")
