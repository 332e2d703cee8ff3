"""An env that raises is made anew in its place: what it broke is masked, and every other row is as it would have been.

Rollout 4. A scripted env shows 100 x episode + step and pays that number plus 0.5; the k-th that takes the place of a
broken one shows and pays 1000 x k more.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from sfactory.actor import env_restarts as mending
from sfactory.actor.env_restarts import EnvFaults, StopOrdered
from sfactory.actor.split import Split
from sfactory.clock import Deadline, now
from sfactory.errors import ExitCode
from sfactory.shared.control import Stop
from sfactory.shared.trajectories import Slot, TrajectoryBuffer
from tests.support.episodes import finished_episodes
from tests.support.fragile_env import Broken, Care, Faults, FragileEnv, Workshop
from tests.support.parts import SCALAR, small_layout
from tests.support.scripted_env import Episode
from tests.unit.actor.test_recorder import Rows, T, assert_rows, play, soil


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits before envs are made anew, in seconds; nothing waits."""
    noted: list[float] = []

    class Noted(Deadline):
        def __init__(self, seconds: float) -> None:
            noted.append(seconds)
            super().__init__(0.0)

    monkeypatch.setattr(mending, "Deadline", Noted)
    return noted


def make_split(envs: list[FragileEnv], workshop: Workshop, **limits: Any) -> tuple[Split, Care, list[Slot]]:
    care = Care(workshop.make, **limits)
    split = Split.of_envs(0, envs, SCALAR, T, care.care)
    split.reset(list(range(len(envs))), "actor 0")
    slots = TrajectoryBuffer(SCALAR, small_layout(num_actors=1, rows=len(envs), slots_per_split=3)).slots()
    for slot in slots:
        soil(slot)
    return split, care, slots


class Story(NamedTuple):
    """A script, and what goes wrong; what that leaves in the slots; finished episodes; the next env's script."""

    script: list[Episode]
    faults: Faults
    slots: list[Rows]
    episodes: list[tuple[float, int]]
    next_script: Sequence[Episode] = ()


