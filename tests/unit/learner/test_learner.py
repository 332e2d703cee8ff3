"""Reports of a learner about its datasets, what it publishes, and its end."""

from __future__ import annotations

import copy
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfactory.clock import now
from sfactory.errors import ConfigError, DivergedError, ExitCode, HookFailed
from sfactory.learner.hooks import Hooks, LearnerFacts
from sfactory.learner.learner import Publisher
from sfactory.learner.staging import REPLAYED
from sfactory.learner.train_stats import INTRINSIC
from sfactory.messages import TRAIN_STATISTICS, LearnerTimes, PolicyLag, TrainStats
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.shared.status import State
from sfactory.shared.weights import COUNTS
from tests.support.hooks import DIARY, FAIL_AT, lines
from tests.support.lone_learner import LoneLearner
from tests.support.parts import VECTOR, random_batch, tiny_model, trainer_for


@pytest.mark.parametrize("published", [True, False])
def test_weights_that_are_not_finite_are_not_published(published: bool) -> None:
    learning = LoneLearner(use_rnn=True, use_cpc=True, cpc_forward_steps=3, cpc_time_subsample=4).learning
    module = learning.trainer.model if published else learning.trainer.auxiliary
    assert module is not None
    with torch.no_grad():
        next(module.parameters()).view(-1)[0] = float("inf")

    with pytest.raises(DivergedError, match="not published or saved"):
        learning.publisher.publish(0)


def test_finish_raises_the_failure_of_the_pass_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = LoneLearner(tmp_path)
    publishing, resume = threading.Event(), threading.Event()

    def fail(publisher: Publisher, train_step: int, updates: int, *begun: object) -> None:
        publishing.set()
        resume.wait(30.0)
        raise ValueError("weights are not finite")

    def learn() -> None:
        with pytest.raises(ValueError, match="not finite"):
            learner.learn()

    monkeypatch.setattr(Publisher, "publish_if_due", fail)
    training = threading.Thread(target=learn)
    training.start()
    assert publishing.wait(30.0)
    threading.Timer(0.2, resume.set).start()

    with pytest.raises(ValueError, match="weights are not finite"):
        learner.learning.finish(save=True)

    training.join(30.0)
    assert learner.saved() is None


def test_timings_are_reported_and_work_is_counted(tmp_path: Path) -> None:
    learner = LoneLearner(tmp_path)
    for _ in range(3):
        learner.learn()
    learner.learning.finish(save=True)
    learner.learn()  # nothing is learned after the end

    times = learner.messages(LearnerTimes)
    assert times
    for message in times:
        assert message.grad_ms == message.update_ms > 0  # a dataset is one minibatch, and is passed over once
        assert message.publish_ms > 0
    # The first weights are published before anything is learned.
    assert learner.row.get("publications") == 4
    assert 0 < learner.row.get("update_s") < 60
    saved = learner.saved()
    assert saved is not None
    assert saved["env_steps"] == learner.learning.progress.env_steps == 60


@pytest.mark.parametrize("flags", [{}, {"num_epochs": 3}, {"num_epochs": 3, "early_stop_kl": 1e-9}])
def test_where_collection_waits_the_next_dataset_is_acted_and_learned_with_the_same_statistics(
    flags: dict[str, Any],
) -> None:
    learner = LoneLearner(normalize_input=True, num_batches_to_accumulate=0, **flags)
    trainer, weights = learner.learning.trainer, learner.setup.weights
    for dataset in range(3):
        learner.area.obs["obs"].add_(1.0)  # which changes what the normalizer knows
        learner.learn()

        published = np.zeros(weights.nbytes, np.uint8)
        publications, version = weights.read_into(published)
        assert (version, publications) == (trainer.train_step, dataset + 2)
        assert published.tobytes() == FlatState(copy.deepcopy(trainer.model)).to_host().tobytes()


def test_time_of_the_last_counted_steps_is_reported() -> None:
    learner = LoneLearner(num_epochs=2)
    learning, row = learner.learning, learner.row
    learning.progress.start_clock(now() - 1.0)

    dataset = learning.open(learner.area)
    learning.one_pass(dataset)
    counted_at, reported_at = row.get("counted_at"), row.get("train_seconds")
    learning.one_pass(dataset)

    assert 1.0 <= counted_at <= reported_at < row.get("train_seconds")
    assert (row.get("run_env_steps"), row.get("counted_at")) == (20, counted_at)


