"""A run that cannot work is refused at once: exit code 2, the flag by name, what would be right, no traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from sfactory.config.flags import config_of
from sfactory.config.saved_config import write_config
from tests.support import processes
from tests.support.source import ROOT
from tests.support.trainer import CLEAN_S

CARTPOLE = "--env=CartPole-v1"
TIMEOUT_S = 240.0
MARK = uuid.uuid4().hex  # of all processes that are started here

Outcome = Future[subprocess.CompletedProcess[str]]


@dataclass(frozen=True)
class Case:
    """One bad command line: what it is, its flags, and texts that the refusal must hold."""

    name: str
    argv: tuple[str, ...]
    expected: tuple[str, ...]


def case(name: str, *argv: str, says: tuple[str, ...]) -> Case:
    return Case(name, argv, says)


RANGES = [
    case("no workers", CARTPOLE, "--num_workers=0", says=("--num_workers=0", "at least 1")),
    case("negative workers", CARTPOLE, "--num_workers=-3", says=("--num_workers=-3", "at least 1")),
    case("gamma above one", CARTPOLE, "--gamma=1.5", says=("--gamma=1.5", "at most 1.0")),
    case("nan learning rate", CARTPOLE, "--learning_rate=nan", says=("--learning_rate=nan", "finite")),
    case("negative learning rate", CARTPOLE, "--learning_rate", "-1", says=("--learning_rate=-1.0", "greater than 0")),
    case("infinite clip", CARTPOLE, "--reward_clip=inf", says=("--reward_clip=inf", "finite")),
    case("infinite steps", CARTPOLE, "--train_for_env_steps=inf", says=("--train_for_env_steps=inf", "whole number")),
    case("no rollout", CARTPOLE, "--rollout=0", says=("--rollout=0", "at least 1")),
    case("beta of one", CARTPOLE, "--adam_beta1=1", says=("--adam_beta1=1.0", "less than 1")),
    case("negative seed", CARTPOLE, "--seed=-1", says=("--seed=-1", "at least 0")),
    case("layer of no units", CARTPOLE, "--encoder_mlp_layers", "64", "0", says=("--encoder_mlp_layers 64 0", "1")),
    case("unknown choice", CARTPOLE, "--nonlinearity=selu", says=("--nonlinearity=selu", "elu, relu, tanh")),
    case("trials of no time", CARTPOLE, "--autotune_seconds=0", says=("--autotune_seconds=0.0", "at least 0.1")),
    case("trials of hours", CARTPOLE, "--autotune_seconds=3600", says=("--autotune_seconds=3600.0", "at most 60")),
    case("no number", CARTPOLE, "--num_workers=many", says=("--num_workers=many", "whole number")),
]

RULES = [
    case(
        "batch of broken rollouts",
        CARTPOLE,
        "--rollout=32",
        "--batch_size=1000",
        says=("--batch_size=1000", "rollout (32)", "992 and 1024"),
    ),
    case(
        "envs not divisible by splits",
        CARTPOLE,
        "--num_envs_per_worker=7",
        "--worker_num_splits=2",
        says=("--num_envs_per_worker=7", "worker_num_splits (2)", "6 and 8"),
    ),
    case("empty experiment", CARTPOLE, "--experiment=", says=("--experiment=", "letters", "--train_dir")),
    case("experiment with a slash", CARTPOLE, "--experiment=a/b", says=("--experiment=a/b", "--train_dir")),
    case("experiment that climbs", CARTPOLE, "--experiment=../x", says=("--experiment=../x", "--train_dir")),
    case("sampling without a benchmark", CARTPOLE, "--sampler_only=True", says=("--sampler_only", "--benchmark=True")),
    case(
        "decay without an end",
        "--env=Taxi-v4",
        "--lr_schedule=linear_decay",
        says=("--lr_schedule=linear_decay", "--train_for_env_steps"),
    ),
    case(
        "policy workers of local inference",
        CARTPOLE,
        "--inference=local",
        "--policy_workers_per_policy=2",
        says=("--policy_workers_per_policy=2", "--inference=central"),
    ),
    case(
        "tuning one process",
        CARTPOLE,
        "--autotune=True",
        "--serial_mode=True",
        says=("--autotune=True", "--serial_mode=True", "nothing to tune"),
    ),
    case(
        "tuning a stage that is none",
        CARTPOLE,
        "--autotune=True",
        "--benchmark=True",
        "--benchmark_stage=learn",
        says=("--autotune=True", "--benchmark_stage=learn"),
    ),
    case(
        "batches without tuning", CARTPOLE, "--autotune_batch=True", says=("--autotune_batch=True", "--autotune=True")
    ),
]

SPELLING = [
    case("misspelt flag", CARTPOLE, "--gama=0.9", says=("--gama", "did you mean --gamma?")),
    case("abbreviated flag", CARTPOLE, "--roll=32", says=("--roll:", "did you mean --rollout?")),
    case("flag of nothing", CARTPOLE, "--xyzzy", says=("--xyzzy", "--help")),
    case("repeated flag", CARTPOLE, "--gamma=0.9", "--gamma=0.8", says=("--gamma", "give it once")),
    case("boolean without a value", CARTPOLE, "--benchmark", says=("--benchmark", "--benchmark=True")),
    case("missing value", CARTPOLE, "--gamma", says=("--gamma", "--gamma=0.99")),
    case("positional word", CARTPOLE, "train", says=("'train'", "--name=value")),
    case("one dash", CARTPOLE, "-gamma=0.9", says=("-gamma=0.9", "--gamma=0.9")),
    case("bad JSON", CARTPOLE, '--env_kwargs={"a":', says=("--env_kwargs", "JSON object")),
    case("JSON list", CARTPOLE, "--env_kwargs=[1]", says=("--env_kwargs=[1]", "JSON object")),
]

FILES = [
    case("missing config file", CARTPOLE, "--config=none.yaml", says=("--config=none.yaml", "No such file")),
    case("broken YAML", CARTPOLE, "--config=broken.yaml", says=("--config=broken.yaml", "not valid YAML")),
    case("unknown key in YAML", CARTPOLE, "--config=unknown.yaml", says=("'gama'", "did you mean gamma?")),
    case("bad value in YAML", CARTPOLE, "--config=value.yaml", says=("--gamma=1.5", "at most 1.0", "config file")),
    case("another model", CARTPOLE, "--experiment=old", "--nonlinearity=relu", says=("--nonlinearity", "tanh")),
    case("another env", "--env=Acrobot-v1", "--experiment=old", says=("--env=Acrobot-v1", "another --experiment")),
    case("damaged run", CARTPOLE, "--experiment=damaged", says=("damaged/config.json", "another --experiment")),
]

ENVIRONMENTS = [
    case("no env", says=("--env", "--env=CartPole-v1")),
    case("unknown env", "--env=CartPol-v1", says=("--env=CartPol-v1", "did you mean CartPole-v1?")),
    case("unknown version", "--env=CartPole-v9", says=("--env=CartPole-v9", "CartPole-v1")),
    case("unimportable module", "--env=no_module:make", says=("--env=no_module:make", "the folder that holds it")),
    case("missing function", "--env=bad_envs:rising", says=("bad_envs", "did you mean bad_envs:raising?")),
    case("module that fails", "--env=failing_module:make", says=("failing_module", "no display")),
    case("kwargs that do not fit", "--env=bad_envs:nothing", '--env_kwargs={"a": 1}', says=("nothing", "--env_kwargs")),
    case("factory that raises", "--env=bad_envs:raising", says=("bad_envs:raising", "the simulator is not licensed")),
    case("factory that leaves", "--env=bad_envs:leaving", says=("bad_envs:leaving", "gone away")),
    case("factory of nothing", "--env=bad_envs:nothing", says=("bad_envs:nothing", "None", "gymnasium.Env")),
    case("reset that raises", "--env=bad_envs:FailingReset", says=("bad_envs:FailingReset", "level file is missing")),
    case("words as observations", "--env=bad_envs:text_observations", says=("text_observations", "Text", "Box")),
    case("sets as actions", "--env=bad_envs:graph_actions", says=("graph_actions", "Sequence", "Discrete")),
]

CASES = [*RANGES, *RULES, *SPELLING, *FILES, *ENVIRONMENTS]


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Outcome]]:
    """The outcome of every case, by name. Two run at a time, ahead of the tests that ask for them."""
    folder = tmp_path_factory.mktemp("bad_command_lines")
    shutil.copy(Path(__file__).parent / "bad_envs.py", folder)
    (folder / "failing_module.py").write_text("raise OSError('no display')\n")
    (folder / "broken.yaml").write_text("gamma: [0.9\n")
    (folder / "unknown.yaml").write_text("gama: 0.9\n")
    (folder / "value.yaml").write_text("gamma: 1.5\n")
    for run in ("old", "damaged"):
        (folder / "train_dir" / run).mkdir(parents=True)
    old = config_of({"env": "CartPole-v1", "encoder_mlp_layers": (64, 64), "nonlinearity": "tanh"})
    write_config(folder / "train_dir" / "old", old, {})
    (folder / "train_dir" / "damaged" / "config.json").write_text('{"format_version": 1, ')

    def start(number: int, bad: Case) -> subprocess.CompletedProcess[str]:
        # Two cases run at a time, and one run directory serves one run.
        named = any(word.startswith("--experiment") for word in bad.argv)
        own = () if named else (f"--experiment=case_{number}",)
        return subprocess.run(
            [sys.executable, "-m", "sfactory.train", *bad.argv, *own],
            cwd=folder,
            # The checkout stands behind the current directory, so that a module there is the one that is found.
            env={
                **os.environ,
                processes.RUN_ID: MARK,
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )

    with ThreadPoolExecutor(max_workers=2) as pool:
        yield {bad.name: pool.submit(start, number, bad) for number, bad in enumerate(CASES)}
        pool.shutdown(cancel_futures=True)


@pytest.mark.faults
@pytest.mark.parametrize("bad", CASES, ids=lambda bad: bad.name)
def test_a_bad_command_line_is_refused_with_advice(bad: Case, refusals: Mapping[str, Outcome]) -> None:
    done = refusals[bad.name].result()

    assert done.returncode == 2, done.stderr
    assert [text for text in bad.expected if text not in done.stderr] == [], done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("RESULT failed "), done.stderr


@pytest.mark.faults
def test_bad_command_lines_leave_nothing_behind(refusals: Mapping[str, Outcome]) -> None:
    for outcome in refusals.values():
        outcome.result()

    assert processes.eventually(lambda: not processes.processes_of(MARK), CLEAN_S)


def test_the_names_of_the_cases_are_unique() -> None:
    assert len({bad.name for bad in CASES}) == len(CASES) >= 30