STORIES = {
    "in mid-slot": Story(
        [],
        Faults(steps=[3]),
        [
            Rows([0, 1, 2, 1000, 1001], [0.5, 1.5, 0, 1000.5], invalid=(2,), is_first=(0, 3)),
            Rows([1001, 1002, 1003, 1004, 1005], [1001.5, 1002.5, 1003.5, 1004.5]),
        ],
        [],
    ),
    "in the first step of all": Story(
        [],
        Faults(steps=[1]),
        [Rows([0, 1000, 1001, 1002, 1003], [0, 1000.5, 1001.5, 1002.5], invalid=(0,), is_first=(0, 1))],
        [],
    ),
    "in the last step of a slot: the next one starts with a first row": Story(
        [],
        Faults(steps=[4]),
        [
            Rows([0, 1, 2, 3, 1000], [0.5, 1.5, 2.5, 0], invalid=(3,), is_first=(0, 4)),
            Rows([1000, 1001, 1002, 1003, 1004], [1000.5, 1001.5, 1002.5, 1003.5], is_first=(0,)),
        ],
        [],
    ),
    "in the first step of a slot: the slot before looks ahead to a row": Story(
        [],
        Faults(steps=[5]),
        [
            Rows([0, 1, 2, 3, 4], [0.5, 1.5, 2.5, 3.5], is_first=(0,)),
            Rows([4, 1000, 1001, 1002, 1003], [0, 1000.5, 1001.5, 1002.5], invalid=(0,), is_first=(1,)),
        ],
        [],
    ),
    "in the reset after a termination: the step that terminated is as good as any": Story(
        [(2, "terminated")],
        Faults(resets=[2]),
        [
            Rows([0, 1, 1000, 1001, 1002], [0.5, 1.5, 1000.5, 1001.5], terminated=(1,), is_first=(0, 2)),
            Rows([1002, 1003, 1004, 1005, 1006], [1002.5, 1003.5, 1004.5, 1005.5]),
        ],
        [(2.0, 2)],
    ),
    "in the reset of a truncation row: what was truncated is valued as ever": Story(
        [(2, "truncated")],
        Faults(resets=[2]),
        [
            Rows([0, 1, 2, 1000, 1001], [0.5, 1.5, 0, 1000.5], truncated=(1,), invalid=(2,), is_first=(0, 3)),
            Rows([1001, 1002, 1003, 1004, 1005], [1001.5, 1002.5, 1003.5, 1004.5]),
        ],
        [(2.0, 2)],
    ),
    "in the reset between two slots": Story(
        [(4, "truncated")],
        Faults(resets=[2]),
        [
            Rows([0, 1, 2, 3, 4], [0.5, 1.5, 2.5, 3.5], truncated=(3,), is_first=(0,)),
            Rows([1000, 1001, 1002, 1003, 1004], [1000.5, 1001.5, 1002.5, 1003.5], is_first=(0,)),
        ],
        [(8.0, 4)],
    ),
    "an episode after the broken one has its own return and length": Story(
        [(1, "terminated"), (9, "terminated")],
        Faults(steps=[3]),
        [
            Rows([0, 100, 101, 1000, 1001], [0.5, 100.5, 0, 1000.5], terminated=(0,), invalid=(2,), is_first=(0, 1, 3)),
            Rows([1001, 1100, 1101, 1102, 1103], [1001.5, 1100.5, 1101.5, 1102.5], terminated=(0,), is_first=(1,)),
        ],
        [(0.5, 1), (2002.0, 2)],
        next_script=[(2, "terminated")],
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_what_broke_is_masked_and_all_other_rows_are_whole(name: str, waits: list[float]) -> None:
    story = STORIES[name]
    env = FragileEnv(story.script, story.faults)
    split, care, slots = make_split([env], Workshop(FragileEnv(story.next_script, base=1000.0)))

    valid = play(split, slots[: len(story.slots)])

    for slot, rows in zip(slots, story.slots, strict=False):
        assert_rows(slot, 0, rows)
    assert finished_episodes(split.episodes) == story.episodes
    assert valid == sum(T - len(rows.invalid) for rows in story.slots)
    assert care.counts() == (1, 0)
    assert env.closed


def test_envs_before_and_behind_a_broken_one_are_stepped_once_with_their_own_actions(waits: list[float]) -> None:
    envs = [FragileEnv(), FragileEnv([], Faults(steps=[2, 3])), FragileEnv([(3, "truncated")], Faults(resets=[2]))]
    envs += [FragileEnv([], Faults(steps=[2])), FragileEnv([(2, "terminated")])]
    split, care, slots = make_split(envs, Workshop())

    valid = play(split, slots[:1])

    assert [env.taken for env in envs] == [[1, 2, 3, 4], [1, 2], [1, 2, 3], [1, 2], [1, 2, 3, 4]]
    assert_rows(slots[0], 0, Rows([0, 1, 2, 3, 4], [0.5, 1.5, 2.5, 3.5], is_first=(0,)))
    assert_rows(slots[0], 1, Rows([0, 1, 1000, 1001, 1002], [0.5, 0, 1000.5, 1001.5], invalid=(1,), is_first=(0, 2)))
    assert_rows(
        slots[0], 2, Rows([0, 1, 2, 3, 3000], [0.5, 1.5, 2.5, 0], truncated=(2,), invalid=(3,), is_first=(0, 4))
    )
    assert_rows(slots[0], 3, Rows([0, 1, 2000, 2001, 2002], [0.5, 0, 2000.5, 2001.5], invalid=(1,), is_first=(0, 2)))
    assert_rows(slots[0], 4, Rows([0, 1, 100, 101, 102], [0.5, 1.5, 100.5, 101.5], terminated=(1,), is_first=(0, 2)))
    assert valid == 20 - 3
    assert care.counts() == (3, 0)


def test_a_step_that_returns_too_little_is_a_failure_like_any_other(waits: list[float]) -> None:
    class Terse(FragileEnv):
        def step(self, action: int) -> Any:
            return super().step(action)[:4]

    split, care, slots = make_split([Terse()], Workshop())

    play(split, slots[:1])

    assert_rows(slots[0], 0, Rows([0, 1000, 1001, 1002, 1003], [0, 1000.5, 1001.5, 1002.5], (), (), (0,), (0, 1)))
    assert care.counts() == (1, 0)


def test_each_env_that_is_made_anew_has_a_seed_of_its_own(waits: list[float]) -> None:
    workshop = Workshop(
        FragileEnv([], Faults(steps=[1])), RuntimeError("no licence"), FragileEnv([], Faults(steps=[1]))
    )
    split, care, slots = make_split([FragileEnv([], Faults(steps=[2]))], workshop)

    play(split, slots[:1])

    assert workshop.seeds == [7001, 7002, 7003, 7004]
    assert [env.seeds for env in workshop.made] == [[7001], [7003], [7004]]
    assert care.counts() == (4, 0)


def test_a_broken_env_is_closed_once_whatever_its_close_does(
    waits: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    class Clinging(FragileEnv):
        closes = 0

        def close(self) -> None:
            self.closes += 1
            raise RuntimeError("the window is gone")

    env = Clinging([], Faults(steps=[1]))
    split, _, slots = make_split([FragileEnv(), env], Workshop(RuntimeError("no licence")))

    play(split, slots[:1])
    split.batch.close("split 0")

    assert env.closes == 1
    assert "env 1, which is recreated: close() raised RuntimeError: the window is gone" in caplog.text
    assert slots[0].valid[:, 1].tolist() == [False, True, True, True]


def test_waits_double_while_an_env_fails_again_and_begin_anew_after_a_good_step(waits: list[float]) -> None:
    again: list[FragileEnv | Exception] = [
        FragileEnv([], Faults(steps=[1])),
        *[RuntimeError("no licence")] * 5,
        FragileEnv([], Faults(steps=[2])),
    ]
    split, _, slots = make_split([FragileEnv([], Faults(steps=[1]))], Workshop(*again))

    play(split, slots[:1])

    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 0.1]


def test_waits_of_one_env_are_not_those_of_another(waits: list[float]) -> None:
    envs = [FragileEnv([], Faults(steps=[1])), FragileEnv([], Faults(steps=[1]))]
    split, _, slots = make_split(envs, Workshop(RuntimeError("no licence")))

    play(split, slots[:1])

    assert waits == [0.1, 0.2, 0.1]


def test_a_stop_ends_the_wait_and_nothing_of_the_step_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mending, "FIRST_WAIT_S", 600.0)
    monkeypatch.setattr(mending, "LONGEST_WAIT_S", 600.0)
    split, care, slots = make_split([FragileEnv(), FragileEnv([], Faults(steps=[2]))], Workshop())
    split.begin(slots[0])
    slots[0].actions["action"].fill(0)
    assert split.step() == 2
    threading.Timer(0.3, care.control.order_stop, [Stop.SAVE]).start()
    began = now()

    with pytest.raises(StopOrdered):
        split.step()

    assert now() - began < 60.0
    assert (split.t, split.completed) == (1, False)


def test_the_budget_ends_with_a_line_that_names_env_count_and_flag_after_the_envs_own_traceback(
    waits: list[float],
) -> None:
    envs = [FragileEnv(), FragileEnv([], Faults(steps=[1]))]
    split, care, slots = make_split(
        envs, Workshop(*(FragileEnv([], Faults(steps=[1])) for _ in range(9))), most_restarts=3
    )

    with pytest.raises(EnvFaults) as caught:
        play(split, slots[:1])

    text = "".join(traceback.format_exception(caught.value))
    assert (
        text.rstrip()
        .splitlines()[-1]
        .endswith(
            "env 1 of sf-actor-0 raised Broken: step 1 fails; 3 of the actor's envs were recreated in this session, "
            "and --max_env_restarts=3 allows no more"
        )
    )
    assert text.index("Broken: step 1 fails") < text.index("EnvFaults: env 1")
    assert "in step" in text
    assert isinstance(caught.value.__cause__, Broken)
    assert caught.value.exit_code is ExitCode.FAULTS
    assert care.counts() == (3, 0)


@pytest.mark.parametrize("faults", [Faults(steps=[2]), Faults(resets=[2])], ids=["step", "reset"])
def test_without_a_budget_the_first_failure_is_the_last(faults: Faults) -> None:
    workshop = Workshop()
    split, care, slots = make_split([FragileEnv([(1, "terminated")], faults)], workshop, most_restarts=0)

    with pytest.raises(EnvFaults, match=r"raised Broken: (step|reset) 2 fails; 0 of .* --max_env_restarts=0 allows"):
        play(split, slots[:1])

    assert workshop.made == []
    assert care.counts() == (0, 0)


def test_what_processes_before_have_spent_of_the_budget_is_spent() -> None:
    split, care, slots = make_split([FragileEnv([], Faults(steps=[1]))], Workshop(), most_restarts=5)
    care.row.add("env_restarts", 5)

    with pytest.raises(EnvFaults, match="5 of the actor's envs"):
        play(split, slots[:1])


def test_every_failure_is_told_once_in_a_line_and_the_first_with_its_traceback(
    waits: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    envs = [FragileEnv(), FragileEnv([], Faults(steps=[1])), FragileEnv([], Faults(steps=[3]))]
    split, _, slots = make_split(envs, Workshop())

    play(split, slots[:1])

    told = [(record.levelno, record.getMessage(), bool(record.exc_info)) for record in caplog.records]
    assert told == [
        (
            logging.WARNING,
            f"env {env} of sf-actor-0 raised Broken: step {step} fails; it is recreated ({count} of "
            "--max_env_restarts=20), and its episode is discarded",
            count == 1,
        )
        for env, step, count in ((1, 1, 1), (2, 3, 2))
    ]


def test_the_making_and_the_reset_of_a_fresh_env_each_begin_a_time_of_their_own(waits: list[float]) -> None:
    workshop = Workshop()
    split, care, slots = make_split([FragileEnv([], Faults(steps=[1]))], workshop)
    stamps: list[tuple[str, float]] = []
    workshop.on_call = lambda what: stamps.append((what, care.row.get("busy_since")))

    play(split, slots[:1])

    assert [what for what, _ in stamps] == ["make", "reset"]
    assert 0 < stamps[0][1] < stamps[1][1] < care.row.get("busy_since")


def test_an_env_without_care_raises_what_it_raises() -> None:
    env = FragileEnv([], Faults(steps=[2]))
    split = Split.of_envs(0, [env], SCALAR, T)
    split.reset([0], "actor 0")
    slot = TrajectoryBuffer(SCALAR, small_layout(rows=1)).slot(0)

    with pytest.raises(Broken, match="step 2 fails"):
        play(split, [slot])
