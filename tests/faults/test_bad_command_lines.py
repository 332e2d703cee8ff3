"""A run that cannot work is refused at once: exit code 2, the flag by name, what would be right, no traceback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from scripts.proc import MARK, marked
from sfactory.config.flags import config_of
from sfactory.config.saved_config import write_config
from sfactory.experiment.summary import Summary
from tests.support import processes
from tests.support.long import long
from tests.support.source import ROOT
from tests.support.trainer import CLEAN_S, REFUSED_S
from tests.support.warm_process import environment, warm_process

# A user's own module.
BAD_ENVS = """
import gymnasium
from gymnasium import spaces

def raising(**_):
    raise ValueError("the simulator is not licensed")

def leaving():
    raise SystemExit("gone away")

def nothing():
    pass

def missing_policy(agent, episode, env):
    return 7

class FailingReset(gymnasium.Env):
    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)

    def reset(self, **_):
        raise RuntimeError("the level file is missing")

class TextObservations(FailingReset):
    observation_space = spaces.Text(8)

class SetActions(FailingReset):
    action_space = spaces.Sequence(spaces.Discrete(3))
"""
# The mistake in each command line of CartPole-v1 (or of another env), and what its refusal names.
FLAGS = [
    ("--gamma=1.5", "--gamma=1.5", "at most 1.0"),
    ("--autotune=True --serial_mode=True", "--autotune=True", "in serial mode"),
    ("--rollout=32 --batch_size=3200000000000", "--batch_size", "MiB"),  # it fits no memory
    ("--config=none.yaml", "--config=none.yaml"),
    ("--config=value.yaml", "--gamma=1.5", "config file"),
    ("--experiment=old --nonlinearity=relu", "--nonlinearity", "tanh"),
    ("--experiment=damaged", "damaged/config.json", "another --experiment"),
    ("--config=fifo", "error: --config=fifo cannot be read: is not a regular file"),
    ("--experiment=fifo", "fifo/config.json cannot be read: ", "is not a regular file"),
    ("--observers=no_module:Watcher", "error: --observers=no_module:Watcher: "),
    ("--after_train_step=bad_envs:forget", "error: --after_train_step=bad_envs:forget: "),
    (
        "--num_policies=2 --policy_mapping=bad_envs:missing_policy",
        "bad_envs:missing_policy returned 7 for agent 'agent', episode 0, env 0",
    ),
]
# Mistakes that unit tests find in the same place, where the command line is read.
AS_READ = [
    ("--num_workers=-3", "--num_workers=-3", "at least 0"),
    ("--rollout=32 --batch_size=1000", "--batch_size=1000", "992 and 1024"),
    ("--gama=0.9", "--gama", "did you mean --gamma?"),
    ("--gamma=0.9 --gamma=0.8", "--gamma", "once"),
    ("train", "'train'", "--name=value"),
    ('--env_kwargs={"a":', "--env_kwargs", "JSON object"),
    ("--config=broken.yaml", "--config=broken.yaml", "YAML"),
    ("--config=deep.json", "error: --config=deep.json is not valid JSON: more than 100 brackets deep"),
    ("--experiment=deep", "deep/config.json cannot be read: it is not valid JSON (more than 100 brackets deep)"),
]
UNLICENSED = ("--env=bad_envs:raising", "bad_envs:raising", "the simulator is not licensed")
ENVS = [
    ("", "--env=CartPole-v1"),
    ("--env=CartPol-v1", "--env=CartPol-v1", "did you mean CartPole-v1?"),
    ("--env=no_module:make", "--env=no_module:make"),
    ("--env=bad_envs:rising", "did you mean bad_envs:raising?"),
    ("--env=failing_module:make", "failing_module", "no display"),
    ('--env=bad_envs:nothing --env_kwargs={"a":1}', "nothing", "--env_kwargs"),
    UNLICENSED,
    ("--env=bad_envs:leaving", "bad_envs:leaving", "gone away"),
    ("--env=bad_envs:nothing", "bad_envs:nothing", "None"),
    ("--env=bad_envs:FailingReset", "bad_envs:FailingReset", "level file is missing"),
    ("--env=bad_envs:TextObservations", "TextObservations", "Text", "Box"),
    ("--env=bad_envs:SetActions", "SetActions", "Sequence", "Discrete"),
    ("--env=os:system", "--env=os:system: 'os' is a module of Python's standard library"),
    ("--experiment=strange", "only train_dir/strange/config.json names this code", "add --env=failing_module:make, or"),
]
OF_CARTPOLE, READ = [[(f"--env=CartPole-v1 {flags}", *texts) for flags, *texts in cases] for cases in (FLAGS, AS_READ)]
SAVED = {"old": 9000, "damaged": 700}  # env steps of the earlier runs
KNOWN = {**SAVED, "damaged": 800}  # by metrics.jsonl, too
DEEP = '{"gamma": ' * 10_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with modules, files of settings, and earlier runs."""
    folder = tmp_path_factory.mktemp("bad_command_lines")
    (folder / "bad_envs.py").write_text(BAD_ENVS)
    (folder / "failing_module.py").write_text("raise OSError('no display')\n")
    (folder / "broken.yaml").write_text("gamma: [0.9\n")
    (folder / "value.yaml").write_text("gamma: 1.5\n")
    (folder / "deep.json").write_text(DEEP)
    os.mkfifo(folder / "fifo")
    for run in ("old", "damaged", "strange", "fifo", "deep"):
        (folder / "train_dir" / run).mkdir(parents=True)
    (folder / "train_dir" / "deep" / "config.json").write_text(DEEP)
    os.mkfifo(folder / "train_dir" / "fifo" / "config.json")
    old = config_of({"env": "CartPole-v1", "encoder_mlp_layers": (64, 64), "nonlinearity": "tanh"})
    write_config(folder / "train_dir" / "old", old, {})
    write_config(folder / "train_dir" / "strange", config_of({"env": "failing_module:make"}), {})
    # Both were killed: one before it had a summary, the other in a later session than the one of its summary.
    Summary("interrupted", 5000, 1, 1, 9.0).write(folder / "train_dir" / "old" / "summary.json")
    for run, newest in SAVED.items():
        (folder / "train_dir" / run / "checkpoint_p0").mkdir()
        for steps in (600, newest):
            (folder / "train_dir" / run / "checkpoint_p0" / f"checkpoint_000000010_{steps}.pth").touch()
    (folder / "train_dir" / "damaged" / "metrics.jsonl").write_text('{"env_steps": 800}\n{"env_st')
    (folder / "train_dir" / "damaged" / "config.json").write_text('{"format_version": 1, ')
    return folder


