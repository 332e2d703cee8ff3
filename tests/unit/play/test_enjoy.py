"""enjoy plays whole episodes of a saved run, the same ones for the same seed, and says what is missing or damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sfactory import enjoy
from sfactory.config.flags import all_flags
from sfactory.errors import ExitCode
from tests.support.saved_run import BANDIT, CONTEXTS, LENGTH, checkpoints, payload, play, refused, save_run
from tests.support.source import ROOT
from tests.support.trainer import RunTrainer

FAULTY = "sfactory_envs.synthetic.faulty:Faulty"


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_result_names_env_checkpoint_and_what_was_played(capsys: pytest.CaptureFixture[str]) -> None:
    save_run(certainty=50.0)

    result = play(capsys, "--max_num_episodes=6", "--eval_deterministic=True", "--seed=11")

    assert result == {
        "env": BANDIT,
        "policy": 0,
        "checkpoint": "train_dir/run/checkpoint_p0/checkpoint_000000007_70.pth",
        "checkpoint_env_steps": 70,
        "deterministic": True,
        "seed": 11,
        "episodes": 6,
        "episode_return_mean": 5.0,
        "episode_return_min": 5.0,
        "episode_return_max": 5.0,
        "episode_length_mean": 5.0,
        "true_objective_mean": 5.0,
        "episode_extra_stats": {},
        "video": None,
    }


def test_greedy_play_takes_the_mode_and_sampled_play_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    save_run(certainty=0.5)  # the right choice has probability 0.35

    greedy = play(capsys, "--max_num_episodes=40", "--eval_deterministic=True", "--seed=1")
    sampled = play(capsys, "--max_num_episodes=40", "--eval_deterministic=False", "--seed=1")

    assert greedy["episode_return_mean"] == 5.0
    assert 1.0 < sampled["episode_return_mean"] < 2.6


def test_one_seed_plays_the_same_episodes_and_another_plays_others(capsys: pytest.CaptureFixture[str]) -> None:
    save_run()

    first, again, other = (play(capsys, "--max_num_episodes=40", f"--seed={seed}") for seed in (5, 5, 6))

    assert first == again
    assert {**first, "seed": 6} != other


def test_a_seed_that_was_drawn_can_be_given_to_play_the_same_again(capsys: pytest.CaptureFixture[str]) -> None:
    save_run()
    drawn = play(capsys, "--max_num_episodes=40")

    again = play(capsys, "--max_num_episodes=40", f"--seed={drawn['seed']}")

    assert again == drawn


def test_without_flags_twenty_episodes_are_sampled(capsys: pytest.CaptureFixture[str]) -> None:
    save_run()

    result = play(capsys)

    assert result["episodes"] == 20
    assert result["deterministic"] is False


def test_the_best_checkpoint_is_played_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    save_run(certainty=-50.0)  # the latest avoids the right choice
    checkpoints().save_best(payload(50.0), train_step=3, env_steps=30, metric=5.0)

    best = play(capsys, "--load_checkpoint_kind=best")
    latest = play(capsys)

    assert best["episode_return_mean"] == 5.0
    assert best["checkpoint"] == "train_dir/run/checkpoint_p0/best_000000003_30_5.000.pth"
    assert latest["episode_return_mean"] == 0.0


def test_the_newest_milestone_is_played_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    save_run(certainty=-50.0)
    checkpoints().save_milestone(payload(-50.0), train_step=2, env_steps=20)
    checkpoints().save_milestone(payload(50.0), train_step=5, env_steps=50)

    result = play(capsys, "--load_checkpoint_kind=milestone")

    assert result["episode_return_mean"] == 5.0
    assert result["checkpoint"] == "train_dir/run/checkpoint_p0/milestones/checkpoint_000000005_50.pth"


def test_a_checkpoint_can_be_named_by_its_env_step(capsys: pytest.CaptureFixture[str]) -> None:
    save_run(certainty=-50.0)
    checkpoints().save_milestone(payload(50.0), train_step=5, env_steps=50)
    checkpoints().save_best(payload(-50.0), train_step=5, env_steps=50, metric=5.0)

    newest = play(capsys, "--checkpoint_env_steps=70")
    milestone = play(capsys, "--checkpoint_env_steps=50", "--load_checkpoint_kind=milestone")

    assert newest["checkpoint"].endswith("checkpoint_p0/checkpoint_000000007_70.pth")
    assert milestone["checkpoint"].endswith("milestones/checkpoint_000000005_50.pth")
    assert (newest["episode_return_mean"], milestone["episode_return_mean"]) == (0.0, 5.0)


def test_an_env_step_without_a_checkpoint_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    save_run()

    (line,) = refused(capsys, "--experiment=run", "--checkpoint_env_steps=71")

    assert "no checkpoint of env step 71" in line
    assert "latest: 70" in line


def test_another_policy_of_the_run_can_be_played(capsys: pytest.CaptureFixture[str]) -> None:
    save_run(certainty=-50.0)
    checkpoints(policy=1).save(payload(50.0), train_step=7, env_steps=70)

    result = play(capsys, "--policy_index=1")

    assert result["policy"] == 1
    assert result["episode_return_mean"] == 5.0


def test_a_policy_that_the_run_does_not_have_is_refused_with_those_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    save_run()
    (alone,) = refused(capsys, "--experiment=run", "--policy_index=2")
    checkpoints(policy=1).save(payload(1.0), train_step=7, env_steps=70)

    (several,) = refused(capsys, "--experiment=run", "--policy_index=2")

    assert "--policy_index=2: train_dir/run holds policy 0 alone" in alone
    assert "--policy_index=2: train_dir/run holds the policies 0, 1" in several


def test_a_run_without_a_milestone_says_how_they_are_saved(capsys: pytest.CaptureFixture[str]) -> None:
    save_run()

    (line,) = refused(capsys, "--experiment=run", "--load_checkpoint_kind=milestone")

    assert "--save_milestones_sec" in line


@pytest.mark.parametrize(
    ("frames", "frameskip", "episodes"),
    [(14, 1, 2), (15, 1, 3), (30, 2, 3), (29, 2, 2), (4, 1, 0)],
)
def test_frames_end_the_play_and_only_whole_episodes_count(
    capsys: pytest.CaptureFixture[str], frames: int, frameskip: int, episodes: int
) -> None:
    save_run(env_frameskip=frameskip)

    result = play(capsys, f"--max_num_frames={frames}")

    assert result["episodes"] == episodes
    assert result["episode_length_mean"] == (5.0 if episodes else None)


def test_what_an_env_prints_stays_out_of_the_result(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "chatty_bandit.py").write_text(
        "from sfactory_envs.synthetic.bandit import Bandit\n"
        "def make(**kwargs):\n"
        "    print('hello from the env')\n"
        "    return Bandit(**kwargs)\n"
    )
    save_run(env="chatty_bandit:make")

    result = play(capsys)

    assert result["env"] == "chatty_bandit:make"


def run_enjoy(*argv: str, redirection: str = "") -> subprocess.CompletedProcess[str]:
    """enjoy as a user starts it here with its outputs in pipes; ``redirection`` is the shell's."""
    # PYTHONUNBUFFERED would hold for C's stdout, too.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" "$@" {redirection}', sys.executable, "-m", "sfactory.enjoy", *argv],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=env,
        timeout=120,
    )


