"""What is no data is masked, counted, told and borne only so often; nothing that is not finite reaches a valid row.

Envs, rollout and numbers as in test_env_faults.py.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest

from sfactory.actor.data_validation import BadActions
from sfactory.actor.env_restarts import EnvFaults
from sfactory.actor.split import Split
from sfactory.env.conversion import BadObservation
from sfactory.errors import ExitCode
from sfactory.shared.trajectories import TrajectoryBuffer
from sfactory.spec import EnvSpec
from tests.support.episodes import finished_episodes
from tests.support.fragile_env import Care, Faults, FragileEnv, Workshop
from tests.support.parts import SCALAR, small_layout
from tests.support.scripted_env import Episode, ScriptedEnv
from tests.unit.actor.test_env_faults import make_split, waits
from tests.unit.actor.test_recorder import Rows, T, assert_rows, play

__all__ = ["waits"]

NAN, INF = math.nan, math.inf
WIDE = np.zeros(2, np.float32)
TEXT = np.array(["a"])


class Story(NamedTuple):
    """A script, and what goes wrong; what that leaves in the slots; finished episodes; envs made anew, bad steps."""

    script: list[Episode]
    faults: Faults
    slots: list[Rows]
    episodes: list[tuple[float, int]] = []  # noqa: RUF012 - of a tuple, and never changed
    counts: tuple[int, int] = (0, 1)


LOST_IN_MID_SLOT = [
    Rows([0, 1, 100, 101, 102], [0.5, 0, 100.5, 101.5], invalid=(1,), is_first=(0, 2)),
    Rows([102, 103, 104, 105, 106], [102.5, 103.5, 104.5, 105.5]),
]
BAD_REWARDS: dict[str, Any] = {
    "NaN": NAN,
    "inf": INF,
    "-inf": -INF,
    "too large for float32": 1e39,
    "None": None,
    "text": "much",
}
BAD_REWARDS["two numbers"] = np.zeros(2)
BAD_SHOWN = {
    "NaN": np.array([NAN], np.float32),
    "inf": np.array([-INF], np.float32),
    "too large for float32": np.array([1e39]),
    "of another shape": WIDE,
    "a number": 5.0,
    "text": TEXT,
    "complex": np.zeros(1, np.complex64),
    "nothing": None,
}
STORIES = {
    **{f"a reward: {name}": Story([], Faults(rewards={2: bad}), LOST_IN_MID_SLOT) for name, bad in BAD_REWARDS.items()},
    **{
        f"an observation: {name}": Story([], Faults(shown={2: bad}), LOST_IN_MID_SLOT)
        for name, bad in BAD_SHOWN.items()
    },
    "a reward in the last step of a slot": Story(
        [],
        Faults(rewards={4: NAN}),
        [
            Rows([0, 1, 2, 3, 100], [0.5, 1.5, 2.5, 0], invalid=(3,), is_first=(0, 4)),
            Rows([100, 101, 102, 103, 104], [100.5, 101.5, 102.5, 103.5], is_first=(0,)),
        ],
    ),
    "the reward of a step that terminates: that episode is not told": Story(
        [(2, "terminated"), (1, "terminated")],
        Faults(rewards={2: NAN}),
        [Rows([0, 1, 100, 200, 201], [0.5, 0, 100.5, 200.5], terminated=(2,), invalid=(1,), is_first=(0, 2, 3))],
        [(100.5, 1)],
    ),
    "the reward of a step that truncates: there is no truncation row": Story(
        [(2, "truncated"), (1, "terminated")],
        Faults(rewards={2: NAN}),
        [Rows([0, 1, 100, 200, 201], [0.5, 0, 100.5, 200.5], terminated=(2,), invalid=(1,), is_first=(0, 2, 3))],
        [(100.5, 1)],
    ),
    "the final observation of a truncated episode": Story(
        [(2, "truncated"), (1, "terminated")],
        Faults(shown={2: BAD_SHOWN["NaN"]}),
        [Rows([0, 1, 100, 200, 201], [0.5, 0, 100.5, 200.5], terminated=(2,), invalid=(1,), is_first=(0, 2, 3))],
        [(100.5, 1)],
    ),
    "the final observation of a terminated episode, which nobody looks at": Story(
        [(2, "terminated")],
        Faults(shown={2: BAD_SHOWN["NaN"]}),
        [Rows([0, 1, 100, 101, 102], [0.5, 1.5, 100.5, 101.5], terminated=(1,), is_first=(0, 2))],
        [(2.0, 2)],
        (0, 0),
    ),
    "what a reset shows: the step that terminated is good, and the env is reset again": Story(
        [(2, "terminated")],
        Faults(reset_shown={2: BAD_SHOWN["NaN"]}),
        [Rows([0, 1, 200, 201, 202], [0.5, 1.5, 200.5, 201.5], terminated=(1,), is_first=(0, 2))],
        [(2.0, 2)],
    ),
    "what a reset in a truncation row shows": Story(
        [(2, "truncated")],
        Faults(reset_shown={2: WIDE}),
        [Rows([0, 1, 2, 200, 201], [0.5, 1.5, 0, 200.5], truncated=(1,), invalid=(2,), is_first=(0, 3))],
        [(2.0, 2)],
    ),
    "what a reset between two slots shows": Story(
        [(4, "truncated")],
        Faults(reset_shown={2: BAD_SHOWN["NaN"]}),
        [
            Rows([0, 1, 2, 3, 4], [0.5, 1.5, 2.5, 3.5], truncated=(3,), is_first=(0,)),
            Rows([200, 201, 202, 203, 204], [200.5, 201.5, 202.5, 203.5], is_first=(0,)),
        ],
        [(8.0, 4)],
    ),
    "what the first reset shows": Story(
        [],
        Faults(reset_shown={1: BAD_SHOWN["NaN"]}),
        [Rows([100, 101, 102, 103, 104], [100.5, 101.5, 102.5, 103.5], is_first=(0,))],
    ),
    "an env that shows it after a second reset, too, is made anew": Story(
        [],
        Faults(rewards={2: NAN}, reset_shown={2: BAD_SHOWN["inf"]}),
        [Rows([0, 1, 1000, 1001, 1002], [0.5, 0, 1000.5, 1001.5], invalid=(1,), is_first=(0, 2))],
        [],
        (1, 1),
    ),
    "an env that fails in the reset is made anew": Story(
        [],
        Faults(shown={2: BAD_SHOWN["NaN"]}, resets=[2]),
        [Rows([0, 1, 1000, 1001, 1002], [0.5, 0, 1000.5, 1001.5], invalid=(1,), is_first=(0, 2))],
        [],
        (1, 1),
    ),
}


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("name", STORIES)
def test_what_is_no_data_is_masked_and_all_other_rows_are_whole(name: str, waits: list[float]) -> None:
    story = STORIES[name]
    env, beside = FragileEnv(story.script, story.faults), FragileEnv()
    split, care, slots = make_split([env, beside], Workshop())

    valid = play(split, slots[: len(story.slots)])

    for slot, rows in zip(slots, story.slots, strict=False):
        assert_rows(slot, 0, rows)
    assert_rows(slots[0], 1, Rows([0, 1, 2, 3, 4], [0.5, 1.5, 2.5, 3.5], is_first=(0,)))
    assert finished_episodes(split.episodes) == story.episodes
    assert valid == sum(2 * T - len(rows.invalid) for rows in story.slots)
    assert care.counts() == story.counts
    assert len(beside.seeds) == 1


def test_an_env_that_is_reset_for_its_data_gets_a_fresh_seed() -> None:
    env = FragileEnv([], Faults(rewards={2: NAN, 4: NAN}))
    split, _, slots = make_split([env], Workshop())

    play(split, slots[:1])

    assert env.seeds == [0, 7001, 7002]


def test_each_kind_is_told_once_with_env_and_key(caplog: pytest.LogCaptureFixture) -> None:
    envs = [
        FragileEnv([], Faults(rewards={1: NAN, 3: INF})),
        FragileEnv([], Faults(shown={2: BAD_SHOWN["NaN"], 4: BAD_SHOWN["inf"]})),
        FragileEnv([], Faults(shown={2: BAD_SHOWN["NaN"], 4: WIDE})),
    ]
    split, care, slots = make_split(envs, Workshop())

    play(split, slots[:1])

    assert care.counts() == (0, 6)
    assert [message.partition(";")[0] for message in caplog.messages] == [
        "env 0 of sf-actor-0 returned invalid data: reward is nan",
        "env 1 of sf-actor-0 returned invalid data: observation 'obs' holds NaN or infinity",
        "env 2 of sf-actor-0 returned invalid data: observation 'obs' has shape (2,) and dtype float32, but the env's "
        "observation_space promises (1,) and float32",
    ]


def always(bad: float) -> Faults:
    return Faults(rewards=dict.fromkeys(range(1, 1000), bad))


@pytest.mark.parametrize(
    ("most", "env_steps", "borne"),
    [(0.01, 0, 19), (0.01, 1979, 19), (0.01, 1980, 20), (0.02, 1960, 40), (0.0, 10**6, 19), (1.0, 0, 60)],
)
def test_bad_data_ends_the_run_above_a_share_of_the_steps_and_never_before_the_20th(
    most: float, env_steps: int, borne: int
) -> None:
    split, care, slots = make_split([FragileEnv([], always(NAN))], Workshop(), most_bad_data=most, env_steps=env_steps)

    ended = False
    try:
        for _ in range(15):
            play(split, slots[:1])
    except EnvFaults:
        ended = True

    assert ended == (borne < 60)
    assert care.counts() == (0, borne + ended)


def test_too_much_bad_data_ends_with_a_line_that_names_env_key_count_share_and_flag() -> None:
    envs = [FragileEnv(), FragileEnv([], always(NAN))]
    split, _, slots = make_split(envs, Workshop(), env_steps=60)

    play(split, slots[:1] * 4)
    with pytest.raises(EnvFaults) as caught:
        play(split, slots[:1])

    assert caught.value.exit_code is ExitCode.FAULTS
    assert str(caught.value) == (
        "env 1 of sf-actor-0 returned invalid data: reward is nan; so did 20 of 80 env steps of the actor (25.0%), and "
        "--max_bad_env_data=0.01 allows no more"
    )


def test_resets_that_never_show_data_end_by_the_budget_of_restarts(waits: list[float]) -> None:
    bad = dict.fromkeys(range(1, 9), BAD_SHOWN["NaN"])
    workshop = Workshop(*(FragileEnv([], Faults(reset_shown=bad)) for _ in range(9)))
    env = FragileEnv([(1, "terminated")], Faults(reset_shown={2: bad[1], 3: bad[1]}))
    split, care, slots = make_split([env], workshop, most_restarts=3)

    with pytest.raises(EnvFaults, match=r"after a reset observation 'obs' holds NaN .*--max_env_restarts=3"):
        play(split, slots[:1])

    assert care.counts() == (3, 1)


def test_whole_numbers_of_another_dtype_are_not_truncated_in_silence() -> None:
    class Counter(ScriptedEnv):
        def __init__(self) -> None:
            super().__init__([])
            self.observation_space = gymnasium.spaces.Discrete(1000)  # type: ignore[assignment]

        def _obs(self) -> Any:
            return 1.5 if self._step == 2 and self._episode == 0 else 100 * self._episode + self._step

    spec = EnvSpec.of_spaces(Counter().observation_space, Counter().action_space)
    care = Care(lambda seed: Counter())
    split = Split.of_envs(0, [Counter()], spec, T, care.care)
    split.reset([0], "actor 0")
    slot = TrajectoryBuffer(spec, small_layout(rows=1)).slot(0)

    play(split, [slot])

    assert slot.obs["obs"][:, 0].tolist() == [0, 1, 100, 101, 102]
    assert slot.valid[:, 0].tolist() == [True, False, True, True]
    assert care.counts() == (0, 1)


def test_without_care_what_is_no_data_is_an_error() -> None:
    split = Split.of_envs(1, [FragileEnv(), FragileEnv([], Faults(rewards={2: NAN}))], SCALAR, T)
    split.reset([0, 1], "actor 0")

    with pytest.raises(BadObservation, match="env 3: reward is nan"):
        play(split, TrajectoryBuffer(SCALAR, small_layout(rows=2)).slots()[:1])


class Pusher(ScriptedEnv):
    """Takes two reals."""

    def __init__(self) -> None:
        super().__init__([])
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_an_action_that_is_not_finite_is_an_error_that_names_the_policy_version(bad: float) -> None:
    envs = [Pusher() for _ in range(3)]
    spec = EnvSpec.of_spaces(envs[0].observation_space, envs[0].action_space)
    split = Split.of_envs(2, envs, spec, T)
    split.reset([0, 1, 2], "actor 0")
    slot = TrajectoryBuffer(spec, small_layout(rows=3)).slot(0)
    split.begin(slot)
    slot.actions["action"].fill(0.5)
    slot.policy_version[:] = [[10, 11, 12], [20, 21, 22], [30, 31, 32], [40, 41, 42]]
    slot.actions["action"][1, 2, 0] = bad
    split.step()

    with pytest.raises(BadActions, match=rf"^policy version 22 chose 'action' = \[{bad}, 0.5\] for env 8, which"):
        split.step()

    assert [len(env.taken) for env in envs] == [1, 1, 1]
