"""The command ``sfactory`` runs subcommands, completes them in a shell, and says what is mistyped."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from sfactory import __main__, __version__
from sfactory.cli import completion
from sfactory.cli.commands import SUBCOMMANDS
from sfactory.config.flags import all_flags
from sfactory.errors import ExitCode

PACKAGES_OF_HELP = {"sfactory", "yaml"}


def test_every_subcommand_has_a_module_with_main_and_its_flags() -> None:
    for name, command in SUBCOMMANDS.items():
        assert callable(importlib.import_module(command.module).main), name
        assert bool(command.known_flags()) is bool(command.flags), name


def test_a_subcommand_gets_its_words_and_what_is_mistyped_is_corrected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[list[str]] = []

    def trains(words: list[str]) -> int:
        given.append(words)
        return 70

    monkeypatch.setattr(importlib.import_module("sfactory.train"), "main", trains)
    monkeypatch.setattr(sys, "path", ["/usr/bin"])

    assert __main__.main(["train", "--env=x"]) == 70
    assert __main__.main(["bench", "--env=x"]) == 70
    assert given == [["--env=x"], ["--benchmark=True", "--env=x"]]
    assert sys.path == [os.getcwd(), "/usr/bin"]

    for words in (["trian"], ["check_envs"], []):
        assert __main__.main(words) == ExitCode.REFUSED
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert [error.partition("mean ")[2] for error in errors] == ["sfactory train?", "sfactory check-env?"]
    assert __main__.main(["--version"]) == ExitCode.DONE
    assert capsys.readouterr().out == f"{__version__}\n"
    assert __main__.main(["--help"]) == ExitCode.DONE
    assert "  sfactory check-env " in capsys.readouterr().out


def test_help_imports_nothing_that_takes_long() -> None:
    program = (
        "import sys; from sfactory.__main__ import main\n"
        "try: main(['train', '--help'])\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    files = {name.partition(".")[0] for name in done.stderr.split()} - set(sys.stdlib_module_names)
    # Those of the installation, and what a compiled yaml brings, are there without us.
    found = {name for name in files if not name.startswith(("__editable__", "_distutils", "_cython", "cython_"))}
    assert found - {"__main__", "__mp_main__", "_virtualenv"} == PACKAGES_OF_HELP
    assert len(done.stdout.splitlines()) < 60


@pytest.mark.parametrize(
    ("words", "beginning", "expected"),
    [
        ([], "e", {"enjoy", "envs", "evaluate", "export"}),
        (["train"], "--inf", {"--inference", "--info_action_mask"}),
        (["train", "--inference"], "", {"auto", "central", "local"}),
        (["train", "--gamma=1"], "--inference=c", {"--inference=central"}),
        (["bench", "--use-rnn"], "T", {"True"}),
        (["train"], "--cuda-gr", {"--cuda-graphs"}),
        (["check_env"], "--step", {"--steps"}),
        (["train"], "--env=CartPole-v1", {"--env=CartPole-v1"}),
        (["train"], "--help=pop", {"--help=population"}),
        (["train"], "--conf", {"--config"}),
        (["enjoy"], "--save", {"--save_video"}),
        (["enjoy", "--render"], "w", {"window"}),
        (["completion"], "", {"bash", "fish", "zsh"}),
        (["train", "--gamma"], "", set()),
        (["no_such"], "", set()),
    ],
)
def test_words_are_completed(words: list[str], beginning: str, expected: set[str]) -> None:
    assert set(completion.candidates(words, beginning)) == expected


def test_all_flags_are_candidates(capsys: pytest.CaptureFixture[str]) -> None:
    assert completion.main(["words", "train", "--", "--help"]) == ExitCode.DONE
    assert capsys.readouterr().out == "--help\n"
    assert {f"--{name}" for name in all_flags()} <= set(completion.candidates(["train", "--use_rnn"], "--"))


def test_bash_completes_what_is_typed(tmp_path: Path) -> None:
    command = tmp_path / "sfactory"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m sfactory "$@"\n')
    command.chmod(0o755)
    lines = ["sfactory tr", "sfactory train --inference ", "sfactory train --gamma=1 --inference=l"]
    typed = "\n".join(
        f'COMP_LINE="{line}"; COMP_POINT={len(line)}; _sfactory sfactory; echo "${{COMPREPLY[*]}}"' for line in lines
    )

    done = subprocess.run(
        ["bash", "-c", f'eval "$(sfactory completion bash)"\n{typed}'],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert done.stdout.splitlines() == ["train", "auto central local", "local"]


@pytest.mark.parametrize("words", [["tcsh"], ["words", "train"], []])
def test_an_unknown_shell_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert completion.main(words) == ExitCode.REFUSED
    assert "bash|zsh|fish" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("started", "form"),
    [(None, "sfactory {}"), ("sfactory.__main__", "python -m sfactory {}"), ("", "python -m {}")],
)
def test_help_names_the_command_as_it_was_called(
    started: str | None, form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, known in SUBCOMMANDS.items():
        spec = None if started is None else ModuleSpec(started or known.module, None)
        monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
        with contextlib.suppress(SystemExit):
            importlib.import_module(known.module).main(["--help"])
        usage = capsys.readouterr().out.splitlines()[0]
        if name == "bench":  # which trains
            name = "train"
        if known.module.startswith("sfactory.cli."):
            assert usage.startswith(f"usage: sfactory {name} ")
        else:
            assert usage.startswith(f"usage: {form.format(name if started != '' else known.module)} ")