def test_what_an_env_prints_from_c_and_at_its_end_stays_out_of_the_result(tmp_path: Path) -> None:
    # A line of 16 characters, so that none is cut in two where C's buffer is full.
    (tmp_path / "chatty_bandit.py").write_text(
        "import ctypes\n"
        "from sfactory_envs.synthetic.bandit import Bandit\n"
        "print('hello from the module')\n"
        "class Chatty(Bandit):\n"
        "    def step(self, action):\n"
        "        for _ in range(8):\n"
        "            ctypes.CDLL(None).puts(b'hello from C...')\n"
        "        return super().step(action)\n"
        "    def __del__(self):\n"
        "        print('goodbye')\n"
    )
    save_run(env="chatty_bandit:Chatty")

    done = run_enjoy("--experiment=run")

    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["episodes"] for line in done.stdout.splitlines()] == [20]
    assert done.stderr.count("hello from C...\n") == 20 * LENGTH * 8
    assert {"hello from the module", "goodbye"} <= {*done.stderr.splitlines()}


def test_without_a_stdout_it_plays_all_the_same() -> None:
    save_run()

    done = run_enjoy("--experiment=run", redirection=">&-")

    assert done.returncode == 0, done.stderr
    assert "20 of 20 episodes" in done.stderr


def test_an_unknown_run_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    save_run("cartpole_1", certainty=None)

    (line,) = refused(capsys, "--experiment=cartpole_2")

    assert "there is no such run" in line
    assert "did you mean cartpole_1?" in line


def test_a_train_dir_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = refused(capsys, "--experiment=run", "--train_dir=nowhere")

    assert "nowhere" in line
    assert "--train_dir" in line


def test_a_run_without_a_checkpoint_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    save_run(certainty=None)

    (line,) = refused(capsys, "--experiment=run")

    assert "checkpoint_p0 holds no checkpoint" in line


def test_a_run_without_a_best_checkpoint_points_to_its_latest(capsys: pytest.CaptureFixture[str]) -> None:
    save_run()

    (line,) = refused(capsys, "--experiment=run", "--load_checkpoint_kind=best")

    assert "--load_checkpoint_kind=latest" in line


def test_a_damaged_newest_checkpoint_is_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    save_run(certainty=50.0)
    newest = checkpoints().save(payload(-50.0), train_step=9, env_steps=90)
    os.truncate(newest, newest.stat().st_size - 100)

    result = play(capsys)

    assert result["checkpoint_env_steps"] == 70
    assert result["episode_return_mean"] == 5.0


