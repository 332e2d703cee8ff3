"""Code that only a file of a run names is refused before it is imported, unless the user trusts it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from sfactory import enjoy, export
from sfactory.config.flags import config_of, values_of
from sfactory.config.saved_config import write_config
from sfactory.errors import ExitCode
from sfactory.process.command import resume_command
from tests.support.command_line import PLAIN_ENV, read, refused
from tests.support.saved_run import save_run

RESUME = ["--experiment=run"]
FILE = Path("train_dir/run/config.json")
TRUST = "--trust_run_dir=True"

# Values that name code, the flags that are set so in config.json beside it.
CODE: list[tuple[str, Any]] = [
    ("env", "strange:make"),
    ("env", "strange:Env-v0"),
    ("env", "vector:strange:Env-v0"),
    ("env", "pettingzoo:strange"),
    ("env_kwargs", {"a": [{"env_id": "strange:Env-v0"}]}),
    ("observers", ("strange:Watcher", "strange:Other")),
    ("after_train_step", ("strange:hook",)),
    ("policy_mapping", "strange:who_plays"),
    ("wrapper", ("strange:Wrap", "strange:Other")),
]
# A process can hold no more envs of some families.
ONE_ENV = {"num_envs_per_worker": 1, "worker_num_splits": 1}


@pytest.fixture(autouse=True)
def _beside_a_module_that_must_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "strange.py").write_text("open('executed', 'w').close()\nraise RuntimeError('executed')\n")


def leave(**flags: Any) -> None:
    """A run's config.json with these flags."""
    FILE.parent.mkdir(parents=True)
    defaults = {"env": "Taxi-v4", "num_policies": 2 if "policy_mapping" in flags else 1}
    # What a file says of its sources proves nothing.
    write_config(FILE.parent, config_of({**defaults, **flags}), dict.fromkeys(flags, "command line"))


@pytest.mark.parametrize(("name", "value"), CODE)
@pytest.mark.parametrize("argv", [RESUME, ["--experiment=new", f"--config={FILE}"]], ids=["resumed", "config"])
def test_code_of_a_run_is_refused_until_the_user_names_it_or_trusts_the_run(
    name: str, value: Any, argv: list[str]
) -> None:
    leave(**{name: value})

    (problem,) = (text for text in refused(*argv) if str(FILE) in text and "names this code" in text)

    assert problem.startswith(f"--{name}")
    typed = shlex.split(problem.partition("add ")[2].partition(", or ")[0])
    assert problem.endswith(TRUST)
    assert not Path("executed").exists()
    for trusted in (typed, [TRUST]):
        assert values_of(read(*argv, *trusted).config)[name] == value


# Of families: the env, and a value of env_kwargs with which it would run a program, a script or a class that it names.
CODE_OF_FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("doom_basic", {"vizdoom_path": "./strange"}),
    ("doom_basic", {"ViZDoom Path": "./strange"}),
    ("doom_basic", {"doom_map": "map01\nvizdoom_path = ./strange"}),
    ("doom_basic", {"available_buttons": ["ATTACK", "\nvizdoom_path = ./strange\n"]}),
    ("VizdoomBasic-v1", {"game_args": "+exec strange"}),
    ("envpool:VizdoomCustom-v1", {"vzd_path": "./strange"}),
    ("highway-fast-v0", {"config": {"other_vehicles_type": "strange.Car"}}),
    ("retro:Airstriker-Genesis-v0", {"scenario": "./strange.json"}),
    ("dmlab_watermaze", {"config": {"levelDirectory": "./strange"}}),
    ("isaaclab:Isaac-Ant-v0", {"launcher": {"kit_args": "--exec strange.py"}}),
]


