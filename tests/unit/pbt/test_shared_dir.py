"""Members of a population of runs read of each other what they need, and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sfactory.config.flags import config_of
from sfactory.config.hyperparameters import hyperparameters
from sfactory.errors import RunDirError
from sfactory.pbt.event_log import Kind, read_events
from sfactory.pbt.population import Population
from sfactory.pbt.shared_dir import MEMBER_NAME, SharedDir, member_dir, runs_in
from sfactory.runner.member_driver import held_member

SHAPING = {"win": 1.0}
FLAGS: dict[str, Any] = {
    "env": "CartPole-v1",
    "with_pbt": True,
    "pbt_dir": "population",
    "pbt_start_mutation": 1000,
    "pbt_period_env_steps": 1000,
    "pbt_mutation_rate": 1.0,
}


class Run:
    """A run that is one member; its files are in a folder of its own."""

    def __init__(self, path: Path, number: int, env: str = "CartPole-v1", **flags: Any) -> None:
        self.number, self.path = number, path / f"run-{number}"
        self.path.mkdir(parents=True)
        self.folder = member_dir(path, number)
        self.folder.mkdir()
        config = config_of({**FLAGS, "pbt_member": number, **flags})
        self.population = Population.begin(self.path, config, 5, {}, SHAPING)
        self.declared = {each.name: each for each in hyperparameters(config)}
        self.shared = SharedDir(path, number, env, self.path)

    def publish(self, objective: float | None, metric: str = "reward") -> None:
        self.shared.publish(self.population.state, metric, 1000, objective)

    def others(self) -> dict[int, Any]:
        return self.shared.others("reward", SHAPING)

    def take_turn(self, objective: float | None, env_steps: int) -> Any:
        others = self.others()
        self.population.meet({number: other.member for number, other in others.items()})
        known = {number: other.objective for number, other in others.items()} | {self.number: objective}
        event = self.population.turn(self.number, env_steps, known)
        self.population.record(event)
        return event


def test_the_worst_run_copies_the_best_with_values_mutated_within_its_own_ranges(tmp_path: Path) -> None:
    best, worst = Run(tmp_path, 0, pbt_optimize_gamma=True), Run(tmp_path, 7, learning_rate=1e-4, ppo_clip_value=1.0)
    narrow = {"learning_rate": {"min": 5e-5, "max": 2e-4}}
    other = Run(tmp_path, 3, pbt_hyperparameters=narrow)
    first = best.population.members[0].hyperparameters
    assert first["learning_rate"] == best.declared["learning_rate"].default  # of the flags
    assert worst.population.members[7].hyperparameters["learning_rate"] != 1e-4  # mutated
    best.publish(100.0)
    worst.publish(1.0)

    assert best.take_turn(100.0, 1000).kind is Kind.KEEP
    events = [worst.take_turn(1.0, 1000), other.take_turn(2.0, 1000)]

    for run, event in zip((worst, other), events, strict=True):
        assert (event.kind, event.policy, event.parent) == (Kind.REPLACE, run.number, 0) or run is other
        assert event.objectives == {0: 100.0, 7: 1.0, run.number: event.objectives[run.number]}
        assert event.hyperparameters.keys() == run.declared.keys()  # without gamma, which only the best mutates
        assert all(run.declared[n].low <= value <= run.declared[n].high for n, value in event.hyperparameters.items())
        assert run.population.members[run.number].next_turn == 2000
        assert read_events(run.path)[-1] == event
    child = worst.population.members[7]
    assert (child.parent, child.turns) == (0, 2)
    assert all(0.6 < child.hyperparameters[name] / first[name] < 1.6 for name in child.hyperparameters)
    assert runs_in(tmp_path) == [best.path, worst.path]  # the third has not published


def damaged(text: str) -> str:
    return text[: len(text) // 2]


def with_changes(text: str, **changes: Any) -> str:
    return json.dumps({**json.loads(text), **changes})


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (damaged, ""),
        (lambda text: "[1, 2]", "not a JSON object"),
        (lambda text: with_changes(text, env="Acrobot-v1"), "its env is 'Acrobot-v1'"),
        (lambda text: with_changes(text, metric="kills"), "its metric is 'kills', and 'reward' in this run"),
        (lambda text: with_changes(text, reward_shaping=None), "its reward_shaping is None"),
        (lambda text: with_changes(text, objective="1e9"), "'objective' is not a number"),
        (lambda text: with_changes(text, members=[]), "not of member 1"),
        (lambda text: text.replace("learning_rate", "num_workers"), "num_workers="),
        (lambda text: text.replace('"objective": 100.0', '"objective": Infinity'), "Infinity is not JSON"),
    ],
)
def test_files_that_are_not_of_this_population_are_left_out_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Any, reason: str
) -> None:
    one, other = Run(tmp_path, 0), Run(tmp_path, 1)
    other.publish(100.0)
    path = other.folder / MEMBER_NAME
    path.write_text(spoil(path.read_text()))
    (tmp_path / "member-x").mkdir()
    (tmp_path / "member-x" / MEMBER_NAME).write_text("{}")

    assert [one.others(), one.others()] == [{}, {}]

    assert caplog.text.count(f"{path} is left out: ") == 1
    assert reason in caplog.text
    assert one.take_turn(1.0, 1000).kind is Kind.KEEP
    other.publish(100.0)
    assert one.others()[1].objective == 100.0


def test_a_fifo_is_left_out_and_a_full_disk_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, other = Run(tmp_path, 0), Run(tmp_path, 1)
    os.mkfifo(other.folder / MEMBER_NAME)
    one.folder.rmdir()

    one.publish(1.0)

    assert one.others() == {}
    assert "is not a regular file" in caplog.text
    assert f"{one.folder / MEMBER_NAME} cannot be written" in caplog.text


def test_a_member_that_has_no_more_turns_is_named_and_stays_a_source(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, gone = Run(tmp_path, 0), Run(tmp_path, 1)
    gone.publish(100.0)

    for turn in range(1, 7):
        assert one.take_turn(1.0, 1000 * turn).parent == 1
        assert caplog.text.count("member 1 has had no turn during 3 turns") == (turn > 3)
    gone.take_turn(None, 1000)
    gone.publish(50.0)
    for turn in range(7, 12):
        one.take_turn(1.0, 1000 * turn)
    assert caplog.text.count("member 1 has had no turn during 3 turns") == 2


def test_a_number_is_owned_by_one_run_at_a_time(tmp_path: Path) -> None:
    population = config_of({**FLAGS, "pbt_dir": str(tmp_path / "shared"), "pbt_member": 2}).population
    with held_member(population):
        folder = member_dir(tmp_path / "shared", 2)
        with pytest.raises(RunDirError, match=r"member-2 is in use by process .* Give this run another --pbt_member"):
            held_member(population).__enter__()
        (folder / ".tmp-1-abcdefabcdef").touch()
    with held_member(population):
        assert [path.name for path in folder.iterdir()] == [".lock"]

    (tmp_path / "file").touch()
    with pytest.raises(RunDirError, match="file/member-2 cannot be used"):
        held_member(config_of({**FLAGS, "pbt_dir": str(tmp_path / "file"), "pbt_member": 2}).population).__enter__()
    (folder / MEMBER_NAME).write_text("{}")
    with pytest.raises(RunDirError, match=f"{folder / MEMBER_NAME} is not of a member"):
        runs_in(tmp_path / "shared")
