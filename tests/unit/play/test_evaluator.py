"""Evaluators play their share of episodes with one published version, and touch nothing that training has."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfactory.actor.setup import ActorSetup
from sfactory.clock import Every
from sfactory.config.flags import config_of
from sfactory.config.schema import Config
from sfactory.env.factory import EnvFactory
from sfactory.errors import EnvError
from sfactory.layout import Layout, num_evaluators
from sfactory.messages import EpisodeTotals, EvaluationPart
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState, flat_bytes
from sfactory.play import evaluator as evaluator_module
from sfactory.play.evaluator import Evaluator, EvaluatorSetup, run_evaluator
from sfactory.play.player import EnvFailed
from sfactory.report.eval_results import EvaluationReport, EvaluationReports
from sfactory.seeds import Branch
from sfactory.shared.control import Stop
from sfactory.shared.objects import SharedObjects
from sfactory.shared.status import State
from tests.support.decoder import decode
from tests.support.parts import SCALAR, small_run
from tests.support.scripted_agents import NAMES, Changes, ScriptedAgents
from tests.support.scripted_env import ScriptedEnv
from tests.support.trainer import within

# The next evaluation is always due.
FLAGS = small_run(workers=1, envs=2, rollout=4, batch_size=8, eval_interval_sec=1e-6, eval_episodes=3)
# Episodes of 2, 3 and 4 steps: an episode's return is the sum of what the env shows, and half of its length.
SCRIPT: list[Any] = [(2, "terminated"), (3, "truncated"), (4, "terminated")]
RETURNS = [0.5 + 1.5, 100.5 + 101.5 + 102.5, 200.5 + 201.5 + 202.5 + 203.5]


class Run:
    """What evaluators share, and what they report."""

    def __init__(self, *versions: int, agents: tuple[str, ...] = (), **flags: Any) -> None:
        """``versions``: those published."""
        self.config: Config = config_of({**FLAGS, **flags})
        evaluators, spec = num_evaluators(self.config.evaluation), dataclasses.replace(SCALAR, agents=agents)
        sampling, learner, population = self.config.sampling, self.config.learner, self.config.population
        more: dict[str, Any] = {"population": population, "agents": spec.num_agents}
        layout = Layout.plan(sampling, learner, "central", evaluators=evaluators, **more)
        self._flat = FlatState(ActorCritic(SCALAR, self.config.model))
        self.shared = SharedObjects(spec, layout, flat_bytes(ActorCritic(SCALAR, self.config.model)))
        for version in versions:
            self.publish(version)

    def publish(self, version: int, env_steps: int = 0) -> None:
        counts = [env_steps, env_steps, env_steps // 2, 1.0]  # another policy counts the other steps of the run
        self.shared.weights[0].publish(self._flat.to_host(), version, counts)

    def setup(
        self, evaluator: int = 0, seed: int = 1, generation: int = 0, videos: Path | None = None
    ) -> EvaluatorSetup:
        return EvaluatorSetup(self.config, self.shared, evaluator, seed, generation, videos)

    def publish_action(self, policy: int, action: int) -> None:
        """Publish weights of ``policy`` that always choose ``action``."""
        model = ActorCritic(SCALAR, self.config.model)
        model.policy_head.linear.bias.data[action] = 1000.0
        self.shared.weights[policy].publish(FlatState(model).to_host(), 1)

    def evaluator(
        self,
        *envs: ScriptedEnv | ScriptedAgents | EnvError,
        evaluator: int = 0,
        seed: int = 1,
        videos: Path | None = None,
        attempt: int = 0,
    ) -> Evaluator:
        """``envs``: made, or raised, in this order."""
        made = iter(envs)

        def make(seed: int) -> ScriptedEnv | ScriptedAgents:
            if isinstance(env := next(made), EnvError):
                raise env
            return env

        setup = dataclasses.replace(self.setup(evaluator, seed, videos=videos), attempt=attempt)
        return Evaluator(setup, make, self.shared.status.row(f"sf-eval-{evaluator}"))

    def parts(self) -> list[EvaluationPart]:
        return [part for part in self.shared.actors_to_main.get(0) if isinstance(part, EvaluationPart)]


@pytest.fixture(autouse=True)
def generators() -> Iterator[None]:
    """Evaluators seed the process that they live in, which here is that of the tests."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def test_an_evaluation_is_of_whole_episodes_of_the_newest_version() -> None:
    run = Run(3, 5)

    run.evaluator(ScriptedEnv(SCRIPT)).turn(0)

    (part,) = run.parts()
    assert part[:4] == (0, 1, 5, 0)
    assert part.totals == EpisodeTotals(3, 3, sum(RETURNS), min(RETURNS), max(RETURNS), 9, 0, 0.0)


