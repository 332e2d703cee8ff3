"""Hooks are called after each dataset with its statistics; a failing hook ends the learner, which saves first."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

from sfactory.errors import ConfigError, ExitCode, HookFailed
from sfactory.learner.hooks import Hooks, LearnerFacts
from sfactory.messages import TRAIN_STATISTICS
from sfactory.model.actor_critic import ActorCritic
from sfactory.shared.status import State
from tests.support.hooks import DIARY, FAIL_AT, lines
from tests.support.lone_learner import LoneLearner
from tests.support.parts import VECTOR, random_batch, tiny_model, trainer_for

NOTE, FAIL = "tests.support.hooks:note", "tests.support.hooks:fail"


def learner_of(folder: Path, *hooks: str) -> LoneLearner:
    """A learner with hooks and datasets of two minibatches."""
    return LoneLearner(folder, batch_size=10, num_batches_per_epoch=2, after_train_step=hooks)


@pytest.fixture
def diary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "diary.jsonl"
    path.touch()
    monkeypatch.setenv(DIARY, str(path))
    return path


def test_hook_is_called_after_each_dataset_that_brought_an_update(tmp_path: Path, diary: Path) -> None:
    learner = learner_of(tmp_path, NOTE)

    for valid in (True, True, False, True):
        learner.area.scalars["valid"].fill_(valid)
        learner.learn()

    notes = lines(diary)
    assert [(note["train_step"], note["env_steps"]) for note in notes] == [(2, 20), (4, 40), (6, 60)]
    parameters = ActorCritic(VECTOR, learner.config.model).parameters()
    assert notes[0]["parameters"] == sum(parameter.numel() for parameter in parameters)
    assert all(set(note["stats"]) == set(TRAIN_STATISTICS) for note in notes)
    assert notes[0]["stats"]["learning_rate"] == learner.config.optim.learning_rate
    assert notes[0]["stats"]["valid_fraction"] == 1.0


def test_hooks_cannot_change_statistics_of_other_hooks() -> None:
    trainer = trainer_for(tiny_model())
    trainer.train(random_batch(trainer.model))
    found: list[float] = []

    def spoil(learner: LearnerFacts, stats: Any) -> None:
        stats.clear()

    def look(learner: LearnerFacts, stats: Any) -> None:
        found.append(stats["kl"])

    Hooks({"a:spoil": spoil, "b:look": look}).after_dataset(trainer, 0, 20)

    assert found == [trainer.statistics()["kl"]]


def test_failing_hook_ends_the_learner_after_a_save(tmp_path: Path, diary: Path) -> None:
    learner = learner_of(tmp_path, FAIL, NOTE)
    datasets = 0
    while not learner.learning.over:
        learner.learn()
        datasets += 1

    with pytest.raises(HookFailed) as caught:
        learner.learning.finish(save=True)

    assert datasets == -(-FAIL_AT // 2)
    assert caught.value.exit_code is ExitCode.LEARNER
    text = "".join(traceback.format_exception(caught.value)).splitlines()
    assert '    raise ValueError("the loss is not to my liking")' in text
    assert f"--after_train_step={FAIL}: called after update 6" in text[-1]
    saved = learner.saved()
    assert saved is not None
    assert saved["env_steps"] == learner.learning.progress.env_steps == 20 * datasets
    assert learner.row.get("state") != State.DONE
    assert len(lines(diary)) == datasets - 1  # the next hook was not called any more


def test_all_unresolved_hooks_are_reported() -> None:
    unknown = ["tests.support.hooks:forget", "no_such_module_here:hook"]

    with pytest.raises(ConfigError) as caught:
        Hooks.of([NOTE, *unknown])

    assert [text.split(": ")[0] for text in caught.value.problems] == [f"--after_train_step={name}" for name in unknown]


def test_a_benchmark_calls_no_hook() -> None:
    assert LoneLearner(benchmark=True, after_train_step=(NOTE,)).setup.after_train_step == ()
