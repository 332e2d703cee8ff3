"""Invalid data is masked, counted, logged and tolerated only so often; nothing infinite reaches a valid row.

Envs, rollout and numbers are those of test_env_faults.py.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch

from sfactory.actor.data_validation import BadActions
from sfactory.actor.split import Split
from sfactory.config.schema import ModelConfig
from sfactory.errors import EnvFaults, ExitCode
from sfactory.shared.trajectories import Slot, TrajectoryBuffer
from sfactory.spec import EnvSpec
from tests.support.episodes import finished_episodes
from tests.support.parts import small_layout
from tests.support.scripted_env import EnvStock, Episode, FaultRecord, Faults, ScriptedEnv, no_faults
from tests.unit.actor.test_env_faults import make_split, waits
from tests.unit.actor.test_split import Rows, T, assert_rows, play, steps_from

__all__ = ["waits"]

NAN, INF = math.nan, math.inf
WIDE = np.zeros(2, np.float32)
NAN_SHOWN, INF_SHOWN = np.array([NAN], np.float32), np.array([-INF], np.float32)
BAD_REWARDS: list[Any] = [NAN, INF, -INF, 1e39, None, "much", np.zeros(2)]
BAD_SHOWN: list[Any] = [NAN_SHOWN, INF_SHOWN, np.array([1e39]), WIDE, 5.0, np.array(["a"]), np.zeros(1, complex), None]


class Case(NamedTuple):
    """A script and its faults; what that leaves in the slots; finished episodes; (envs recreated, invalid steps)."""

    script: list[Episode]
    faults: Faults
    slots: list[Rows]
    episodes: list[tuple[float, int]] = []  # noqa: RUF012 - of a tuple, and never changed
    counts: tuple[int, int] = (0, 1)


MASKED_IN_MID_SLOT = [
    Rows([0, 1, 100, 101, 102], invalid=(1,), is_first=(0, 2)),
    steps_from(102),
]
MASKED_END = [Rows([0, 1, 100, 200, 201], terminated=(2,), invalid=(1,), is_first=(0, 2, 3))]
RECREATED = [Rows([0, 1, 1000, 1001, 1002], invalid=(1,), is_first=(0, 2))]
CASES = {
    **{f"a reward: {bad!r}": Case([], Faults(rewards={2: bad}), MASKED_IN_MID_SLOT) for bad in BAD_REWARDS},
    **{f"an observation: {bad!r}": Case([], Faults(shown={2: bad}), MASKED_IN_MID_SLOT) for bad in BAD_SHOWN},
    "a reward beyond all floats": Case([], Faults(rewards={2: 10**400}), MASKED_IN_MID_SLOT),
    "an observation with a gradient": Case(
        [], Faults(shown={2: torch.zeros(1, requires_grad=True)}), MASKED_IN_MID_SLOT
    ),
    "a reward with a gradient, which is one": Case(
        [(2, "terminated")],
        Faults(rewards={2: torch.tensor(1.5, requires_grad=True)}),
        [Rows([0, 1, 100, 101, 102], terminated=(1,), is_first=(0, 2))],
        [(2.0, 2)],
        (0, 0),
    ),
    "a reward in the last step of a slot": Case(
        [],
        Faults(rewards={4: NAN}),
        [Rows([0, 1, 2, 3, 100], invalid=(3,), is_first=(0, 4)), steps_from(100, starts=True)],
    ),
    "the reward of a step that terminates: that episode is discarded": Case(
        [(2, "terminated"), (1, "terminated")], Faults(rewards={2: NAN}), MASKED_END, [(100.5, 1)]
    ),
    "the reward of a step that truncates: there is no truncation row": Case(
        [(2, "truncated"), (1, "terminated")], Faults(rewards={2: NAN}), MASKED_END, [(100.5, 1)]
    ),
    "the final observation of a truncated episode": Case(
        [(2, "truncated"), (1, "terminated")], Faults(shown={2: NAN_SHOWN}), MASKED_END, [(100.5, 1)]
    ),
    "the final observation of a terminated episode, which is not used": Case(
        [(2, "terminated")],
        Faults(shown={2: NAN_SHOWN}),
        [Rows([0, 1, 100, 101, 102], terminated=(1,), is_first=(0, 2))],
        [(2.0, 2)],
        (0, 0),
    ),
    "a reset after a termination: the step that terminated is valid, and the env is reset again": Case(
        [(2, "terminated")],
        Faults(reset_shown={2: NAN_SHOWN}),
        [Rows([0, 1, 200, 201, 202], terminated=(1,), is_first=(0, 2))],
        [(2.0, 2)],
    ),
    "a reset in a truncation row": Case(
        [(2, "truncated")],
        Faults(reset_shown={2: WIDE}),
        [Rows([0, 1, 2, 200, 201], truncated=(1,), invalid=(2,), is_first=(0, 3))],
        [(2.0, 2)],
    ),
    "a reset between two slots": Case(
        [(4, "truncated")],
        Faults(reset_shown={2: NAN_SHOWN}),
        [Rows([0, 1, 2, 3, 4], truncated=(3,), is_first=(0,)), steps_from(200, starts=True)],
        [(8.0, 4)],
    ),
    "the first reset": Case([], Faults(reset_shown={1: NAN_SHOWN}), [steps_from(100, starts=True)]),
    "an env that shows it after a second reset, too, is recreated": Case(
        [], Faults(rewards={2: NAN}, reset_shown={2: INF_SHOWN}), RECREATED, [], (1, 1)
    ),
    "an env that fails in the reset is recreated": Case(
        [], Faults(shown={2: NAN_SHOWN}, resets=[2]), RECREATED, [], (1, 1)
    ),
}


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True")
@pytest.mark.parametrize("name", CASES)
def test_the_step_with_invalid_data_is_masked_and_all_other_rows_are_valid(name: str, waits: list[float]) -> None:
    case = CASES[name]
    env, other = ScriptedEnv(case.script, case.faults), ScriptedEnv()
    split, record, slots = make_split([env, other], EnvStock())

    valid = play(split, slots[: len(case.slots)])

    for slot, rows in zip(slots, case.slots, strict=False):
        assert_rows(slot, 0, rows)
    assert_rows(slots[0], 1, steps_from(0, starts=True))
    assert finished_episodes(split.episodes) == case.episodes
    assert valid == sum(2 * T - len(rows.invalid) for rows in case.slots)
    assert record.counts() == case.counts
    assert len(other.seeds) == 1


def test_each_kind_of_invalid_data_is_logged_once_with_env_and_key(caplog: pytest.LogCaptureFixture) -> None:
    envs = [
        ScriptedEnv([], Faults(rewards={1: NAN, 3: INF})),
        ScriptedEnv([], Faults(shown={2: NAN_SHOWN, 4: INF_SHOWN})),
        ScriptedEnv([], Faults(shown={2: NAN_SHOWN.copy(), 4: WIDE})),
    ]
    split, record, slots = make_split(envs, EnvStock())

    play(split, slots[:1])

    assert record.counts() == (0, 6)
    assert envs[0].seeds == [0, 7001, 7004], "each reset has a fresh seed"
    assert [message.partition(";")[0] for message in caplog.messages] == [
        "env 0 of sf-actor-0 returned invalid data: reward is nan",
        "env 1 of sf-actor-0 returned invalid data: observation 'obs' holds NaN or infinity",
        "env 2 of sf-actor-0 returned invalid data: observation 'obs' has shape (2,) and dtype float32, but the env's "
        "observation_space promises (1,) and float32",
    ]


@pytest.mark.parametrize(
    ("reward", "shown"),
    [
        (np.float32(-INF), "is -inf"),
        (None, "is None, which"),
        (np.ones(2), "is array([1., 1.]), which"),
        ("a", "is 'a'"),
    ],
)
def test_a_reward_that_is_no_number_is_named_as_the_env_returned_it(
    reward: object, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    split, _, slots = make_split([ScriptedEnv([], Faults(rewards={1: reward}))], EnvStock())

    play(split, slots[:1])

    assert caplog.messages[0].startswith(f"env 0 of sf-actor-0 returned invalid data: reward {shown}")


def always_nan() -> ScriptedEnv:
    return ScriptedEnv([], Faults(rewards=dict.fromkeys(range(1, 1000), NAN)))


@pytest.mark.parametrize(
    ("most", "env_steps", "tolerated"),
    [(0.01, 0, 19), (0.01, 1979, 19), (0.01, 1980, 20), (0.02, 1960, 40), (0.0, 10**6, 19), (1.0, 0, 60)],
)
def test_invalid_data_ends_the_run_above_a_share_of_the_steps_but_not_before_the_20th(
    most: float, env_steps: int, tolerated: int
) -> None:
    split, record, slots = make_split([always_nan()], EnvStock(), most_bad_data=most, env_steps=env_steps)

    error: EnvFaults | None = None
    try:
        for _ in range(15):
            play(split, slots[:1])
    except EnvFaults as caught:
        error = caught

    assert (error is not None) == (tolerated < 60)
    assert record.counts() == (0, tolerated + (error is not None))
    if error is not None:
        assert error.exit_code is ExitCode.FAULTS
        assert str(error).startswith("env 0 of sf-actor-0 returned invalid data: reward is nan; so did ")
        assert str(error).endswith(f" and --max_bad_env_data={most} allows no more")


def test_resets_that_never_show_valid_data_count_as_restarts(waits: list[float]) -> None:
    bad = dict.fromkeys(range(1, 9), NAN_SHOWN)
    stock = EnvStock(*(ScriptedEnv([], Faults(reset_shown=bad)) for _ in range(9)))
    env = ScriptedEnv([(1, "terminated")], Faults(reset_shown={2: NAN_SHOWN, 3: NAN_SHOWN}))
    split, record, slots = make_split([env], stock, most_restarts=3)

    with pytest.raises(EnvFaults, match=r"after a reset observation 'obs' holds NaN .*--max_env_restarts=3"):
        play(split, slots[:1])

    assert record.counts() == (3, 1)


def played_alone(env: ScriptedEnv) -> tuple[Slot, FaultRecord]:
    """A slot that the env alone has filled, and the faults that were counted."""
    spec = EnvSpec.of_spaces(env.observation_space, env.action_space)
    record = FaultRecord(lambda seed: env)
    split = Split.of_envs(0, [env], spec, T, record.handling)
    split.reset([0], "actor 0")
    slot = TrajectoryBuffer(spec, small_layout(rows=1)).slot(0)
    play(split, [slot])
    return slot, record


def test_fractions_in_an_integer_observation_are_invalid_and_not_truncated() -> None:
    class Counter(ScriptedEnv):
        def __init__(self) -> None:
            super().__init__([])
            self.observation_space = gymnasium.spaces.Discrete(1000)  # type: ignore[assignment]

        def _obs(self) -> Any:
            return 1.5 if self._step == 2 and self._episode == 0 else 100 * self._episode + self._step

    slot, record = played_alone(Counter())

    assert slot.obs["obs"][:, 0].tolist() == [0, 1, 100, 101, 102]
    assert slot.valid[:, 0].tolist() == [True, False, True, True]
    assert record.counts() == (0, 1)


def test_an_integer_that_the_dtype_of_the_space_does_not_hold_is_invalid() -> None:
    class Counter(ScriptedEnv):
        def __init__(self) -> None:
            super().__init__([])
            self.observation_space: Any = gymnasium.spaces.Box(-128, 127, (1,), np.int8)

        def _obs(self) -> Any:
            return np.array([200 if self._step == 2 and self._episode == 0 else 10 * self._episode + self._step])

    slot, record = played_alone(Counter())

    assert slot.obs["obs"][:, 0, 0].tolist() == [0, 1, 10, 11, 12]
    assert slot.valid[:, 0].tolist() == [True, False, True, True]
    assert record.counts() == (0, 1)


@pytest.mark.parametrize("shown", [1e39, -1e300, NAN])
def test_numbers_that_the_network_would_read_as_infinite_are_invalid(shown: float) -> None:
    wide: Any = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    env = ScriptedEnv([], Faults(shown={1: np.array([3e38]), 2: np.array([shown])}))
    env.observation_space = wide

    slot, record = played_alone(env)

    assert slot.obs["obs"][:, 0, 0].tolist() == [0, 3e38, 100, 101, 102]
    assert slot.valid[:, 0].tolist() == [True, False, True, True]
    assert record.counts() == (0, 1)


def test_floating_point_errors_that_an_env_has_numpy_raise_are_none_of_sfactorys() -> None:
    faults = Faults(rewards={1: 1e-50, 3: 1e50}, shown={1: np.array([1e-50]), 2: np.array([1e50])})
    env = ScriptedEnv([], faults)
    env.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float16)
    spec = EnvSpec.of_spaces(env.observation_space, env.action_space)
    spec = spec.for_model(ModelConfig(use_rnn=True, core_inputs=("reward",)))
    record = FaultRecord(lambda seed: env)
    split = Split.of_envs(0, [env], spec, T, record.handling)
    slot = TrajectoryBuffer(spec, small_layout(rows=1)).slot(0)

    with np.errstate(all="raise"):
        split.reset([0], "actor 0")
        split.begin(slot)
        for _ in range(T):
            slot.actions["action"][split.t] = 1e-30
            split.step()
        settings = np.geterr()

    assert set(settings.values()) == {"raise"}
    assert slot.valid[:, 0].tolist() == [True, False, False, True]
    assert slot.obs["obs"][:, 0, 0].tolist() == [0, 0, 100, 200, 201]
    assert record.counts() == (0, 2)
    assert env.taken == [0, 0, 0, 0]


class TwoReals(ScriptedEnv):
    """Takes actions of two reals."""

    def __init__(self) -> None:
        super().__init__([])
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_an_action_that_is_not_finite_is_an_error_that_names_the_policy_version(bad: float) -> None:
    envs = [TwoReals() for _ in range(3)]
    spec = EnvSpec.of_spaces(envs[0].observation_space, envs[0].action_space)
    split = Split.of_envs(2, envs, spec, T, no_faults())
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
