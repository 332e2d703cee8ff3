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
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sfactory.action_heads import DiscreteHead
from sfactory.config.flags import strict_json
from sfactory.errors import SFactoryError
from sfactory.layout import Layout
from sfactory.shared.trajectories import NOBODY, Array, trajectory_fields
from sfactory.spec import EnvSpec

PROTOCOL = 1
MOST_JSON = 2**20  # bytes of a handshake
# What the handshakes hold, and of which type. joins: False of a remote that asks for the settings first.
HELLO: Mapping[str, type] = {"protocol": int, "version": str, "env": str, "name": str, "joins": bool}
# envs: of a slot. window: trajectories that may wait for acknowledgement. seed: for this remote alone.
WELCOME: Mapping[str, type] = {
    **dict.fromkeys(("settings", "shapes"), dict),
    **dict.fromkeys(("weight_bytes", "envs", "window", "seed"), int),
    "spec": str,
}


class Kind(Enum):
    """The first frame of a message."""

    HELLO = b"hello"  # remote: JSON
    TRAJECTORY = b"trajectory"  # remote: Held, then the bytes of a slot
    REPORT = b"report"  # remote: a message to main, as messages.TO_MAIN encodes it
    ASK = b"ask"  # remote: Held
    BYE = b"bye"  # remote: it leaves
    WELCOME = b"welcome"  # run: JSON
    REFUSED = b"refused"  # run: JSON with the reason
    COUNTS = b"counts"  # run: Counts
    WEIGHTS = b"weights"  # run: Version, then the bytes of the weights
    LOST = b"lost"  # run: it no longer knows this link
    END = b"end"  # run: the session is over


class BadFrame(SFactoryError):
    """Bytes from the network that are no message of the protocol, or not one that fits this run."""


def kind_of(frames: Sequence[bytes]) -> Kind:
    """The kind of a message. Raises BadFrame if it is none."""
    if len(frames) != 2:
        raise BadFrame(f"a message of {len(frames)} frames, not 2")
    try:
        return Kind(frames[0])
    except ValueError:
        raise BadFrame("a message of an unknown kind") from None


class Held(NamedTuple):
    """Remote: the publication of the weights that it has, 0 before the first."""

    publication: int


class Counts(NamedTuple):
    """Run: trajectories of this link that were taken, and env steps that the run has trained on."""

    taken: int
    env_steps: int


class Version(NamedTuple):
    """Run: of the weights that follow."""

    publication: int
    policy_version: int


Numbers = TypeVar("Numbers", Held, Counts, Version)
NUMBER_BYTES = 8


def pack(numbers: Held | Counts | Version) -> bytes:
    """The bytes of a struct of unsigned numbers of 8 bytes."""
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def unpack(kind: type[Numbers], content: bytes, block: int = 0) -> tuple[Numbers, memoryview]:
    """The struct that ``content`` begins with, and the ``block`` bytes after it. Raises BadFrame for another size."""
    size = NUMBER_BYTES * len(kind._fields)
    if len(content) != size + block:
        raise BadFrame(f"{kind.__name__} with {len(content)} bytes, not {size + block}")
    return kind._make(struct.unpack_from(f"<{len(kind._fields)}Q", content)), memoryview(content)[size:]


def pack_json(**values: object) -> bytes:
    """A JSON object."""
    return json.dumps(values, default=dict).encode()


def unpack_json(content: bytes, **kinds: type) -> dict[str, Any]:
    """The JSON object in ``content``, which has these keys with values of these types. Raises BadFrame."""
    if len(content) > MOST_JSON:
        raise BadFrame(f"a handshake of {len(content)} bytes, more than {MOST_JSON}")
    try:
        values = strict_json(content)
    except ValueError as error:
        raise BadFrame(f"a handshake that is no JSON: {error}") from None
    if not isinstance(values, Mapping):
        raise BadFrame("a handshake that is no JSON object")
    for name, kind in kinds.items():
        if type(values.get(name)) is not kind:
            raise BadFrame(f"a handshake in which {name} is no {kind.__name__}")
    return dict(values)


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
            part = block[start : start + field.nbytes]
            flat = np.frombuffer(part, field.dtype) if field.nbytes else np.empty(0, field.dtype)
            views[name] = flat.reshape(field.shape[1:])
            start += field.nbytes
        for name, view in views.items():
            self._require_legal(name, view)
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