def test_an_evaluation_is_of_the_curriculum_of_its_candidate() -> None:
    class Curriculum(ScriptedEnv):
        def __init__(self) -> None:
            super().__init__(SCRIPT * 9)
            self.received: list[Any] = []

        def set_training_info(self, info: Any) -> None:
            self.received.append((dict(info), len(self.seeds)))

    run, env = Run(0, num_policies=2), Curriculum()
    first, second = (run.shared.status.row(f"sf-learner-{policy}") for policy in range(2))
    evaluator = run.evaluator(env)
    for env_steps in (50, 80):
        run.publish(0, 2 * env_steps)
        first.set("run_env_steps", env_steps + 10)  # the policy has learned on
        second.set("run_env_steps", 7)
        evaluator.turn(0)

    assert env.received == [({"env_steps": 57}, 0), ({"env_steps": 87}, 3)]
    assert EvaluatorSetup(run.config, run.shared, 0, 1, 500).factory.env_steps == 500


@pytest.mark.parametrize("mapping", ["ann=0,bob=1", "tests.unit.play.test_joint_policy:by_name"])
def test_agents_are_played_by_their_policies_and_returns_are_of_those_of_the_first(mapping: str) -> None:
    run = Run(agents=NAMES, num_policies=2, policy_mapping=mapping, eval_episodes=1, eval_deterministic=True)
    env = ScriptedAgents({2: Changes(terminated=(0, 1)), 4: Changes(terminated=(0, 1))})
    evaluator = run.evaluator(env)
    run.publish_action(0, 3)
    evaluator.turn(0)
    assert not run.parts(), "policy 1 has no weights yet"
    run.publish_action(1, 7)

    evaluator.turn(0)

    (part,) = run.parts()
    assert env.taken == [[3, 7], [3, 7]]
    assert (part.totals.episodes, part.totals.return_sum) == (1, 0.5 + 10.5)
    run.publish_action(1, 8)
    evaluator.turn(0)
    assert env.taken[2:] == [[3, 8], [3, 8]]


def test_the_first_episode_is_recorded_under_the_env_steps_of_its_weights(tmp_path: Path) -> None:
    class Drawn(ScriptedEnv):
        """Can be drawn."""

        def render(self) -> Any:
            return np.full((8, 8, 3), 100, np.uint8)

    class Failing(Drawn):
        """Fails in its second step, for which it is replaced."""

        def step(self, action: int) -> Any:
            if self.taken:
                raise OSError("the simulator is gone")
            return super().step(action)

    run = Run()
    row = run.shared.status.row("sf-learner-0")
    evaluator = run.evaluator(Failing(SCRIPT), Drawn(SCRIPT * 3), videos=tmp_path)
    for env_steps in (500, 520, 550):
        run.publish(0, env_steps)
        row.set("env_steps", env_steps + 10)  # the policy has learned on
        evaluator.turn(0)

    assert [(part.policy_env_steps, part.totals.episodes) for part in run.parts()] == [(500, 3), (520, 3), (550, 3)]
    assert {path.name: len(decode(path).pictures) for path in sorted(tmp_path.glob("*.mp4"))} == {
        "eval_000000000500.mp4": 1 + SCRIPT[0][0],
        "eval_000000000550.mp4": 1 + SCRIPT[0][0],
    }
    assert run.shared.candidate is not None
    run.publish(0, 700)
    run.shared.candidate.present(run.shared.weights)  # its evaluator then dies
    run.publish(0, 800)
    run.evaluator(Drawn(SCRIPT * 4), videos=tmp_path).turn(0)
    assert (tmp_path / "eval_000000000700.mp4").exists()