def test_checkpoints_that_are_all_damaged_are_refused_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    save_run()
    (path,) = Path("train_dir/run/checkpoint_p0").glob("*.pth")
    os.truncate(path, 100)

    (line,) = refused(capsys, "--experiment=run")

    assert "none can be loaded" in line
    assert path.exists()


def test_a_damaged_config_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    save_run()
    Path("train_dir/run/config.json").write_text('{"format_version": 1, ')

    (line,) = refused(capsys, "--experiment=run")

    assert "train_dir/run/config.json: cannot be read" in line


def test_weights_for_another_observation_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    save_run(env_kwargs={"num_contexts": CONTEXTS + 1, "length": LENGTH})

    (line,) = refused(capsys, "--experiment=run")

    assert "checkpoint_000000007_70.pth does not fit --env" in line


def test_every_problem_of_a_command_line_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = refused(
        capsys, "--experiment=../x", "--max_num_episodes=0", "--eval_determinstic=True", "--seed=x", "--gamma=0.9", "y"
    )

    expected = [
        "--experiment=../x",
        "--max_num_episodes=0",
        "did you mean --eval_deterministic?",
        "--seed=x",
        "--gamma",
    ]
    assert len(lines) == 6
    assert [text for text in expected if not any(text in line for line in lines)] == []


def test_train_knows_none_of_the_flags_that_only_playing_needs() -> None:
    own = {"max_num_episodes", "max_num_frames", "checkpoint_env_steps"}

    assert own.isdisjoint(all_flags())


def test_help_names_every_flag_and_exits_with_zero(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        enjoy.main(["--help", "--nonsense"])

    out = capsys.readouterr().out
    assert caught.value.code == 0
    assert [flag for flag in ("--experiment", "--seed", "--max_num_frames") if flag not in out] == []


def test_an_env_that_raises_is_shown_with_its_own_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    save_run(env=FAULTY, env_kwargs={"length": LENGTH, "raise_at": 7})

    code = enjoy.main(["--experiment=run"])

    captured = capsys.readouterr()
    assert code == 3
    assert captured.out == ""
    assert "step 2 of episode 2 raised EnvFault: step 7 raises, as ordered" in captured.err.splitlines()[-1]
    assert "Traceback" in captured.err


def test_a_defect_is_shown_whole_and_ends_as_every_other_fault_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "odd_bandit.py").write_text(
        "from sfactory_envs.synthetic.bandit import Bandit\n"
        "class Odd(Bandit):\n"
        "    @property\n"
        "    def metadata(self):\n"
        "        raise LookupError('no metadata today')\n"
    )
    save_run(env="odd_bandit:Odd")

    code = enjoy.main(["--experiment=run", "--save_video=True"])

    captured = capsys.readouterr()
    assert code == ExitCode.FAULTS
    assert captured.out == ""
    assert "Traceback" in captured.err
    assert captured.err.splitlines()[-1] == "error: LookupError: no metadata today"


def test_an_env_that_calls_sys_exit_is_a_fault(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "leaving_bandit.py").write_text(
        "import sys\n"
        "from sfactory_envs.synthetic.bandit import Bandit\n"
        "class Leaving(Bandit):\n"
        "    def step(self, action):\n"
        "        sys.exit(0)\n"
    )
    save_run(env="leaving_bandit:Leaving")

    code = enjoy.main(["--experiment=run"])

    captured = capsys.readouterr()
    assert code == ExitCode.FAULTS
    assert captured.out == ""
    assert "Traceback" in captured.err
    assert captured.err.splitlines()[-1].startswith("error: ")
    assert "SystemExit" in captured.err.splitlines()[-1]


def test_ctrl_c_sums_up_the_episodes_that_were_finished(capsys: pytest.CaptureFixture[str]) -> None:
    save_run(env=FAULTY, env_kwargs={"length": LENGTH, "signal_at": 13, "signal_name": "SIGINT"}, certainty=50.0)

    code = enjoy.main(["--experiment=run"])

    result = json.loads(capsys.readouterr().out)
    assert code == 130
    assert result["episodes"] == 2
    assert result["episode_return_mean"] == 5.0


def test_a_trained_run_can_be_played_from_the_command_line(run_trainer: RunTrainer) -> None:
    run = run_trainer(env=BANDIT, env_kwargs={"num_contexts": 2, "length": 5}, train_for_env_steps=5000)
    assert run.wait() == 0
    where = [f"--train_dir={run.run_dir.parent}", f"--experiment={run.run_dir.name}"]

    done = subprocess.run(
        [sys.executable, "-m", "sfactory.enjoy", *where, "--seed=1", "--max_num_episodes=10"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["episodes"] == 10
    assert result["episode_length_mean"] == 5.0
    assert result["checkpoint_env_steps"] >= 5000
