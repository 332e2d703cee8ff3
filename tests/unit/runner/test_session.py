"""However a session ends, its last line and the files of the run say so."""

from __future__ import annotations

import dataclasses
import json
import logging
import shlex
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from sfactory.benchmark.benchmark import Benchmark
from sfactory.config.flags import config_of
from sfactory.config.resolve import read_command_line
from sfactory.config.saved_config import write_config
from sfactory.errors import ConfigError, ExitCode
from sfactory.experiment.resume import Resumed, summary_of
from sfactory.experiment.run_dir import RunDir
from sfactory.experiment.summary import Summary
from sfactory.messages import PolicyLag
from sfactory.planning.env_probe import Probed
from sfactory.planning.plan import fitted_to_env
from sfactory.process.signals import Interrupts
from sfactory.process.spawn import Spawner
from sfactory.ranks.place import Place
from sfactory.runner import session
from sfactory.runner.first_lines import where_computed
from sfactory.spec import EnvSpec
from tests.support.parts import VECTOR
from tests.support.warm_process import finished

EARLIER = Summary("done", 1000, 1000, 4000, 20.0, 50.0, 60.0, 70, 8.0, 9.0, 10.0, PolicyLag(0.0, 1.0, 2.0), 30)


def test_an_unexpected_exception_is_shown_whole_and_on_record(tmp_path: Path) -> None:
    (tmp_path / "begun.py").write_text(
        """
import sys
import sfactory.train
from sfactory.supervise.supervisor import Supervisor

def run(*_):
    raise RuntimeError("something is off")

if __name__ == "__main__":
    Supervisor.run = run
    sys.exit(sfactory.train.main())
"""
    )
    argv = ["--env=CartPole-v1", f"--train_dir={tmp_path}", "--experiment=e", "--device=cpu"]

    done = finished("begun", *argv, cwd=tmp_path)

    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (ExitCode.FAULTS, ""), done.stderr
    assert {"Traceback (most recent call last):", "RuntimeError: something is off"} <= {*lines}
    result, _, command = lines[-1].partition("resume: ")
    assert result == "RESULT failed env_steps=0 return=none saved=0 cause: RuntimeError: something is off "
    assert shlex.split(command)[1:] == ["-m", "sfactory.train", *argv]
    assert json.loads((tmp_path / "e" / "run.json").read_text())["status"] == "failed"


def test_log_level_chooses_messages_and_quiet_prints_only_those_that_warn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    before = root.level
    for level, quiet, printed, logged in (
        ("info", False, ["news", "trouble"], ["news", "trouble"]),
        ("info", True, ["trouble"], ["news", "trouble"]),
        ("error", False, [], []),
    ):
        config = config_of({"env": "any", "experiment": f"{level}{quiet}", "log_level": level, "quiet": quiet})
        with RunDir.open(tmp_path, config.run.experiment) as run_dir:
            console = session._open_console(config, run_dir, Spawner())
            root.info("news")
            root.warning("trouble")
            console.close()

            assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == printed
            assert [line.split()[-1] for line in run_dir.log_path.read_text().splitlines()] == logged
        root.setLevel(before)


@pytest.mark.parametrize(
    ("given", "ends"),
    [
        ({}, (None, None)),
        ({"env_frameskip": 20}, (None, None)),
        ({"train_for_env_steps": 2 * 10**9}, (2 * 10**9, None)),
        ({"train_for_env_steps": 5 * 10**10}, (5 * 10**10, None)),
        ({"train_for_frames": 8 * 10**9, "env_frameskip": 4}, (2 * 10**9, None)),
        ({"train_for_seconds": 2e9}, (None, 2e9)),
    ],
    ids=str,
)
def test_time_left_counts_every_limit_but_the_defaults(
    given: dict[str, object], ends: tuple[int | None, float | None]
) -> None:
    assert session.ends_of(config_of(given)) == ends


@pytest.mark.parametrize(("rank", "shown"), [(0, ["--algo=APPO"]), (1, [])])
def test_a_benchmark_shows_the_warnings_of_its_start_once_for_all_ranks(
    rank: int, shown: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session.Session, "plan", lambda self: None)
    monkeypatch.setattr(Benchmark, "__init__", lambda self, *given: None)
    monkeypatch.setattr(Benchmark, "run", lambda self, *given: None)
    argv = ["--env=CartPole-v1", "--benchmark=True", "--algo=APPO"]
    interrupts = Interrupts()

    session.Session(read_command_line(argv), argv, Spawner(), interrupts, 0.0, Place(rank, 2)).benchmark()

    interrupts.restore()
    assert [message.partition(" ")[0] for message in caplog.messages] == shown


