"""The command line is read, all its problems are reported at once, and the source of every value is known."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml

from sfactory.config.argv import CONFIG, scan, words_of
from sfactory.config.commands import (
    evaluate_flags,
    export_flags,
    match_flags,
    page_flags,
    plot_flags,
    read_check_line,
    read_evaluate_line,
)
from sfactory.config.config_file import read_config_file
from sfactory.config.enjoy import enjoy_flags, read_enjoy_line
from sfactory.config.flags import Flag, all_flags, coerce, config_of, did_you_mean, values_of
from sfactory.config.help_text import ESSENTIAL
from sfactory.config.import_strings import find_object, objects_of_program
from sfactory.config.launcher import launcher_flags, remote_flags
from sfactory.config.resolve import Resolved, fitted_to_agents, with_critic_group
from sfactory.config.saved_config import config_json, read_config, write_config
from sfactory.config.task_defaults import with_task_defaults
from sfactory.errors import ConfigError
from sfactory.experiment.saved_policy import require_same_env
from sfactory.system.cores import Cores
from tests.support.command_line import PLAIN_ENV, read, refused
from tests.support.networks import Attention
from tests.support.source import ROOT

RUN_DIR = Path("train_dir/old")


def make(**kwargs: object) -> None:
    """An env would be made of ``kwargs``."""


class Outer:
    class Inner:
        pass


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def save_run(*argv: str, **sources: str) -> Resolved:
    """Leaves a run called old that was started with ``argv``; ``sources`` replaces recorded sources of flags."""
    resolved = read(*argv, "--experiment=old")
    RUN_DIR.mkdir(parents=True)
    write_config(RUN_DIR, resolved.config, {**resolved.sources, **sources})
    return resolved


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--num-workers=3"], "num_workers", 3),
        (["--encoder_mlp_layers", "64", "32"], "encoder_mlp_layers", (64, 32)),
        (["--encoder_mlp_layers=64 32"], "encoder_mlp_layers", (64, 32)),
        (["--encoder_mlp_layers="], "encoder_mlp_layers", ()),
        (["--encoder_mlp_layers", "64", "--gamma=0.9"], "encoder_mlp_layers", (64,)),
        (["--train_for_env_steps=5e5"], "train_for_env_steps", 500_000),
        (["--train_for_env_steps=1_000_000"], "train_for_env_steps", 1_000_000),
        (["--train_for_env_steps=12.0"], "train_for_env_steps", 12),
        (["--train_for_env_steps=9007199254740993"], "train_for_env_steps", 2**53 + 1),
        (["--train_for_env_steps=2.5M"], "train_for_env_steps", 2_500_000),
        (["--train_for_env_steps", "10k"], "train_for_env_steps", 10_000),
        (["--train_for_frames=1b"], "train_for_frames", 10**9),
        (["--with_vtrace=fALSE"], "with_vtrace", False),
        (["--use_rnn"], "use_rnn", True),
        (["--use-rnn", "--seed=1"], "use_rnn", True),
        (["--device=cuda"], "device", "cuda"),
        (["--device=cuda:3"], "device", "cuda:3"),
        (['--env_kwargs={"a": [1, 2.5], "b": {"c": null}}'], "env_kwargs", {"a": [1, 2.5], "b": {"c": None}}),
        (["--seed", "none"], "seed", None),
        (["--vtrace_rho=NONE"], "vtrace_rho", None),
        (["--init_from=None"], "init_from", ""),
        (["--obs_keys", "none"], "obs_keys", ()),
        (["--env_kwargs=None"], "env_kwargs", {}),
        (["--exploration_loss=None", "--exploration_loss_coeff=0"], "exploration_loss", "none"),
        (["--default_niceness", "-5"], "default_niceness", -5),
        (["--train_dir=a=b"], "train_dir", "a=b"),
        (["--encoder_mlp_layers=[64, 32]"], "encoder_mlp_layers", (64, 32)),
        (["--obs_keys", '["a b",', '"c"]'], "obs_keys", ("a b", "c")),
        (["--obs_keys", "[a", "b]"], "obs_keys", ("[a", "b]")),
    ],
)
def test_words_become_values(argv: list[str], name: str, value: object) -> None:
    assert values_of(read(PLAIN_ENV, *argv).config)[name] == value


def test_values_become_words_that_mean_the_same() -> None:
    same = {"env_kwargs": {"size": 9, "name": "a b"}, "encoder_mlp_layers": (), "use_rnn": True, "seed": None}
    other = {"decoder_mlp_layers": [9], "gamma": np.float64(0.5), "num-epochs": np.int64(2), "train_dir": Path("/a b")}

    line = scan(words_of({**same, **other}), all_flags())

    assert line.problems == []
    assert line.values == {**same, "decoder_mlp_layers": (9,), "gamma": 0.5, "num_epochs": 2, "train_dir": "/a b"}


def test_on_and_off_are_words_of_a_choice_where_yaml_and_programs_have_booleans() -> None:
    Path("flags.yaml").write_text("amp: off\nmodel: my_models:Net\ninfo_action_mask: on\n")
    file = read_config_file("flags.yaml")
    words = scan(words_of({"amp": False, "info_action_mask": False}), all_flags())

    assert (file.problems, words.problems) == ([], [])
    assert (file.values["amp"], file.values["info_action_mask"]) == ("off", "on")
    assert words.values == {"amp": "off", "info_action_mask": "off"}
    Path("flags.yaml").write_text("amp: on\nnonlinearity: off\n")
    assert [line.partition(" (")[0] for line in read_config_file("flags.yaml").problems] == [
        "--amp=True: must be one of off, bf16, fp16, auto",
        "--nonlinearity=False: must be one of elu, relu, tanh",
    ]


def test_none_of_a_program_or_a_file_is_never_text_and_prints_as_what_it_is() -> None:
    none = dict.fromkeys(("experiment", "init_from", "obs_keys", "env_kwargs", "exploration_loss", "seed", "vtrace_c"))
    Path("flags.yaml").write_text(yaml.dump(none))

    by_words = scan(words_of(none), all_flags()).values
    by_file = read_config_file("flags.yaml")
    Path("printed.json").write_text(config_json(config_of(by_words), {}))
    printed = read_config_file("printed.json").values

    meant = {"experiment": "", "init_from": "", "obs_keys": (), "env_kwargs": {}, "exploration_loss": "none"}
    assert by_words == {**meant, "seed": None, "vtrace_c": None}
    assert by_file.problems == []
    assert by_file.values == by_words
    assert {name: printed[name] for name in by_words} == by_words


WORDS = [
    "a",
    "a b",
    "",
    "--x",
    "-h",
    "-1",
    "[1]",
    '["a"]',
    "[",
    "a=b",
    "=",
    "q\"u'o",
    "True",
    "\u2028",
    "\n",
    "é",
]


def test_any_text_reaches_its_flag_alone_or_in_a_list() -> None:
    for text in WORDS:
        given: dict[str, object] = {"obs_keys": (text,), "wrapper": (text, "z"), "freeze": ("z", text), "pbt_dir": text}

        line = scan(words_of(given), all_flags())

        assert (line.problems, line.values, line.help) == ([], given, None), text

    assert scan(words_of({"obs_keys": ["None"]}), all_flags()).values == {"obs_keys": ("None",)}


def test_lists_and_numbers_of_numpy_become_those_of_python() -> None:
    line = scan(
        words_of({"obs_resize": np.array([64, 32]), "use_rnn": np.True_, "obs_keys": [np.str_("a b")]}), all_flags()
    )

    assert line.values == {"obs_resize": (64, 32), "use_rnn": True, "obs_keys": ("a b",)}


class Place:
    def __fspath__(self) -> str:
        return "/a b"


def test_a_path_of_any_class_becomes_its_text() -> None:
    line = scan(words_of({"train_dir": Place(), "obs_keys": [Place()]}), all_flags())

    assert line.values == {"train_dir": "/a b", "obs_keys": ("/a b",)}


def test_none_is_refused_for_a_flag_that_has_no_such_value() -> None:
    for name in ("gamma", "use_rnn", "restart_behavior"):
        with pytest.raises(ConfigError, match=f"^--{name}: None "):
            words_of({name: None})
    with pytest.raises(ConfigError, match=r"^--wrapper: None "):
        words_of({"wrapper": ["a", None]})
    assert words_of({"seed": None, "a-flag-of-another-command": None})[0] == "--seed=None"


def test_a_mapping_reaches_the_env_as_json_has_it_or_is_refused() -> None:
    given = {"scale": np.float32(0.5), "size": np.int64(3), "on": np.True_, "at": (np.zeros(2), Path("/a")), "no": None}

    line = scan(words_of({"env_kwargs": given}), all_flags())

    assert line.values["env_kwargs"] == {"scale": 0.5, "size": 3, "on": True, "at": [[0.0, 0.0], "/a"], "no": None}
    with pytest.raises(ConfigError) as caught:
        words_of(
            {"env_kwargs": {"f": len}, "model_kwargs": {"levels": {1: "a"}}, "pbt_hyperparameters": {"a": np.float32}}
        )
    function, key, kind = caught.value.problems
    assert function.startswith("--env_kwargs: a builtin_function_or_method cannot be given")
    assert key.startswith("--model_kwargs: 1 is a key that is no text")
    assert kind.startswith("--pbt_hyperparameters: a type cannot be given")


def test_values_that_no_flag_can_have_are_refused_all_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        words_of({"env": object(), "seed": {1}, "--gamma": 1, 3: 4})  # type: ignore[dict-item]

    assert [line.partition(":")[0] for line in caught.value.problems] == ["--env", "--seed", "'--gamma'", "3"]


def test_a_partial_of_an_env_becomes_its_function_and_its_arguments() -> None:
    made = functools.partial(functools.partial(make, size=5, speed=1), speed=2)

    assert words_of({"env": made}) == words_of({"env": make, "env_kwargs": {"size": 5, "speed": 2}})
    assert words_of({"env": made, "env_kwargs": {"size": 6}}) == words_of(
        {"env": make, "env_kwargs": {"size": 6, "speed": 2}}
    )
    for given in ({"env": functools.partial(save_run, "5")}, {"env": made, "env_kwargs": "{}"}):
        with pytest.raises(ConfigError, match="a partial gives all its arguments by name"):
            words_of(given)


@pytest.mark.parametrize(
    ("flag", "value", "kind"),
    [
        ("wrapper", [functools.partial(make, scale=2)], "partial"),
        ("encoder", functools.partial(make, size=2), "partial"),
        ("env", lambda: None, "lambda"),
        ("env", Path("/a").exists, "method"),
        ("env", functools.partial(lambda size: None, size=2), "lambda"),
    ],
)
def test_what_has_no_name_is_answered_with_what_has_one(flag: str, value: object, kind: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^--{flag}: a {kind} cannot be given: .*: write a function at the top level"
    ):
        words_of({flag: value})


def test_classes_and_functions_become_names_by_which_other_processes_import_them() -> None:
    class Local:
        pass

    assert words_of({"encoder": Attention, "env": save_run}) == [
        "--encoder=tests.support.networks:Attention",
        f"--env={__name__}:save_run",
    ]
    with pytest.raises(ConfigError) as caught:
        words_of({"encoder": Local, "decoder": lambda size: None, "env": Outer.Inner})
    local, function, inner = caught.value.problems
    assert "at the top level of a module" in local
    assert local.startswith("--encoder: test_classes_")
    assert "at the top level of a module" in function
    assert inner.startswith("--env: Outer.Inner")


def test_what_the_program_defines_has_the_name_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = type("Own", (), {"__module__": "__main__"})
    program = ModuleType("__main__")
    vars(program)["Own"] = own
    monkeypatch.setitem(sys.modules, "__main__", program)
    monkeypatch.syspath_prepend(tmp_path)

    assert words_of({"env": own}) == ["--env=__main__:Own"]  # a notebook
    assert objects_of_program(["CartPole-v1", ("__main__:Own",), 3]) == {"Own": own}
    for name in ("my_train.py", "my-train.py"):
        (tmp_path / name).touch()
    program.__file__ = str(tmp_path / "my_train.py")
    assert words_of({"env": own}) == ["--env=my_train:Own"]
    assert find_object("my_train:Own") is own
    program.__file__ = str(tmp_path / "my-train.py")
    with pytest.raises(ConfigError, match=r"give the file a name such as my_train\.py"):
        words_of({"env": own})
    program.__spec__ = ModuleSpec("package.script", None)  # python -m
    assert words_of({"env": own}) == ["--env=package.script:Own"]


@pytest.mark.parametrize(
    ("argv", "flag", "advice"),
    [
        (["--num_workers=abc"], "--num_workers=abc", "whole number"),
        (["--num_workers=1.5"], "--num_workers=1.5", "whole number"),
        (["--num_workers=inf"], "--num_workers=inf", "finite"),
        (["--rollout=1e999999999"], "--rollout", "2^63"),
        (["--seed", "-1"], "--seed=-1", "must be at least 0"),
        (["--gamma="], "--gamma=", "--gamma=0.99"),
        (["--vtrace_rho=off"], "--vtrace_rho=off", "must be a number or none"),
        (["--train_dir=None"], "--train_dir=None", "is no value of this flag; leave it out, or give one"),
        (["--encoder_mlp_layers=None"], "--encoder_mlp_layers=None", "write --encoder_mlp_layers= for an empty list"),
        (["--with_vtrace=1"], "--with_vtrace=1", "True or False"),
        (["--with_vtrace="], "--with_vtrace=", "True or False"),
        (["--num_workers=2.5Q"], "--num_workers=2.5Q", "whole number"),
        (["--num_workers=0.5k5"], "--num_workers=0.5k5", "whole number"),
        (["--num_workers=0.0005k"], "--num_workers=0.0005k", "whole number"),
        (["--num_workers=k"], "--num_workers=k", "whole number"),
        (["--gamma=1k"], "--gamma=1k", "must be a number"),
        (["--device=cuda:"], "--device=cuda:", "cuda:N"),
        (["--device=tpu"], "--device=tpu", "auto, cpu, gpu, cuda, or cuda:N"),
        (["--gamma"], "--gamma", "--gamma=0.99"),
        (["--encoder_mlp_layers"], "--encoder_mlp_layers", "--encoder_mlp_layers="),
        (["--encoder_mlp_layers", "64", "x"], "--encoder_mlp_layers", "--encoder_mlp_layers 512 512"),
        (["--encoder_mlp_layers=64", "32"], "'32'", "--encoder_mlp_layers 64 32"),
        (["--obs_resize=84x84"], "--obs_resize=84x84", "--obs_resize 1 2"),
        (["--train_policies"], "--train_policies", "--train_policies 1 2"),
        (["--obs_keys"], "--obs_keys", "--obs_keys A B"),
        (["--inference=remote"], "--inference=remote", "central, local, auto"),
        (["--env_kwargs=[1]"], "--env_kwargs=[1]", "JSON object"),
        (['--env_kwargs={"a": NaN}'], "--env_kwargs", "JSON object"),
        (['--env_kwargs={"a": 1e999}'], "--env_kwargs", "too large"),
        (['--env_kwargs={"a": -Infinity}'], "--env_kwargs", "-Infinity is not JSON"),
        (['--env_kwargs={"a": 1, "a": 2}'], "--env_kwargs", "stands twice"),
        (["--roll", "3"], "--roll", "did you mean --rollout?"),
        (["--Envs_Per_Worker", "3"], "--Envs_Per_Worker", "did you mean --num_envs_per_worker?"),
        (["--encoder_mlp_layer", "64", "64"], "--encoder_mlp_layer", "did you mean --encoder_mlp_layers?"),
        (["--save_best=3"], "--save_best", "--save_best_after or --save_best_every_sec"),
        (["--no_benchmark"], "--no_benchmark", "--benchmark=False"),
        (["--xyzzy=3"], "--xyzzy", "--help"),
        (["--num-sgd-iter=3"], "--num-sgd-iter", "is RLlib's name; here it is --num_epochs"),
        (["--hidden_size=64"], "--hidden_size", "is Sample Factory v1's name; here it is --rnn_size or --encoder"),
        (["--gamma=0.9", "--gamma", "0.8"], "--gamma", "0.9, then 0.8"),
        (["train"], "'train'", "--name=value"),
        (["-gamma=0.9"], "-gamma=0.9", "--gamma=0.9"),
        (["--"], "'--'", "--name=value"),
        (["--config"], "--config", "--config=flags.yaml"),
        (["--config=."], "--config=.", "cannot be read"),
        # A rule over a value that could not be read says nothing.
        (["--rollout=abc", "--batch_size=999"], "--rollout=abc", "whole number"),
        (["--gamma=a\nb" + "x" * 500], "--gamma=a\\nb", "number"),
    ],
)
def test_what_cannot_be_read_is_refused_with_advice(argv: list[str], flag: str, advice: str) -> None:
    (problem,) = refused(PLAIN_ENV, *argv)

    assert problem.startswith(flag)
    assert advice in problem
    assert "\n" not in problem
    assert len(problem) < 300


@pytest.mark.parametrize("content", [None, b"env: [", b"\xff", b"[]"])
def test_a_file_that_cannot_be_read_may_have_named_the_env(content: bytes | None) -> None:
    if content is not None:
        Path("flags.yaml").write_bytes(content)

    (problem,) = refused("--config=flags.yaml")

    assert problem.startswith("--config=flags.yaml")


def test_examples_in_advice_are_right() -> None:
    flags = {**all_flags(), **launcher_flags, **enjoy_flags}
    for flag in flags.values():
        line = scan(flag.example().split(" "), flags)

        assert line.problems == []
        (value,) = line.values.values()
        for number in value if isinstance(value, tuple) else (value,):
            assert not isinstance(number, int | float) or flag.info.broken_bound(number) is None
        assert flag.type != str | None or value == "..."
    assert refused(PLAIN_ENV, "--train_for_seconds=1h")[0].endswith("for example --train_for_seconds=1000")


def test_names_of_envs_that_begin_so_or_have_it_in_them_are_suggested() -> None:
    names = "CartPole-v0 or CartPole-v1 or cartpole_without_velocities"
    assert refused("--env=cartpole")[0].endswith(f"; did you mean {names}?")
    # Not by a refusal: where ale-py was imported, Pong-v5 is another version of what is registered.
    assert did_you_mean("Pong", ["atari_pong", "atari_boxing", "Ant-v5", "Ant-v5"]) == "; did you mean atari_pong?"


def test_all_problems_are_reported_at_once() -> None:
    wrong = ["--batch_size=9", "--config=no.yaml", "--env=CartPol-v1", "--gamma=1.5", "--num_workers=x", "--rolout=3"]

    assert [re.split("[:=]", line)[0] for line in sorted(refused(*wrong))] == [word.partition("=")[0] for word in wrong]


def test_sources_name_the_layer_of_every_value() -> None:
    values = {"env": "CartPole-v1", "gamma": 0.9, "learning_rate": "1e-3", "encoder-mlp-layers": [32, 16], "seed": None}
    Path("flags.yaml").write_text(yaml.dump(values))

    resolved = read("--config=flags.yaml", "--gamma=0.8")

    assert (resolved.config.algo.gamma, resolved.config.optim.learning_rate) == (0.8, 1e-3)
    assert resolved.config.model.encoder_mlp_layers == (32, 16)
    assert resolved.sources["gamma"] == "command line"
    assert {resolved.sources[name] for name in ("env", "learning_rate", "seed")} == {"config file"}
    assert resolved.sources["nonlinearity"] == "env family classic_control"
    assert resolved.sources["adam_eps"] == "default"
    assert set(resolved.sources) == set(all_flags())


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.yaml", b"gama: 0.9\n", "did you mean gamma?"),
        ("x.yaml", b"num-env-runners: 1", "key 'num_env_runners' is RLlib's name; here it is num_workers"),
        ("x.yaml", b"gamma: [0.9\n", "not valid YAML"),
        ("x.yaml", b"\xff\xfe\x00\x80", "not valid YAML"),
        ("x.yaml", b"- gamma\n", "a mapping of flag names"),
        ("x.yaml", b"gamma: 0.9\ngamma: 0.8\n", "stands 2 times"),
        ("x.yaml", b"num_workers: 1\nnum-workers: 1\n", "stands twice"),
        ("x.yaml", b"algo: 0.9\n", "key 'algo' is a section; write its flags below it"),
        ("x.yaml", b"learner:\n  gamma: 0.9\n", "key 'gamma' is in section 'algo', not in 'learner'"),
        ("x.yaml", b"lerner:\n  rollout: 8\n", "did you mean learner?"),
        ("x.yaml", b"algo:\n  gama: 0.9\n", "did you mean gamma?"),
        ("x.yaml", b"algo:\n  report:\n    gamma: 0.9\n", "unknown key 'report'"),
        ("x.yaml", b"algo:\n  gamma: 0.9\ngamma: 0.9\n", "stands twice"),
        ("x.yaml", b"algo:\n  gamma: 0.9\n  gamma: 0.8\n", "stands 2 times"),
        ("x.yaml", b"algo: {gamma: 0.9}\nalgo: {gamma: 0.8}\n", "stands 2 times"),
        ("x.yaml", b"env_kwargs:\n  goal: 1\n  goal: 2\n", "stands 2 times"),
        ("x.yaml", b"env_kwargs:\n  levels:\n    - {goal: 1, goal: 2}\n", "stands 2 times"),
        ("x.yaml", b"gamma: high\n", "--gamma=high: must be a number"),
        ("x.yaml", b"experiment: 007\n", "put it in quotes"),
        ("x.yaml", b"gamma: 1.5\n", "this value comes from: config file"),
        ("x.yaml", b"vtrace_c: 0.5\nwith_vtrace: false", "has no effect as it is: leave it out, or add --with_vtrace"),
        ("x.json", b'{"gamma": 0.9,}', "not valid JSON"),
        ("x.toml", b"gamma: 0.9", "not valid TOML"),
        ("x.toml", b"gamma = 0.9\ngamma = 0.8", "not valid TOML"),
        ("x.toml", b"[optim]\ngamma = 0.9", "is in section 'algo'"),
        ("x.toml", b"seed = 1979-05-27", "whole number"),
        ("x.json", b'{"gamma": 0.9, "gamma": 0.8}', "stands twice"),
    ],
)
def test_a_bad_config_file_is_refused_with_advice(name: str, content: bytes, expected: str) -> None:
    Path(name).write_bytes(content)

    (problem,) = refused(PLAIN_ENV, f"--config={name}")

    assert expected in problem


def test_values_that_another_setting_makes_idle_are_refused_only_if_the_user_chose_them() -> None:
    # The family of Atari games sets Adam's epsilon, which RMSprop does not use.
    save_run("--env=atari_breakout", "--optimizer=rmsprop")

    resolved = read(f"--config={RUN_DIR}/config.json", "--experiment=new")

    assert (resolved.config.optim.adam_eps, resolved.config.optim.optimizer) == (1e-5, "rmsprop")
    assert resolved.config.run.experiment == "new"
    assert refused("--env=atari_breakout", "--optimizer=rmsprop", "--adam_eps=1e-4") == [
        "--adam_eps=0.0001: has no effect as it is: leave it out, or add --optimizer=adam"
    ]


def test_settings_of_a_run_are_without_a_seed_that_was_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    settings = f"--config={RUN_DIR}/config.json"
    save_run("--env=CartPole-v1", "--seed=3", seed="drawn at random")

    assert read(settings, "--experiment=new").config.run.seed is None
    resumed = read(settings)
    assert resumed.config.run.seed == 3
    write_config(RUN_DIR, resumed.config, resumed.sources, resumed.saved.sources)
    assert read(settings, "--experiment=new").config.run.seed is None

    with pytest.raises(SystemExit):
        read("--experiment=old", "--print_config")
    text, said = capsys.readouterr()
    assert said == "", "a saved run gets no defaults by kind of task"
    Path("printed.json").write_text(text)
    assert read("--config=printed.json", "--experiment=new").config.run.seed is None
    assert read("--config=printed.json").config.run.seed == 3

    RUN_DIR.rename("before")
    save_run("--env=CartPole-v1", "--seed=4")
    assert read(settings, "--experiment=new").config.run.seed == 4


def test_a_resumed_run_takes_over_its_saved_values_wherever_it_was_moved() -> None:
    member = "--with_pbt=True", "--pbt_dir=shared", "--pbt_member=0"
    save_run("--env=CartPole-v1", "--gamma=0.8", "--learning_rate=0.01", *member)
    RUN_DIR.rename("renamed")

    resolved = read("--train_dir=.", "--experiment=renamed", "--learning_rate=0.02")

    assert (resolved.config.run.train_dir, resolved.config.run.experiment) == (".", "renamed")
    assert resolved.config.run.env == "CartPole-v1"
    assert resolved.config.algo.gamma == 0.8
    assert resolved.config.population.pbt_dir == str(Path("shared").absolute())
    assert (resolved.sources["gamma"], resolved.sources["rollout"]) == ("given at an earlier start", "saved run")
    assert resolved.config.optim.learning_rate == 0.02
    (warning,) = resolved.changed
    assert "--learning_rate=0.02" in warning
    assert "--learning_rate=0.01" in warning


def test_a_resumed_run_keeps_the_sources_of_what_it_takes_over() -> None:
    save_run("--env=CartPole-v1", "--gamma=0.8", "--seed=3", rollout="task: vector", num_workers="autotune")
    before = read_config(RUN_DIR)
    assert before is not None
    assert {"default", "env family classic_control"} < {*before.sources.values()}

    for learning_rate in ("0.02", "0.03"):
        resolved = read("--experiment=old", f"--learning_rate={learning_rate}")
        write_config(RUN_DIR, resolved.config, resolved.sources, resolved.saved.sources)

    after = read_config(RUN_DIR)
    assert after is not None
    differing = {name: source for name, source in after.sources.items() if source != before.sources[name]}
    assert differing == {
        **dict.fromkeys(("env", "gamma", "seed"), "given at an earlier start"),
        "learning_rate": "command line",
    }


def test_a_resumed_run_keeps_the_default_number_of_actors_and_says_which_it_is_on_other_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def said(cores: int, *words: str) -> tuple[int, list[str]]:
        monkeypatch.setattr(Cores, "available", lambda: Cores(tuple(range(cores)), None))
        resolved = read(env, "--experiment=old", *words)
        write_config(RUN_DIR, resolved.config, resolved.sources, resolved.saved.sources)
        return resolved.config.sampling.num_workers, [line for line in resolved.warnings if "num_workers" in line]

    monkeypatch.setattr(Cores, "available", lambda: Cores(tuple(range(3)), None))
    env = "--env=sfactory_envs.synthetic.bandit:Bandit"
    save_run(env)

    kept, lines = said(12)
    assert (kept, [re.findall(r"--num_workers=\d+", line) for line in lines]) == (
        3,
        [["--num_workers=3", "--num_workers=12"]],
    )
    assert said(1)[1] != []  # it is still no choice of the user
    assert said(3) == (3, [])
    assert said(12, "--num_workers=4") == (4, [])
    assert said(1) == (4, [])


def limits_of(resolved: Resolved) -> tuple[int, float]:
    """Env steps and seconds after which training is over."""
    run = resolved.config.run
    return run.most_env_steps(resolved.config.frames_per_step), run.train_for_seconds


def test_a_limit_that_the_user_gives_replaces_the_familys_limit_of_another_kind_and_a_line_says_so() -> None:
    resolved = read("--env=atari_breakout", "--train_for_frames=200M")

    assert limits_of(resolved) == (50_000_000, 1e10)
    assert resolved.sources["train_for_env_steps"] == "default"
    (line,) = resolved.warnings
    assert line.startswith("--train_for_frames=200000000: ends training in place of --train_for_env_steps=10000000 (")
    both = read("--env=atari_breakout", "--train_for_frames=200M", "--train_for_env_steps=20M")
    assert (limits_of(both), both.warnings) == ((20_000_000, 1e10), [])


def test_seconds_leave_the_familys_limit_of_steps_where_its_schedules_end_and_a_line_says_so() -> None:
    resolved = read("--env=CartPole-v1", "--train_for_seconds=3600")

    assert limits_of(resolved) == (500_000, 3600)
    (line,) = resolved.warnings
    assert line.startswith(
        "--train_for_seconds=3600.0: training ends before if it reaches --train_for_env_steps=500000"
    )
    for more in ("--train_for_env_steps=2M", "--train_for_frames=2M"):
        assert limits_of(read("--env=CartPole-v1", "--train_for_seconds=3600", more)) == (2_000_000, 3600)
    assert read(PLAIN_ENV, "--train_for_seconds=3600").warnings == []


def test_a_limit_that_a_resumed_run_has_from_its_family_gives_way_and_one_that_was_given_earlier_stays() -> None:
    save_run("--env=atari_breakout")
    for run in ("--experiment=old", f"--config={RUN_DIR}/config.json"):
        assert limits_of(read(run, "--train_for_frames=200M"))[0] == 50_000_000

    RUN_DIR.rename("before")
    save_run("--env=atari_breakout", "--train_for_env_steps=5M")
    resolved = read("--experiment=old", "--train_for_frames=200M")
    assert (limits_of(resolved)[0], resolved.warnings) == (5_000_000, [])


def test_a_vector_form_of_a_runs_env_is_refused_as_another_env_and_wrappers_of_a_vector_env_as_such() -> None:
    save_run("--env=CartPole-v1", "--env_framestack=4")
    (problem,) = refused("--experiment=old", "--env=vector:CartPole-v1")
    assert problem.startswith("--env=vector:CartPole-v1: the run 'old' was started with --env=CartPole-v1")

    RUN_DIR.rename("before")
    save_run("--env=vector:CartPole-v1")
    (problem,) = refused("--experiment=old", "--sticky_actions=0.25")
    assert problem.startswith("--sticky_actions=0.25: cannot wrap this env, which is one of many that are made at once")


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ("LunarLander", "LunarLander-v3"),
        ("HalfCheetah", "HalfCheetah-v5"),
        ("CartPole", "CartPole-v1"),
        ("vector:Acrobot", "vector:Acrobot-v1"),
        ("minigrid:MiniGrid-DoorKey-5x5", "minigrid:MiniGrid-DoorKey-5x5-v0"),
        ("dm_control/cheetah-run", "dm_control/cheetah-run-v0"),
        ("phys2d/CartPole", "phys2d/CartPole-v1"),  # of no family
    ],
)
def test_an_id_without_a_version_is_the_full_id_with_its_defaults(
    given: str, full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfactory.config.validation.lack_of_family", lambda family: "")
    short, long = read(f"--env={given}"), read(f"--env={full}")

    assert values_of(short.config) == values_of(long.config)
    assert short.sources == long.sources
    assert (short.warnings, long.warnings) == ([f"--env={given} is {full}"], [])


def test_the_full_name_is_said_for_the_env_that_is_made_and_a_saved_run_is_found_by_either() -> None:
    Path("flags.yaml").write_text("env: Acrobot\n")
    assert read("--config=flags.yaml").warnings == ["--env=Acrobot is Acrobot-v1"]
    assert read("--config=flags.yaml", "--env=CartPole-v1").warnings == []

    saved = save_run("--env=CartPole-v1").config
    (RUN_DIR / "config.json").write_text((RUN_DIR / "config.json").read_text().replace("CartPole-v1", "CartPole"))
    for name in ("CartPole", "CartPole-v1"):
        assert read("--experiment=old", f"--env={name}").config.run.env == "CartPole-v1"
        require_same_env(saved, name)
    with pytest.raises(ConfigError, match="--env=CartPole-v0: the policy was trained with --env=CartPole-v1"):
        require_same_env(saved, "CartPole-v0")


@pytest.mark.parametrize("more", ["--benchmark=True", "--restart_behavior=restart", "--restart_behavior=overwrite"])
def test_a_benchmark_and_a_restarted_run_take_over_nothing(more: str) -> None:
    save_run("--env=CartPole-v1", "--gamma=0.8", "--num_workers=7", num_workers="autotune")

    resolved = read("--experiment=old", "--env=Acrobot-v1", more)

    assert resolved.config.algo.gamma == 0.99
    assert not {"saved run", "given at an earlier start"} & set(resolved.sources.values())
    assert resolved.tuned == {}
    assert refused("--experiment=old", more)[0].startswith("--env")
    (problem,) = refused("--experiment=old", "--restart_behavior=restrat", "--env=Acrobot-v1")
    assert problem.startswith("--restart_behavior=restrat: ")
    (RUN_DIR / "config.json").write_text("{half")
    assert read(PLAIN_ENV, "--experiment=old", more).warnings == []


@pytest.mark.parametrize(
    ("argv", "fitted"),
    [
        (["--rollout=48"], {"batch_size": 1008}),
        (["--rollout=2000"], {"batch_size": 2000}),
        (["--rollout=50", "--microbatch_size=150"], {"batch_size": 1050}),
        (["--rollout=50", "--microbatch_size=1000"], {"batch_size": 2000}),  # a microbatch is less
        (["--rollout=50", "--microbatch_size=100", "--async_rl=False", "--num_workers=3"], {"batch_size": 900}),
        (["--rollout=48", "--task_defaults=False"], {"batch_size": 1008}),
        (["--worker_num_splits=3"], {"num_envs_per_worker": 3}),
        (["--num_envs_per_worker=3"], {"worker_num_splits": 1}),
        (["--critic_obs_keys", "state"], {"actor_critic_share_weights": False}),
        (["--actor_obs_keys", "noisy"], {"actor_critic_share_weights": False}),
        (["--critic_obs_keys="], {"actor_critic_share_weights": True}),
        (["--async_rl=False", "--num_workers=3"], {"batch_size": 960}),  # 5 rounds of 3 x 2 envs x 32 steps
        (
            ["--env=CartPole-v1", "--rollout=48", "--worker_num_splits=3"],
            {"batch_size": 1008, "num_envs_per_worker": 33},
        ),
    ],
)
def test_sizes_that_were_not_typed_fit_those_that_were(argv: list[str], fitted: dict[str, int]) -> None:
    resolved = save_run(*(argv if "--env=CartPole-v1" in argv else [PLAIN_ENV, *argv]))

    values = values_of(resolved.config)
    assert {name: values[name] for name in fitted} == fitted
    assert {"command line"}.isdisjoint(resolved.sources[name] for name in fitted)
    again = read("--experiment=old", "--rollout=50")
    assert again.config.learner.batch_size % 50 == 0


@pytest.mark.parametrize(
    ("argv", "has_groups", "keys", "shares"),
    [
        ([], True, ("critic",), False),
        ([], False, (), True),
        (["--critic_obs_keys=", "--use_rnn"], True, (), True),
        (["--critic_obs_keys=state"], True, ("state",), False),
        (["--actor_critic_share_weights=True"], True, (), True),
        (["--actor_critic_share_weights=False"], True, ("critic",), False),
        (["--actor_critic_share_weights=False"], False, (), False),
        (["--model=my_networks:Own"], True, (), True),
        (["--critic_obs_keys=auto"], False, (), True),
        (["--critic_obs_keys=auto", "--actor_critic_share_weights=True"], True, ("critic",), False),  # as in a file
    ],
)
def test_the_group_critic_is_the_critics_unless_something_else_was_typed(
    argv: list[str], has_groups: bool, keys: tuple[str, ...], shares: bool
) -> None:
    resolved = fitted_to_agents(with_critic_group(read(PLAIN_ENV, *argv), has_groups), agents=1)

    model = resolved.config.model
    assert (model.critic_obs_keys, model.actor_critic_share_weights) == (keys, shares)
    RUN_DIR.mkdir(parents=True)
    write_config(RUN_DIR, resolved.config, resolved.sources)
    again = read("--experiment=old", "--trust_run_dir=True").config.model
    assert (again.critic_obs_keys, again.actor_critic_share_weights) == (keys, shares)
    same = read(PLAIN_ENV, *argv, "--experiment=old", "--trust_run_dir=True")
    assert same.config.model == again, "the same command resumes it"


def test_defaults_that_were_typed_resume_the_run_whose_env_has_replaced_them() -> None:
    argv = [PLAIN_ENV, "--num_policies=1", "--policy_mapping=auto", "--experiment=old"]
    by_env = {"num_policies": 2, "policy_mapping": "guide=0,mover=1"}
    resolved = read(*argv).replaced({**by_env, "actor_critic_share_weights": False}, "env")
    RUN_DIR.mkdir(parents=True)
    write_config(RUN_DIR, resolved.config, resolved.sources)

    again = read(*argv)

    assert {name: values_of(again.config)[name] for name in by_env} == by_env
    assert {again.sources[name] for name in by_env} == {"saved run"}
    assert again.changed == []
    (problem,) = refused(*argv, "--actor_critic_share_weights=True")
    assert "was started with --actor_critic_share_weights=False" in problem
    (problem,) = refused(PLAIN_ENV, "--num_policies=3", "--experiment=old")
    assert "was started with --num_policies=2" in problem


def test_sizes_that_were_typed_and_do_not_fit_are_refused() -> None:
    both = ["--rollout=48", "--batch_size=1024"]
    expected = "--batch_size=1024: must be a multiple of rollout (48): nearest are 1008 and 1056"

    assert refused(PLAIN_ENV, *both) == refused(PLAIN_ENV, *both, "--task_defaults=False") == [expected]
    of_family = "--env=pettingzoo:classic.connect_four_v3"  # with sizes of its own, but for the rollout
    assert [refused(env, "--rollout=0")[0] for env in (PLAIN_ENV, of_family)] == ["--rollout=0: must be at least 1"] * 2
    save_run(PLAIN_ENV, "--batch_size=1024")
    assert refused("--experiment=old", "--rollout=48") == [
        f"{expected} (this value comes from: given at an earlier start)"
    ]


def test_refusing_a_default_of_an_env_family_names_what_leaves_it_out() -> None:
    doors = "--env=MiniGrid-RedBlueDoors-6x6-v0"

    (found,) = refused(doors, "--use_cpc=True")

    assert found.startswith("--rnd=True: there is room for one auxiliary loss")
    assert found.endswith("(this value comes from: env family minigrid; to leave it out: --rnd=False)")
    assert read(doors, "--use_cpc=True", "--rnd=False").config.algo.use_cpc
    (found,) = refused(doors, "--flatten_obs=True")
    mission = "--ignore_obs_keys mission comes from: env family minigrid; to leave it out: --ignore_obs_keys="
    assert found.endswith(f"leave this or --ignore_obs_keys out ({mission})")
    assert read(doors, "--flatten_obs=True", "--ignore_obs_keys=").config.wrappers.flatten_obs


def test_refusing_a_value_of_a_config_file_names_what_leaves_it_out() -> None:
    recipe = [PLAIN_ENV, f"--config={ROOT}/docs/examples/sb3_ppo.yaml", "--encoder=my_agent:Net"]
    plain = ("--encoder_mlp_layers", "512", "512")

    (found,) = refused(*recipe)

    assert found.endswith(f"(this value comes from: config file; to leave it out: {' '.join(plain)})")
    assert read(*recipe, *plain).config.model.encoder == "my_agent:Net"


def test_refusing_a_value_of_an_earlier_start_names_what_leaves_it_out() -> None:
    save_run(PLAIN_ENV, "--with_vtrace=True", "--replay_proportion=1", "--replay_slots=100")
    changed = ["--experiment=old", "--with_vtrace=False"]

    (found,) = refused(*changed)

    assert found.endswith(
        "(this value comes from: given at an earlier start; to leave it out: --replay_proportion=0.0)"
    )
    assert not read(*changed, "--replay_proportion=0.0").config.algo.with_vtrace


def test_refusing_a_default_of_an_env_family_does_not_name_another_value_that_is_refused() -> None:
    found = refused("--env=retro:Airstriker-Genesis-v0", "--serial_mode=True")[0]
    one_core = "; to leave it out: --num_workers=1" if all_flags()["num_workers"].default == 1 else ""

    assert found.startswith("--num_workers=4: must be 1")
    assert found.endswith(f"(this value comes from: env family retro{one_core})")


def test_a_typed_flag_that_does_not_go_with_a_saved_one_is_answered_with_what_leaves_that_out() -> None:
    save_run(PLAIN_ENV, "--num_batches_to_accumulate=0")
    replay = ["--experiment=old", "--replay_proportion=1", "--replay_slots=100"]

    (found,) = refused(*replay)

    advice = "to leave it out: --num_batches_to_accumulate=2)"
    assert found.endswith(f"(--num_batches_to_accumulate=0 comes from: given at an earlier start; {advice}")
    assert read(*replay, "--num_batches_to_accumulate=2").config.learner.replay_proportion == 1


def test_a_tuned_run_keeps_autotune_as_the_source_of_its_settings() -> None:
    save_run("--env=CartPole-v1", "--num_workers=7", "--num_envs_per_worker=6", num_workers="autotune")
    Path("flags.yaml").write_text("rollout: 8\n")

    for _ in range(2):
        resolved = read("--experiment=old", "--autotune=True", "--config=flags.yaml", "--seed=3")

        assert resolved.tuned == {"num_workers": 7}
        assert {"rollout", "seed", "num_envs_per_worker", "experiment"} <= resolved.given
        assert not {"num_workers", "batch_size", "gamma"} & resolved.given
        assert resolved.config.tuning.autotune
        write_config(RUN_DIR, resolved.config, resolved.sources)
    assert not read("--experiment=old").config.tuning.autotune
    assert read("--experiment=old", "--num_workers=2").tuned == {}


def test_help_has_what_was_asked_for_with_the_defaults_of_the_env(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*words: str) -> str:
        with pytest.raises(SystemExit) as caught:
            read(*words, "--env=CartPole-v1", "--nonsense")
        assert caught.value.code == 0
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= 80
        return text

    full, short = shown("--help=all"), shown("-h")

    assert full.startswith("usage: sfactory train")
    assert all(f"--{name} " in full for name in all_flags())
    assert "default tanh, from env family classic_control" in full
    assert "central|local|auto" in full
    named = set(re.findall("--([a-z_]+) ", short)) & all_flags().keys()
    assert (len(named), named - set(ESSENTIAL), len(short.splitlines()) < 60) == (20, set(), True)
    assert "[64 64]" in short  # of the family
    optim = {name for name, flag in all_flags().items() if flag.section == "optim"}
    assert set(re.findall("^  --([a-z_0-9]+) ", shown("--help=optim"), re.MULTILINE)) == optim
    assert shown("--help", "max-policy-lag").startswith("  --max_policy_lag int\n")
    assert refused("--help=optin") == ["--help=optin: neither a section nor a flag; did you mean --help=optim?"]


@pytest.mark.parametrize(
    ("env", "name", "folder"),
    [
        ("ALE/Breakout-v5", "ALE/Breakout-v5", "ALE-Breakout-v5"),
        ("my_envs.py:Grid", "my_envs:Grid", "my_envs-Grid"),
        ("./more/envs.py:Grid", "more.envs:Grid", "more.envs-Grid"),
        ("мир:Мир", "мир:Мир", "run"),
    ],
)
def test_a_run_without_a_name_has_that_of_its_env_so_that_another_env_is_another_run(
    env: str, name: str, folder: str
) -> None:
    Path("more").mkdir()
    for file in ("my_envs.py", "more/envs.py", "мир.py"):
        Path(file).write_text("raise OSError")  # it is found, and not imported

    for given in ([], ["--experiment="]):
        run = read(f"--env={env}", *given).config.run
        assert (run.env, run.experiment) == (name, folder)
    Path("train_dir", folder).mkdir(parents=True)
    write_config(Path("train_dir", folder), read(f"--env={env}", "--gamma=0.5").config, {})
    assert read(f"--env={env}").config.algo.gamma == 0.5
    assert read(PLAIN_ENV).config.algo.gamma == 0.99
    (problem,) = refused("--gamma=0.5")
    assert problem.startswith("--env=: an environment is required")


@pytest.mark.parametrize(
    ("env", "words", "kwargs"),
    [
        ("MiniGrid-DoorKey-5x5", ["--minigrid_obs=image"], '{"minigrid_obs": "image"}'),
        ("doom_basic", ["--resolution", "64x48"], '{"resolution": "64x48"}'),
        ("atari_pong", ["--framestack=2"], '{"framestack": 2}'),
        ("FrozenLake-v1", ["--is-slippery=False"], '{"is_slippery": false}'),
        ("CartPole-v1", ["--sutton_barto_reward"], '{"sutton_barto_reward": true}'),
        ("math:Corridor", ["--length=8"], '{"length": 8}'),
    ],
)
def test_an_argument_of_the_env_that_is_given_as_a_flag_is_answered_with_env_kwargs(
    env: str, words: list[str], kwargs: str
) -> None:
    answer = f"--env_kwargs='{kwargs}'"
    assert refused(f"--env={env}", *words, "--gama=1")[0].endswith(answer)
    with pytest.raises(ConfigError) as caught:
        read_check_line([f"--env={env}", *words])
    assert caught.value.problems[0].endswith(answer)
    assert not refused("--env=Acrobot-v1", *words)[0].endswith(answer)


def test_a_toml_file_gives_flags() -> None:
    Path("flags.toml").write_text(
        'env = "CartPole-v1"\ntrain-for-env-steps = "1M"\n[model]\nencoder_mlp_layers = [8, 8]\n'
    )

    config = read("--config=flags.toml").config

    assert (config.run.env, config.model.encoder_mlp_layers, config.run.train_for_env_steps) == (
        *("CartPole-v1", (8, 8)),
        10**6,
    )


def test_flags_of_a_config_file_may_stand_in_their_sections() -> None:
    Path("flags.yaml").write_text(
        "env: CartPole-v1\nrun:\n  seed: 3\nmodel:\n  use-rnn: true\n  model: ''\nbenchmark:\n  benchmark: false\n"
        "optim:  # its flags are commented out\ntuning: {}\n"
    )

    resolved = read("--config=flags.yaml", "--seed=4")

    assert (resolved.config.run.seed, resolved.config.model.use_rnn) == (4, True)
    assert resolved.given == {"env", "seed", "use_rnn", "model", "benchmark"}


def test_the_printed_config_has_all_values_with_their_sources_and_is_a_config_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["--env=CartPole-v1", "--gamma=0.5", '--env_kwargs={"a": [1]}', "--optimizer=rmsprop"]

    with pytest.raises(SystemExit) as caught:
        read(*asked, "--print_config", "--seed=1")

    assert caught.value.code == 0
    text, said = capsys.readouterr()
    assert said == ""
    content = json.loads(text)
    assert content["config"].keys() == content["sources"].keys() == all_flags().keys()
    assert (content["config"]["gamma"], content["sources"]["gamma"]) == (0.5, "command line")
    assert content["sources"]["nonlinearity"] == "env family classic_control"
    Path("printed.json").write_text(text)
    assert read("--config=printed.json").config == read(*asked, "--seed=1").config
    other = read("--env=Acrobot-v1").config.run.experiment
    assert read("--config=printed.json", "--env=Acrobot-v1").config.run.experiment == other
    content["config"]["experiment"] = "edited"
    Path("edited.json").write_text(json.dumps(content))
    assert read("--config=edited.json", "--env=Acrobot-v1").config.run.experiment == "edited"
    assert refused(*asked, "--print_config", "--gama=1") == ["--gama: unknown flag; did you mean --gamma?"]
    assert not Path("train_dir").exists()


def test_defaults_of_a_printed_config_stay_defaults_and_what_was_edited_there_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = [PLAIN_ENV, "--rollout=50"]
    with pytest.raises(SystemExit):
        read(*asked, "--print_config")
    printed = capsys.readouterr()
    assert "no family knows this env" in printed.err
    content = json.loads(printed.out)
    Path("printed.json").write_text(json.dumps(content))
    content["config"]["num_epochs"] = 3
    Path("edited.json").write_text(json.dumps(content))
    direct, again = (with_task_defaults(read(*argv), "vector", None) for argv in (asked, ["--config=printed.json"]))
    edited = with_task_defaults(read("--config=edited.json"), "vector", None)

    assert again.config == direct.config
    assert again.given == direct.given
    assert (edited.config.learner.num_epochs, edited.config.learner.num_batches_per_epoch) == (3, 8)
    assert (direct.config.learner.num_epochs, direct.config.sampling.rollout) == (6, 50)


def test_a_command_that_lacks_a_flag_says_that_another_has_it() -> None:
    with pytest.raises(ConfigError, match=r"is RLlib's name; here it is --num_epochs of sfactory\.train"):
        read_enjoy_line(["--num_sgd_iter=3"])
    with pytest.raises(ConfigError, match=r"^--encoder is a flag of sfactory\.train, .*; leave it out: a run has its"):
        read_enjoy_line(["--experiment=one", "--encoder=mine:Net"])


def test_a_flag_that_has_another_name_in_a_command_is_answered_with_that_name() -> None:
    cases: list[tuple[Callable[[list[str]], object], str, str]] = [
        (read_evaluate_line, "eval_episodes", "--episodes"),
        (read_evaluate_line, "max_num_episodes", "--episodes"),
        (read_evaluate_line, "num_workers", "--workers"),
        (read_enjoy_line, "eval_episodes", "--max_num_episodes"),
        (read_enjoy_line, "episodes", "--max_num_episodes"),
        (read_check_line, "train_for_env_steps", "--steps"),
        (lambda argv: read(*argv), "workers", "--eval_workers or --num_workers"),
    ]
    for reads, name, here in cases:
        with pytest.raises(
            ConfigError, match=rf"^--{name} is a flag of .*, not of this command; here it is {here}(\n|$)"
        ):
            reads([f"--{name}=20", "--experiment=one"])


@pytest.mark.parametrize(
    ("cores", "words", "sizes"),
    [
        (2, "", (2, 16, 256)),
        (1, "", (2, 16, 256)),
        (12, "", (8, 4, 256)),
        (64, "", (16, 2, 256)),
        (64, "--num_workers=16", (16, 2, 256)),
        (64, "--num_workers=3", (3, 10, 256)),
        (64, "--num_workers=64", (64, 2, 1024)),
        (64, "--num_envs_per_worker=64", (2, 64, 1024)),
        (64, "--num_envs_per_worker=4", (8, 4, 256)),
        (64, "--num_envs_per_worker=64 --batch_size=256", (2, 64, 256)),
        (64, "--rollout=256", (16, 2, 1024)),
        (64, "--num_workers=64 --num_envs_per_worker=64", (64, 64, 2048)),
        (64, "--serial_mode=True", (2, 16, 256)),
        (64, "--num_batches_to_accumulate=2", (16, 2, 256)),
        (64, "--env=vector:LunarLander-v3", (2, 16, 1024)),
        (8, "--num_batches_to_accumulate=2", (4, 8, 256)),
        (64, "--worker_num_splits=1", (32, 1, 256)),
    ],
)
def test_the_envs_of_a_family_are_divided_among_the_cores_and_more_envs_make_minibatches_larger(
    cores: int, words: str, sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cores, "available", lambda: Cores(tuple(range(cores)), None))

    config = read(*(words if "--env" in words else f"--env=atari_pong {words}").split()).config

    assert (config.sampling.num_workers, config.sampling.num_envs_per_worker, config.learner.batch_size) == sizes


def test_help_shows_the_sizes_that_a_run_on_these_cores_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Cores, "available", lambda: Cores(tuple(range(16)), None))

    with pytest.raises(SystemExit):
        read("--env=atari_pong", "--help=num_workers")

    assert "default 16, from env family atari" in " ".join(capsys.readouterr().out.split())


def test_what_the_kind_of_task_may_change_is_not_warned_of() -> None:
    assert read(PLAIN_ENV, "--gae_lambda=0.9").warnings == []
    assert len(read(PLAIN_ENV, "--gae_lambda=0.9", "--with_vtrace=True").warnings) == 1
    assert len(read(PLAIN_ENV, "--rnn_size=64").warnings) == 1


PATHS = {
    *("config", "csv", "init_from", "out", "pbt_dir", "policy_file", "remote_actors_token_file", "run"),
    *("slurm_sbatch_template", "slurm_workdir", "token_file", "train_dir"),
}
OF_RUNS = (evaluate_flags, export_flags, plot_flags, page_flags, match_flags, enjoy_flags)


@pytest.mark.parametrize("flags", [all_flags(), {"config": CONFIG}, *OF_RUNS, launcher_flags, remote_flags])
def test_a_tilde_is_the_home_of_the_user_in_all_flags_of_paths_and_only_there(
    flags: Mapping[str, Flag], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    texts = {name: flag for name, flag in flags.items() if flag.type in (str, str | None)}

    expanded = {name for name, flag in texts.items() if coerce(flag, "~/a:0") == "/home/me/a:0"}

    assert expanded == PATHS & texts.keys()
