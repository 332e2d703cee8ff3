"""A new run begins with the weights of another, whole or by parts; frozen parts stay as they are."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from sfactory.action_heads import DiscreteHead
from sfactory.checkpoint.directory import CheckpointDir
from sfactory.config.flags import config_of as flags_of
from sfactory.config.saved_config import write_config
from sfactory.config.schema import CheckpointConfig, Config, OptimConfig, RunConfig
from sfactory.errors import CheckpointError, ConfigError
from sfactory.learner.checkpointing import Progress, payload_of
from sfactory.learner.initial_weights import begin_with_weights, initial_weights
from sfactory.learner.learner_process import LearnerWorker
from sfactory.learner.trainer import Trainer
from sfactory.model.normalizer import RunningNormalizer
from sfactory.model.parts import Freezer
from sfactory.shared.control import Stop
from sfactory.spec import EnvSpec
from tests.support.equality import assert_same, changed, copied
from tests.support.files import truncate
from tests.support.lone_learner import LoneLearner
from tests.support.parts import VECTOR, model_of, random_batch, trainer_for

THREE = EnvSpec(VECTOR.obs, (DiscreteHead("action", 3),))
NORMALIZED: dict[str, Any] = {"normalize_input": True, "normalize_returns": True}


def trainer_of(spec: EnvSpec = VECTOR, seed: int = 0, **optim: Any) -> Trainer:
    return trainer_for(model_of(spec, seed=seed, **NORMALIZED), optim=OptimConfig(learning_rate=0.01, **optim))


def shapes_of(trainer: Trainer) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in trainer.model.state_dict().items()}


@pytest.fixture
def source(tmp_path: Path) -> Trainer:
    """A trained policy, saved as policy 1 of the run "old"."""
    trainer = trainer_of(seed=7)
    trainer.train(random_batch(trainer.model))
    CheckpointDir(tmp_path / "old" / "checkpoint_p1", 1).save(payload_of(trainer, Progress(env_steps=90)), 4, 90)
    return trainer


def config_of(folder: Path, init_from: str, *parts: str) -> Config:
    checkpoint = CheckpointConfig(init_from=init_from, init_parts=parts)
    return dataclasses.replace(Config(), run=RunConfig(train_dir=str(folder)), checkpoint=checkpoint)


@pytest.mark.parametrize("by_path", [False, True])
def test_all_weights_and_statistics_are_taken_and_counts_start_at_zero(
    source: Trainer, tmp_path: Path, by_path: bool
) -> None:
    trainer = trainer_of()

    begin_with_weights(trainer, config_of(tmp_path, f"{tmp_path / 'old' if by_path else 'old'}:1:latest"), 0)

    assert not changed(trainer.model, dict(source.model.state_dict()))
    assert trainer.train_step == 0
    assert source.train_step > 0


def test_statistics_of_a_long_run_adapt_to_the_new_one(source: Trainer, tmp_path: Path) -> None:
    for part in source.model.modules():
        if isinstance(part, RunningNormalizer):
            part.count.fill_(1e9)
    CheckpointDir(tmp_path / "old" / "checkpoint_p1", 1).save(payload_of(source, Progress(env_steps=99)), 5, 99)
    trainer = trainer_of()

    begin_with_weights(trainer, config_of(tmp_path, "old:1"), 0)

    counts = [part.count.item() for part in trainer.model.modules() if isinstance(part, RunningNormalizer)]
    assert counts == [100_000.0] * 2
    assert all(name.endswith("count") for name in changed(trainer.model, dict(source.model.state_dict())))


def test_chosen_parts_go_to_another_action_space(source: Trainer, tmp_path: Path) -> None:
    trainer = trainer_of(THREE)
    before = copied(trainer.model)

    begin_with_weights(trainer, config_of(tmp_path, "old:1", "encoder", "value"), 0)

    taken = changed(trainer.model, before)
    assert {name.partition(".")[0] for name in taken} == {"tower", "value_head"}
    assert all(torch.equal(trainer.model.state_dict()[name], source.model.state_dict()[name]) for name in taken)


def test_weights_that_do_not_fit_are_refused_by_name_with_the_parts_that_do(source: Trainer, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"--init_from=old:1: policy_head.linear.weight has the shape \[2, 8\] there and has the shape "
        r"\[3, 8\] here; use --init_parts normalizer encoder value$",
    ):
        initial_weights(config_of(tmp_path, "old:1"), shapes_of(trainer_of(THREE)))
    with pytest.raises(ConfigError, match="; no part of it fits the network of this run"):
        initial_weights(config_of(tmp_path, "old:1", "policy"), shapes_of(trainer_of(THREE)))


def test_observations_of_other_places_are_named_where_a_part_reads_them(
    source: Trainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    renamed, shapes = EnvSpec((("speed", VECTOR.obs[0][1]),), VECTOR.actions), shapes_of(source)

    initial_weights(config_of(tmp_path, "old:1"), shapes, VECTOR)
    initial_weights(config_of(tmp_path, "old:1", "policy", "value"), shapes, renamed)
    assert caplog.messages == []
    initial_weights(config_of(tmp_path, "old:1", "encoder"), shapes, renamed)
    begin_with_weights(trainer_of(renamed), config_of(tmp_path, "old:1", "encoder"), 0)  # of each policy

    (warning,) = caplog.messages
    assert "there is 'speed' (float32) in the place of 'obs' (float32)" in warning


def test_flags_that_make_the_weights_compute_something_else_are_named(
    source: Trainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flags = {
        "env": "any",
        "nonlinearity": "tanh",
        "obs_scale": 255.0,
        "initial_stddev": 2.0,
        "continuous_tanh_scale": 3.0,
    }
    write_config(tmp_path / "old", flags_of(flags), {})
    advice = "; type those values for the network of that run"

    initial_weights(config_of(tmp_path, "old:1", "normalizer", "value"), shapes_of(source), VECTOR)
    assert caplog.messages == []
    initial_weights(config_of(tmp_path, "old:1", "encoder"), shapes_of(source), VECTOR)
    begin_with_weights(trainer_of(), config_of(tmp_path, "old:1", "encoder"), 0)  # of each policy
    with pytest.raises(
        ConfigError, match=rf"it was trained with --nonlinearity=tanh .*{advice}; or use --init_parts no"
    ):
        initial_weights(config_of(tmp_path, "old:1"), shapes_of(trainer_of(THREE)))

    (warning,) = caplog.messages
    both = r"--nonlinearity=tanh \(here --nonlinearity=elu\), --obs_scale=255\.0 \(here --obs_scale=1\.0\)"
    assert re.search(f"may compute something else here: it was trained with {both}{advice}$", warning)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("odl:1", "there is no such run.*did you mean.*old"),
        ("old", "checkpoint_p0 holds no latest"),
        ("old:1:best", "no best"),
        ("old:1:Best", "there is no such run.*; of RUN:POLICY:KIND, KIND is latest, best or milestone$"),
    ],
)
def test_run_or_checkpoint_that_there_is_not_is_refused(source: Trainer, tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        initial_weights(config_of(tmp_path, name), shapes_of(source))


def test_another_checkpoint_than_damaged_ones_is_named_by_the_flag(source: Trainer, tmp_path: Path) -> None:
    folder = tmp_path / "old" / "checkpoint_p1"
    for damaged in folder.glob("*.pth"):
        truncate(damaged)
    CheckpointDir(folder, 1).save_milestone(payload_of(source, Progress(env_steps=99)), 1, 10)

    with pytest.raises(CheckpointError, match=r"\. There is a milestone one: --init_from=old:1:milestone$"):
        initial_weights(config_of(tmp_path, "old:1"), shapes_of(source))


def test_frozen_parts_stay_until_their_step(tmp_path: Path) -> None:
    trainer = trainer_of(freeze=("encoder", "normalizer"), freeze_until=100)
    batch, before = random_batch(trainer.model), copied(trainer.model)

    trainer.freezer.at(99)
    trainer.train(batch)

    moved = changed(trainer.model, before)
    assert moved
    assert not any(name.startswith(("tower.encoder", "obs_normalizer")) for name in moved)
    trainer.freezer.at(100)
    trainer.train(batch)
    assert {"tower.encoder.layers.0.weight", "obs_normalizer.normalizers.0.mean"} <= changed(trainer.model, before)


def test_a_policy_that_does_not_learn_warns_where_its_weights_come_from_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = LoneLearner(tmp_path / "first")
    first.learning.checkpointer.save_first()
    assert "plays with the weights it was made with" in caplog.text
    caplog.clear()

    second = LoneLearner(tmp_path / "second", init_from=str(tmp_path / "first"))
    second.learning.checkpointer.save_first()

    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    theirs, own = first.saved(), second.saved()
    assert theirs is not None
    assert own is not None
    assert_same(dict(own["model"]), dict(theirs["model"]))


def test_a_policy_that_does_not_learn_and_has_no_best_checkpoint_loads_its_latest(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"num_policies": 2, "train_policies": (1,)}
    first = LoneLearner(tmp_path, **flags)
    first.learning.trainer.model.value_head.linear.bias.data.fill_(7.0)
    first.learning.checkpointer.save_first()
    (before,) = (tmp_path / "checkpoint_p0").glob("*.pth")

    frozen = LoneLearner(tmp_path, **flags, load_checkpoint_kind="best")
    frozen.learning.checkpointer.save_first()
    frozen.shared.status.row("sf-learner-1").add("datasets", 1)

    assert frozen.learning.trainer.model.value_head.linear.bias.tolist() == [7.0]
    assert not frozen.learning.checkpointer.choice_is_due
    frozen.learning.finish(save=True)
    assert list((tmp_path / "checkpoint_p0").glob("*.pth")) == [before]


@pytest.mark.parametrize("learns", [False, True])
def test_a_policy_that_went_back_is_saved_once_others_have_learned_and_before_it_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learns: bool
) -> None:
    first = LoneLearner(tmp_path)
    first.learning.checkpointer.save()
    older = first.saved()
    assert older is not None
    first.learn()
    first.learning.finish(save=True)
    CheckpointDir(tmp_path / "checkpoint_p0", 2).save_best(older, 0, 0, metric=0.0)
    policies: dict[str, Any] = {"num_policies": 2, "train_policies": () if learns else (1,)}
    back = LoneLearner(tmp_path, **policies, load_checkpoint_kind="best")
    worker, control = LearnerWorker(back.setup, back.learning, back.row), back.shared.control
    monkeypatch.setattr(worker, "discard", lambda _: control.order_stop(Stop.SAVE))

    back.learning.execute_command()
    before = back.saved()
    back.shared.status.row("sf-learner-1").add("datasets", 1)
    if learns:
        back.learning.open(back.area)
    else:
        worker.drain()

    after = back.saved()
    assert before is not None
    assert after is not None
    assert (before["train_step"] > 0, after["train_step"]) == (True, 0)
    assert_same(dict(after["model"]), dict(older["model"]))


@pytest.mark.parametrize(
    ("frozen", "network", "expected"),
    [
        ((), {}, False),
        (("policy",), {}, False),
        (("encoder", "value"), {}, False),
        (("encoder", "policy"), {}, True),
        (("encoder", "policy"), {"use_rnn": True}, False),
        (("encoder", "core", "policy"), {"use_rnn": True}, True),
        (("encoder", "policy"), {"decoder_mlp_layers": (8,), "actor_critic_share_weights": False}, False),
        (("encoder", "decoder", "policy"), {"decoder_mlp_layers": (8,), "actor_critic_share_weights": False}, True),
    ],
)
def test_a_policy_is_kept_where_all_that_its_actions_depend_on_is_frozen(
    frozen: tuple[str, ...], network: dict[str, Any], expected: bool
) -> None:
    freezer = Freezer(model_of(**network), frozen, until=100)

    freezer.at(99)
    assert freezer.keeps_policy is expected
    freezer.at(100)
    assert not freezer.keeps_policy


def test_weights_that_their_own_class_has_frozen_stay_so_when_a_part_is_learned_again() -> None:
    model = model_of()
    kept, *others = model.tower.encoder.parameters()
    kept.requires_grad_(False)
    freezer = Freezer(model, ("encoder",), until=100)

    learned = []
    for env_steps in (0, 100):
        freezer.at(env_steps)
        learned.append((kept.requires_grad, {other.requires_grad for other in others}))

    assert learned == [(False, {False}), (False, {True})]
