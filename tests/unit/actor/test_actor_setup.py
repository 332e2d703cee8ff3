"""An actor makes all its envs, then resets each with a seed of its own, and always tells since when it is at one."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import pytest

from sfactory.actor.setup import ActorSetup, close_envs, make_splits
from sfactory.config.schema import PopulationConfig, RunConfig, SamplingConfig
from sfactory.env.factory import EnvFactory
from sfactory.layout import Layout
from sfactory.shared.status import State, StatusRow
from sfactory.supervise.shared_objects import SharedObjects
from tests.support.parts import SCALAR, small_layout
from tests.support.scripted_env import Obs, ScriptedEnv


class Diary:
    """What the envs that share it lived through: (what, state of the actor, when it said it had begun)."""

    def __init__(self) -> None:
        self.row: StatusRow | None = None
        self.events: list[tuple[str, State, float]] = []
        self.envs: list[ScriptedEnv] = []

    def tell(self, what: str) -> None:
        assert self.row is not None
        self.events.append((what, State(int(self.row.get("state"))), self.row.get("busy_since")))

    def stamps(self, what: str) -> list[float]:
        return [since for event, _, since in self.events if event == what]

    def states(self, what: str) -> set[State]:
        return {state for event, state, _ in self.events if event == what}


class Diarist(ScriptedEnv):
    """Tells the diary of its making and of its resets."""

    def __init__(self, diary: Diary) -> None:
        super().__init__([])
        self._diary = diary
        diary.tell("made")
        diary.envs.append(self)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """As ScriptedEnv."""
        self._diary.tell("reset")
        return super().reset(seed=seed)

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """As ScriptedEnv."""
        self._diary.tell("stepped")
        return super().step(action)


@dataclasses.dataclass(frozen=True)
class DiaristFactory(EnvFactory):
    """Makes Diarists."""

    diary: Diary = dataclasses.field(default_factory=Diary)

    def __call__(self, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
        """One of them."""
        return Diarist(self.diary)


def setup_of(layout: Layout, diary: Diary, decorrelate: bool = False) -> tuple[ActorSetup, StatusRow]:
    shared = SharedObjects(SCALAR, layout, weight_bytes=64)
    setup = ActorSetup(
        actor=1,
        generation=0,
        attempt=0,
        seed=5,
        run=RunConfig(env="diarist"),
        sampling=SamplingConfig(decorrelate_envs_on_one_worker=decorrelate),
        population=PopulationConfig(),
        decorrelates=True,
        factory=DiaristFactory("diarist", diary=diary),
        spec=SCALAR,
        layout=layout,
        trajectories=shared.trajectories,
        table=shared.table,
        control=shared.control,
        weights=(shared.weights[0],),
        inbox=shared.to_actors[1],
        to_policies=(shared.to_policies[0],),
        states=shared.states,
        to_learners=(shared.to_learners[0],),
        to_main=shared.actors_to_main,
    )
    diary.row = shared.status.row("sf-actor-1")
    diary.row.start()
    return setup, diary.row


@pytest.fixture
def diary() -> Diary:
    return Diary()


LAYOUT = small_layout(splits=2, rows=3, rollout=4)


def test_all_envs_are_made_before_the_first_is_reset(diary: Diary) -> None:
    splits = make_splits(*setup_of(LAYOUT, diary))

    assert [split.batch.size for split in splits] == [3, 3]
    assert [what for what, _, _ in diary.events] == ["made"] * 6 + ["reset"] * 6
    assert diary.states("made") == {State.STARTING}
    assert diary.states("reset") == {State.RESETTING}


def test_the_clock_of_the_limit_starts_anew_for_each_env(diary: Diary) -> None:
    make_splits(*setup_of(LAYOUT, diary))

    stamps = diary.stamps("made") + diary.stamps("reset")
    assert len(set(stamps)) == 12
    assert stamps == sorted(stamps)


def test_envs_are_not_moved_on_unless_that_is_wanted(diary: Diary) -> None:
    make_splits(*setup_of(LAYOUT, diary))

    assert [env.taken for env in diary.envs] == [[]] * 6


def test_env_i_of_an_actor_begins_i_rollouts_later(diary: Diary) -> None:
    splits = make_splits(*setup_of(LAYOUT, diary, decorrelate=True))

    assert [len(env.taken) for env in diary.envs] == [0, 4, 8, 12, 16, 20]
    assert [float(obs[0]) for split in splits for obs in split.batch.observations] == [0, 4, 8, 12, 16, 20]
    assert diary.states("stepped") == {State.RESETTING}
    assert len(set(diary.stamps("stepped"))) == sum([4, 8, 12, 16, 20])


def test_random_steps_differ_from_env_to_env_and_come_again_with_the_same_seed(diary: Diary) -> None:
    again = Diary()
    make_splits(*setup_of(LAYOUT, diary, decorrelate=True))
    make_splits(*setup_of(LAYOUT, again, decorrelate=True))

    taken = [env.taken for env in diary.envs]
    assert taken == [env.taken for env in again.envs]
    assert taken[4][:16] != taken[5][:16]


def test_every_env_of_every_actor_session_and_attempt_has_a_seed_of_its_own(diary: Diary) -> None:
    setup, _ = setup_of(LAYOUT, diary)
    incarnations = [
        dataclasses.replace(setup, actor=actor, generation=generation, attempt=attempt)
        for actor in range(3)
        for generation in (0, 1, 2, 2**40)
        for attempt in range(3)
    ]

    seeds = [incarnation.env_seed(env) for incarnation in incarnations for env in range(6)]
    seeds += [
        incarnation.seed_after_fault(env, count)
        for incarnation in incarnations
        for env in range(3)
        for count in range(3)
    ]
    seeds += [incarnation.acting_seed() for incarnation in incarnations] + [
        incarnation.acting_seed(env) for incarnation in incarnations for env in range(6)
    ]

    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_envs_are_reset_with_the_seeds_of_their_places(diary: Diary) -> None:
    setup, row = setup_of(LAYOUT, diary)

    make_splits(setup, row)

    assert [env.seeds for env in diary.envs] == [[setup.env_seed(env)] for env in range(6)]


@pytest.mark.parametrize("error", [RuntimeError("the window is gone"), SystemExit("bye")])
def test_an_env_that_cannot_be_closed_is_told_of_and_keeps_no_other_open(
    diary: Diary, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    splits = make_splits(*setup_of(LAYOUT, diary))

    def refuse() -> None:
        raise error

    monkeypatch.setattr(diary.envs[1], "close", refuse)

    close_envs(splits)

    assert [env.closed for env in diary.envs] == [True, False, True, True, True, True]
    assert caplog.messages == [f"env 1 of split 0: close() raised {type(error).__name__}: {error}; nothing is lost"]
