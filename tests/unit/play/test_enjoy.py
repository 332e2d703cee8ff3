"""enjoy plays whole episodes of a saved run, the same ones for the same seed; missing and damaged files are named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import pytest
from gymnasium.vector import SyncVectorEnv

import sfactory
from sfactory import enjoy, export
from sfactory.config.flags import all_flags
from sfactory.env.factory import EnvFactory
from sfactory.errors import EnvError, ExitCode
from sfactory.play.player import env_seed_of
from sfactory_envs.synthetic.bandit import Bandit
from tests.support.long import long
from tests.support.saved_run import (
    BANDIT,
    CONTEXTS,
    LENGTH,
    SPEC,
    TRUSTED,
    checkpoints,
    payload,
    play,
    refused,
    save_run,
)

FAULTY = "sfactory_envs.synthetic.faulty:Faulty"
LATEST = "checkpoint_p0/checkpoint_000000007_70.pth"
GREEDY = "--eval_deterministic=True"


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_result_names_env_checkpoint_and_what_was_played(capsys: pytest.CaptureFixture[str]) -> None:
    save_run(certainty=50.0)

    result = play(capsys, "--max_num_episodes=6", GREEDY, "--seed=11")

    assert result == {
        "env": BANDIT,
        "policy": 0,
        "checkpoint": f"train_dir/run/{LATEST}",
        "checkpoint_env_steps": 70,
        "deterministic": True,
        "seed": 11,
        "episodes": 6,
        **{f"episode_{name}": 5.0 for name in ("return_mean", "return_min", "return_max", "length_mean")},
        "true_objective_mean": 5.0,
        "episode_extra_stats": {},
        "video": None,
    }


def test_greedy_play_takes_the_mode_and_a_seed_given_or_drawn_plays_the_same_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_run(certainty=0.5)  # the right choice has probability 0.35
    many = "--max_num_episodes=40"

    greedy = play(capsys, many, GREEDY, "--seed=1")
    sampled, again, other = (play(capsys, many, "--eval_deterministic=False", f"--seed={seed}") for seed in (5, 5, 6))
    drawn = play(capsys)

    assert greedy["episode_return_mean"] == 5.0
    assert 1.0 < sampled["episode_return_mean"] < 2.6
    assert sampled == again
    assert {**sampled, "seed": 6} != other
    assert drawn == play(capsys, f"--seed={drawn['seed']}")
    assert (drawn["episodes"], drawn["deterministic"]) == (20, False)  # the defaults


class MadeWithSeed(SyncVectorEnv):
    """Bandits that are seeded when they are made, and never again."""

    seeds: ClassVar[list[int]] = []

    def __init__(self, num_envs: int, seed: int, num_contexts: int, length: int) -> None:
        super().__init__([lambda: Bandit(num_contexts, length)] * num_envs)
        super().reset(seed=seed)
        self.seeds.append(seed)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(options=options)


def test_a_vector_env_that_is_seeded_when_it_is_made_is_made_with_the_seed_of_the_play(
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_run(env="tests.unit.play.test_enjoy:MadeWithSeed", certainty=0.5)

    plays = [play(capsys, f"--seed={seed}") for seed in (5, 5, 6)]
    exported = export.main(["--experiment=run", TRUSTED])
    checkpoints().save({**payload(0.5), "env_spec": SPEC.plain()}, train_step=8, env_steps=80)
    policy = sfactory.load("train_dir/run", trust_run_dir=True)
    made = [policy.make_env(), policy.make_env(seed=3)]

    with pytest.raises(EnvError, match="leave seed out of --env_kwargs: --seed gives each vector env one of its own"):
        EnvFactory("tests.unit.play.test_enjoy:MadeWithSeed", {"seed": 3}).either()
    assert plays[0] == plays[1] != {**plays[2], "seed": 5}
    assert exported == ExitCode.DONE
    assert [isinstance(env, gymnasium.Env) for env in made] == [True, True]
    assert MadeWithSeed.seeds[:4] == [env_seed_of(5), env_seed_of(5), env_seed_of(6), 0]
    assert MadeWithSeed.seeds[5:] == [3]


@pytest.mark.parametrize(
    ("flags", "checkpoint", "mean"),
    [
        ([], LATEST, 0.0),
        (["--load_checkpoint_kind=best"], "checkpoint_p0/best_000000003_50_5.000.pth", 5.0),
        (["--load_checkpoint_kind=milestone"], "checkpoint_p0/milestones/checkpoint_000000005_50.pth", 5.0),
        (["--checkpoint_env_steps=70"], LATEST, 0.0),
        (["--checkpoint_env_steps=20"], "checkpoint_p0/milestones/checkpoint_000000002_20.pth", 0.0),
        (["--policy_index=1"], "checkpoint_p1/checkpoint_000000007_70.pth", 5.0),
    ],
)
def test_flags_choose_the_checkpoint(
    flags: list[str], checkpoint: str, mean: float, capsys: pytest.CaptureFixture[str]
) -> None:
    save_run(certainty=-50.0)  # it avoids the right choice
    checkpoints().save_milestone(payload(-50.0), train_step=2, env_steps=20)
    checkpoints().save_milestone(payload(50.0), train_step=5, env_steps=50)
    checkpoints().save_best(payload(50.0), train_step=3, env_steps=50, metric=5.0)
    checkpoints(policy=1).save(payload(50.0), train_step=7, env_steps=70)

    result = play(capsys, *flags)

    assert (result["checkpoint"], result["episode_return_mean"]) == (f"train_dir/run/{checkpoint}", mean)
    assert result["policy"] == int("checkpoint_p1" in checkpoint)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--checkpoint_env_steps=71"], "no checkpoint of env step 71.*latest: 70"),
        (["--policy_index=2"], "train_dir/run holds policy 0 alone"),
        (["--load_checkpoint_kind=milestone"], "--save_milestones_sec"),
        (["--load_checkpoint_kind=best"], "--load_checkpoint_kind=latest"),
        (["--experiment=rum"], "there is no such run.*did you mean run?"),
        (["--train_dir=nowhere"], "nowhere.*--train_dir"),
        (["--train_dir=train_dir/run"], "there is no such run.*; train_dir/run is itself a run"),
        (["--env=own"], "of which run?.*did you mean --experiment=own?"),
        (["--env=CartPole-v1"], "of which run?.*train_dir holds the runs damaged, empty, other, own, run"),
        (["--experiment=empty"], "checkpoint_p0 holds no checkpoint"),
        (["--experiment=damaged"], "config.json cannot be read"),
        (["--experiment=other"], "checkpoint_000000007_70.pth does not fit --env"),
        (["--experiment=own"], "config.json names code .*: --encoder=absent:Net: module 'absent'"),
        (["--experiment=version1"], "another version of sfactory"),
        (["--experiment=version999"], "another version of sfactory"),
    ],
)
def test_missing_and_unfitting_runs_and_checkpoints_are_refused(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_run()
    save_run("empty", certainty=None)
    save_run("own", encoder="absent:Net", encoder_mlp_layers=all_flags()["encoder_mlp_layers"].default)
    save_run("damaged")
    Path("train_dir/damaged/config.json").write_text('{"format_version": 1, ')
    save_run("other", env_kwargs={"num_contexts": CONTEXTS + 1, "length": LENGTH})
    for version in (1, 999):
        save_run(f"version{version}", certainty=None)
        changed = payload(50.0) | {"payload_version": version}
        checkpoints(f"version{version}").save(changed, train_step=7, env_steps=70)

    named = any("--experiment" in flag or "--env" in flag for flag in flags)
    (line,) = refused(capsys, *([] if named else ["--experiment=run"]), *flags)

    assert [word for word in words.split(".*") if word not in line] == []


@pytest.mark.parametrize(
    ("frames", "frameskip", "episodes"), [(14, 1, 2), (15, 1, 3), (30, 2, 3), (29, 2, 2), (4, 1, 0)]
)
def test_frames_end_the_play_and_only_whole_episodes_count(
    capsys: pytest.CaptureFixture[str], frames: int, frameskip: int, episodes: int
) -> None:
    save_run(env_frameskip=frameskip)

    result = play(capsys, f"--max_num_frames={frames}")

    assert (result["episodes"], result["episode_length_mean"]) == (episodes, 5.0 if episodes else None)


CHATTY_ENV = """
import ctypes
from sfactory_envs.synthetic.bandit import Bandit
print('hello from the module')
class Chatty(Bandit):
    def step(self, action):
        for _ in range(8):
            # 16 characters, so that no line is cut in two where C's buffer is full.
            ctypes.CDLL(None).puts(b'hello from C...')
        return super().step(action)
    def __del__(self):
        print('goodbye')