def test_reported_lag_covers_masked_steps_and_is_apart_for_replayed_ones() -> None:
    learner = LoneLearner(replay_proportion=1.0, replay_slots=10, max_policy_lag=3, max_replay_lag=50)
    scalars = learner.area.scalars
    # The learner is at update 0: versions below 0 stand for steps that waited for so many updates.
    scalars["policy_version"][:] = torch.tensor([0, -7, -40, -70], dtype=torch.int64)
    scalars[REPLAYED][:, 2:] = True
    scalars["valid"][2, :] = False  # never taken: their versions are garbage
    scalars["policy_version"][2, :] = torch.tensor([1, -99, -99, -99], dtype=torch.int64)
    scalars["valid"][1, 3] = False

    learner.learn()
    learner.learning.report()

    (stats,) = learner.messages(TrainStats)
    assert stats.lag == PolicyLag(0.0, 3.5, 7.0)
    assert stats.replay_lag == PolicyLag(40.0, (4 * 40 + 3 * 70) / 7, 70.0)
    assert learner.learning.progress.env_steps == 4


def test_weights_so_old_that_all_steps_are_masked_are_replaced_before_the_interval_is_over() -> None:
    learner = LoneLearner(max_policy_lag=3, publish_interval=100)
    versions, updates = [], []
    for _ in range(9):
        learner.area.scalars["policy_version"][:] = learner.learning.publisher.version
        learner.learn()
        versions.append(learner.learning.publisher.version)
        updates.append(learner.learning.trainer.train_step)

    assert updates == [1, 2, 3, 3, 4, 5, 6, 6, 7]
    assert versions == [0, 0, 0, 3, 3, 3, 3, 6, 6]


def test_published_weights_have_the_counts_of_their_training() -> None:
    learner, counts = LoneLearner(publish_interval=3), np.zeros(len(COUNTS))
    weights, found = learner.setup.weights, []
    for _ in range(4):
        learner.learn()
        _, version = weights.read_into(np.zeros(weights.nbytes, np.uint8), counts)
        found.append((version, *counts[:3].tolist()))

    assert found == [(0, 0, 0, 0), (0, 0, 0, 0), (3, 60, 60, 60), (3, 60, 60, 60)]
    assert learner.row.get("env_steps") == 80


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
    assert all(set(note["stats"]) == set(TRAIN_STATISTICS) - set(INTRINSIC) for note in notes)
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

    Hooks({"a:spoil": spoil, "b:look": look}).after_dataset(trainer, trainer.stats.means, 0, 20)

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


def opponents_of(run: LoneLearner) -> dict[int, tuple[int, bytes]]:
    """Of each snapshot that may be drawn, by its env steps: policy version and weights."""
    pool, found = run.shared.opponents, {}
    assert pool is not None
    for slot in pool.newest():
        weights = np.empty(pool.weights[slot].nbytes, np.uint8)
        found[pool.env_steps(slot)] = pool.weights[slot].read_into(weights)[1], weights.tobytes()
    return found


def test_snapshots_are_due_by_env_steps_and_a_resumed_learner_has_those_of_its_past(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"opponent_pool": 2, "opponent_snapshot_env_steps": 50}  # a dataset has 20 steps
    run = LoneLearner(tmp_path, "cpu", **flags)
    assert opponents_of(run).keys() == {0}
    for _ in range(6):
        run.learn()
    run.learning.finish(save=True)
    before = opponents_of(run)
    assert before.keys() == {60, 100}
    assert len({weights for _, weights in before.values()}) == 2

    later = LoneLearner(tmp_path, "cpu", **flags)
    assert opponents_of(later) == before
    trained = run.learning.trainer.model.state_dict()
    assert all(torch.equal(trained[name], value) for name, value in later.learning.trainer.model.state_dict().items())
    for _ in range(3):
        later.learn()
    assert opponents_of(later).keys() == {100, 160}
    # The milestone of step 160 was saved after the checkpoint that is resumed from: it is not part of the past.
    assert opponents_of(LoneLearner(tmp_path, "cpu", **flags)) == before
