"""A description becomes named command lines of the trainer, or all of its problems are reported."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, cast

import pytest

from sfactory import launcher
from sfactory.errors import ConfigError, ExitCode
from sfactory.launch.jobs import Job, jobs_of
from sfactory.launch.param_search import Choice, ParamGrid, ParamList, RandomSearch, Uniform
from sfactory.launch.run_description import Experiment, RunDescription, description_of, name_of
from sfactory_envs.synthetic.bandit import Bandit

BANDIT = "--env=sfactory_envs.synthetic.bandit:Bandit"
HEAD = "[[experiments]]\nbase_name='a'\ncmd=''\n"
TOML = """
run_name = "search"

[[experiments]]
base_name = "listed"
cmd = ["--env=CartPole-v1"]
list = [{seed = 1}, {encoder_mlp_layers = [16, 16]}]
env_vars = {GREETING = "hello"}

[[experiments]]
base_name = "crossed"
cmd = "--env=CartPole-v1"
[experiments.grid]
seed = [1, 2]
"batch_size, rollout" = [[256, 16], [512, 32]]

[[experiments]]
base_name = "drawn"
cmd = "python -m sfactory.train --env=CartPole-v1"
[experiments.random]
count = 2
seed = 5
[experiments.random.parameters]
gamma = {uniform = [0.9, 0.99]}
learning_rate = {log_uniform = [1e-5, 1e-3]}
num_epochs = {int_uniform = [1, 3]}
rollout = {choice = [16, 32]}

