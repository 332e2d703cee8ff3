"""An env that raises is recreated in place: the rows it spoiled are masked, and all others are as without the fault.

Rollout 4. A scripted env shows 100 x episode + step and pays that number plus 0.5; the k-th replacement shows and pays
1000 x k more.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from sfactory.actor import env_restarts
from sfactory.actor.env_restarts import StopOrdered
from sfactory.actor.split import Split
from sfactory.clock import Deadline, now
from sfactory.errors import EnvFaults, ExitCode
from sfactory.shared.control import Stop
from sfactory.shared.trajectories import Slot
from tests.support.episodes import finished_episodes
from tests.support.parts import SCALAR
from tests.support.scripted_env import Broken, EnvStock, Episode, FaultRecord, Faults, ScriptedEnv
from tests.unit.actor.test_split import Rows, T, assert_rows, play, steps_from, used_slots


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits before envs are recreated, in seconds; they pass at once."""
    noted: list[float] = []

    class Noted(Deadline):
        def __init__(self, seconds: float) -> None:
            noted.append(seconds)
            super().__init__(0.0)

    monkeypatch.setattr(env_restarts, "Deadline", Noted)
    return noted


def make_split(envs: Sequence[ScriptedEnv], stock: EnvStock, **limits: Any) -> tuple[Split, FaultRecord, list[Slot]]:
    record = FaultRecord(stock.make, **limits)
    split = Split.of_envs(0, envs, SCALAR, T, record.handling)
    split.reset(list(range(len(envs))), "actor 0")
    return split, record, used_slots(len(envs))


def failing(*steps: int) -> ScriptedEnv:
    return ScriptedEnv([], Faults(steps=steps))


class Case(NamedTuple):
    """A script and its faults; what that leaves in the slots; finished episodes; the script of the replacement."""

    script: list[Episode]
    faults: Faults
    slots: list[Rows]
    episodes: list[tuple[float, int]] = []  # noqa: RUF012 - of a tuple, and never changed
    next_script: Sequence[Episode] = ()


CASES = {
    "in mid-slot": Case(
        [], Faults(steps=[3]), [Rows([0, 1, 2, 1000, 1001], invalid=(2,), is_first=(0, 3)), steps_from(1001)]
    ),
    "in the last step of a slot: the next one starts with a first row": Case(
        [], Faults(steps=[4]), [Rows([0, 1, 2, 3, 1000], invalid=(3,), is_first=(0, 4)), steps_from(1000, starts=True)]
    ),
    "in the first step of a slot": Case(
        [],
        Faults(steps=[5]),
        [steps_from(0, starts=True), Rows([4, 1000, 1001, 1002, 1003], invalid=(0,), is_first=(1,))],
    ),
    "in the reset after a termination: the step that terminated is valid": Case(
        [(2, "terminated")],
        Faults(resets=[2]),
        [Rows([0, 1, 1000, 1001, 1002], terminated=(1,), is_first=(0, 2)), steps_from(1002)],
        [(2.0, 2)],
    ),
    "in the reset of a truncation row": Case(
        [(2, "truncated")],
        Faults(resets=[2]),
        [Rows([0, 1, 2, 1000, 1001], truncated=(1,), invalid=(2,), is_first=(0, 3)), steps_from(1001)],
        [(2.0, 2)],
    ),
    "in the reset between two slots": Case(
        [(4, "truncated")],
        Faults(resets=[2]),
        [Rows([0, 1, 2, 3, 4], truncated=(3,), is_first=(0,)), steps_from(1000, starts=True)],
        [(8.0, 4)],
    ),
    "an episode after the broken one has its own return and length": Case(
        [(1, "terminated"), (9, "terminated")],
        Faults(steps=[3]),
        [
            Rows([0, 100, 101, 1000, 1001], terminated=(0,), invalid=(2,), is_first=(0, 1, 3)),
            Rows([1001, 1100, 1101, 1102, 1103], terminated=(0,), is_first=(1,)),
        ],
        [(0.5, 1), (2002.0, 2)],
        next_script=[(2, "terminated")],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_step_that_raised_is_masked_and_all_other_rows_are_valid(name: str, waits: list[float]) -> None:
    case = CASES[name]
    env = ScriptedEnv(case.script, case.faults)
    split, record, slots = make_split([env], EnvStock(ScriptedEnv(case.next_script, base=1000.0)))

    valid = play(split, slots[: len(case.slots)])

    for slot, rows in zip(slots, case.slots, strict=False):
        assert_rows(slot, 0, rows)
    assert finished_episodes(split.episodes) == case.episodes
    assert valid == sum(T - len(rows.invalid) for rows in case.slots)
    assert record.counts() == (1, 0)
    assert env.closed


def test_other_envs_of_the_split_are_stepped_once_with_their_own_actions(waits: list[float]) -> None:
    envs = [ScriptedEnv(), failing(2, 3), ScriptedEnv([(3, "truncated")], Faults(resets=[2]))]
    envs += [failing(2), ScriptedEnv([(2, "terminated")])]
    split, record, slots = make_split(envs, EnvStock())

    valid = play(split, slots[:1])

    assert [env.taken for env in envs] == [[1, 2, 3, 4], [1, 2], [1, 2, 3], [1, 2], [1, 2, 3, 4]]
    due = [
        steps_from(0, starts=True),
        Rows([0, 1, 1000, 1001, 1002], invalid=(1,), is_first=(0, 2)),
        Rows([0, 1, 2, 3, 3000], truncated=(2,), invalid=(3,), is_first=(0, 4)),
        Rows([0, 1, 2000, 2001, 2002], invalid=(1,), is_first=(0, 2)),
        Rows([0, 1, 100, 101, 102], terminated=(1,), is_first=(0, 2)),
    ]
    for env, rows in enumerate(due):
        assert_rows(slots[0], env, rows)
    assert valid == 20 - 3
    assert record.counts() == (3, 0)


def test_each_recreated_env_has_a_seed_of_its_own(waits: list[float]) -> None:
    stock = EnvStock(failing(1), RuntimeError("no licence"), failing(1))
    split, record, slots = make_split([failing(2)], stock)

    play(split, slots[:1])

    assert stock.seeds == [7001, 7002, 7003, 7004]
    assert [env.seeds for env in stock.made] == [[7001], [7003], [7004]]
    assert record.counts() == (4, 0)


def test_a_broken_env_is_closed_once_even_if_close_raises(waits: list[float], caplog: pytest.LogCaptureFixture) -> None:
    class Clinging(ScriptedEnv):
        closes = 0

        def close(self) -> None:
            self.closes += 1
            raise RuntimeError("the window is gone")

    env = Clinging([], Faults(steps=[1]))
    split, _, slots = make_split([ScriptedEnv(), env], EnvStock(RuntimeError("no licence")))

    play(split, slots[:1])
    split.batch.close("split 0")

    assert env.closes == 1
    assert "env 1, which is recreated: close() raised RuntimeError: the window is gone" in caplog.text
    assert slots[0].valid[:, 1].tolist() == [False, True, True, True]


def test_waits_double_while_an_env_keeps_failing_and_start_short_again_after_a_good_step(waits: list[float]) -> None:
    stock = EnvStock(failing(1), *[RuntimeError("no licence")] * 5, failing(2), failing())
    split, _, slots = make_split([failing(1), failing(4)], stock)

    play(split, slots[:1])

    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 0.1, 0.1], "the second env has waits of its own"


def test_a_stop_ends_the_wait_and_the_step_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_restarts, "FIRST_WAIT_S", 600.0)
    monkeypatch.setattr(env_restarts, "LONGEST_WAIT_S", 600.0)
    split, record, slots = make_split([ScriptedEnv(), failing(2)], EnvStock())
    split.begin(slots[0])
    slots[0].actions["action"].fill(0)
    assert split.step() == 2
    threading.Timer(0.3, record.control.order_stop, [Stop.SAVE]).start()
    began = now()

    with pytest.raises(StopOrdered):
        split.step()

    assert now() - began < 60.0
    assert (split.t, split.completed) == (1, False)


