"""Values that switch something off, and values that have no effect, from the command line and from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfactory.config.saved_config import write_config
from tests.support.command_line import PLAIN_ENV, read, refused


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("text", ["none", "None", "NONE"])
def test_none_switches_a_clip_off_on_the_command_line_and_in_files(text: str) -> None:
    Path("flags.yaml").write_text(f"vtrace_rho: {text}\nvtrace_c: null\nseed: {text}\n")

    config = read(PLAIN_ENV, "--config=flags.yaml", f"--vtrace_pg_rho={text}").config

    assert (config.algo.vtrace_rho, config.algo.vtrace_pg_rho, config.algo.vtrace_c) == (None, None, None)
    assert config.run.seed is None
    assert read(PLAIN_ENV, "--vtrace_rho=2").config.algo.vtrace_rho == 2.0
    assert refused(PLAIN_ENV, "--vtrace_rho=off") == [
        "--vtrace_rho=off: must be a number or none, for example --vtrace_rho=1.0"
    ]
    assert refused(PLAIN_ENV, "--vtrace_rho=0") == ["--vtrace_rho=0.0: must be greater than 0"]


def test_a_default_of_a_family_that_another_setting_makes_idle_is_no_problem() -> None:
    # The family of Atari games sets Adam's epsilon and GAE.
    resolved = read("--env=atari_breakout", "--optimizer=rmsprop")

    assert resolved.config.optim.adam_eps == 1e-5
    assert resolved.config.optim.optimizer == "rmsprop"
    assert refused("--env=atari_breakout", "--optimizer=rmsprop", "--adam_eps=1e-4") == [
        "--adam_eps=0.0001: has no effect as it is: leave it out, or add --optimizer=adam"
    ]
    Path("flags.yaml").write_text("vtrace_c: 0.5\n")
    assert refused("--env=atari_breakout", "--config=flags.yaml") == [
        "--vtrace_c=0.5: has no effect as it is: leave it out, or add --with_vtrace=True (this value comes from: "
        "config file)"
    ]


def test_the_config_json_of_a_run_with_idle_values_is_a_config_file() -> None:
    old = read("--env=atari_breakout", "--optimizer=rmsprop", "--experiment=old")
    run_dir = Path("train_dir") / "old"
    run_dir.mkdir(parents=True)
    write_config(run_dir, old.config, old.sources)

    resolved = read("--config=train_dir/old/config.json", "--experiment=new")

    assert (resolved.config.optim.adam_eps, resolved.config.optim.optimizer) == (1e-5, "rmsprop")
