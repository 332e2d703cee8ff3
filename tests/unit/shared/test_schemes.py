"""A reward shaping has room as long as it can grow into that, and what has none is refused with its size."""

from __future__ import annotations

import pytest

from sfactory.errors import EnvError
from sfactory.shared.control import SharedRewardShaping

MANY = {f"item_{number}": 1.0 for number in range(400)}


def test_a_scheme_is_read_as_it_was_set_however_long_its_numbers_have_become() -> None:
    schemes = SharedRewardShaping(2)
    for scheme in (MANY, dict.fromkeys(MANY, -1.2345678901234567e-100)):
        schemes.set(1, scheme)
        assert schemes.read(1) == scheme
    assert (schemes.version(0), schemes.version(1)) == (0, 2)


def test_a_scheme_that_may_outgrow_its_room_is_refused_at_once() -> None:
    with pytest.raises(EnvError, match=r"reward shaping is too large: \d+ characters of JSON.* 16384 are possible"):
        SharedRewardShaping(1).set(0, {"a": MANY, "b": MANY})
