"""Stop orders become only stricter; objectives and reward shaping reach each policy."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sfactory.errors import EnvError
from sfactory.shared.control import Control, SharedRewardShaping, Stop

MANY = {f"item_{number}": 1.0 for number in range(400)}


def test_stop_orders_only_become_stricter() -> None:
    control = Control(num_policies=1)
    seen = [(control.stop, control.stopping)]

    for order in (Stop.SAVE, Stop.NO, Stop.NOW, Stop.SAVE):
        control.order_stop(order)
        seen.append((control.stop, control.stopping))

    assert seen == [(Stop.NO, False), *[(Stop.SAVE, True)] * 2, *[(Stop.NOW, True)] * 2]


def test_reward_shaping_is_read_as_it_was_set() -> None:
    shared = SharedRewardShaping(2)
    for shaping in (MANY, dict.fromkeys(MANY, -1.2345678901234567e-100)):
        shared.set(1, shaping)
        assert shared.read(1) == shaping
    assert (shared.version(0), shared.version(1)) == (0, 2)


@pytest.mark.parametrize(
    "shaping",
    [
        {"a": MANY, "b": MANY},
        {"a": [1.0] * 900},
        {"a": ({"b": 1.0},) * 900},
        {"a": ["x" * 17_000]},
    ],
)
def test_reward_shaping_that_may_become_too_long_is_refused(shaping: Mapping[str, object]) -> None:
    with pytest.raises(EnvError, match=r"reward shaping is too large: \d+ characters of JSON.* 16384 are possible"):
        SharedRewardShaping(1).set(0, shaping)
