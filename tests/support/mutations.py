"""Draws damage to bytes with hypothesis."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

KINDS = ("flip", "cut off", "cut out", "insert", "overwrite", "zero", "repeat")
MOST = 64  # bytes that one damage touches, a cut off end apart


class Damage(NamedTuple):
    """One change at ``place``. ``data``: the bytes that come in; ``bit``: the one that is flipped."""

    kind: str
    place: int
    bit: int
    data: bytes

    def applied(self, content: bytes) -> bytes:
        """The content with the damage done. Places beyond its end count from its start again."""
        place = self.place % (len(content) + 1)
        head, hit, tail = content[:place], content[place : place + len(self.data)], content[place + len(self.data) :]
        changed = {
            "flip": bytes([hit[0] ^ 1 << self.bit]) + hit[1:] if hit else hit,
            "cut out": b"",
            "insert": self.data + hit,
            "overwrite": self.data[: len(hit)],
            "zero": bytes(len(hit)),
            "repeat": hit + hit,
        }
        return head if self.kind == "cut off" else head + changed[self.kind] + tail


class Mutation(NamedTuple):
    """One or more damages, one after the other."""

    damages: list[Damage]

    def applied(self, content: bytes) -> bytes:
        """The content with all of them done."""
        for damage in self.damages:
            content = damage.applied(content)
        return content


def mutations(size: int) -> st.SearchStrategy[Mutation]:
    """Mutations of ``size`` bytes."""
    data = st.binary(min_size=1, max_size=MOST)
    damage = st.builds(Damage, st.sampled_from(KINDS), st.integers(0, size), st.integers(0, 7), data)
    return st.builds(Mutation, st.lists(damage, min_size=1, max_size=4))
