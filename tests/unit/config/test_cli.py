"""The command line says exactly what was wrong, all at once, and knows where every value came from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sfactory.config.flags import all_flags
from sfactory.config.saved_config import write_config
from tests.support.command_line import PLAIN_ENV, read, refused


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def saved_run(*argv: str, experiment: str = "old") -> None:
    resolved = read(*argv, f"--experiment={experiment}")
    run_dir = Path("train_dir") / experiment
    run_dir.mkdir(parents=True)
    write_config(run_dir, resolved.config, resolved.sources)


def test_both_forms_and_both_spellings_are_read() -> None:
    config = read("--env", "Taxi-v4", "--num-workers=3", "--num_envs_per_worker", "8", "--learning-rate", "2e-3").config

    assert config.run.env == "Taxi-v4"
    assert config.sampling.num_workers == 3
    assert config.sampling.num_envs_per_worker == 8
    assert config.optim.learning_rate == 2e-3


@pytest.mark.parametrize(
    ("argv", "layers"),
    [
        (["--encoder_mlp_layers", "64", "32"], (64, 32)),
        (["--encoder_mlp_layers=64"], (64,)),
        (["--encoder_mlp_layers=64 32"], (64, 32)),
        (["--encoder_mlp_layers="], ()),
        (["--encoder_mlp_layers", "64", "--gamma=0.9"], (64,)),
    ],
)
def test_lists_are_separated_by_spaces_and_may_be_empty(argv: list[str], layers: tuple[int, ...]) -> None:
    assert read(PLAIN_ENV, *argv).config.model.encoder_mlp_layers == layers


@pytest.mark.parametrize(
    ("text", "value"), [("5e5", 500_000), ("1_000_000", 1_000_000), ("12.0", 12), ("9007199254740993", 2**53 + 1)]
)
def test_whole_numbers_may_be_written_in_any_exact_form(text: str, value: int) -> None:
    assert read(PLAIN_ENV, f"--train_for_env_steps={text}").config.run.train_for_env_steps == value


def test_booleans_json_and_none_are_read() -> None:
    config = read(
        PLAIN_ENV, "--with_vtrace=fALSE", '--env_kwargs={"a": [1, 2.5], "b": {"c": null}}', "--seed", "none"
    ).config

    assert config.algo.with_vtrace is False
    assert config.run.env_kwargs == {"a": [1, 2.5], "b": {"c": None}}
    assert config.run.seed is None
    assert read(PLAIN_ENV, "--seed=7").config.run.seed == 7


@pytest.mark.parametrize(
    ("argv", "flag", "advice"),
    [
        (["--num_workers=abc"], "--num_workers=abc", "whole number"),
        (["--num_workers=1.5"], "--num_workers=1.5", "whole number"),
        (["--num_workers=inf"], "--num_workers=inf", "finite"),
        (["--rollout=1e999999999"], "--rollout", "2^63"),
        (["--gamma="], "--gamma=", "--gamma=0.99"),
        (["--with_vtrace=1"], "--with_vtrace=1", "True or False"),
        (["--benchmark"], "--benchmark", "--benchmark=True or --benchmark=False"),
        (["--benchmark", "--seed=1"], "--benchmark", "--benchmark=True"),
        (["--gamma"], "--gamma", "--gamma=0.99"),
        (["--encoder_mlp_layers"], "--encoder_mlp_layers", "--encoder_mlp_layers="),
        (["--encoder_mlp_layers", "64", "x"], "--encoder_mlp_layers", "--encoder_mlp_layers 512 512"),
        (["--encoder_mlp_layers=64", "32"], "'32'", "--encoder_mlp_layers 64 32"),
        (["--inference=remote"], "--inference=remote", "central, local, auto"),
        (["--env_kwargs=[1]"], "--env_kwargs=[1]", "JSON object"),
        (['--env_kwargs={"a": NaN}'], "--env_kwargs", "JSON object"),
        (['--env_kwargs={"a": 1, "a": 2}'], "--env_kwargs", "stands twice"),
        (["--rolout=3"], "--rolout", "did you mean --rollout?"),
        (["--roll", "3"], "--roll", "did you mean --rollout?"),
        (["--save_best=3"], "--save_best", "--save_best_after or --save_best_every_sec"),
        (["--no_benchmark"], "--no_benchmark", "--benchmark=False"),
        (["--xyzzy=3"], "--xyzzy", "--help"),
        (["--gamma=0.9", "--gamma", "0.8"], "--gamma", "0.9, then 0.8"),
        (["train"], "'train'", "--name=value"),
        (["-gamma=0.9"], "-gamma=0.9", "--gamma=0.9"),
        (["--"], "'--'", "--name=value"),
        (["--config"], "--config", "--config=flags.yaml"),
    ],
)
def test_what_cannot_be_read_is_refused_with_advice(argv: list[str], flag: str, advice: str) -> None:
    problems = refused(PLAIN_ENV, *argv)

    assert len(problems) == 1
    assert problems[0].startswith(flag)
    assert advice in problems[0]


def test_negative_numbers_are_values_and_not_flags() -> None:
    assert read(PLAIN_ENV, "--default_niceness", "-5").config.sampling.default_niceness == -5
    assert refused(PLAIN_ENV, "--seed", "-1") == ["--seed=-1: must be at least 0"]


def test_all_problems_are_reported_at_once() -> None:
    problems = refused(
        "--env=CartPol-v1", "--gamma=1.5", "--rolout=3", "--num_workers=x", "--batch_size=1000", "--config=no.yaml"
    )

    assert {line.split(":")[0].split("=")[0] for line in problems} == {
        "--env",
        "--gamma",
        "--rolout",
        "--num_workers",
        "--batch_size",
        "--config",
    }


def test_no_rule_complains_of_a_value_that_could_not_be_read() -> None:
    problems = refused(PLAIN_ENV, "--rollout=abc", "--batch_size=999")

    assert len(problems) == 1
    assert problems[0].startswith("--rollout=abc")


def test_a_value_with_an_equals_sign_is_kept_whole() -> None:
    assert read(PLAIN_ENV, "--train_dir=a=b").config.run.train_dir == "a=b"


def test_control_characters_cannot_break_an_error_line() -> None:
    problems = refused(PLAIN_ENV, "--gamma=a\nb" + "x" * 500)

    assert "\n" not in problems[0]
    assert "a\\nb" in problems[0]
    assert len(problems[0]) < 300


def test_sources_name_the_layer_of_every_value() -> None:
    Path("flags.yaml").write_text("gamma: 0.9\nlearning_rate: 1e-3\nencoder-mlp-layers: [32, 16]\nseed: null\n")

    resolved = read("--env=CartPole-v1", "--config=flags.yaml", "--gamma=0.8")

    assert resolved.config.algo.gamma == 0.8
    assert resolved.config.optim.learning_rate == 1e-3
    assert resolved.config.model.encoder_mlp_layers == (32, 16)
    assert resolved.sources["gamma"] == "command line"
    assert resolved.sources["learning_rate"] == "config file"
    assert resolved.sources["seed"] == "config file"
    assert resolved.sources["nonlinearity"] == "env family classic_control"
    assert resolved.sources["adam_eps"] == "default"
    assert set(resolved.sources) == set(all_flags())


def test_a_config_file_may_choose_the_env_whose_family_sets_defaults() -> None:
    Path("flags.json").write_text(json.dumps({"env": "CartPole-v1"}))

    resolved = read("--config", "flags.json")

    assert resolved.config.model.nonlinearity == "tanh"
    assert resolved.sources["env"] == "config file"


def test_the_config_json_of_a_run_is_a_config_file() -> None:
    saved_run(PLAIN_ENV, "--gamma=0.7")

    resolved = read("--config=train_dir/old/config.json", "--experiment=new")

    assert resolved.config.algo.gamma == 0.7
    assert resolved.config.run.experiment == "new"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.yaml", "gama: 0.9\n", "did you mean gamma?"),
        ("x.yaml", "gamma: [0.9\n", "not valid YAML"),
        ("x.yaml", "- gamma\n", "flat mapping"),
        ("x.yaml", "gamma: 0.9\ngamma: 0.8\n", "stands 2 times"),
        ("x.yaml", "num_workers: 1\nnum-workers: 1\n", "stands twice"),
        ("x.yaml", "algo:\n  gamma: 0.9\n", "is a section"),
        ("x.yaml", "gamma: high\n", "--gamma=high: must be a number"),
        ("x.yaml", "with_vtrace: 1\n", "True or False"),
        ("x.yaml", "experiment: 007\n", "put it in quotes"),
        ("x.yaml", "env_kwargs: {1: 2}\n", "JSON object"),
        ("x.yaml", "env_kwargs: {day: 2020-01-01}\n", "JSON object"),
        ("x.yaml", "gamma: 1.5\n", "this value comes from: config file"),
        ("x.yaml", "gamma: \x00\n", "not valid YAML"),
        ("x.json", '{"gamma": 0.9,}', "not valid JSON"),
        ("x.json", '{"gamma": 0.9, "gamma": 0.8}', "stands twice"),
    ],
)
def test_a_bad_config_file_is_refused_with_advice(name: str, content: str, expected: str) -> None:
    Path(name).write_text(content)

    problems = refused(PLAIN_ENV, f"--config={name}")

    assert len(problems) == 1
    assert expected in problems[0]


def test_a_config_file_that_is_a_directory_or_binary_is_refused() -> None:
    Path("binary.yaml").write_bytes(b"\xff\xfe\x00\x80")

    assert "cannot be read" in refused(PLAIN_ENV, "--config=.")[0]
    assert "not valid YAML" in refused(PLAIN_ENV, "--config=binary.yaml")[0]


def test_a_resumed_run_takes_over_its_saved_values() -> None:
    saved_run("--env=CartPole-v1", "--gamma=0.8", "--learning_rate=0.01")

    resolved = read("--experiment=old", "--learning_rate=0.02")

    assert resolved.config.run.env == "CartPole-v1"
    assert resolved.config.algo.gamma == 0.8
    assert (resolved.sources["gamma"], resolved.sources["rollout"]) == ("given at an earlier start", "saved run")
    assert resolved.config.optim.learning_rate == 0.02
    assert len(resolved.warnings) == 1
    assert "--learning_rate=0.02" in resolved.warnings[0]
    assert "--learning_rate=0.01" in resolved.warnings[0]


def test_changing_what_the_weights_depend_on_is_refused_with_both_values() -> None:
    saved_run("--env=CartPole-v1")

    problems = refused("--experiment=old", "--env=Acrobot-v1", "--encoder_mlp_layers", "32")

    assert len(problems) == 2
    assert "--env=Acrobot-v1" in problems[0]
    assert "--env=CartPole-v1" in problems[0]
    assert "--encoder_mlp_layers 64 64" in problems[1]
    assert all("another --experiment" in line for line in problems)


def test_a_benchmark_resumes_nothing() -> None:
    saved_run("--env=CartPole-v1", "--gamma=0.8")

    resolved = read("--experiment=old", "--benchmark=True", "--env=Acrobot-v1")

    assert resolved.config.algo.gamma == 0.99
    assert "saved run" not in resolved.sources.values()


@pytest.mark.parametrize("behavior", ["restart", "overwrite"])
def test_a_run_that_begins_anew_takes_over_nothing_and_is_bound_to_nothing(behavior: str) -> None:
    saved_run("--env=CartPole-v1", "--gamma=0.8")

    resolved = read("--experiment=old", "--env=Acrobot-v1", f"--restart_behavior={behavior}")

    assert resolved.config.run.restart_behavior == behavior
    assert resolved.config.algo.gamma == 0.99
    assert "saved run" not in resolved.sources.values()
    assert refused("--experiment=old", f"--restart_behavior={behavior}")[0].startswith("--env")


def test_a_damaged_config_json_does_not_stop_a_run_that_begins_anew() -> None:
    run_dir = Path("train_dir") / "old"
    run_dir.mkdir(parents=True)
    (run_dir / "config.json").write_text("{half")

    assert read(PLAIN_ENV, "--experiment=old", "--restart_behavior=restart").warnings == []


def test_a_mistyped_restart_behavior_is_the_one_problem() -> None:
    saved_run("--env=CartPole-v1")

    same_env = refused("--experiment=old", "--restart_behavior=restrat")
    other_env = refused("--experiment=old", "--restart_behavior=restrat", "--env=Acrobot-v1")

    assert [line.split(":")[0] for line in same_env + other_env] == ["--restart_behavior=restrat"] * 2


def test_how_the_last_start_began_is_not_how_the_next_one_does() -> None:
    saved_run(PLAIN_ENV, "--restart_behavior=overwrite", "--load_checkpoint_kind=milestone")

    for config in (read("--experiment=old").config, read("--config=train_dir/old/config.json").config):
        assert config.run.restart_behavior == "resume"
        assert config.checkpoint.load_checkpoint_kind == "latest"


def tuned_run() -> None:
    """A saved run for which autotune has chosen the number of workers, and the command line that of envs."""
    resolved = read("--env=CartPole-v1", "--experiment=old", "--num_workers=7", "--num_envs_per_worker=6")
    run_dir = Path("train_dir") / "old"
    run_dir.mkdir(parents=True)
    write_config(run_dir, resolved.config, {**resolved.sources, "num_workers": "autotune"})


def test_a_run_that_was_tuned_keeps_that_as_the_source_of_its_settings_however_often_it_is_resumed() -> None:
    tuned_run()

    for _ in range(2):
        resolved = read("--experiment=old", "--autotune=True")

        assert resolved.tuned == {"num_workers": 7}
        assert "num_envs_per_worker" in resolved.given
        assert resolved.config.tuning.autotune
        write_config(Path("train_dir") / "old", resolved.config, resolved.sources)
    assert not read("--experiment=old").config.tuning.autotune


def test_a_benchmark_and_a_run_that_begins_anew_were_never_tuned() -> None:
    tuned_run()

    for more in ("--benchmark=True", "--restart_behavior=restart"):
        assert read("--env=CartPole-v1", "--experiment=old", "--autotune=True", more).tuned == {}


def test_a_flag_is_given_by_the_command_line_or_a_file_now_or_when_the_run_was_started() -> None:
    tuned_run()
    Path("flags.yaml").write_text("rollout: 8\n")

    resolved = read("--experiment=old", "--config=flags.yaml", "--seed=3")
    assert {"rollout", "seed", "num_envs_per_worker", "experiment"} <= resolved.given
    assert not {"num_workers", "batch_size", "gamma"} & resolved.given
    assert resolved.tuned == {"num_workers": 7}
    assert read("--experiment=old", "--num_workers=2").tuned == {}


def test_a_run_that_was_moved_is_resumed_where_it_is_found() -> None:
    saved_run(PLAIN_ENV)
    Path("train_dir").rename("elsewhere")
    (Path("elsewhere") / "old").rename(Path("elsewhere") / "renamed")

    resolved = read("--train_dir=elsewhere", "--experiment=renamed")

    assert resolved.config.run.train_dir == "elsewhere"
    assert resolved.config.run.experiment == "renamed"
    assert resolved.sources["env"] == "given at an earlier start"


def test_a_directory_without_config_json_is_a_fresh_run() -> None:
    (Path("train_dir") / "old").mkdir(parents=True)

    assert "saved run" not in read(PLAIN_ENV, "--experiment=old").sources.values()


def test_a_damaged_config_json_is_one_problem_among_the_others() -> None:
    run_dir = Path("train_dir") / "old"
    run_dir.mkdir(parents=True)
    (run_dir / "config.json").write_text('{"format_version": 1, "config": {')

    problems = refused(PLAIN_ENV, "--experiment=old", "--gamma=2")

    assert len(problems) == 2
    assert "train_dir/old/config.json" in problems[0]
    assert "another --experiment" in problems[0]
    assert problems[1].startswith("--gamma=2.0")


def test_help_lists_every_flag_with_the_defaults_of_the_env(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read("--help", "--env=CartPole-v1", "--nonsense")

    text = capsys.readouterr().out
    assert caught.value.code == 0
    assert text.startswith("usage: python -m sfactory.train")
    assert all(f"--{name} " in text for name in all_flags())
    assert "default tanh, from env family classic_control" in text
    assert "default 0.999" in text
    assert "central|local|auto" in text
    assert max(map(len, text.splitlines())) <= 110


def test_reading_flags_imports_neither_torch_nor_gymnasium() -> None:
    code = (
        "import sys\nfrom sfactory.config.resolve import read_command_line\nimport sfactory.env.factory\n"
        "read_command_line(['--env=CartPole-v1'], prog='p')\n"
        "assert not {'torch', 'gymnasium', 'numpy'} & set(sys.modules)\n"
    )

    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False, timeout=120
    )

    assert done.returncode == 0, done.stderr
