"""check_env names all that is wrong with an env, and finds nothing wrong with a good one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import gymnasium
import pytest

from sfactory.check_env import main, train_flags
from sfactory.config.argv import words_of
from sfactory.config.resolve import read_command_line
from sfactory.env.factory import EnvFactory
from sfactory.planning import plan
from sfactory.planning.env_inspection import Report, inspect_env, inspect_in_process
from sfactory.planning.env_report import Fit, fit, text_of
from sfactory.process.spawn import Spawner

HERE = "tests.support.broken_envs"
STEPS = 40  # several episodes of each broken env

# By env and flaw: the code and a part of the text of each finding.
FLAWS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "Flawed": {
        "shape": {"obs.form": "reset 1: observation 'obs' has shape (4,)"},
        "dtype": {"obs.dtype": "reset 1: observation 'obs' has dtype float64, and its space float32"},
        "bounds": {"obs.bounds": "outside the bounds of its space"},
        "nan": {"obs.finite": "reset 1: observation 'obs' holds NaN or infinity"},
        "no dict": {"obs.form": "observation 'obs' has shape ()"},
        "infinite reward": {"reward.finite": "step 1: the reward is inf"},
        "no reward": {"reward": "step 1: the reward is None, no number"},
        "array reward": {"reward": "step 1: the reward is array([1., 1.]), no number"},
        "four": {"step.form": "step 1 returned a tuple of 4"},
        "list": {"step.form": "step 1 returned a builtins.list"},
        "reset alone": {"reset.form": "reset 1 returned a numpy.ndarray"},
        "no seed": {"reset.arguments": "reset() takes no seed and options", "seed": "reset gives something else"},
        "seed ignored": {"seed": "after reset(seed=1) twice, with the same actions, reset gives something else"},
        "same numbers": {"seed.unused": "give the same episode"},
        "same buffer": {"obs.shared": "step 1 changed observation 'obs', which an earlier call had returned"},
        "info list": {"info": "reset 1: the info is a builtins.list"},
        "number keys": {"info.keys": "the info has the key 1"},
        "large info": {"info.size": "the info has arrays of 120,000 bytes"},
        "text statistics": {"info.statistics": "info['episode_extra_stats'] is {'level': 'one'}"},
        "int flags": {"flag": "step 1: terminated is 0, a builtins.int"},
        "second episode raises": {"step.raised": "raised ConnectionError: the simulator is gone (at "},
        "exit": {"step.raised": "raised SystemExit: 0"},
        "action": {"step.raised": "raised IndexError: no action 2 (at "},
        "close raises": {"close.raised": "close raised RuntimeError: the window is gone"},
        "thread": {"left.thread": "close() leaves behind the thread simulator"},
        "child": {
            "left.process": "close() leaves behind the process sleep",
            "children": "it starts 1 process; a run here makes it ",
        },
        "prints": {"prints": "it prints"},
        "text space": {"train": "observation space 'note' is a Text"},
        "text alone": {"train": "observation space 'obs' is a Text"},
        "text action": {"train": "action space 'action' is Text"},
        "mask": {},
        "numbers": {},
        "empty mask": {"obs.mask": "step 1: observation 'action_mask' allows no action"},
        "three": {"obs.form": "shape (4,)", "reward": "is None", "info": "the info is None"},
        "": {},
    },
    "FlawedVector": {
        "batch": {"obs.form": "reset 1: observation 'obs' has shape (3, 3)"},
        "one reward": {"batch": "step 1: rewards have the shape () for 2 envs"},
        "int flags": {"flag": "step 1: terminated is np.int64(0)"},
        "info list": {"info": "the info is a builtins.list"},
        "one objective": {
            "info.statistics": "step 8: 'true_objective' is of type float; there must be an entry for each of 2"
        },
        "text statistics": {"info.statistics": "step 8: info['episode_extra_stats'] is {'level': 'one'}"},
        "dicts": {},
        "no resets": {"data": "it does not reset its envs (AutoresetMode.DISABLED)"},
        "no mode": {"autoreset.unsaid": "NEXT_STEP is assumed"},
        "no mode, paid": {"autoreset.unsaid": "NEXT_STEP is assumed", "autoreset": "step 9: an env that the last step"},
        "": {},
    },
    "FlawedParallel": {
        "stranger": {"agents.unknown": "'cat' is among the env's agents"},
        "wrong keys": {"agents.unknown": "rewards name 'dog'", "agents.missing": "rewards lack agent 'ann'"},
        "no reward": {"reward": "step 1: the reward of 'bob' is None"},
        "stays": {"agents.over": "is over, and is among the env's agents"},
        "unseen": {"agents.missing": "agent 'bob' has no observation"},
        "nan": {"obs.finite": "reset 1, agent 'bob': observation 'obs' holds NaN"},
        "info list": {"agents.form": "infos are a builtins.list"},
        "four": {"step.form": "step 1 returned a tuple of 4"},
        "new spaces": {"agents.spaces": "spaces of an agent are made at each call"},
        "": {},
    },
    "FlawedTurns": {
        "selection done": {"data": "after reset() no agent has a turn, or the episode of one is over"},
        "stays": {"data": "is over, and is among the env's agents after step(None)"},
        "strange turn": {"data": "agent 'cat' has a turn, and is not in the env's possible_agents"},
        "nan": {"obs.finite": "agent 'ann': observation 'obs' holds NaN"},
        "no infos": {"agents.attributes": "the env has no infos"},
        "four": {"last.form": "returned a tuple of 4"},
        "": {},
    },
    "FlawedLists": {
        "one reward": {"agents.lists": "rewards are a builtins.list of 1"},
        "no reward": {"reward": "the reward of agent 1 is None"},
        "shape": {"obs.form": "reset 1, agent 0: observation 'obs' has shape (4,)"},
        "": {},
    },
    "nothing": {"": {"make": "it must return an instance of gymnasium.Env"}},
    "of_missing_package": {"": {"make": "raised ModuleNotFoundError: No module named 'no_such_simulator'"}},
}
NO_VIOLATION = {"seed.unused", "obs.shared", "info.keys", "info.size", "info.statistics", "close.raised", "left.thread"}
NO_VIOLATION |= {"left.process", "children", "prints", "agents.spaces", "memory", "time_limit", "autoreset.unsaid"}


def examined(name: str, steps: int = STEPS, *words: str, flaw: str = "") -> tuple[Report, Fit]:
    """The whole report on an env, and how training would begin."""
    report = inspect_env(EnvFactory(name, {"flaw": flaw} if flaw else {}, info_action_mask="auto"), steps)
    return report, fit(report, read_command_line([f"--env={name}", *words]), {"env": name})


@pytest.mark.parametrize(("env", "flaw"), [(env, flaw) for env, flaws in FLAWS.items() for flaw in flaws])
def test_each_flaw_is_named_and_nothing_else(env: str, flaw: str) -> None:
    expected = FLAWS[env][flaw]

    report, fits = examined(f"{HERE}:{env}", flaw=flaw)

    found = {finding.code: finding for finding in report.findings if finding.kind != "hint" or finding.code in expected}
    assert found.keys() == expected.keys(), report.findings
    for code, text in expected.items():
        assert text in found[code].text
        assert (found[code].kind == "violation") == (code not in NO_VIOLATION)
        assert found[code].text.replace(f"--env={HERE}:{env}: ", "") in text_of(report, fits)


def test_only_an_observation_of_the_right_shape_gets_advice_on_its_dtype() -> None:
    mends = {}
    for flaw in ("shape", "complex"):
        (finding,) = [each for each in examined(f"{HERE}:Flawed", flaw=flaw)[0].findings if each.code == "obs.form"]
        mends[flaw] = finding.mend

    assert mends["shape"] == "return what its space describes, or correct the space"
    assert mends["complex"].startswith("return obs.astype(np.float32)")


def test_what_shows_only_in_many_steps_is_found() -> None:
    leaking, _ = examined(f"{HERE}:Flawed", 1000, flaw="leak")
    endless, _ = examined(f"{HERE}:Flawed", 500, flaw="endless")

    assert [finding.code for finding in leaking.findings] == ["memory"]
    assert leaking.leak_bytes is not None
    assert leaking.leak_bytes > 8000  # of 16,000 each step
    assert [finding.code for finding in endless.findings] == ["time_limit"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("CartPole-v1", "a Gymnasium env"),
        ("Blackjack-v1", "a Gymnasium env"),
        ("Pendulum-v1", "a Gymnasium env"),
        ("vector:CartPole-v1", "a Gymnasium vector env, here of 2 envs"),
        ("sfactory_envs.synthetic.masked_arms:MaskedArms", "a Gymnasium env"),
        ("tests.support.unequal_agents:Unequal", "an env of 3 agents that act at the same time (PettingZoo's parallel"),
    ],
)
def test_good_envs_are_clean(name: str, kind: str) -> None:
    report, fits = examined(name, 300)

    assert [finding for finding in report.findings if finding.kind != "hint"] == []
    assert report.kind.startswith(kind)
    assert report.same_seed
    assert report.steps == 300
    assert (", summed over 3 agents" in text_of(report, fits)) == (len(report.agents) == 3)
    assert fits.command == f"python -m sfactory.train --env={name}"
    assert fits.reading


def test_pettingzoo_is_clean() -> None:
    pytest.importorskip("pettingzoo")

    for name in ("mpe2.simple_speaker_listener_v4", "classic.tictactoe_v3"):
        assert [finding for finding in examined(f"pettingzoo:{name}")[0].findings if finding.kind != "hint"] == []


def test_an_observation_that_cannot_be_read_can_be_left_out() -> None:
    report, _ = examined(f"{HERE}:Flawed", STEPS, "--ignore_obs_keys=note", flaw="text space")

    assert report.findings == ()


def test_a_flag_that_is_typed_counts_also_where_its_value_is_the_default_of_all_envs() -> None:
    typed = {"obs_grey": False, "env_framestack": 1, "action_repeat": 1, "obs_resize": (), "ignore_obs_keys": ()}
    line = ["--env=CarRacing-v3", *words_of(typed)]

    given = train_flags([*line, "--env_frameskip=none", "--steps=40", "--seed=0"])

    assert given == {"env": "CarRacing-v3", **typed}
    resolved = read_command_line(words_of(given))
    assert resolved.config.wrappers.used == {}
    assert read_command_line(["--env=CarRacing-v3"]).config.wrappers.used.keys() == typed.keys() - {"ignore_obs_keys"}
    assert fit(inspect_env(EnvFactory("CartPole-v1"), STEPS), resolved, given).command.endswith(" ".join(line))


def test_an_env_that_raises_only_for_one_seed_is_reported() -> None:
    factory = EnvFactory(f"{HERE}:Flawed", {"flaw": "seed 5 raises"})
    report = inspect_env(factory, STEPS, seed=5)

    assert report.probed is not None  # training resets with other seeds
    assert fit(report, read_command_line([f"--env={factory.name}"]), {}) == Fit()
    assert "violation reset.raised: reset 2 raised ValueError: no level 5" in text_of(report, Fit())


@pytest.mark.parametrize(
    ("name", "flag"),
    [(f"{HERE}:Flawed", "--max_episode_steps=1000"), (f"{HERE}:FlawedVector", ""), (f"{HERE}:FlawedLists", "")],
)
def test_advice_on_endless_episodes_fits_the_env(name: str, flag: str) -> None:
    report, _ = examined(name, 500, flaw="endless")

    (finding,) = report.findings
    assert finding.code == "time_limit"
    assert finding.mend.endswith(flag)
    assert ("--" in finding.mend) == bool(flag)
    if flag:
        resolved = read_command_line([f"--env={name}", "--env_kwargs", '{"flaw": "endless"}', flag])
        limited = inspect_env(EnvFactory.of(resolved.config), 500)
        assert (limited.has_time_limit, fit(limited, resolved, {}).settings is not None) == (True, True)
        assert limited.findings == ()


@pytest.mark.parametrize(("env", "envs"), [("Flawed", 2), ("FlawedVector", 16)])
def test_settings_are_those_of_training_which_times_no_vector_envs(env: str, envs: int) -> None:
    report, _ = examined(f"{HERE}:{env}")
    report.times["step"] = report.times["step"]._replace(median=6000.0)

    settings = fit(report, read_command_line([f"--env={HERE}:{env}", "--num_workers=2"]), {}).settings

    assert settings is not None
    assert settings["num_envs_per_worker"] == envs


def test_memory_is_that_of_training_which_has_no_slots_for_a_tensor_env(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[tuple[int, ...]] = []
    monkeypatch.setattr(plan, "require_memory", lambda *sizes: planned.append(sizes))
    name = "sfactory_envs.synthetic.counting_tensors:CountingTensors"
    resolved = read_command_line([f"--env={name}", "--device=cpu"])
    report = inspect_env(EnvFactory(name), 10)
    assert report.probed is not None

    fit(report, resolved, {})
    config = plan.fitted_to_env(resolved, report.probed, "cpu").config
    plan.plan_sizes(config, report.probed.spec.for_model(config.model), resident=True)

    assert planned[0] == planned[1]


def test_a_family_that_limits_time_itself_gets_no_advice_on_it() -> None:
    pytest.importorskip("ale_py")

    report, _ = examined("atari_pong", 500)

    assert (report.episodes, report.has_time_limit) == (0, False)
    assert report.findings == ()


def takes_frameskip(env_frameskip: int = 1) -> Any:
    return gymnasium.make("CartPole-v1")


def test_advice_on_the_frameskip_is_for_those_that_take_it() -> None:
    here = "tests.unit.planning.test_check_env:takes_frameskip"
    names = [here, "vector:CartPole-v1", "CartPole-v1"]
    mends = {}
    for name, words in ((here, ()), ("vector:CartPole-v1", ()), ("CartPole-v1", ("--env_frameskip=2",))):
        found = examined(name, STEPS, *words)[0].findings
        mends[name] = [finding.mend for finding in found if finding.code == "frameskip"]
    assert mends == dict(
        zip(names, (["train with --env_frameskip=4 to repeat each action"], [], ["leave it out"]), strict=True)
    )


@pytest.mark.parametrize(
    ("name", "flag"), [("vector:CartPole-v1", "num_workers"), ("CartPole-v1", "num_envs_per_worker")]
)
def test_advice_on_processes_of_envs_names_the_flag_that_makes_fewer_envs(name: str, flag: str) -> None:
    report, _ = examined(name)
    report.children = ("simulator",)

    fit(report, read_command_line([f"--env={name}"]), {})

    assert [finding.mend for finding in report.findings] == [f"train with fewer --{flag}, if memory is short"]


@pytest.fixture(scope="module")
def spawner() -> Spawner:
    spawner = Spawner()
    spawner.open()
    return spawner


@pytest.mark.long
def test_an_env_that_hangs_is_reported_with_what_was_found_before(spawner: Spawner) -> None:
    report = inspect_in_process(spawner, EnvFactory(f"{HERE}:Flawed", {"flaw": "hang"}), STEPS, 0, timeout_s=2.0)

    (finding,) = report.findings
    assert finding.code == "process"
    assert finding.text.startswith("reset 3: ")
    assert "within --reset_timeout_seconds=2" in finding.text


@pytest.mark.parametrize(("flaw", "code", "found"), [("crash", 2, ["process"]), ("", 0, [])])
def test_the_command_prints_a_report_and_a_line_of_json(
    flaw: str, code: int, found: list[str], spawner: Spawner, capfd: pytest.CaptureFixture[str]
) -> None:
    kwargs = json.dumps({"flaw": flaw})
    words = [f"--env={HERE}:Flawed", f"--env_kwargs={kwargs}", "--steps=40"]

    assert main(words) == code

    stdout, stderr = capfd.readouterr()
    result = json.loads(stdout)
    assert [finding["code"] for finding in result["violations"]] == found
    assert result["clean"] == (code == 0)
    assert (" (exit code 7)" in stderr) == bool(flaw)
    assert f"{HERE}:Flawed: {'1 violation' if flaw else 'nothing was found'}\n" in stderr


def test_a_command_line_that_names_no_env_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["--env=CartPole-v1", "--steps=0"]) == 2
    assert "--env=: an environment is required" in capfd.readouterr().err


def test_an_id_without_a_version_is_reported_by_its_full_name(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--env=CartPole", "--steps=20"]) == 0

    stdout, stderr = capfd.readouterr()
    assert "--env=CartPole is CartPole-v1" in stderr.splitlines()
    assert json.loads(stdout)["env"] == "CartPole-v1"
    assert "python -m sfactory.train --env=CartPole-v1" in stderr
