"""Checkpoints: which are saved and when, whatever fails in between, and what a payload restores."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from sfactory.checkpoint.directory import CheckpointDir
from sfactory.clock import PAUSE_S, Awake
from sfactory.config.schema import CheckpointConfig, Config, ModelConfig, OptimConfig, RunConfig
from sfactory.errors import CannotSaveError, CheckpointError, DivergedError
from sfactory.learner import checkpointing as checkpointing
from sfactory.learner.checkpointing import Checkpointer, Progress, SavedState, payload_of, restore
from sfactory.learner.learner import Publisher
from sfactory.learner.setup import LearnerSetup, Limits
from sfactory.learner.train_stats import Learned
from sfactory.learner.trainer import Trainer
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState, flat_bytes
from sfactory.shared.objects import SharedObjects
from tests.support.equality import assert_same
from tests.support.parts import VECTOR, random_batch, small_layout, tiny_model, trainer_for

IN_THE_WAY = "a file where a folder should be"
NEVER = 1e9
LOWEST = float("-inf")


class Saved(NamedTuple):
    """What a checkpoint says of itself, and the number that its weights carry."""

    mark: float
    best_return: float


class LoneCheckpointer:
    """A checkpointer and what it saves; the model's weights carry a number, which shows which were saved.

    ``fields``: of CheckpointConfig; nothing is saved by time unless they say so.
    """

    def __init__(self, path: Path, **fields: Any) -> None:
        defaults = {"save_every_sec": NEVER, "save_best_every_sec": 0.0, "save_best_after": 0}
        self.trainer = trainer_for(tiny_model())
        shared = SharedObjects(VECTOR, small_layout(evaluators=1, num_policies=2), flat_bytes(self.trainer.model))
        self.directory, self.control = CheckpointDir(path, keep=2), shared.control
        self.shared = shared
        self.progress = Progress(env_steps=100, agent_steps=300, run_env_steps=100)
        config = Config(checkpoint=CheckpointConfig(**{**defaults, **fields}))
        setup = LearnerSetup(config, shared, 0, 1, "cpu", 1, str(path))
        self.row = shared.status.row("sf-learner-0")
        flat = FlatState(self.trainer.model)
        self.publisher = Publisher(flat, setup.weights, 1, counts=self.counts)
        self.checkpointer = Checkpointer(setup, self.trainer, self.progress, self.row, self.publisher.check, flat)

    def counts(self) -> list[float]:
        return [self.progress.env_steps, self.progress.agent_steps, 7, 0.5]

    def learn(self, mark: float, mean_return: float = LOWEST) -> None:
        """One dataset later: the weights carry ``mark``, and main reports ``mean_return``."""
        self.trainer.train_step += 1
        self.progress.add(Learned(200, 0, 100, 50), Learned())
        with torch.no_grad():
            self.trainer.model.value_head.linear.weight.fill_(mark)
        self.control.tell_objective(0, mean_return)

    def save_after(self, mark: float, mean_return: float = LOWEST) -> None:
        """``learn``, and save all that is due."""
        self.learn(mark, mean_return)
        self.checkpointer.after_dataset()

    def save_at(self, seconds: float, mean_return: float = LOWEST) -> None:
        """``save_after`` so many seconds of training over all sessions, which the weights carry."""
        self.progress.earlier_seconds = seconds
        self.save_after(seconds, mean_return)

    def latest(self) -> Any:
        loaded = self.directory.load()
        return None if loaded is None else loaded.payload

    def milestones(self) -> list[float]:
        """The training time of each milestone on disk."""
        steps = sorted(int(path.stem.split("_")[2]) for path in self.directory.path.glob("milestones/*.pth"))
        return [self.directory.load_at(step, "milestone").payload["train_seconds"] for step in steps]

    def best(self) -> Saved | None:
        loaded = self.directory.load("best")
        if loaded is None:
            return None
        (mark,) = set(loaded.payload["model"]["value_head.linear.weight"].flatten().tolist())
        return Saved(mark, loaded.payload["best_objective"])


def test_better_policy_is_saved_as_the_best(tmp_path: Path) -> None:
    run = LoneCheckpointer(tmp_path)

    found = []
    for mark, mean_return in [(1.0, 10.0), (2.0, 9.0), (3.0, 10.0), (4.0, 11.0), (5.0, -3.0)]:
        run.save_after(mark, mean_return)
        found.append(run.best())

    first, second = Saved(1.0, 10.0), Saved(4.0, 11.0)
    assert found == [first, first, first, second, second]


def test_a_checkpoint_has_the_number_of_episodes_so_far(tmp_path: Path) -> None:
    run = LoneCheckpointer(tmp_path)
    run.control.tell_episodes(0, 12)
    run.checkpointer.save()

    resumed = LoneCheckpointer(tmp_path)
    assert resumed.checkpointer.load()

    assert resumed.progress.episodes == 12
    resumed.checkpointer.save()  # before main has counted
    assert resumed.latest()["episodes"] == 12


def test_best_policy_at_the_end_is_saved_within_the_interval(tmp_path: Path) -> None:
    run = LoneCheckpointer(tmp_path, save_best_every_sec=NEVER)
    run.save_after(1.0, 50.0)
    assert run.best() is None

    run.checkpointer.finish()

    assert run.best() == Saved(1.0, 50.0)
    assert run.latest()["best_objective"] == 50.0


def test_the_best_by_evaluation_has_the_weights_and_counts_that_were_evaluated(tmp_path: Path) -> None:
    run = LoneCheckpointer(tmp_path, save_best_metric="eval_return", save_best_every_sec=NEVER)
    candidate = run.shared.candidate
    assert candidate is not None

    def evaluated(mark: float, mean: float) -> None:
        """The weights of ``mark`` are played while the policy learns on, and reach ``mean``."""
        run.learn(mark, mean_return=1000.0)
        run.publisher.publish(run.trainer.train_step)
        run.progress.env_steps += 100_000  # until they are presented
        candidate.present(run.shared.weights)
        run.progress.env_steps -= 100_000
        run.save_after(-1.0)
        assert not candidate.judged
        candidate.mark_done(0, candidate.number)
        candidate.tell_mean(candidate.number, mean)

    run.save_after(0.0, 1000.0)
    found = []
    for mark, mean in [(1.0, 10.0), (2.0, 9.0), (3.0, LOWEST), (4.0, 11.0)]:
        evaluated(mark, mean)
        run.save_after(-1.0)
        assert candidate.judged
        found.append(run.best())

    first = Saved(1.0, 10.0)
    assert found == [first, first, first, Saved(4.0, 11.0)]
    best = run.directory.load("best")
    assert best is not None
    counts = [
        best.payload[name] for name in ("train_step", "env_steps", "agent_steps", "run_env_steps", "train_seconds")
    ]
    assert counts == [11, 1200, 2500, 7, 0.5]
    evaluated(5.0, 12.0)
    (in_the_way := tmp_path / "best_000000014_1500_12.000.pth").mkdir()
    run.save_after(-1.0)
    assert not candidate.judged  # so that the evaluated weights stay until they are saved
    in_the_way.rmdir()
    run.checkpointer.finish()
    assert run.best() == Saved(5.0, 12.0)


def test_latest_is_saved_although_the_best_cannot_be(tmp_path: Path) -> None:
    run = LoneCheckpointer(tmp_path)
    (tmp_path / "best_000000001_200_50.000.pth").mkdir()  # where the best policy is to be saved
    run.learn(1.0, 50.0)

    with pytest.raises(CannotSaveError, match="best_000000001_200"):
        run.checkpointer.finish()

    assert run.latest()["env_steps"] == 200


@pytest.mark.parametrize(("after", "saved"), [(201, None), (200, Saved(1.0, 50.0))])
def test_no_policy_is_the_best_before_save_best_after(tmp_path: Path, after: int, saved: Saved | None) -> None:
    run = LoneCheckpointer(tmp_path, save_best_after=after)

    run.save_after(1.0, 50.0)  # at env step 200
    run.checkpointer.finish()

    assert run.best() == saved


@pytest.mark.parametrize(
    ("mean_return", "saved"), [(60.0, Saved(2.0, 60.0)), (4.0, Saved(0.5, 5.0))], ids=["still_good", "collapsed"]
)
def test_failed_save_of_the_best_policy_is_repeated_with_its_present_objective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mean_return: float, saved: Saved
) -> None:
    monkeypatch.setattr(checkpointing, "_RETRY_S", 0.0)
    folder, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    run = LoneCheckpointer(folder)
    run.save_after(0.5, 5.0)
    folder.rename(elsewhere)
    folder.write_text(IN_THE_WAY)
    run.save_after(1.0, 50.0)

    assert run.progress.best_objective == 5.0
    folder.unlink()
    elsewhere.rename(folder)
    run.save_after(2.0, mean_return)
    assert run.best() == saved


def test_resumed_run_has_to_beat_the_best_policy_on_disk(tmp_path: Path) -> None:
    killed = LoneCheckpointer(tmp_path)
    killed.learn(1.0, 5.0)
    killed.checkpointer.save()
    killed.save_after(2.0, 50.0)  # then killed: the latest checkpoint does not know of the best one
    resumed = LoneCheckpointer(tmp_path)

    resumed.checkpointer.load()
    found = []
    for mark, mean_return in [(3.0, 49.0), (4.0, 51.0)]:
        resumed.save_after(mark, mean_return)
        found.append(resumed.best())

    assert found == [Saved(2.0, 50.0), Saved(4.0, 51.0)]


def test_milestones_are_saved_at_multiples_of_their_interval_also_after_a_resume(tmp_path: Path) -> None:
    found = []
    for times in ((0.0, 8.0), (9.0, 12.0, 19.0, 45.0, 49.0, 50.5)):
        run = LoneCheckpointer(tmp_path, save_milestones_sec=10.0)
        run.checkpointer.load()
        for seconds in times:
            run.save_at(seconds)
            found.append(len(run.milestones()))
        run.checkpointer.finish()

    # Time that was spent in one long dataset makes one milestone, not three.
    assert found == [0, 0, 0, 1, 1, 2, 2, 3]
    assert run.milestones() == [12.0, 45.0, 50.5]


def test_a_milestone_that_cannot_be_saved_stays_due_and_the_others_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointing, "_RETRY_S", 0.0)
    run = LoneCheckpointer(tmp_path, save_every_sec=1e-9, save_milestones_sec=10.0)
    in_the_way = tmp_path / "milestones"
    in_the_way.write_text(IN_THE_WAY)
    run.save_at(11.0, mean_return=5.0)
    assert run.latest()["train_seconds"] == 11.0
    assert run.best() == Saved(11.0, 5.0)
    in_the_way.unlink()

    run.save_at(12.0)

    assert run.milestones() == [12.0]


def test_run_resumed_from_a_milestone_sets_aside_what_was_saved_after_it(tmp_path: Path) -> None:
    earlier = LoneCheckpointer(tmp_path, save_milestones_sec=10.0)
    earlier.save_at(11.0)
    earlier.learn(2.0, 50.0)
    earlier.checkpointer.finish()
    back = LoneCheckpointer(tmp_path, save_milestones_sec=10.0, load_checkpoint_kind="milestone")

    back.checkpointer.load()

    progress = back.progress
    assert (progress.env_steps, progress.agent_steps, progress.run_env_steps) == (200, 500, 150)
    assert (progress.train_seconds, back.trainer.train_step) == (11.0, 1)
    assert progress.best_objective == LOWEST
    back.save_after(3.0, 20.0)
    back.checkpointer.finish()
    assert back.best() == Saved(3.0, 20.0)
    assert back.latest()["env_steps"] == 300
    found = sorted(path.name for path in tmp_path.glob("set_aside_*.pth"))
    assert found == ["set_aside_best_000000002_300_50.000.pth", "set_aside_checkpoint_000000002_300.pth"]


def test_run_resumed_from_its_best_policy_has_to_beat_it(tmp_path: Path) -> None:
    earlier = LoneCheckpointer(tmp_path, save_milestones_sec=10.0)
    earlier.save_after(1.0, 50.0)
    earlier.save_at(11.0)
    earlier.checkpointer.finish()
    back = LoneCheckpointer(tmp_path, save_milestones_sec=10.0, load_checkpoint_kind="best")

    back.checkpointer.load()
    assert back.progress.best_objective == 50.0
    back.learn(2.0, 49.0)
    back.checkpointer.finish()

    assert back.best() == Saved(1.0, 50.0)
    assert CheckpointDir(tmp_path, keep=2).load("milestone") is None
    assert len(list((tmp_path / "milestones").glob("set_aside_*.pth"))) == 1


def went_back(path: Path) -> LoneCheckpointer:
    """Of a run with a best policy of train step 1, and a latest one of step 2: it has loaded the best."""
    earlier = LoneCheckpointer(path)
    earlier.save_after(1.0, 50.0)
    earlier.learn(2.0)
    earlier.checkpointer.finish()
    back = LoneCheckpointer(path, load_checkpoint_kind="best")
    back.checkpointer.load()
    return back


@pytest.mark.parametrize("waits", [False, True])
def test_a_policy_that_went_back_and_learns_nothing_is_saved_once_another_has_learned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, waits: bool
) -> None:
    back = went_back(tmp_path)
    before = sorted(tmp_path.iterdir())
    back.checkpointer.save_first()
    back.shared.status.row("sf-learner-0").add("datasets", 1)
    back.checkpointer.finish()
    assert not back.checkpointer.choice_is_due
    assert sorted(tmp_path.iterdir()) == before
    assert not caplog.records

    back.shared.status.row("sf-learner-1").add("datasets", 1)
    back.control.tell_objective(0, 99.0)  # a later mean of weights that have learned nothing since
    if waits:
        back.checkpointer.save_choice_if_due()
    else:
        back.checkpointer.finish()

    assert not back.checkpointer.choice_is_due
    assert back.best() == Saved(1.0, 50.0)
    again = LoneCheckpointer(tmp_path)
    again.checkpointer.load()
    assert again.trainer.train_step == 1
    assert again.latest()["model"]["value_head.linear.weight"].unique().tolist() == [1.0]
    assert [path.name for path in tmp_path.glob("set_aside_*.pth")] == ["set_aside_checkpoint_000000002_300.pth"]


def test_the_first_dataset_after_going_back_is_saved_at_once(tmp_path: Path) -> None:
    back = went_back(tmp_path)

    for mark in (3.0, 4.0):
        back.save_after(mark)

    assert back.latest()["train_step"] == 2
    assert back.latest()["model"]["value_head.linear.weight"].unique().tolist() == [3.0]


def test_saved_steps_are_those_of_the_best_policy_without_a_latest_checkpoint(tmp_path: Path) -> None:
    run = LoneCheckpointer(tmp_path)
    for mean_return in (1.0, 2.0):
        run.save_after(mean_return, mean_return)
        assert run.row.get("saved_env_steps") == run.progress.run_env_steps

    run.checkpointer.save()
    saved = run.progress.run_env_steps
    run.save_after(3.0, 3.0)

    assert run.best() == Saved(3.0, 3.0)
    assert run.row.get("saved_env_steps") == saved


def test_failed_checkpoint_stays_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise CannotSaveError("no room")

    monkeypatch.setattr(checkpointing, "_RETRY_S", 0.0)
    run = LoneCheckpointer(tmp_path, save_every_sec=0.0)
    run.checkpointer._save_due.seconds = NEVER  # once it is saved
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointDir, "save", fail)
        run.save_after(1.0)
    assert run.latest() is None

    for mark in (2.0, 3.0):
        run.save_after(mark)

    assert run.latest()["train_step"] == 2
    assert run.row.get("save_s") > 0


def test_main_sees_a_learner_save_whatever_it_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def save(directory: object, kind: str, *_: object) -> None:
        seen.append((kind, run.row.get("saving_since") > 0))

    monkeypatch.setattr(CheckpointDir, "_save", save)
    run = LoneCheckpointer(tmp_path, save_every_sec=0.0, save_milestones_sec=5)

    run.save_at(6.0, mean_return=1.0)
    run.checkpointer.finish()
    run.checkpointer.save_copy(tmp_path / "copy")

    assert seen == [(kind, True) for kind in ("latest", "best", "milestone", "latest", "latest")]
    assert run.row.get("saving_since") == 0
    assert run.row.get("save_s") > 0


@pytest.mark.parametrize("due", ["latest", "best", "milestone"])
def test_weights_that_are_not_finite_are_saved_as_nothing(tmp_path: Path, due: str) -> None:
    def files() -> list[Path]:
        return sorted(path for path in tmp_path.rglob("*") if path.is_file())

    fields: dict[str, Any] = {"latest": {"save_every_sec": 0.0}, "milestone": {"save_milestones_sec": 10.0}}
    run = LoneCheckpointer(tmp_path, **fields.get(due, {}))
    run.learn(1.0, 10.0)
    run.checkpointer.save(10.0)
    run.checkpointer.after_dataset()
    before = files()
    run.progress.earlier_seconds = 20.0
    run.learn(float("nan"), 20.0 if due == "best" else 0.0)

    for save in (run.checkpointer.after_dataset, run.checkpointer.finish, run.checkpointer.save):
        with pytest.raises(DivergedError, match="not finite"):
            save()

    assert files() == before
    assert run.best() == Saved(1.0, 10.0)


def trainer_of(seed: int = 0, **optim: Any) -> Trainer:
    return trainer_for(tiny_model(seed), optim=OptimConfig(**{"learning_rate": 0.01, **optim}))


def test_training_time_adds_up_from_the_first_start_of_the_clock_until_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfactory.learner.checkpointing.now", lambda: 110.0)
    progress = Progress(earlier_seconds=5.0)
    assert progress.train_seconds == 5.0

    progress.start_clock(100.0)
    progress.start_clock(109.0)

    assert progress.train_seconds == 15.0
    limits = Limits(1001, 16.0), Limits(1000, 16.0), Limits(1001, 15.0)
    assert [limit.reached(1000, progress.train_seconds) for limit in limits] == [False, True, True]


def test_time_in_which_all_processes_were_stopped_is_no_training_time(monkeypatch: pytest.MonkeyPatch) -> None:
    at = 1000.0
    monkeypatch.setattr("sfactory.clock.now", lambda: at)
    progress = Progress(awake=Awake())
    progress.start_clock(at)

    at += 3600.0

    assert progress.train_seconds == PAUSE_S


@pytest.mark.parametrize(
    ("frameskip", "frames", "steps", "env_steps"),
    [
        *((1, 8000, 9999, 8000), (4, 8001, 9999, 2001), (4, 3, 9999, 1), (4, 8000, 1999, 1999), (5, 8000, 1999, 1600)),
        # Neither default cuts the other limit.
        *(
            (4, RunConfig.train_for_frames, 5 * 10**9, 5 * 10**9),
            (1, 5 * 10**10, RunConfig.train_for_frames, 5 * 10**10),
        ),
    ],
)
def test_the_nearer_of_the_limits_of_steps_and_frames_counts(
    frameskip: int, frames: int, steps: int, env_steps: int
) -> None:
    run = RunConfig(train_for_frames=frames, train_for_env_steps=steps)

    assert Limits.of(run, frames_per_step=frameskip).env_steps == env_steps


def test_payload_of_version_2_is_restored() -> None:
    first, resumed = (trainer_of(seed, learning_rate=1e-3, lr_schedule="kl_adaptive_epoch") for seed in (0, 7))
    batch = random_batch(first.model)
    first.train(batch)
    payload = copy.deepcopy(payload_of(first, Progress(env_steps=60)))
    # As version 2 wrote it.
    optimizer = {key: payload["optimizer"][key] for key in ("state", "param_groups")}
    rate = payload.pop("coefficients")["learning_rate"]
    payload |= {"payload_version": 2, "optimizer": optimizer, "learning_rate": rate}

    restore(payload, "here", resumed, Progress())
    for trainer in (first, resumed):
        trainer.train(batch)

    assert_same(payload_of(resumed, Progress()), payload_of(first, Progress()))


@pytest.mark.parametrize(
    ("optim", "changes", "reason"),
    [
        ({}, {"payload_version": 999}, "was written by another version"),
        ({"optimizer": "rmsprop"}, {}, "does not fit the optimizer .*--optimizer=rmsprop has other moments"),
        ({"separate_value_optimizer": True}, {}, "does not fit the optimizer .*=False, which cannot become True"),
        ({}, {"model": ActorCritic(VECTOR, ModelConfig(encoder_mlp_layers=(9,))).state_dict()}, "fit the model"),
    ],
    ids=["version", "optimizer", "two_optimizers", "model"],
)
def test_a_payload_that_does_not_fit_is_refused(optim: dict[str, Any], changes: dict[str, Any], reason: str) -> None:
    payload = payload_of(trainer_of(), Progress()) | changes

    with pytest.raises(CheckpointError, match=f"checkpoint_7 .*{reason}"):
        restore(payload, "checkpoint_7", trainer_of(**optim), Progress())


def test_a_payload_holds_the_spec_that_the_model_was_made_for() -> None:
    payload = payload_of(trainer_of(), Progress())

    assert SavedState.of(payload, "here").spec == VECTOR
    del payload["env_spec"]  # as in older versions
    assert SavedState.of(payload, "here").spec is None