"""


@pytest.mark.parametrize("redirection", ["", long(">&-")])
def test_output_of_an_env_stays_out_of_the_result_and_stdout_may_be_closed(tmp_path: Path, redirection: str) -> None:
    (tmp_path / "chatty_bandit.py").write_text(CHATTY_ENV)
    save_run(env="chatty_bandit:Chatty")

    # PYTHONUNBUFFERED would hold for C's stdout, too.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = f'exec "$0" -m sfactory.enjoy --experiment=run {TRUSTED} {redirection}'
    done = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=env,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["episodes"] for line in done.stdout.splitlines()] == ([] if redirection else [20])
    assert "20 of 20 episodes" in done.stderr
    if not redirection:
        assert done.stderr.count("hello from C...\n") == 20 * LENGTH * 8
        assert {"hello from the module", "goodbye"} <= {*done.stderr.splitlines()}


def test_damaged_checkpoints_are_skipped_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    save_run(certainty=None)
    # Version 2 is from before there was a choice of optimizers.
    checkpoints().save(payload(50.0) | {"payload_version": 2}, train_step=7, env_steps=70)
    newest = checkpoints().save(payload(-50.0), train_step=9, env_steps=90)
    os.truncate(newest, 100)

    result = play(capsys)
    for path in Path("train_dir/run/checkpoint_p0").glob("*.pth"):
        os.truncate(path, 100)
    (line,) = refused(capsys, "--experiment=run")

    assert (result["checkpoint_env_steps"], result["episode_return_mean"]) == (70, 5.0)
    assert "none can be loaded" in line
    assert newest.exists()


def test_every_problem_of_a_command_line_is_reported_at_once_and_help_lists_the_flags(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = ["--experiment=../x", "--max_num_episodes=0", "--eval_determinstic=True", "--seed=x", "--gamma=0.9", "y"]
    contradicting = ["--render=window", "--no_render=True", "--video_name=../x", "--video_frames=3", "--fps=-1"]

    lines = refused(capsys, *wrong) + refused(capsys, *contradicting)

    expected = ["--experiment=", "--max_num_episodes=0", "did you mean --eval_deterministic?", "--seed=x", "--gamma"]
    expected += [
        "--render=window",
        "--video_name=../x",
        "--video_frames=3",
        "--fps=-1.0",
        "--experiment: of which run? give its name, --experiment=NAME; there is no train_dir",
    ]
    assert len(lines) == 6 + 6
    assert [text for text in expected if not any(text in line for line in lines)] == []
    assert {"max_num_episodes", "max_num_frames", "checkpoint_env_steps"}.isdisjoint(all_flags())  # those of train
    with pytest.raises(SystemExit) as caught:
        enjoy.main(["--help", "--nonsense"])
    assert (caught.value.code, "--max_num_frames" in capsys.readouterr().out) == (0, True)


ODD_ENVS = """
import sys
from sfactory_envs.synthetic.bandit import Bandit

