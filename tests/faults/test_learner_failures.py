"""A learner fails by a thread, a hook, an observer or its numbers: the run ends with the cause, and saves no damage."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import torch

from sfactory.errors import ExitCode
from sfactory.learner.diagnostics import EVIDENCE_FILE
from tests.support import hooks
from tests.support.hooks import FAIL_AT, MOMENT, SPOIL_AT
from tests.support.long import long
from tests.support.trainer import ENDLESS, RunTrainer, tensors_in, within

HOOKS = "tests.support.hooks"
SPOILS = "tests.support.envs:SpoilsInbox"
LOUD_S = 5.0  # from the fault to the end of the process that meets it, on an idle machine
RESTART_S = 30.0  # from a death to new processes, on an idle machine
MOST_BAD = 10  # the default of --max_bad_steps


# With one batcher the thread that assembles reads the ring, with several one reads for all of them.
@pytest.mark.parametrize(("batchers", "loop"), [(1, "_batch"), long(2, "_read_for_batchers")])
def test_learner_thread_that_dies_ends_the_run_with_its_traceback(
    run_trainer: RunTrainer, tmp_path: Path, batchers: int, loop: str
) -> None:
    order = tmp_path / "order"
    run = run_trainer(
        env=SPOILS,
        env_kwargs={"how": "poison", "order": str(order)},
        num_batchers=batchers,
        num_batches_to_accumulate=4,
        train_for_env_steps=ENDLESS,
    )
    run.wait_until_training()

    order.touch()
    run.wait_until(Path(f"{order}.done").exists)

    run.assert_ended(ExitCode.LEARNER, within(LOUD_S))
    assert "sf-learner-0 failed: IndexError" in run.last_stderr_line
    assert f"in {loop}\n" in run.stderr, run.report("no traceback of the thread")
    saved, steps = run.saved_env_steps(), run.result()["env_steps"]
    assert steps >= saved > 0
    assert steps == saved or f" saved={saved} " in run.last_stderr_line


@pytest.mark.parametrize("serial", [False, long(True)])
def test_hook_that_raises_ends_the_run_with_its_traceback(
    run_trainer: RunTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serial: bool
) -> None:
    failed, flags = tmp_path / "failed", {"num_batches_per_epoch": 1, "num_epochs": 1}
    monkeypatch.setenv(MOMENT, str(failed))
    run = run_trainer(after_train_step=f"{HOOKS}:fail", serial_mode=serial, train_for_env_steps=ENDLESS, **flags)
    run.wait_until(failed.exists)

    run.assert_ended(ExitCode.LEARNER, within(LOUD_S))
    cause = f"--after_train_step={HOOKS}:fail"
    for words in ("sf-learner-0 failed", cause, "ValueError: the loss is not to my liking"):
        assert words in run.last_stderr_line, run.report(f"does not say {words}")
    assert 'raise ValueError("the loss is not to my liking")' in run.stderr
    assert run.result()["updates"] == FAIL_AT
    assert run.result()["env_steps"] == run.saved_env_steps() > 0


@pytest.mark.parametrize(
    ("observer", "method", "serial"),
    [("FailsInTraining", "on_training_step", True), ("FailsAtStop", "on_stop", False)],
)
def test_observer_that_raises_ends_the_run_with_its_traceback(
    run_trainer: RunTrainer, observer: str, method: str, serial: bool
) -> None:
    limit = 3000 if observer == "FailsAtStop" else ENDLESS
    run = run_trainer(observers=f"{HOOKS}:{observer}", serial_mode=serial, train_for_env_steps=limit)

    run.assert_ended(ExitCode.LEARNER)
    assert f"observer {HOOKS}:{observer} failed in {method}(): ValueError: no mail server" in run.last_stderr_line
    assert 'raise ValueError("no mail server")' in run.stderr
    assert run.stderr.count("Traceback (most recent call last):") == 1
    assert run.result()["env_steps"] == run.saved_env_steps() > 0


@pytest.mark.parametrize("raises", [long(True), False])
def test_failed_learner_restarts_from_its_checkpoint_as_often_as_is_allowed(
    run_trainer: RunTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    monkeypatch.setenv(hooks.FUSE, str(tmp_path / "fuse"))
    hook = {"after_train_step": f"{HOOKS}:fail_once"} if raises else {}
    run = run_trainer(train_for_env_steps=ENDLESS, max_restarts=1, **hook)
    if raises:
        run.wait_until((tmp_path / "fuse").exists)
    else:
        run.wait_until_training()
        run.kill("sf-learner-0")
    failed = time.monotonic()

    run.wait_until(r"from the checkpoint at \d+ env steps \(1 of --max_restarts=1\)")
    (at,) = re.findall(r"from the checkpoint at (\d+) env steps", run.stderr)
    run.wait_until(lambda: run.saved_env_steps() > int(at))
    assert time.monotonic() - failed <= within(RESTART_S), run.report("it took too long")
    run.stop()
    assert int(at) > 0
    assert run.metrics()[-1]["env_steps"] >= run.saved_env_steps() > int(at)


@pytest.mark.parametrize("serial", [False, long(True)])
def test_one_infinite_gradient_is_skipped_and_many_end_the_run_with_the_batch_saved(
    run_trainer: RunTrainer, serial: bool
) -> None:
    hook = f"{HOOKS}:spoil_gradients"
    run = run_trainer(train_for_env_steps=ENDLESS, after_train_step=hook, serial_mode=serial, save_every_sec=0.2)

    run.assert_ended(ExitCode.DIVERGED)
    assert f"{MOST_BAD} updates in a row" in run.last_stderr_line
    skipped = re.findall(r"update (\d+) skipped: .* \((\d+) so far\)", run.stderr)
    assert [int(count) for _, count in skipped] == list(range(1, 1 + MOST_BAD + 1))
    assert int(skipped[1][0]) - int(skipped[0][0]) == SPOIL_AT + 1
    evidence = torch.load(run.run_dir / "checkpoint_p0" / EVIDENCE_FILE, weights_only=True)
    assert evidence["train_step"] >= 2 * SPOIL_AT + MOST_BAD
    assert torch.isfinite(torch.cat(tensors_in(evidence["model"]))).all()


def test_nan_weight_is_neither_published_nor_saved(run_trainer: RunTrainer) -> None:
    # A save is due in the moment in which the weight is spoiled.
    run = run_trainer(train_for_env_steps=ENDLESS, after_train_step=f"{HOOKS}:spoil_weight", save_every_sec=0.01)

    run.assert_ended(ExitCode.DIVERGED)
    assert "weights are not finite" in run.last_stderr_line, run.report("another cause")
    assert torch.isfinite(torch.cat(tensors_in(run.payload()["model"]))).all()


@pytest.mark.parametrize("serial", [long(False), True])
def test_policy_with_nan_weights_costs_the_others_nothing(
    run_trainer: RunTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serial: bool
) -> None:
    monkeypatch.setenv(hooks.FOLDER, str(tmp_path))
    run = run_trainer(
        train_for_env_steps=ENDLESS,
        num_policies=2,
        after_train_step=f"{HOOKS}:spoil_first_policy",
        serial_mode=serial,
        save_every_sec=1000,  # so that nothing but the end saves
    )

    run.assert_ended(ExitCode.DIVERGED)
    assert run.saved_env_steps() == 0, run.report("weights that are not finite were saved")
    assert run.payload(policy=1)["env_steps"] > 0