def test_too_many_restarts_end_with_the_envs_traceback_and_a_line_with_env_count_and_flag(waits: list[float]) -> None:
    stock = EnvStock(*(failing(1) for _ in range(9)))
    split, record, slots = make_split([ScriptedEnv(), failing(1)], stock, most_restarts=5)
    record.row.add("env_restarts", 2)  # by an earlier process of the actor

    with pytest.raises(EnvFaults) as caught:
        play(split, slots[:1])

    text = "".join(traceback.format_exception(caught.value))
    last_line = text.rstrip().splitlines()[-1]
    assert "env 1 of sf-actor-0 raised Broken: step 1 fails; 5 of the actor's envs were recreated" in last_line
    assert "--max_env_restarts=5 allows no more" in last_line
    assert text.index("Broken: step 1 fails") < text.index("EnvFaults: env 1")
    assert "in step" in text
    assert isinstance(caught.value.__cause__, Broken)
    assert caught.value.exit_code is ExitCode.FAULTS
    assert record.counts() == (5, 0)


def test_each_cause_is_logged_with_one_traceback_and_then_ever_more_rarely(
    waits: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    split, record, slots = make_split([ScriptedEnv(), failing(1), *(failing(3) for _ in range(3))], EnvStock())

    play(split, slots[:1])

    assert record.counts()[0] == 4
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3
    assert ["Traceback" in record.getMessage() for record in caplog.records] == [True, False, False]
    assert "4 times by now" in caplog.messages[2]
    assert caplog.messages[0].startswith("env 1 of sf-actor-0 raised Broken: step 1 fails; it is recreated (1 of ")
    assert caplog.messages[1].startswith("env 2 of sf-actor-0 raised Broken: step 3 fails; it is recreated (2 of ")


def test_creation_and_reset_of_a_replacement_each_have_a_timeout_of_their_own(waits: list[float]) -> None:
    stock = EnvStock()
    split, record, slots = make_split([failing(1)], stock)
    stamps: list[tuple[str, float]] = []
    stock.on_call = lambda what: stamps.append((what, record.row.get("busy_since")))

    play(split, slots[:1])

    assert [what for what, _ in stamps] == ["make", "reset"]
    assert 0 < stamps[0][1] < stamps[1][1] < record.row.get("busy_since")


class Mute(Exception):
    """An exception without a readable text."""

    def __str__(self) -> str:
        raise self.args[0]


@pytest.mark.parametrize("in_reset", [False, True])
@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Mute(RuntimeError("no text")), Mute(SystemExit())]
)
def test_env_that_raises_more_than_an_exception_is_recreated(
    waits: list[float], error: BaseException, in_reset: bool
) -> None:
    class Raising(ScriptedEnv):
        def step(self, action: int) -> Any:
            if in_reset:
                return super().step(action)
            raise error

        def reset(self, **given: Any) -> Any:
            if self.seeds:
                raise error
            return super().reset(**given)

    split, record, _ = make_split([Raising([(1, "terminated")]), ScriptedEnv()], EnvStock())

    split.batch.step([0, 0])

    assert (split.batch.broken, split.batch.terminated) == (([], [0]) if in_reset else ([0], []))
    assert (len(waits), record.counts()[0]) == (1, 1)