class Odd(Bandit):
    @property
    def metadata(self):
        raise LookupError('no metadata today')

class Leaving(Bandit):
    def step(self, action):
        sys.exit(0)

class Loud(Bandit):
    def step(self, action):
        raise ValueError(chr(27) + "[31m" + chr(0) + "x" * 10_000_000)
"""


@pytest.mark.parametrize(
    ("env", "kwargs", "flags", "text"),
    [
        (FAULTY, {"length": LENGTH, "raise_at": 7}, [], "step 2 of episode 2 raised EnvFault: step 7 raises"),
        ("odd_bandit:Odd", {"num_contexts": CONTEXTS}, ["--save_video=True"], "error: LookupError: no metadata today"),
        ("odd_bandit:Leaving", {"num_contexts": CONTEXTS}, [], "SystemExit"),
        ("odd_bandit:Loud", {"num_contexts": CONTEXTS}, [], "ValueError: \\x1b[31m\\x00xxx"),
    ],
)
def test_faults_of_an_env_are_shown_with_a_traceback(
    env: str, kwargs: dict[str, Any], flags: list[str], text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "odd_bandit.py").write_text(ODD_ENVS)
    save_run(env=env, env_kwargs=kwargs)

    code = enjoy.main(["--experiment=run", TRUSTED, *flags])

    captured = capsys.readouterr()
    assert (code, captured.out) == (ExitCode.FAULTS, "")
    assert "Traceback" in captured.err
    last = captured.err.splitlines()[-1]
    assert last.startswith("error: ")
    assert text in last
    assert len(captured.err) < 30_000
    assert not {"\x1b", "\0"} & {*captured.err}
