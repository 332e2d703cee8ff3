"""Members of a population of runs read of each other what they need, and nothing else."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from sfactory.config.flags import config_of
from sfactory.config.hyperparameters import hyperparameters
from sfactory.errors import RunDirError
from sfactory.experiment.run_dir import RunDir
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
    assert runs_in(tmp_path) == {0: best.path, 7: worst.path}  # the third has not published


def damaged(text: str) -> str:
    return text[: len(text) // 2]


def with_changes(text: str, **changes: Any) -> str:
    return json.dumps({**json.loads(text), **changes})


def shaped(text: str, reward_shaping: object) -> str:
    (member,) = json.loads(text)["members"]
    return with_changes(text, members=[{**member, "reward_shaping": reward_shaping}])


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (damaged, ""),
        (lambda text: "[1, 2]", "not a JSON object"),
        (lambda text: with_changes(text, env="Acrobot-v1"), "its env is 'Acrobot-v1'"),
        (lambda text: with_changes(text, metric="kills"), "its metric is 'kills', and 'reward' in this run"),
        (lambda text: with_changes(text, reward_shaping=None), "its reward_shaping is None"),
        (lambda text: shaped(text, {"win": 2.0, "more": 1.0}), "reward shaping of its member"),
        (lambda text: shaped(text, {"win": "1"}), "reward shaping of its member"),
        (lambda text: shaped(text, None), "reward shaping of its member"),
        (lambda text: text + " " * (1 << 20), "larger than 1048576 bytes"),
        (lambda text: with_changes(text, run_dir=3), "'run_dir' is not a text"),
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
    for name in ("member-x", "member-01", "member-1234567890"):
        (tmp_path / name).mkdir()
        (tmp_path / name / MEMBER_NAME).write_text("{}")

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


def test_storage_that_fails_for_a_while_and_a_folder_without_others_are_warnings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Run(tmp_path, 0)

    def stale(*_: Any) -> Any:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "glob", stale)
        assert one.take_turn(1.0, 1000).kind is Kind.KEEP
        with pytest.raises(RunDirError, match="Stale file handle"):
            runs_in(tmp_path)
    assert "this turn is taken without other members" in caplog.text
    for turn in range(1, 6):
        one.take_turn(1.0, 1000 * turn)
        assert caplog.text.count("no other member has been found") == (turn >= 3)


def test_a_member_that_has_no_more_turns_is_named_and_stays_a_source(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
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
    assert caplog.text.count(f"member 1 of the population is the run in {gone.path}") == 1
    assert "no other member has been found" not in caplog.text


def test_a_number_is_owned_by_one_run_at_a_time(tmp_path: Path) -> None:
    config = config_of({**FLAGS, "pbt_dir": str(tmp_path / "shared"), "pbt_member": 2})
    run_dir = RunDir.unlocked(tmp_path, "run-2")
    with held_member(config, run_dir):
        folder = member_dir(tmp_path / "shared", 2)
        with pytest.raises(RunDirError, match=r"member-2 is in use by process .* Give this run another --pbt_member"):
            held_member(config, run_dir).__enter__()
        (folder / ".tmp-1-abcdefabcdef").touch()
    with held_member(config, run_dir):
        assert [path.name for path in folder.iterdir()] == [".lock"]

    (tmp_path / "file").touch()
    with pytest.raises(RunDirError, match="file/member-2 cannot be used"):
        held_member(config_of({**FLAGS, "pbt_dir": str(tmp_path / "file"), "pbt_member": 2}), run_dir).__enter__()
    (folder / MEMBER_NAME).write_text("{}")
    invalid = f"{folder / MEMBER_NAME} is not of a member"
    with pytest.raises(RunDirError, match=invalid):
        runs_in(tmp_path / "shared")
    with pytest.raises(RunDirError, match=invalid):
        held_member(config, run_dir).__enter__()


def test_a_number_stays_with_the_run_that_it_was_given_to(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    first = Run(shared, 2)
    first.publish(1.0)
    own, other = RunDir.unlocked(shared, "run-2"), RunDir.unlocked(tmp_path, "run-2")
    flags = {**FLAGS, "pbt_dir": str(shared), "pbt_member": 2}
    refused = rf"member 2 of this population is the run in {first.path}, .* choose another --pbt_dir, or remove"
    with pytest.raises(RunDirError, match=refused):  # a new run in the old place
        held_member(config_of(flags), own).__enter__()
    for run_dir in (own, other):
        run_dir.checkpoint_dir(0).mkdir(parents=True)
        (run_dir.checkpoint_dir(0) / "checkpoint_000000001_10.pth").touch()
    with held_member(config_of(flags), own):
        pass
    for run_dir, behavior in ((other, "resume"), (own, "restart")):
        with pytest.raises(RunDirError, match=refused):
            held_member(config_of({**flags, "restart_behavior": behavior}), run_dir).__enter__()