@pytest.mark.parametrize(("env", "kwargs"), CODE_OF_FAMILIES)
def test_arguments_of_a_family_that_carry_code_are_refused_until_the_user_repeats_them(
    env: str, kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfactory.packages._is_installed", lambda module: True)
    leave(env=env, env_kwargs=kwargs, **ONE_ENV)

    (problem,) = refused(*RESUME)

    assert problem.startswith("--env_kwargs")
    assert "names this code" in problem
    assert read(*RESUME, "--env_kwargs", json.dumps(kwargs)).config.run.env_kwargs == kwargs
    assert read(*RESUME, TRUST).config.run.env_kwargs == kwargs


def test_arguments_of_an_id_that_the_user_repeats_with_its_package_are_still_refused() -> None:
    leave(env="vizdoom.gymnasium_wrapper:VizdoomBasic-v1", env_kwargs={"vizdoom_path": "./strange"})

    problems = refused(*RESUME, "--env=vizdoom.gymnasium_wrapper:VizdoomBasic-v1")

    assert [text.partition("=")[0].partition(" ")[0] for text in problems if "names this code" in text] == [
        "--env_kwargs"
    ]


@pytest.mark.parametrize("env", ["retro:/tmp/strange", "retro:../strange", "dmlab_/tmp/strange", "dmlab_a/../../b"])
def test_a_name_that_is_a_path_needs_trust(env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfactory.packages._is_installed", lambda module: True)
    leave(env=env, **ONE_ENV)

    assert "names this code" in refused(*RESUME)[0]


@pytest.mark.parametrize(
    ("env", "kwargs"),
    [
        ("doom_basic", {"resolution": "64x48", "render_hud": True, "doom_map": "map02"}),
        ("highway-v0", {"config": {"duration": 40, "observation": {"type": "Kinematics"}}}),
        ("retro:Airstriker-Genesis-v0", {"state": "Level1", "actions": "discrete"}),
        ("dmlab_watermaze", {"width": 64, "config": {"minGoalDistance": "10"}}),
        ("dm_control/cheetah-run-v0", {"task_kwargs": {"random": 1}}),
        ("HalfCheetah-v5", {"xml_file": "half_cheetah.xml"}),
    ],
)
def test_other_arguments_of_a_family_need_no_trust(
    env: str, kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfactory.packages._is_installed", lambda module: True)
    leave(env=env, env_kwargs=kwargs, **ONE_ENV)

    assert read(*RESUME).config.run.env_kwargs == kwargs


@pytest.mark.parametrize("env", ["Taxi-v4", "atari_breakout", "vector:CartPole-v1", "envpool:Breakout-v5"])
def test_names_without_a_module_need_no_trust(env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfactory.packages._is_installed", lambda module: True)
    leave(env=env, env_kwargs={"url": "http://host:80", "time": "12:30"})

    assert read(*RESUME).config.run.env == env


def test_a_run_cannot_trust_itself() -> None:
    leave(env="strange:make")
    content = json.loads(FILE.read_text())
    content["config"]["trust_run_dir"] = True
    FILE.write_text(json.dumps(content))
    flat = Path("flat/config.json")
    flat.parent.mkdir()
    flat.write_text(json.dumps({"env": "strange:make", "trust_run_dir": True}))

    for argv in (RESUME, ["--experiment=new", f"--config={FILE}"], ["--experiment=new", f"--config={flat}"]):
        assert "names this code" in refused(*argv)[0]
    # A file of another name is the user's own.
    assert read(f"--config={flat.rename('own.json')}").config.run.env == "strange:make"


def test_a_reference_that_a_shell_would_misread_is_quoted() -> None:
    leave(env="strange:x; touch executed")

    (problem,) = (text for text in refused(*RESUME) if "names this code" in text)

    assert "add '--env=strange:x; touch executed', or" in problem


def test_trust_is_of_one_start_and_printed_commands_repeat_it() -> None:
    leave(env="strange:make")
    words = [*RESUME, TRUST, "--restart_behavior=resume"]

    resolved = read(*words)
    write_config(FILE.parent, resolved.config, resolved.sources)

    assert refused(*RESUME)
    assert shlex.split(resume_command(words))[3:] == [*RESUME, TRUST]
    Path("own.yaml").write_text("trust_run_dir: true\n")
    assert read(*RESUME, "--config=own.yaml").config.run.trust_run_dir
    command = resume_command([*RESUME, "--config=own.yaml"], ["trust_run_dir"])
    assert shlex.split(command)[3:] == [*RESUME, "--config=own.yaml"]


def test_a_run_with_several_problems_names_all_of_them() -> None:
    leave(env="strange:make", observers=("strange:Watcher",))

    assert [text.partition("=")[0].partition(" ")[0] for text in refused(*RESUME)] == ["--env", "--observers"]
    assert refused(*RESUME, PLAIN_ENV)  # frozen, and the observers are not trusted by that


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"env": "strange:make"}, "names this code.*add --env=strange:make, or --trust_run_dir=True"),
        ({"env": "pettingzoo:strange"}, "names this code.*--trust_run_dir=True"),
        ({"env": "CartPole-v1", "env_kwargs": {"env_id": "strange:E-v0"}}, "--env_kwargs.*add --trust_run_dir=True"),
        ({"env": "CartPole-v1", "wrapper": ("strange:Wrap",)}, "--wrapper strange:Wrap: only.*--trust_run_dir=True"),
        ({"env": "os:system"}, "'os' is a module of Python's standard library"),
    ],
)
@pytest.mark.parametrize("command", [enjoy, export])
def test_play_and_export_refuse_code_that_only_the_run_names(
    command: Any, flags: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_run(**flags)

    code = command.main([*RESUME, *(["--out=w.safetensors"] if command is export else [])])

    error = capsys.readouterr().err
    assert code == ExitCode.REFUSED
    assert [word for word in words.split(".*") if word not in error] == []
    assert not Path("executed").exists()


@pytest.mark.parametrize("trust", ["--env=strange:make", TRUST])
def test_play_runs_code_that_the_user_trusts(trust: str, capsys: pytest.CaptureFixture[str]) -> None:
    save_run(env="strange:make", env_kwargs={})

    assert enjoy.main([*RESUME, trust]) == ExitCode.REFUSED
    assert "RuntimeError: executed" in capsys.readouterr().err
    assert Path("executed").exists()
    assert enjoy.main([*RESUME, "--env=other:make"]) == ExitCode.REFUSED
    assert "--env=other:make: the policy was trained with --env=strange:make" in capsys.readouterr().err
