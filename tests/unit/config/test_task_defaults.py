"""The kind of task decides on defaults, where neither the user nor an env family does, and nothing clashes."""

from __future__ import annotations

import dataclasses

import pytest

from sfactory.config.flags import values_of
from sfactory.config.resolve import DEFAULT, read_command_line
from sfactory.config.task_defaults import (
    TASK_DEFAULTS,
    Kind,
    depends_on_step_time,
    wants_task_defaults,
    with_task_defaults,
)

ENV = "--env=sfactory_envs.synthetic.bandit:Bandit"
TWO_ACTORS = "--num_workers=2"


@pytest.mark.parametrize("kind", TASK_DEFAULTS)
def test_flags_that_were_not_set_get_the_defaults_of_the_kind(kind: Kind) -> None:
    resolved = with_task_defaults(read_command_line([ENV, TWO_ACTORS, "--num_epochs=7"]), kind, None)

    expected = {**TASK_DEFAULTS[kind], "num_epochs": 7}
    values = values_of(resolved.config)
    assert {name: values[name] for name in expected} == expected
    assert resolved.sources["num_epochs"] == "command line"
    assert {resolved.sources[name] for name in TASK_DEFAULTS[kind].keys() - {"num_epochs"}} == {f"task: {kind}"}


@pytest.mark.parametrize(
    ("words", "left_out"), [(["--rollout=48"], "batch_size"), (["--worker_num_splits=3"], "num_envs_per_worker")]
)
def test_a_default_that_clashes_with_what_was_set_is_left_out(words: list[str], left_out: str) -> None:
    # The schema's own default clashes with it, too.
    own = {"batch_size": "--batch_size=48", "num_envs_per_worker": "--num_envs_per_worker=3"}
    resolved = read_command_line([ENV, *words, own[left_out]])
    sources = {**resolved.sources, left_out: DEFAULT}

    resolved = with_task_defaults(dataclasses.replace(resolved, sources=sources), "vector", None)

    assert resolved.sources[left_out] == DEFAULT
    assert resolved.sources["learning_rate"] == "task: vector"


@pytest.mark.parametrize(("actors", "batch_size"), [(1, 256), (2, 256), (3, 512), (16, 2048), (64, 2048)])
def test_a_dataset_is_a_round_of_all_actors(actors: int, batch_size: int) -> None:
    resolved = with_task_defaults(read_command_line([ENV, f"--num_workers={actors}"]), "vector", None)

    assert resolved.config.learner.batch_size == batch_size


def test_slow_envs_are_not_multiplied() -> None:
    assert depends_on_step_time(read_command_line([ENV]))
    assert not depends_on_step_time(read_command_line([ENV, "--num_envs_per_worker=4"]))
    resolved = with_task_defaults(read_command_line([ENV]), "vector", 20_000.0)

    assert resolved.config.sampling.num_envs_per_worker == 2
    assert resolved.sources["learning_rate"] == "task: vector"


@pytest.mark.parametrize(("words", "envs"), [([], 32), (["--inference=local"], 16), (["--num_envs_per_worker=8"], 8)])
def test_a_gpu_that_chooses_actions_gets_more_envs(words: list[str], envs: int) -> None:
    resolved = with_task_defaults(read_command_line([ENV, *words]), "vector", 10.0, on_gpu=True)

    assert resolved.config.sampling.num_envs_per_worker == envs


@pytest.mark.parametrize(
    ("words", "wanted"), [([ENV], True), ([ENV, "--task_defaults=False"], False), (["--env=CartPole-v1"], False)]
)
def test_families_and_the_flag_decide_first(words: list[str], wanted: bool) -> None:
    assert wants_task_defaults(read_command_line(words)) is wanted
