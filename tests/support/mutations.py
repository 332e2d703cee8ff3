"""Damage to bytes, drawn by hypothesis or from a seed, and loads of checkpoints damaged in this way."""

from __future__ import annotations

import hashlib
import json
import random
import resource
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hypothesis import strategies as st

from sfactory.checkpoint_file import Unusable, read, sidecar_of

Kind = Literal["flip", "cut off", "cut out", "insert", "overwrite", "zero", "repeat"]
KINDS: tuple[Kind, ...] = ("flip", "cut off", "cut out", "insert", "overwrite", "zero", "repeat")
MOST = 64  # bytes that one damage touches, a cut off end apart
_MEMORY = 16 << 30  # of addresses, most of which a process with torch only reserves


@dataclass(frozen=True)
class Damage:
    """One change at ``place``. ``data``: the bytes that come in; ``bit``: the one that is flipped."""

    kind: Kind
    place: int
    bit: int
    data: bytes

    def applied(self, content: bytes) -> bytes:
        """The content with the damage done. Places beyond its end count from its start again."""
        place = self.place % (len(content) + 1)
        end = min(len(content), place + len(self.data))
        head, hit, tail = content[:place], content[place:end], content[end:]
        match self.kind:
            case "flip":
                if not content:
                    return content
                place %= len(content)
                return content[:place] + bytes([content[place] ^ 1 << self.bit]) + content[place + 1 :]
            case "cut off":
                return head
            case "cut out":
                return head + tail
            case "insert":
                return head + self.data + hit + tail
            case "overwrite":
                return head + self.data[: len(hit)] + tail
            case "zero":
                return head + bytes(len(hit)) + tail
            case "repeat":
                return head + hit + hit + tail


@dataclass(frozen=True)
class Mutation:
    """One or more damages, one after the other."""

    damages: tuple[Damage, ...]

    def applied(self, content: bytes) -> bytes:
        """The content with all of them done."""
        for damage in self.damages:
            content = damage.applied(content)
        return content


def mutations(size: int) -> st.SearchStrategy[Mutation]:
    """Mutations of ``size`` bytes."""
    damage = st.builds(
        Damage, st.sampled_from(KINDS), st.integers(0, size), st.integers(0, 7), st.binary(min_size=1, max_size=MOST)
    )
    return st.lists(damage, min_size=1, max_size=4).map(lambda drawn: Mutation(tuple(drawn)))


def drawn(source: random.Random, size: int) -> Mutation:
    """A mutation of ``size`` bytes out of a seeded source, where hypothesis is not at hand."""

    def damage() -> Damage:
        data = source.randbytes(source.randint(1, MOST))
        return Damage(source.choice(KINDS), source.randint(0, size), source.randrange(8), data)

    return Mutation(tuple(damage() for _ in range(source.randint(1, 3))))


def load_forged(path: Path, seed: int, count: int) -> str:
    """Load ``count`` mutants of the checkpoint at ``path``, each with a sidecar that vouches for it.

    Returns how many were loaded and refused. Raises whatever else happens.
    """
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    content, source = path.read_bytes(), random.Random(seed)
    record = json.loads(sidecar_of(path).read_text())
    outcomes: Counter[str] = Counter()
    for _ in range(count):
        mutant = drawn(source, len(content)).applied(content)
        path.write_bytes(mutant)
        forged = {**record, "size": len(mutant), "sha256": hashlib.sha256(mutant).hexdigest()}
        sidecar_of(path).write_text(json.dumps(forged))
        try:
            read(path)
            outcomes["loaded"] += 1
        except Unusable:
            outcomes["refused"] += 1
    return f"loaded={outcomes['loaded']} refused={outcomes['refused']}"