@pytest.mark.parametrize(("interval", "versions"), [(1e-6, ()), (1e6, (0,))])
def test_an_evaluation_waits_for_weights_and_for_its_time(interval: float, versions: tuple[int, ...]) -> None:
    run, env = Run(*versions, eval_interval_sec=interval), ScriptedEnv([])

    run.evaluator(env).turn(0)

    assert (run.parts(), env.seeds) == ([], [])


def test_all_evaluators_play_the_same_version_though_newer_ones_are_published() -> None:
    run = Run(eval_workers=2, eval_episodes=3)
    evaluators = [run.evaluator(ScriptedEnv(SCRIPT * 9), evaluator=evaluator) for evaluator in range(2)]
    for version in range(4):
        run.publish(version)
        evaluators[0].turn(0)  # it presents the first one, and has to wait for the other
    for evaluator in (1, 0, 1):
        evaluators[evaluator].turn(0)

    parts = [(part.evaluator, part.number, part.policy_version, part.totals.episodes) for part in run.parts()]
    assert parts == [(0, 1, 0, 2), (1, 1, 0, 1), (0, 2, 3, 2), (1, 2, 3, 1)]


def test_seeds_of_evaluations_are_used_for_nothing_else() -> None:
    run = Run(eval_workers=2, eval_episodes=4)
    setups = [run.setup(*which) for which in itertools.product((0, 1), (1, 2), (0, 9))]
    actor = ActorSetup(run.config, run.shared, 0, 1, 0)

    seeds = [setup.seed_of(number) for setup in setups for number in (0, 1, 2)]

    assert (
        len({*seeds, actor.seed_of(Branch.ENV, 0), actor.seed_of(Branch.ACTING), actor.libraries_seed()})
        == len(seeds) + 3
    )


def played_actions(deterministic: bool, seed: int) -> list[int]:
    """What is done in two evaluations of one version."""
    run = Run(eval_deterministic=deterministic)
    torch.manual_seed(5)
    model = ActorCritic(SCALAR, run.config.model)
    with torch.no_grad():
        model.policy_head.linear.weight.normal_()
    run.shared.weights[0].publish(FlatState(model).to_host(), 0)
    env = ScriptedEnv([(4, "terminated")] * 12)
    evaluator = run.evaluator(env, seed=seed)
    for _ in range(2):
        evaluator.turn(0)
    assert len(env.taken) == 2 * 3 * 4
    return env.taken


def test_an_evaluation_takes_the_mode_or_draws_by_its_own_seed() -> None:
    assert played_actions(True, seed=1) == played_actions(True, seed=2)
    drawn = played_actions(False, seed=1)
    assert drawn == played_actions(False, seed=1)
    assert drawn != played_actions(False, seed=2)
    assert drawn[:12] != drawn[12:]  # two evaluations are no copies of each other


def test_a_stop_is_seen_within_an_episode_and_drops_what_would_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator_module, "_FINISH_S", 0.0)
    run = Run(0)

    class Stopping(ScriptedEnv):
        """The run ends with its tenth step; its episode never does."""

        def step(self, action: int) -> Any:
            if len(self.taken) == 9:
                run.shared.control.order_stop(Stop.NOW)
            return super().step(action)

    env = Stopping([])
    run.evaluator(env).run()

    assert len(env.taken) == 10
    assert run.parts() == []
    assert run.shared.candidate is not None
    assert (run.shared.candidate.number, run.shared.candidate.done) == (1, False)


def test_an_evaluation_begun_before_a_stop_is_finished_if_it_does_not_take_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluator_module, "_FINISH_S", within(2.0))
    run = Run(4, eval_workers=2)
    first, second = (run.evaluator(ScriptedEnv(SCRIPT), evaluator=evaluator) for evaluator in range(2))
    first.turn(0)
    run.shared.control.order_stop(Stop.NOW)

    second.run()
    first.run()

    assert [(part.evaluator, part.policy_version) for part in run.parts()] == [(0, 4), (1, 4)]


