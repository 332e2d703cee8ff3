"""A learner that learns no more frees what comes, whoever else reads for it; one that changes its sizes is not done."""

from __future__ import annotations

import pytest

from sfactory.learner.learner_process import LearnerWorker
from sfactory.messages import TrajectoryReady
from sfactory.shared.control import LearnerCommand
from tests.support.lone_learner import LoneLearner


@pytest.mark.parametrize("num_batchers", [1, 2])
def test_what_comes_is_freed_although_no_batcher_is_there_any_more(num_batchers: int) -> None:
    lone = LoneLearner(num_batchers=num_batchers, num_batches_to_accumulate=4, num_workers=2)
    worker = LearnerWorker(lone.setup, lone.learning, lone.row)
    table = lone.shared.table
    table.begin(1)
    table.publish(1, 0)
    lone.shared.to_learners[0].put(TrajectoryReady(table.owner(1), 1))

    worker.discard(1.0)

    assert table.waiting_for(1) == []


def test_a_dataset_that_was_begun_in_other_sizes_is_dropped_and_counted() -> None:
    lone = LoneLearner(train_in_background_thread=False, num_workers=2, num_envs_per_worker=2)
    worker = LearnerWorker(lone.setup, lone.learning, lone.row)

    def fill(index: int) -> None:
        """A slot of 2 rows of 5 steps."""
        lone.shared.table.begin(index)
        lone.shared.trajectories.slot(index).valid.fill(True)
        lone.shared.table.publish(index, 0)
        lone.shared.to_learners[0].put(TrajectoryReady(lone.shared.table.owner(index), index))

    fill(0)
    assert not worker.assemble(1.0)
    lone.learning.commands.execute(LearnerCommand(hyperparameters={"batch_size": 40}))
    for index in (1, 0, 2, 3):
        fill(index)
        assert worker.assemble(1.0) == (index == 3)
        assert lone.row.get("dropped_steps") == 10
    worker.learn()
    assert (lone.row.get("dropped_steps"), lone.learning.progress.env_steps) == (10, 40)


def test_the_longest_minibatch_is_told_so_that_a_stop_can_wait_for_one() -> None:
    lone = LoneLearner()

    lone.learn()

    assert 0 < lone.row.get("update_s") < 60
