"""Orders get stricter, never milder, and reach every process."""

from __future__ import annotations

import multiprocessing

from sfactory.shared.control import Control, Stop


def exit_with_orders(control: Control) -> None:
    raise SystemExit(10 * int(control.stop) + int(control.objective(1)))


def test_nothing_is_ordered_at_first() -> None:
    control = Control(num_policies=1)

    assert control.stop is Stop.NO
    assert not control.stopping
    assert control.objective(0) == float("-inf")


def test_orders_only_get_stricter() -> None:
    control = Control(num_policies=1)

    seen = []
    for order in (Stop.SAVE, Stop.NO, Stop.NOW, Stop.SAVE):
        control.order_stop(order)
        seen.append(control.stop)

    assert seen == [Stop.SAVE, Stop.SAVE, Stop.NOW, Stop.NOW]
    assert control.stopping


def test_each_policy_is_told_its_own_mean_return() -> None:
    control = Control(num_policies=2)

    control.tell_objective(1, 3.5)
    control.tell_objective(1, 2.5)

    assert control.objective(0) == float("-inf")
    assert control.objective(1) == 2.5


def test_a_child_sees_what_was_ordered() -> None:
    control = Control(num_policies=2)
    control.order_stop(Stop.NOW)
    control.tell_objective(1, 1.0)

    child = multiprocessing.get_context("spawn").Process(target=exit_with_orders, args=(control,))
    child.start()
    child.join(60)

    assert child.exitcode == 21
