"""The kind of task decides on defaults, where neither the user nor an env family does, and nothing clashes."""

from __future__ import annotations

import pytest

from sfactory.config.flags import values_of
from sfactory.config.hyperparameters import hyperparameters
from sfactory.config.resolve import DEFAULT, read_command_line
from sfactory.config.schema import Kind
from sfactory.config.task_defaults import (
    TASK_DEFAULTS,
    depends_on_step_time,
    with_gpu_defaults,
    with_task_defaults,
)
from sfactory.config.validation import check
from sfactory.layout import Layout

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


def test_defaults_that_clash_with_what_was_set_are_left_out() -> None:
    resolved = with_task_defaults(read_command_line([ENV, TWO_ACTORS, "--microbatch_size=512"]), "vector", None)

    assert {resolved.sources[name] for name in ("batch_size", "rollout", "with_vtrace")} == {DEFAULT}
    assert resolved.sources["learning_rate"] == "task: vector"
    assert check(resolved.config) == []


@pytest.mark.parametrize(
    ("words", "name", "fitted"),
    [
        ("--num_workers=2 --rollout=48", "batch_size", 240),
        ("--num_workers=2 --worker_num_splits=3", "num_envs_per_worker", 18),
        ("--num_workers=2 --num_envs_per_worker=5", "worker_num_splits", 1),
        ("--async_rl=False --num_workers=3", "batch_size", 384),  # 8 of them are a round of 3 x 16 envs x 64 steps
    ],
)
def test_defaults_of_sizes_fit_what_was_set(words: str, name: str, fitted: int) -> None:
    resolved = with_task_defaults(read_command_line([ENV, *words.split()]), "vector", None)

    assert values_of(resolved.config)[name] == fitted
    assert resolved.sources["rollout"] in ("task: vector", "command line")
    assert check(resolved.config) == []


@pytest.mark.parametrize(
    ("actors", "agents", "policies", "batch_size"),
    [
        *((1, 1, 1, 256), (2, 1, 1, 256), (3, 1, 1, 384), (5, 1, 1, 640), (16, 1, 1, 2048), (64, 1, 1, 2048)),
        *((2, 2, 1, 512), (2, 3, 1, 768), (4, 3, 1, 1536), (2, 8, 1, 2048), (2, 20, 1, 1920), (1, 2, 1, 256)),
        *((2, 3, 3, 256), (4, 6, 3, 1024), (16, 1, 4, 512), (24, 1, 1, 1920)),
    ],
)
def test_a_dataset_is_a_round_of_all_actors_and_agents_of_a_policy(
    actors: int, agents: int, policies: int, batch_size: int
) -> None:
    command = read_command_line([ENV, f"--num_workers={actors}", f"--num_policies={policies}"])
    resolved = with_task_defaults(command, "vector", None, agents=agents)

    assert resolved.config.learner.batch_size == batch_size
    sampling, learner = resolved.config.sampling, resolved.config.learner
    of_policy = actors * sampling.num_envs_per_worker * sampling.rollout * agents / policies
    assert of_policy == learner.batch_size * learner.num_batches_per_epoch or batch_size == 256
    assert check(resolved.config) == []


@pytest.mark.parametrize(("policies", "agents", "waits"), [(4, 1, True), (6, 1, False), (4, 2, False)])
def test_collection_waits_by_default_where_all_policies_get_splits(policies: int, agents: int, waits: bool) -> None:
    command = read_command_line([ENV, TWO_ACTORS, f"--num_policies={policies}"])
    resolved = with_task_defaults(command, "vector", None, agents=agents)

    assert (resolved.config.learner.num_batches_to_accumulate == 0) is waits
    assert resolved.config.sampling.num_envs_per_worker == 16


@pytest.mark.parametrize(
    ("flags", "waits"),
    [
        *(([], True), (["--batch_size=4096"], True), (["--rollout=16", "--batch_size=2048"], True)),
        *((["--batch_size=3072"], False), (["--num_batches_to_accumulate=2"], False)),
    ],
    ids=str,
)
def test_actors_of_a_sampler_wait_by_default_where_a_batch_has_whole_rounds(flags: list[str], waits: bool) -> None:
    command = read_command_line([ENV, TWO_ACTORS, "--num_batches_per_epoch=1", *flags])  # as sfactory.sampler does
    config = with_task_defaults(command, "vector", None).config

    assert Layout.plan(config.sampling, config.learner, "local").all_wait is waits