@pytest.mark.parametrize(
    ("case", "is_command"),
    [
        *((case, False) for case in (*OF_CARTPOLE, *ENVS)),
        (OF_CARTPOLE[0], True),
        *(long(case, False) for case in READ),
        long(UNLICENSED, True),
    ],
    ids=str,
)
def test_bad_command_line_is_refused_with_advice(case: tuple[str, ...], folder: Path, is_command: bool) -> None:
    flags, *texts = case
    argv, run_id = flags.split(), uuid.uuid4().hex
    stdout, stderr = folder / f"{run_id}.stdout", folder / f"{run_id}.stderr"
    # The checkout stands behind the current directory, so that a module there is the one that is found.
    env = {**environment(), MARK: run_id, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    if is_command:
        command = [sys.executable, "-m", "sfactory.train", *argv]
        with stdout.open("wb") as out, stderr.open("wb") as err:
            code = subprocess.run(command, cwd=folder, env=env, stdout=out, stderr=err, timeout=REFUSED_S).returncode
    else:
        run = warm_process().start("sfactory.train", argv, cwd=folder, env=env, stdout=stdout, stderr=stderr)
        code = run.wait(REFUSED_S)
    errors = stderr.read_text()
    assert code == 2, errors
    assert [text for text in texts if text not in errors] == [], errors
    assert "Traceback" not in errors
    assert stdout.read_text() == ""
    *lines, result = errors.splitlines()
    known = next((steps for run, steps in KNOWN.items() if f"--experiment={run}" in argv), 0)
    kept = "; the run is as it was" if known else ""
    assert re.fullmatch(rf"RESULT failed env_steps={known} return=\S+ \(this start was refused{kept}\)", result), errors
    assert any(line.startswith("error: ") for line in lines)
    assert len(lines) == len(set(lines)), errors
    assert processes.eventually(lambda: not marked(run_id), CLEAN_S)
