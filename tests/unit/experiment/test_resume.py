"""A resumed run counts on from what all of its policies saved."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from sfactory.action_heads import DiscreteHead
from sfactory.checkpoint.directory import CheckpointDir
from sfactory.config.flags import config_of
from sfactory.errors import CheckpointError
from sfactory.experiment.resume import Resumed, summary_of
from sfactory.experiment.run_dir import RunDir
from sfactory.experiment.summary import Summary
from sfactory.learner.checkpointing import PAYLOAD_VERSION
from sfactory.spec import EnvSpec, TensorSpec


def save(
    rundir: RunDir,
    policy: int,
    run_env_steps: int,
    seconds: float,
    model: dict[str, torch.Tensor] | None = None,
    **more: Any,
) -> None:
    steps = {"env_steps": 2 * run_env_steps, "agent_steps": 4 * run_env_steps, "run_env_steps": run_env_steps}
    best = {"best_metric": "reward", "best_objective": -float(policy)}
    counts = {**steps, "train_step": 3, "train_seconds": seconds}
    payload = {"payload_version": PAYLOAD_VERSION, "model": model or {}, **counts, **best, **more}
    CheckpointDir(rundir.checkpoint_dir(policy), keep=2).save(payload, train_step=3, env_steps=2 * run_env_steps)


def test_steps_of_all_policies_are_added(tmp_path: Path) -> None:
    config = config_of({"env": "any", "num_policies": 3, "train_for_env_steps": 300})
    with RunDir.open(tmp_path, "run") as rundir:
        save(rundir, 0, run_env_steps=100, seconds=7.0)
        save(rundir, 2, run_env_steps=250, seconds=5.0)

        resumed = Resumed.from_checkpoint(rundir, config)

    assert resumed is not None
    assert (resumed.env_steps, resumed.agent_steps, resumed.updates, resumed.train_seconds) == (350, 1400, 6, 7.0)
    assert [(each.env_steps, each.has_checkpoint) for each in resumed.policies] == [
        (200, True),
        (0, False),
        (500, True),
    ]
    assert resumed.best_return == 0.0
    assert not resumed.finished(config)


def test_a_run_is_finished_once_each_policy_that_learns_has_reached_a_limit_of_its_own(tmp_path: Path) -> None:
    limits = {"train_for_env_steps": 300, "train_for_seconds": 6.0}
    both = config_of({"env": "any", "num_policies": 2, **limits})
    first = config_of({"env": "any", "num_policies": 2, "train_policies": (0,), **limits})
    found = []
    with RunDir.open(tmp_path, "run") as rundir:
        save(rundir, 0, run_env_steps=100, seconds=7.0)
        found += [Resumed.from_checkpoint(rundir, config) for config in (both, first)]
        save(rundir, 1, run_env_steps=100, seconds=5.0)
        found.append(Resumed.from_checkpoint(rundir, both))
        save(rundir, 1, run_env_steps=150, seconds=5.0)
        found.append(Resumed.from_checkpoint(rundir, both))

    configs = both, first, both, both
    assert [each and each.finished(config) for each, config in zip(found, configs, strict=True)] == [
        *(False, True),  # policy 1 has no checkpoint
        *(False, True),
    ]


def test_episodes_of_a_session_that_was_killed_are_those_of_its_checkpoints(tmp_path: Path) -> None:
    config = config_of({"env": "any", "num_policies": 3, "stats_avg": 20})
    entries = [{"episodes": 30, "best_episode_return_mean": 8.0}, {"episodes": 7, "best_episode_return_mean": 9.0}]
    with RunDir.open(tmp_path, "run") as rundir:
        for policy, episodes in enumerate((10, 40, 5)):
            save(rundir, policy, run_env_steps=100, seconds=7.0, episodes=episodes)
        killed = Resumed.from_checkpoint(rundir, config)
        Summary("interrupted", 500, 500, 500, 1.0, episodes=37, policies=entries).write(rundir.summary_path)

        again = Resumed.from_checkpoint(rundir, config)

    assert killed is not None
    assert ([each.episodes for each in killed.policies], killed.episodes) == ([10, 40, 5], 55)
    assert again is not None
    assert ([each.episodes for each in again.policies], again.episodes) == ([30, 40, 5], 75)
    assert [each.best_return for each in again.policies] == [8.0, -1.0, -2.0]  # 7 episodes make no mean
    assert [each.entry for each in again.policies] == [*entries, {}]


def test_a_best_mean_of_few_episodes_does_not_outlast_its_session(tmp_path: Path) -> None:
    one, two = (config_of({"env": "any", "num_policies": policies, "stats_avg": 20}) for policies in (1, 2))
    entry = {"episodes": 30, "best_episode_return_mean": 8.0}
    entries = [{**entry, "best_is_full": True}, {**entry, "best_is_full": False}]
    found = []
    with RunDir.open(tmp_path, "run") as rundir:
        for policy in range(2):
            save(rundir, policy, run_env_steps=100, seconds=7.0)
        for is_full in (False, True, None):  # None: by an earlier version
            facts: dict[str, Any] = {**entry, "best_episode_return_mean": 9.0, "best_is_full": is_full}
            Summary("interrupted", 500, 500, 500, 1.0, policies=entries, **facts).write(rundir.summary_path)
            found += [Resumed.from_checkpoint(rundir, config) for config in (one, two)]

    # Those of the checkpoints are full: 0.0 and -1.0.
    assert [each and each.best_return for each in found] == [0.0, 8.0, 9.0, 9.0, 9.0, 9.0]
    bests = [[policy.best_return for policy in each.policies] for each in found if each]
    assert bests == [[0.0], [8.0, -1.0], [9.0], [8.0, -1.0], [9.0], [8.0, -1.0]]


def test_a_policy_that_does_not_learn_and_has_no_checkpoint_of_a_kind_resumes_from_its_latest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    flags = {"env": "any", "num_policies": 2, "load_checkpoint_kind": "best"}
    with RunDir.open(tmp_path, "run") as rundir:
        for policy, steps in enumerate((100, 0)):
            save(rundir, policy, run_env_steps=steps, seconds=7.0)
        loaded = CheckpointDir(rundir.checkpoint_dir(0), keep=2).load()
        assert loaded is not None
        CheckpointDir(rundir.checkpoint_dir(0), keep=2).save_best({**loaded.payload, "env_steps": 60}, 2, 60, 1.0)

        resumed = Resumed.from_checkpoint(rundir, config_of({**flags, "train_policies": (0,)}))
        with pytest.raises(CheckpointError, match=r"checkpoint_p1 holds no best checkpoint, .*_after=99 env"):
            Resumed.from_checkpoint(rundir, config_of({**flags, "save_best_after": 99}))

    assert resumed is not None
    assert [(each.env_steps, each.has_checkpoint) for each in resumed.policies] == [(60, True), (0, True)]
    assert caplog.messages == ["policy 1 does not learn and has no best checkpoint: it plays with its latest weights"]


def test_a_summary_of_the_run_alone_says_nothing_of_its_several_policies(tmp_path: Path) -> None:
    config = config_of({"env": "any", "num_policies": 2, "stats_avg": 20})
    with RunDir.open(tmp_path, "run") as rundir:
        for policy in range(2):
            save(rundir, policy, run_env_steps=100, seconds=7.0, episodes=50)
        killed = Resumed.from_checkpoint(rundir, config)
        summary_of(config, killed, "interrupted").write(rundir.summary_path)

        again = Resumed.from_checkpoint(rundir, config)

    assert again is not None
    assert ([each.episodes for each in again.policies], again.episodes) == ([50, 50], 100)


def test_weights_that_do_not_fit_name_the_env_and_own_networks(tmp_path: Path) -> None:
    config = config_of({"env": "any", "encoder": "mine:Attention"})
    with RunDir.open(tmp_path, "run") as rundir:
        save(rundir, 0, run_env_steps=100, seconds=7.0, model={"place": torch.zeros(2)})

        with pytest.raises(
            CheckpointError, match=r"does not fit --env=any or --encoder=mine:Attention as it is now: "
        ) as error:
            Resumed.from_checkpoint(rundir, config, {"place": (3,)})

    assert "place is [2] there and [3] here" in str(error.value)
    assert "and --encoder=mine:Attention the code that it was trained with" in str(error.value)


def test_observations_that_have_changed_places_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def spec(*keys: str, dtype: str = "float32") -> EnvSpec:
        return EnvSpec(tuple((key, TensorSpec((2,), dtype)) for key in keys), (DiscreteHead("action", 2),))

    trained = spec("goal", "pos")
    with RunDir.open(tmp_path, "run") as rundir:
        for policy in range(2):
            save(rundir, policy, run_env_steps=100, seconds=7.0, env_spec=trained.plain())
        save(rundir, 2, run_env_steps=100, seconds=7.0)  # of an older version

        config = config_of({"env": "any", "num_policies": 3})
        for here in (trained, spec("agent_pos", "goal"), spec("goal", "pos", dtype="float64")):
            Resumed.from_checkpoint(rundir, config, spec=here)

    renamed, of_dtype = caplog.messages
    assert "'agent_pos' (float32) in the place of 'goal' (float32); 'goal' (float32) in the place of 'pos'" in renamed
    assert "there is 'goal' (float64) in the place of 'goal' (float32)" in of_dtype


def test_a_start_that_is_to_resume_says_that_there_is_no_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config, line = config_of({"env": "any"}), f"no checkpoint in {tmp_path / 'run'}: the run starts from the beginning"
    with RunDir.open(tmp_path, "run") as rundir:
        assert Resumed.from_checkpoint(rundir, config, given={"env"}) is None
        assert caplog.messages == []
        assert Resumed.from_checkpoint(rundir, config, given={"env", "restart_behavior"}) is None
        rundir.write_run_json("running", argv=[], seed=None)  # of a session that was killed
        assert Resumed.from_checkpoint(rundir, config, given={"env"}) is None
        assert caplog.messages == [line, line]
        Summary("failed", 500, 500, 500, 1.0).write(rundir.summary_path)
        assert Resumed.from_checkpoint(rundir, config, given={"env"}) is None
        assert "although an earlier session made 500 env steps" in caplog.messages[-1]
        assert Resumed.from_checkpoint(rundir, config_of({"env": "any", "init_from": "a"}), given={"env"}) is None
        assert caplog.messages[-1].endswith(": the run starts from --init_from=a")