[[experiments]]
base_name = "alone"
cmd = "--env=CartPole-v1"
"""


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def jobs(*experiments: Experiment, suffix: str = "") -> list[Job]:
    return jobs_of(RunDescription("search", list(experiments)), Path("here/search"), suffix)


def problems(*experiments: Experiment) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        jobs(*experiments)
    return caught.value.problems


def test_each_run_is_a_command_line_with_its_own_name() -> None:
    varied = ParamGrid([("seed", [1, 2]), ("encoder_mlp_layers", [[16, 16]])])

    first, second = jobs(
        Experiment("small", f"python -m sfactory.train {BANDIT} --gamma 0.5", varied, {"A": "b"}), suffix="_v2"
    )

    assert [first.name, second.name] == [f"small_seed_{seed}_encoder_mlp_layers_16-16_v2" for seed in (1, 2)]
    words = (BANDIT, "--gamma", "0.5", "--seed=1", "--encoder_mlp_layers", "16", "16")
    assert first.arguments == (*words, "--train_dir=here/search", f"--experiment={first.name}")
    assert first.run_dir == Path("here/search") / first.name
    assert (first.env_vars, first.done) == ({"A": "b"}, False)


def test_name_has_the_settings_or_a_hash_and_does_not_depend_on_other_runs() -> None:
    assert name_of("a", {"gamma": 0.5, "use_rnn": True, "seed": None}) == "a_gamma_0.5_use_rnn_True_seed_None"
    long = name_of("a", {"gamma": 0.5, "env_kwargs": {"x": 1}})
    assert long.startswith("a_gamma_0.5_env_kwargs_-x--1-_")
    assert long != name_of("a", {"gamma": 0.5, "env_kwargs": {"x": -1}})
    assert len(name_of("a" * 90, {"gamma": 0.5, "learning_rate": 0.1})) == 100
    few, many = (jobs(Experiment("a", BANDIT, ParamGrid({"seed": seeds}))) for seeds in ([2], [1, 2, 3]))
    assert few[0] == many[1]


def make(size: int = 5) -> Bandit:
    return Bandit(num_contexts=size)


class Place:
    def __fspath__(self) -> str:
        return "/a"


def test_name_has_no_address_of_a_function_or_object() -> None:
    varied = ParamGrid(
        {"env": [make, functools.partial(make, size=3)], "encoder": [Bandit], "wrapper": [[make]], "pbt_dir": [Place()]}
    )

    names = [run.name for run in Experiment("a", BANDIT, varied).runs()]

    start = "a_env_tests.unit.launch.test_launch_description-make_encoder_sfactory_envs.synthetic.bandit"
    assert names == [f"{start}_de497a66", f"{start}_7f66bbc9"]


def test_texts_with_spaces_and_lists_of_texts_have_different_names() -> None:
    varied = ParamGrid({"obs_keys": [["a b"], ["a", "b"], ["a b", "c"], ["a", "b c"]]})

    names = [run.name for run in Experiment("a", BANDIT, varied).runs()]

    assert names[1] == "a_obs_keys_a-b"
    assert len(set(names)) == 4


def test_run_is_done_if_its_record_has_the_same_arguments() -> None:
    (job,) = jobs(Experiment("a", BANDIT))
    job.run_dir.mkdir(parents=True)
    arguments = list(job.arguments)

    for record, done in [
        ({"status": "done", "argv": arguments}, True),
        ({"status": "interrupted", "argv": arguments}, False),
        ({"status": "done", "argv": [*arguments, "--gamma=0.5"]}, False),
        ([], False),
    ]:
        (job.run_dir / "run.json").write_text(json.dumps(record))
        assert job.done == done


def test_file_with_lists_grids_and_random_searches() -> None:
    Path("search.toml").write_text(TOML)

    description = description_of("search.toml")

    runs = description.runs()
    assert description.run_name == "search"
    assert [run.name for run in runs[:2]] == ["listed_seed_1", "listed_encoder_mlp_layers_16-16"]
    assert runs[0].env_vars == {"GREETING": "hello"}
    assert [run.words[1:] for run in runs[2:6]] == [
        (f"--seed={seed}", f"--batch_size={batch}", f"--rollout={rollout}")
        for seed in (1, 2)
        for batch, rollout in ((256, 16), (512, 32))
    ]
    drawn = RandomSearch({"gamma": Uniform(0.9, 0.99)}, count=2, seed=5).combinations()
    assert [run.words[1] for run in runs[6:8]] == [f"--gamma={values['gamma']}" for values in drawn]
    assert runs[8] == ("alone", ("--env=CartPole-v1",), {})
    assert len(jobs_of(description, Path("train_dir"), "")) == 9


def test_module_with_an_object_or_a_function() -> None:
    text = "from sfactory.launch.run_description import Experiment, RunDescription\n"
    text += f"RUN_DESCRIPTION = RunDescription('one', [Experiment('a', {BANDIT!r})])\n"
    text += "def make():\n    return RUN_DESCRIPTION\ndef fail():\n    raise OSError('no disk')\n"
    Path("my_runs_of_a_test.py").write_text(text)

    assert description_of("my_runs_of_a_test") == description_of("my_runs_of_a_test:make")
    for name, words in [
        ("fail", "raised OSError: no disk"),
        ("text", "has no 'text'"),
        ("__name__", "it is a builtins.str"),
    ]:
        with pytest.raises(ConfigError, match=words):
            description_of(f"my_runs_of_a_test:{name}")


def test_problems_of_all_runs_are_reported_at_once_with_their_names() -> None:
    found = problems(
        Experiment("a", f"{BANDIT} --gama=1"),
        Experiment("b", BANDIT, ParamGrid({"gamma": [0.5, 2.0, 3.0], "seed": [1, 2]})),
        Experiment("c", f"{BANDIT} --experiment=x --train-dir y --help"),
        Experiment("d", f"{BANDIT} --benchmark=True"),
        Experiment("e", f"{BANDIT} --restart_behavior=restart --load_checkpoint_kind=best"),
        Experiment("f", "--env=Nothing"),
        Experiment("g", BANDIT, ParamList([{"obs_keys": ["a\0b"]}])),
    )

    expected = [
        "a: --gama",
        "b_gamma_2.0_seed_1, b_gamma_2.0_seed_2: --gamma=2.0",
        "b_gamma_3.0_seed_1, b_gamma_3.0_seed_2: --gamma=3.0",
        "c: --experiment",
        "c: --train_dir",
        "c: --help",
        "d: --benchmark=True",
        "e: --restart_behavior=restart",
        "e: --load_checkpoint_kind=best",
        "f: --env=Nothing",
        "g_obs_keys_a-b_0d2dbe84: a value has the character",
    ]
    assert len(found) == len(expected)
    assert all(problem.startswith(start) for problem, start in zip(found, expected, strict=True)), found


def test_run_with_the_name_of_a_file_beside_it_is_refused() -> None:
    names = ["a", "a.log", "launch.json", "config.json", "slurm"]

    (found,) = problems(*(Experiment(name, BANDIT) for name in names))

    assert found.startswith("a.log, launch.json, config.json and 1 more: files beside the runs have such names")
    with pytest.raises(ConfigError, match=r"launch\.json: files beside"):
        jobs(Experiment("launch", BANDIT), suffix=".json")


def test_invalid_experiments_are_refused_at_once_with_their_names() -> None:
    invalid: list[tuple[Any, str]] = [
        (Experiment("a b", BANDIT), "experiment 'a b': its name"),
        (Experiment("a", "python train.py --env=x"), "cmd: 'python': must be flags of sfactory.train"),
        (Experiment("a", "--env='x"), "cmd: No closing quotation"),
        (Experiment("a", BANDIT, env_vars={"1A": "x"}), "env_vars: '1A'='x'"),
        (Experiment("a", BANDIT, cast(Any, [{"seed": 1}])), "param_generator: [{'seed': 1}] must be"),
        (Experiment("a", BANDIT, ParamList([{"seed": object()}])), "--seed: a object cannot be given"),
        (Experiment("a", BANDIT, RandomSearch({"n": Choice([])}, 1)), "n: has no values"),
        ("no experiment", "is not an Experiment"),
    ]
    same = [Experiment("b", BANDIT), Experiment("b", BANDIT)]

    found = problems(*(experiment for experiment, _ in invalid), *same)

    for problem, words in zip(found, [*(words for _, words in invalid), "b: several runs have this name"], strict=True):
        assert words in problem


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run_name = ", "is not valid TOML"),
        ("experiments = 3", "experiments: must be tables"),
        ("colour = 'x'\n[[experiments]]\nbase_name='a'\ncmd=''", "'colour' is unknown; there are run_name"),
        ("[[experiments]]\nbase_nam = 'a'\ncmd=''", "'base_nam' is unknown; did you mean base_name?"),
        ("[[experiments]]\nbase_name = 'a'", "experiment 'a': needs cmd"),
        (f"{HEAD}list=[]\ngrid={{}}", "has list and grid; give one of them"),
        (f"{HEAD}grid=[]", "grid must be a table of flags"),
        (f"{HEAD}random={{count=1}}", "random must be a table with count"),
        (f"{HEAD}random={{count=1, parameters={{gamma={{normal=[0, 1]}}}}}}", "random, gamma: must be one of {uniform"),
    ],
)
def test_invalid_file_is_refused(text: str, words: str) -> None:
    Path("bad.toml").write_text(text)

    with pytest.raises(ConfigError) as caught:
        description_of("bad.toml")

    assert any(words in problem for problem in caught.value.problems), caught.value.problems


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "--run=:"),
        (["--run=no_such_module:RUNS"], "module 'no_such_module' cannot be imported"),
        (["--run=bad.toml"], "error: a: --gama"),
        (["--run=absent.toml"], "--run=absent.toml cannot be read: No such file"),
        (["--run=x:Y", "--max_parallel=0"], "--max_parallel=0:"),
        (["--run=x:Y", "--num_gpus=2"], "--num_gpus=2:"),
        (["--run=x:Y", "--num_gpus=1000000000", "--experiments_per_gpu=1"], "--num_gpus=1000000000:"),
        (["--run=x:Y", "--backend=slurm", "--max_parallel=2"], "--max_parallel=2:"),
        (["--run=x:Y", "--backend=slurm", "--num_gpus=2"], "--num_gpus=2: has no effect with --backend=slurm"),
        (["--run=x:Y", "--experiment_suffix=/.."], "--experiment_suffix=/..:"),
        (["--run=bad.toml", f"--experiment_suffix={'x' * 51}"], "--experiment_suffix=xxx"),
        (["--run=x:Y", "--backend=ngc"], "--backend=ngc:"),
        (["--run=x:Y", "--train_dir="], "--train_dir=:"),
    ],
)
def test_invalid_command_line_is_refused_before_anything_starts(
    argv: list[str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("bad.toml").write_text(f"[[experiments]]\nbase_name='a'\ncmd='{BANDIT} --gama=1'\n")

    code = launcher.main(argv)

    captured = capfd.readouterr()
    errors = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert (code, captured.out) == (ExitCode.REFUSED, "")
    assert len(errors) == 1
    assert words in errors[0]
    assert [path.name for path in Path().iterdir()] == ["bad.toml"]