def test_objectives_are_reported_and_what_is_not_finite_is_in_no_mean(caplog: pytest.LogCaptureFixture) -> None:
    bad: dict[str, Any] = {"episode_extra_stats": 3}
    ends = [
        (1.0, {"true_objective": 10.0}),
        (2.0, bad),
        (np.nan, {"true_objective": 9.0}),
        (np.inf, {"true_objective": 8}),
    ]
    ends += [(3.0, {"true_objective": np.nan}), (4.0, {"true_objective": 5})]

    class Scored(ScriptedEnv):
        """Episodes of one step with these returns and infos."""

        def step(self, action: int) -> Any:
            obs, _, terminated, truncated, _ = super().step(action)
            reward, info = ends.pop(0)
            return obs, reward, terminated, truncated, info

    run = Run(0, eval_episodes=4)

    with caplog.at_level(logging.WARNING):
        run.evaluator(Scored([(1, "terminated")] * 6)).turn(0)

    (part,) = run.parts()
    report = EvaluationReport.of([part])
    assert (part.totals.episodes, part.totals.finite, part.totals.objectives) == (4, 4, 2)
    assert (report.episode_return_mean, report.episode_return_min, report.episode_return_max) == (2.5, 1.0, 4.0)
    assert (report.true_objective_mean, report.episode_length_mean) == (7.5, 1.0)
    assert caplog.text.count("a statistic of an episode is left out") == 1