@pytest.mark.parametrize(
    ("begun", "given", "warned"),
    [
        ([], [], 0),
        ([], ["--init_from=other"], 1),
        (["--init_from=first"], ["--init_from=first"], 0),
        (["--init_from=first"], ["--init_from=other", "--init_parts=encoder"], 2),
    ],
    ids=str,
)
def test_a_run_with_a_checkpoint_keeps_what_it_began_with_and_warns_of_other_starting_weights(
    begun: list[str], given: list[str], warned: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = ["--env=CartPole-v1", f"--train_dir={tmp_path}", "--experiment=run"]
    first = read_command_line([*words, *begun])
    (tmp_path / "run").mkdir()
    write_config(tmp_path / "run", first.config, first.sources)

    again = read_command_line([*words, *given])
    resumed = session.with_own_weights(again)

    assert resumed.config == first.config
    assert len(resumed.warnings) == warned + len(again.warnings)


@pytest.mark.parametrize("agents", [2, 3, 5])
@pytest.mark.parametrize("words", [[], ["--task_defaults=False"]])
def test_sizes_that_were_not_typed_fit_the_number_of_agents(
    agents: int, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = dataclasses.replace(VECTOR, agents=tuple(f"agent_{agent}" for agent in range(agents)))
    monkeypatch.setattr(session, "probe_env", lambda *given, **named: Probed(spec))
    argv = ["--env=sfactory_envs.synthetic.counting_agents:CountingParallel", "--async_rl=False", "--num_workers=3"]
    interrupts = Interrupts()

    plan = session.Session(read_command_line([*argv, *words]), argv, Spawner(), interrupts, 0.0).plan()

    interrupts.restore()
    assert plan.layout.dataset_rows % (3 * agents * plan.layout.splits * plan.layout.envs) == 0


IMAGES = ", images channels-last, cudnn.benchmark"


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ([], f"central inference on cuda:0 with --cuda_graphs=True --amp=auto{IMAGES}"),
        (["--cuda_graphs=False"], f"central inference on cuda:0 with --cuda_graphs=False --amp=auto{IMAGES}"),
        (
            ["--inference=local"],
            f"local inference on cpu, learning on cuda:0 with --cuda_graphs=True --amp=auto{IMAGES}",
        ),
        (
            ["--serial_mode=True", "--cuda_graphs=True"],
            "central inference on cuda:0 with --cuda_graphs=True --amp=auto, images channels-last",
        ),
        (["--device=cpu", "--inference=local"], "local inference on cpu"),
    ],
    ids=str,
)
def test_the_first_line_says_where_and_how_is_computed(
    words: list[str], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8)
    spec = EnvSpec.of_spaces(screen, gymnasium.spaces.Discrete(3))
    monkeypatch.setattr(session, "probe_env", lambda *given, **named: Probed(spec))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    argv = ["--env=sfactory_envs.synthetic.bandit:Bandit", "--num_workers=2", *words]
    interrupts = Interrupts()
    begun = session.Session(read_command_line(argv), argv, Spawner(), interrupts, 0.0)

    plan = begun.plan()

    interrupts.restore()
    assert where_computed(begun._config, plan) == where
    on_cpu = "--device=cpu" in words or "--inference=local" in words
    assert begun._config.sampling.num_envs_per_worker == (16 if on_cpu else 32)


@pytest.mark.parametrize(("makes_tensors", "warned"), [(False, 1), (True, 0)])
def test_a_seed_that_all_envs_would_have_is_warned_of(makes_tensors: bool, warned: int) -> None:
    resolved = read_command_line(["--env=CartPole-v1", "--env_kwargs", '{"seed": 3, "size": 2}', "--serial_mode=True"])

    fitted = fitted_to_env(resolved, Probed(VECTOR, makes_tensors=makes_tensors), "cpu")

    assert sum("all envs get this seed" in warning for warning in fitted.warnings) == warned


def test_a_new_run_with_a_number_of_envs_among_their_arguments_is_refused_and_an_earlier_one_goes_on(
    tmp_path: Path,
) -> None:
    argv = ["--env=vector:CartPole-v1", "--env_kwargs", '{"num_envs": 4}', f"--train_dir={tmp_path}", "--experiment=e"]
    resolved = read_command_line(argv)

    with pytest.raises(ConfigError, match=r"leave num_envs out.*--num_envs_per_worker and --worker_num_splits decide"):
        fitted_to_env(resolved, Probed(VECTOR), "cpu")

    with RunDir.open(str(tmp_path), "e") as run_dir:
        (run_dir.path / "checkpoint_p0").mkdir()
        write_config(run_dir.path, resolved.config, resolved.sources)
    resumed = read_command_line(argv)
    assert resumed.saved.values
    assert fitted_to_env(resumed, Probed(VECTOR), "cpu").config.run.env_kwargs == {"num_envs": 4}


@pytest.mark.parametrize(("unsaid", "warned"), [(True, 1), (False, 0)])
def test_a_vector_env_that_does_not_say_when_it_resets_is_warned_of(unsaid: bool, warned: int) -> None:
    resolved = read_command_line(["--env=sfactory_envs.synthetic.counting_vector:counting_vector"])

    fitted = fitted_to_env(resolved, Probed(VECTOR, resets_unsaid=unsaid), "cpu")

    assert sum("NEXT_STEP is assumed" in warning for warning in fitted.warnings) == warned


def test_a_session_interrupted_at_its_start_has_the_summary_of_what_is_saved() -> None:
    config = config_of({"env": "CartPole-v1", "env_frameskip": 4})
    done = Resumed(env_steps=1000, train_seconds=20.5, updates=30, best_return=9.0, summary=EARLIER)
    # A session that was killed has a checkpoint that is newer than its summary.
    killed = Resumed(env_steps=1500, train_seconds=30.0, updates=45, best_return=9.5, summary=EARLIER)

    of_done, of_killed, of_fresh = (summary_of(config, resumed, "interrupted") for resumed in (done, killed, None))

    assert of_done == dataclasses.replace(EARLIER, status="interrupted")
    from_best = config_of({"env": "CartPole-v1", "load_checkpoint_kind": "best"})
    assert summary_of(from_best, dataclasses.replace(done, env_steps=600), "interrupted") == of_done
    assert (of_killed.env_steps, of_killed.frames, of_killed.updates, of_killed.fps) == (1500, 6000, 45, 50.0)
    assert (of_killed.episodes, of_killed.best_episode_return_mean) == (70, 9.5)
    assert (of_fresh.env_steps, of_fresh.episodes, of_fresh.updates, of_fresh.fps) == (0, 0, 0, None)
