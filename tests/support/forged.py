"""Loads damaged checkpoints whose sidecars vouch for the damage."""

from __future__ import annotations

import hashlib
import json
import random
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from sfactory.checkpoint_file import Unusable, read, sidecar_of
from tests.support.mutations import drawn

_MEMORY = 16 << 30  # of addresses, most of which a process with torch only reserves


def forged_mutants(content: bytes, seed: int, count: int) -> Iterator[bytes]:
    """``count`` mutants of ``content``."""
    source = random.Random(seed)
    for _ in range(count):
        yield drawn(source, len(content)).applied(content)


def load_forged(path: Path, seed: int, count: int) -> str:
    """Load ``count`` mutants of the checkpoint at ``path``, each with a sidecar that vouches for it.

    Returns how many were loaded and refused. Raises whatever else happens.
    """
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    content = path.read_bytes()
    record = json.loads(sidecar_of(path).read_text())
    outcomes: Counter[str] = Counter()
    for mutant in forged_mutants(content, seed, count):
        path.write_bytes(mutant)
        forged = {**record, "size": len(mutant), "sha256": hashlib.sha256(mutant).hexdigest()}
        sidecar_of(path).write_text(json.dumps(forged))
        try:
            read(path)
        except Unusable:
            outcomes["refused"] += 1
        else:
            outcomes["loaded"] += 1
    return f"loaded={outcomes['loaded']} refused={outcomes['refused']}"
