"""Populations in trouble: members are restored, unreadable parents are skipped, turns continue."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sfactory.config.flags import config_of
from sfactory.config.hyperparameters import hyperparameters
from sfactory.errors import ExitCode
from sfactory.experiment.run_dir import RunDir
from sfactory.pbt.plot import read_history
from sfactory.pbt.population import Population
from sfactory.pbt.shared_dir import MEMBER_NAME, member_dir
from sfactory.pbt.state import load_state
from sfactory.runner.member_driver import held_member
from tests.support.files import json_rows
from tests.support.long import LONG, long
from tests.support.processes import eventually
from tests.support.trainer import ENDLESS, RunTrainer, TrainerRun, assert_resumes, within

POPULATION: dict[str, Any] = {
    "train_for_env_steps": ENDLESS,
    "num_policies": 2,
    "with_pbt": True,
    "stats_avg": 5,
    "pbt_start_mutation": 2000,
    "pbt_period_env_steps": 2000,
    "pbt_mutation_rate": 0.5,
    "pbt_replace_fraction": 0.5,
    "pbt_replace_reward_gap": 0.0,
}
IN_ROWS = {"learning_rate": "learning_rate", "exploration_loss_coeff": "exploration_coeff"}


def is_stopped(pid: int) -> bool:
    """Whether the process lives, and all its threads are stopped: some may be sooner than others."""
    lines: list[str] = []
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # a thread may end while it is looked at
            lines.append(path.read_text())
    return bool(lines) and all(line.rpartition(")")[2].split()[0] == "T" for line in lines)


def events(run: TrainerRun, kind: str | None = None) -> list[dict[str, Any]]:
    """What has happened to members so far."""
    found = json_rows(run.run_dir / "population.jsonl")
    return [event for event in found if kind is None or event["kind"] == kind]


def checkpoints(run: TrainerRun, policy: int) -> Path:
    return run.run_dir / f"checkpoint_p{policy}"


@contextlib.contextmanager
def standing_still(run: TrainerRun, *names: str) -> Iterator[None]:
    """The processes of these names are stopped within the block."""
    pids = [run.pid_of(name) for name in names]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        assert eventually(lambda: all(map(is_stopped, pids)), within(1.0)), run.report("still at work")
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.long
def test_member_with_a_killed_learner_is_restored(run_trainer: RunTrainer) -> None:
    run = run_trainer(**POPULATION)
    run.wait_until(lambda: len(events(run)) > 4)
    before = run.pid_of("sf-learner-1")

    run.kill("sf-learner-1")

    run.wait_until("from the checkpoint at")
    run.wait_until(lambda: run.processes().get("sf-learner-1", before) != before)
    turns = len(events(run))
    run.wait_until(lambda: len(events(run)) > turns + 4)
    run.stop()
    restored = [event["policy"] for event in events(run, "restore")]
    assert sorted(restored) == [0, 1]
    assert "of --max_worker_restarts=20" in run.stderr


def test_parent_without_readable_checkpoints_is_skipped(run_trainer: RunTrainer) -> None:
    run = run_trainer(**POPULATION)
    run.wait_until(lambda: all(list(checkpoints(run, policy).glob("checkpoint_*.pth")) for policy in range(2)))
    # A save recreates a directory that is missing.
    with standing_still(run, "sf-learner-0", "sf-learner-1"):
        aside = [checkpoints(run, policy).rename(run.run_dir / f"aside_{policy}") for policy in range(2)]
        for policy in range(2):
            checkpoints(run, policy).write_text("no directory")

    run.wait_until(lambda: bool(events(run, "skip")))
    with standing_still(run, "sf-learner-0", "sf-learner-1"):
        for policy, folder in enumerate(aside):
            checkpoints(run, policy).unlink()
            folder.rename(checkpoints(run, policy))

    skipped_at = events(run, "skip")[-1]["env_steps"]
    run.wait_until(lambda: any(row["perf/trained_env_steps"] > skipped_at for row in run.metrics()[-1:]))
    run.stop()
    skipped = events(run, "skip")[0]
    assert skipped["reason"]
    assert f"policy {skipped['policy']} keeps what it has" in run.stderr


def learns_as_its_state_says(run: TrainerRun) -> bool:
    """Whether each policy learns, by the last row, with the values of the state of the population, but for decay."""
    state, row = load_state(run.run_dir), run.metrics()[-1]
    assert state is not None
    return all(
        row[f"{prefix}train/{key}"] == pytest.approx(member.hyperparameters[name], rel=1e-3)
        for policy, member in state.members.items()
        for prefix in (f"policy_{policy}/" if len(state.members) > 1 else "",)
        for name, key in IN_ROWS.items()
    )


@pytest.mark.parametrize("serial", [False, long(True)])
@pytest.mark.long
def test_population_learns_with_mutated_values_and_resumes_where_it_was(run_trainer: RunTrainer, serial: bool) -> None:
    flags = {**POPULATION, "experiment_summaries_interval": 0.25, "serial_mode": serial}
    run = run_trainer(**flags)
    run.wait_until(lambda: bool(events(run, "replace")) and bool(events(run, "mutate")))
    run.wait_until(lambda: learns_as_its_state_says(run))
    run.stop()
    state = load_state(run.run_dir)
    assert state is not None
    before = len(events(run))

    again = run_trainer(**flags)
    again.wait_until(lambda: {event["policy"] for event in events(again)[before + 2 :]} == {0, 1})
    again.stop()

    later = events(again)[before:]
    restored, turns = later[:2], later[2:]
    assert [event["kind"] for event in restored] == ["restore", "restore"]
    assert Population.restore(run.run_dir, config_of({"env": "CartPole-v1", **POPULATION}), {0: 10_000, 1: 10_000})
    for event in restored:
        member = state.members[event["policy"]]
        assert event["hyperparameters"] == dict(member.hyperparameters)
    resumed_at = {event["policy"]: event["env_steps"] for event in restored}
    for policy, member in state.members.items():
        turn = next(event for event in turns if event["policy"] == policy)
        assert turn["env_steps"] >= member.next_turn
        if serial:  # otherwise it depends on the machine how far a policy learns until its turn is over
            latest = max(member.next_turn, resumed_at[policy] + POPULATION["pbt_period_env_steps"])
            waits_for_episodes = POPULATION["stats_avg"] * 500  # an episode of CartPole-v1 has at most so many steps
            assert turn["env_steps"] < latest + waits_for_episodes


def test_objective_that_no_env_reports_ends_the_run(run_trainer: RunTrainer) -> None:
    run = run_trainer(**POPULATION, pbt_target_objective="kills")

    run.assert_ended(ExitCode.FAULTS)
    assert "pbt_target_objective=kills: none of the first" in run.last_stderr_line
    assert "the env reports reward, length" in run.last_stderr_line


def test_frozen_policy_that_is_rarely_chosen_plays_and_blocks_nothing(run_trainer: RunTrainer) -> None:
    policies = {"num_policies": 2, "train_policies": (0,), "policy_mapping": "tests.support.envs:mostly_the_first"}
    run = run_trainer(env="tests.support.envs:Seesaw", **policies, train_for_env_steps=ENDLESS)

    def both_have_played() -> bool:  # the actor with the frozen policy's env may start late
        return any(min(row[f"policy_{policy}/train/episodes"] for policy in range(2)) > 0 for row in run.metrics())

    run.wait_until(both_have_played)
    run.saves_again()
    run.stop()
    last = run.metrics()[-1]
    assert last["policy_0/train/episodes"] > last["policy_1/train/episodes"]
    assert last["policy_1/train/learning_rate"] is None
    assert_resumes(run, run_trainer)
    assert [path.name for path in checkpoints(run, 1).glob("checkpoint_*_*.pth")] == ["checkpoint_000000000_0.pth"]


@LONG
@pytest.mark.parametrize("serial", [False, True])
def test_member_that_plays_no_more_does_not_block_turns(run_trainer: RunTrainer, serial: bool) -> None:
    players = {"num_policies": 3, "policy_mapping": "tests.support.envs:soon_without_the_third"}
    envs = {"env": "tests.support.envs:Fading", "num_workers": 1, "num_envs_per_worker": 6}
    ranking = {"pbt_target_objective": "reward", "stats_avg": 3, "pbt_replace_fraction": 0.3}
    run = run_trainer(**{**POPULATION, **players, **envs, **ranking, "serial_mode": serial})

    def turns(policy: int) -> int:
        return sum(event["policy"] == policy and event["kind"] != "begin" for event in events(run))

    # The third one stays the best, so the worst copies it; it has to save for that.
    run.wait_until(lambda: turns(0) >= 3 and turns(1) >= 3)
    run.stop()
    assert [event["parent"] for event in events(run, "replace")][:2] == [2, 2]


@LONG
def test_serial_population_repeats_itself(run_trainer: RunTrainer) -> None:
    flags = {**POPULATION, "train_for_env_steps": 8000, "serial_mode": True}
    one, other = [run_trainer(experiment=name, **flags) for name in ("one", "other")]

    assert events(one.done()) == events(other.done())
    assert events(one, "replace")


def of_runs(shared: Path, member: int, **flags: object) -> dict[str, object]:
    """Flags of a run that is one member of a population of runs."""
    own = {"experiment": f"member_{member}", "pbt_dir": shared, "pbt_member": member}
    return {**POPULATION, "num_policies": 1, "pbt_replace_fraction": 0.3, **own, **flags}


def test_run_ranks_itself_among_runs_of_the_same_folder_and_needs_a_number_of_its_own(
    run_trainer: RunTrainer, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    flags = {"train_for_env_steps": 4000, "serial_mode": True}
    first, second = [run_trainer(**of_runs(shared, member, **flags)).done() for member in range(2)]

    assert [event["kind"] for event in events(first)][:2] == ["begin", "keep"]
    assert {*events(second)[1]["objectives"]} == {"0", "1"}
    assert f"member 1 of the population in {shared}" in second.stderr
    published = json.loads((member_dir(shared, 1) / MEMBER_NAME).read_text())
    assert published["env_steps"] >= 4000
    names = [
        {path.name for path in folder.glob("checkpoint_*.pth")}
        for folder in (member_dir(shared, 1), second.run_dir / "checkpoint_p0")
    ]
    assert max(names[0]) == max(names[1])
    history = read_history(shared)
    assert history.policies == (0, 1)
    assert [curve.policy for curve in history.returns] == [0, 1]

    run_dir = RunDir.unlocked(second.run_dir.parent, second.run_dir.name)
    with held_member(config_of({"pbt_dir": str(shared), "pbt_member": 1}), run_dir):
        twin = run_trainer(**of_runs(shared, 1, experiment="twin", **flags))
        twin.assert_ended(ExitCode.REFUSED)
    assert "member-1 is in use by process" in twin.stderr
    assert not twin.run_dir.exists()


@pytest.mark.long
@pytest.mark.parametrize("serial", [True, False])
def test_runs_that_share_a_folder_copy_each_other_and_go_on_without_one_that_is_killed(
    run_trainer: RunTrainer, tmp_path: Path, serial: bool
) -> None:
    shared = tmp_path / "shared"
    flags = {"serial_mode": serial, "experiment_summaries_interval": 0.25}
    runs = [run_trainer(**of_runs(shared, member, **flags)) for member in range(2)]
    runs[0].wait_until(lambda: bool(events(runs[0], "replace") + events(runs[1], "replace")))
    runs.append(late := run_trainer(**of_runs(shared, 2, **flags)))
    late.wait_until(lambda: len(events(late)) > 3)

    runs[0].kill("sf-main")
    runs[0].wait()
    for run in runs[1:]:
        run.wait_until("member 0 has had no turn during 3 turns")
    before = len(events(runs[0]))
    runs[0] = run_trainer(**of_runs(shared, 0, **flags))
    runs[0].wait_until(lambda: len(events(runs[0])) > before + 2)
    for run in runs:
        run.wait_until(functools.partial(learns_as_its_state_says, run))
        run.stop()

    assert events(runs[0])[before]["kind"] == "restore"
    ranges = {each.name: each for each in hyperparameters(config_of(POPULATION))}
    for event in itertools.chain(*map(events, runs)):
        assert event["policy"] != event["parent"]
        assert all(ranges[name].low <= value <= ranges[name].high for name, value in event["hyperparameters"].items())


@LONG
def test_serial_policy_that_has_learned_enough_leaves_turns_to_the_others(run_trainer: RunTrainer) -> None:
    # Two splits of three are policy 0's, which is done when policy 1 is half-way.
    splits = {"num_workers": 1, "num_envs_per_worker": 6, "worker_num_splits": 3}
    flags = {**POPULATION, **splits, "pbt_mutation_rate": 1.0, "train_for_env_steps": 12_000, "serial_mode": True}
    run = run_trainer(**flags).done()

    assert max(event["env_steps"] for event in events(run) if event["policy"] == 1) >= 10_000