def test_an_evaluator_closes_its_env_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    env = ScriptedEnv(SCRIPT)

    class Scripted(EnvFactory):
        def either(self, render_mode: str | None = None, seed: int = 0) -> ScriptedEnv:
            return env

    run = Run(0)
    run.shared.control.order_stop(Stop.SAVE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    row, setup = run.shared.status.row("sf-eval-0"), run.setup()
    vars(setup)["factory"] = Scripted("any")

    run_evaluator(setup, row)

    assert env.closed
    assert row.get("state") == State.RUNNING


def part(evaluator: int, **changes: Any) -> EvaluationPart:
    return EvaluationPart(evaluator, 1, 8, 51_200, EpisodeTotals(2, 2, 10.0, 4.0, 6.0, 30, 0, 0.0)._replace(**changes))


def test_an_evaluation_is_complete_when_all_parts_have_arrived() -> None:
    reports = EvaluationReports(2)
    reports.add(part(1, return_sum=1.0, return_min=-2.0, return_max=3.0, episodes=3, length_sum=5))
    assert reports.take() == []
    assert not reports.is_complete(1)

    reports.add(part(0))

    ((number, report),) = reports.take()
    assert number == 1
    assert reports.take() == []
    assert reports.last == report
    assert [reports.is_complete(number) for number in (1, 2)] == [True, False]
    assert report == EvaluationReport(8, 51_200, 5, 11.0 / 4, -2.0, 6.0, 7.0, None)
    assert list(report.scalars().values()) == list(dataclasses.astuple(report))[:-1]
    assert {"eval/policy_version", "eval/episode_return_mean"} <= report.scalars().keys()
    assert str(report) == (
        "evaluation of the policy after 51,200 env steps (version 8): return 2.750 (-2.000 to 6.000), length 7.0, "
        "5 episodes"
    )


def test_means_are_reported_only_of_what_episodes_report() -> None:
    nothing = EvaluationReport.of([part(0, finite=0, return_sum=0.0, return_min=math.inf, return_max=-math.inf)])
    scored = EvaluationReport.of([part(0, objectives=1, objective_sum=4.0), part(1, objectives=3, objective_sum=8.0)])

    assert (nothing.episode_return_mean, nothing.episode_return_min, nothing.episode_return_max) == (None, None, None)
    assert "return - (- to -)" in str(nothing)
    assert scored.true_objective_mean == scored.scalars()["eval/true_objective_mean"] == 3.0
    assert ", true objective 3.000, length" in str(scored)


class Failing(ScriptedEnv):
    """Raises in its second episode."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self.seeds:
            raise OSError("the simulator is gone")
        return super().reset(seed=seed, options=options)


def test_an_env_that_fails_is_recreated_and_the_evaluation_starts_over(caplog: pytest.LogCaptureFixture) -> None:
    run, envs = Run(2, max_env_restarts=1), (Failing(SCRIPT), ScriptedEnv(SCRIPT))

    with caplog.at_level(logging.WARNING):
        run.evaluator(*envs).turn(0)

    (part,) = run.parts()
    assert (part.policy_version, part.totals.episodes, part.totals.return_sum) == (2, 3, sum(RETURNS))
    assert [env.closed for env in envs] == [True, False]
    assert "OSError: the simulator is gone; the env is recreated" in caplog.text


@pytest.mark.parametrize("allowed", [2, 1])
def test_an_env_that_cannot_be_made_again_is_tried_as_often_as_is_allowed(allowed: int) -> None:
    run, envs = Run(2, max_env_restarts=allowed), (Failing(SCRIPT), EnvError("no license"), ScriptedEnv(SCRIPT))

    with contextlib.nullcontext() if allowed == 2 else pytest.raises(EnvError, match="no license"):
        run.evaluator(*envs).turn(0)

    assert [part.totals.episodes for part in run.parts()] == [3] * (allowed - 1)


def test_an_env_that_fails_as_often_as_is_allowed_ends_the_evaluator() -> None:
    run, envs = Run(2, max_env_restarts=2), [Failing(SCRIPT) for _ in range(4)]

    with pytest.raises(EnvFailed, match="the simulator is gone"):
        run.evaluator(*envs).turn(0)

    assert run.parts() == []
    assert [len(env.seeds) for env in envs] == [1, 1, 1, 0]  # the first, and two restarts


def test_the_replacement_of_an_evaluator_plays_what_its_predecessor_has_not_finished(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = Run(4, eval_workers=2, eval_interval_sec=1e6, max_env_restarts=0)
    first = run.evaluator(ScriptedEnv(SCRIPT))
    first._due = Every(0.0)
    first.turn(0)

    class Killed(ScriptedEnv):
        """Its process is killed in the second step."""

        def step(self, action: int) -> Any:
            if self.taken:
                raise KeyboardInterrupt
            return super().step(action)

    killed, replacement = Killed(SCRIPT), ScriptedEnv(SCRIPT)
    with pytest.raises(EnvFailed):
        run.evaluator(killed, evaluator=1).turn(0)
    again = run.evaluator(replacement, evaluator=1, attempt=1)
    for _ in range(2):
        again.turn(0)
    idle = run.evaluator(ScriptedEnv([]), evaluator=0, attempt=1)  # its predecessor had finished
    idle.turn(0)

    assert [(part.evaluator, part.policy_version) for part in run.parts()] == [(0, 4), (1, 4)]
    assert run.shared.candidate is not None
    assert run.shared.candidate.done
    assert killed.seeds[0] != replacement.seeds[0]


def test_a_part_that_is_reported_twice_counts_once() -> None:
    reports = EvaluationReports(1)
    reports.add(part(0))
    reports.add(part(0, return_sum=99.0))

    assert [report.episode_return_mean for _, report in reports.take()] == [5.0]


def test_resets_and_steps_of_an_evaluator_are_timed_apart() -> None:
    run = Run(4)
    row = run.shared.status.row("sf-eval-0")
    seen: list[tuple[str, float]] = []

    class Watched(ScriptedEnv):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            seen.append(("reset", row.get("resetting")))
            return super().reset(seed=seed, options=options)

        def step(self, action: int) -> Any:
            seen.append(("step", row.get("resetting")))
            return super().step(action)

    run.evaluator(Watched(SCRIPT)).turn(0)

    assert set(seen) == {("reset", 1.0), ("step", 0.0)}