def test_defaults_leave_what_the_user_has_mutated_its_effect() -> None:
    wish = ["--with_pbt=True", "--num_policies=4", "--pbt_hyperparameters", '{"vtrace_rho": {}}']
    config = with_task_defaults(read_command_line([ENV, *wish]), "vector", None).config

    assert "vtrace_rho" in [each.name for each in hyperparameters(config)]
    assert config.learner.num_epochs == 6


def test_slow_envs_are_not_multiplied() -> None:
    assert depends_on_step_time(read_command_line([ENV]))
    assert not depends_on_step_time(read_command_line([ENV, "--num_envs_per_worker=4"]))
    resolved = with_task_defaults(read_command_line([ENV, TWO_ACTORS]), "vector", 20_000.0)

    assert resolved.config.sampling.num_envs_per_worker == 2
    assert resolved.sources["learning_rate"] == "task: vector"


@pytest.mark.parametrize(("words", "envs"), [([], 32), (["--inference=local"], 16), (["--num_envs_per_worker=8"], 8)])
def test_a_gpu_that_chooses_actions_gets_more_envs(words: list[str], envs: int) -> None:
    resolved = with_task_defaults(read_command_line([ENV, TWO_ACTORS, *words]), "vector", 10.0, on_gpu=True)

    assert resolved.config.sampling.num_envs_per_worker == envs


@pytest.mark.parametrize(("kind", "batch_size"), [("images", 4096), ("vector", 2048)])
def test_images_on_a_gpu_are_learned_from_in_larger_minibatches(kind: Kind, batch_size: int) -> None:
    resolved = with_task_defaults(read_command_line([ENV, "--num_workers=16"]), kind, 10.0, on_gpu=True)

    assert resolved.config.learner.batch_size == batch_size
    command = read_command_line([ENV, TWO_ACTORS, "--worker_num_splits=5"])
    whole = with_task_defaults(command, kind, 10.0, on_gpu=True)
    assert whole.config.sampling.num_envs_per_worker == 40  # 8 in each request


PONG, HOOK = "--env=atari_pong", "--after_train_step=my_module:my_hook"


@pytest.mark.parametrize(
    ("words", "kind", "graphs", "amp"),
    [
        ([ENV], "images", True, "auto"),
        ([ENV], "vector", True, "off"),
        ([ENV, "--cuda_graphs=False", "--amp=off"], "images", False, "off"),
        ([ENV, "--amp=fp16"], "images", True, "fp16"),
        ([ENV, "--task_defaults=False"], "images", False, "off"),
        ([PONG], "images", True, "off"),
        ([PONG, "--serial_mode=True"], "images", False, "off"),
        ([PONG, HOOK], "images", False, "off"),
        ([PONG, "--optimizer=rmsprop"], "images", False, "off"),
        ([PONG, "--use_cpc=True", "--use_rnn=True"], "images", False, "off"),
        ([ENV, "--encoder=my_module:Encoder"], "images", False, "auto"),
    ],
    ids=str,
)
def test_a_gpu_gets_graphs_where_updates_can_be_recorded_and_short_formats_where_no_family_decides(
    words: list[str], kind: Kind, graphs: bool, amp: str
) -> None:
    before = read_command_line(words)
    resolved = with_gpu_defaults(before, kind)

    assert (resolved.config.model.cuda_graphs, resolved.config.model.amp) == (graphs, amp)
    changed = {name for name, value in values_of(resolved.config).items() if value != values_of(before.config)[name]}
    assert changed == {name for name, source in resolved.sources.items() if source == "gpu"}
    assert changed <= {"cuda_graphs", "amp"}
    assert check(resolved.config) == []


@pytest.mark.parametrize(
    ("words", "wanted"), [([ENV], True), ([ENV, "--task_defaults=False"], False), (["--env=CartPole-v1"], False)]
)
def test_families_and_the_flag_decide_first(words: list[str], wanted: bool) -> None:
    assert read_command_line(words).awaits_kind is wanted
