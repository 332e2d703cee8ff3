"""Blocks and commands of the documents. Runs the blocks of a page in order, and compares what they print with it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sfactory.cli.commands import SUBCOMMANDS
from tests.support.source import documents
from tests.support.warm_process import environment, finished

# A file is a block of this kind whose first line is its name in a comment.
_FILES = ("python", "toml")
_NAME = re.compile(r"# (\w+\.(?:py|toml))\n")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
MODULES = {name: command.module.removeprefix("sfactory.") for name, command in SUBCOMMANDS.items()}
_COMMAND = re.compile(r"python (?:-m sfactory\.([\w.-]+)|(scripts/\w+\.py))((?: [^`\n]*)?)")
_SHORT = re.compile(r"(?<=`)sfactory (?=[a-z])([\w-]+)")
# Commands that are not run, by what is in them, and why. tests/architecture checks the flags of all.
LEFT_OUT = {
    r"^(pip|git|python3 -m venv)\b": "sets a machine up, from the network",
    r"^make\b": "runs these tests, or what they and scripts/package.py try, in an environment of its own",
    r"^docker\b": "needs a running Docker",
    r"--device=gpu|--learner_devices=0,1|--num_gpus|gpu_check": "needs GPUs: tests/gpu, and tests/unit/gpu_on_cpu",
    r"--backend=slurm(?!.*--slurm_print_only)": "needs Slurm: tests/flow/test_slurm.py has stand-ins for its programs",
    r"--nnodes=2": "needs two hosts: tests/flow/test_ranks_on_hosts.py has two network namespaces",
    r"--remote_actors_port|--connect=|^python -c .*secret": "needs two hosts: tests/flow/test_remote_actors.py",
    r"--push_to_hub|--load_from_hub": "needs the Hub: tests/unit/exporting/test_hub.py has a server",
    r"optuna_search": "tests/flow/test_optuna_search.py runs it",
    r"mujoco_|HalfCheetah|=ant\b|envpool:|=wandb": "needs a package that tests do not install",
}
# Flags that are smaller in a shortened page.
_SMALL = {"train_for_env_steps": "3000", "pbt_start_mutation": "600", "pbt_period_env_steps": "600"}
_LARGE = re.compile(rf"\b({'|'.join(_SMALL)})=[\d_.]+[kM]?")
_COLD = ("sfactory.plot",)  # what the warm process has not imported
_LIMIT_S = 800.0


class Block(NamedTuple):
    """A fenced block. kind: what stands behind its fence: "" for commands, "text" for what they print."""

    kind: str
    text: str

    @property
    def file(self) -> str:
        """The file that it is; "" if it is none."""
        head = _NAME.match(self.text) if self.kind in _FILES else None
        return head[1] if head else ""

    @property
    def commands(self) -> list[str]:
        """The commands of it, each as one line; with a loop, all of it is one."""
        lines = re.sub(r" *\\\n *", " ", self.text).splitlines() if not self.kind else []
        return [self.text] if any(line.startswith("for ") for line in lines) else lines


def blocks(path: str) -> list[Block]:
    """The blocks of the page ``path``."""
    return [Block(kind, text) for kind, text in _BLOCK.findall(documents()[path])]


def python_of(path: str) -> list[str]:
    """The blocks of Python of the page ``path``."""
    return [block.text for block in blocks(path) if block.kind == "python"]


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """What each command of a page runs, a module of sfactory ("train") or a script ("scripts/bench.py"), and its words.

    Commands have the form ``python -m sfactory.train``, or in blocks and as code ``sfactory train``. One that does not
    exist is given as it is. Words that end in "..." are left out, and so are variables of a shell.
    """
    text = re.sub(r"\$seed|SEED", "1", re.sub(r"\\\n\s*", "", text))
    text = _BLOCK.sub(lambda block: re.sub(r"^sfactory ", "`sfactory ", block[0], flags=re.MULTILINE), text)
    text = _SHORT.sub(lambda short: f"python -m sfactory.{MODULES.get(short[1], short[1])}", text)
    for module, script, arguments in _COMMAND.findall(text):
        words = shlex.split(arguments, comments=True)
        yield module or script, [word for word in words if not word.startswith("$") and not word.endswith("...")]


def table_commands(path: str) -> list[str]:
    """The commands in the second columns of the page's tables of two; flags of a cell alone are those of a training."""
    found = []
    for cell in re.findall(r"^\|[^|\n]*\|([^|\n]*)\|$", documents()[path], re.MULTILINE):
        spans = re.findall(r"`([^`]*)`", cell)
        found += [span for span in spans if span.startswith("sfactory ")]
        flags = [span for span in spans if re.match(r"--\w+=.", span)]
        env = [] if any(span.startswith("--env=") for span in flags) else ["--env=CartPole-v1"]
        found += [" ".join(["sfactory train", *env, *flags])] if flags else []
    return found


def why_left_out(command: str) -> str:
    """Why no test of pages runs this command; "" if one does."""
    return next((why for pattern, why in LEFT_OUT.items() if re.search(pattern, command)), "")


def short(text: str) -> str:
    """A command or a file with fewer steps, and one seed; a command without a limit is given one."""
    # Runs that are drawn need an episode: those of 16 envs of DoorKey-8x8 end after 640 steps each.
    small = {**_SMALL, "train_for_env_steps": "12000"} if "DoorKey-8x8" in text else _SMALL
    text = _LARGE.sub(lambda flag: f"{flag[1]}={small[flag[1]]}", text)
    text = re.sub(r"^(seed = \[\d+).*\]", r"\1]", text, flags=re.MULTILINE).replace("seeds(3)", "seeds(1)")
    added = []
    if re.match(r"sfactory bench|.*--benchmark=True", text):
        added.append("--benchmark_seconds=1")
    elif re.match(r"(sfactory |.*-m sfactory\.)train (?!.*--(train_for_|print_config|help))", text):
        added.append("--train_for_env_steps=3000")
    if "--autotune=True" in text:
        added.append("--autotune_seconds=0.2")
    if re.match(r"(sfactory |python -m sfactory\.)enjoy (?!.*--(no_render|save_video)=)", text):
        added.append("--no_render=True")
    return " ".join([text, *added])


def _to_module(command: str) -> tuple[str, list[str]]:
    """The module and the words of a command of sfactory: ``sfactory train ...`` or ``python -m sfactory.train ...``."""
    words = shlex.split(command, comments=True)
    if words[:2] == ["python", "-m"]:
        return words[2], words[3:]
    known = SUBCOMMANDS[words[1]]
    return known.module, [*known.words, *words[2:]]


def printed_by(command: str, folder: Path) -> str:
    """What ``command`` prints in ``folder``, which has to end well; a check of an env may find violations."""
    words = shlex.split(command)
    of_sfactory = words[0] == "sfactory" or words[:2] == ["python", "-m"]
    module, arguments = _to_module(command) if of_sfactory else ("", [])
    if of_sfactory and module not in _COLD:
        done = finished(module, *arguments, cwd=folder, within_s=_LIMIT_S)
    else:
        argv = [sys.executable, "-m", module, *arguments] if of_sfactory else ["bash", "-ec", command]
        env = environment() | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    checked = module == "sfactory.check_env" and done.stdout.startswith("{")
    assert done.returncode == 0 or checked, f"{command}\n{done.stderr}"
    return done.stderr + done.stdout


def run_page(path: str, folder: Path, shortened: bool = False) -> Iterator[tuple[str, str]]:
    """(command or shown text, what was printed) of each block of the page, run in ``folder``.

    shortened: with fewer steps; programs that no command runs are run, too.
    """
    change = short if shortened else str
    printed = ""
    for number, block in enumerate(blocks(path)):
        if block.file or (shortened and "__main__" in block.text):
            name = block.file or f"program_{number}.py"
            (folder / name).write_text(change(block.text), encoding="utf-8")
            if not block.file:
                yield name, printed_by(f"python {name}", folder)
        elif block.kind == "text":
            yield block.text, printed
        else:
            printed = ""
            for command in block.commands:
                if command.startswith("cd "):
                    folder = folder / command.removeprefix("cd ")
                elif not why_left_out(command):
                    own = printed_by(change(command), folder)
                    printed += own
                    yield command, own


def missing_lines(shown: str, printed: str) -> list[str]:
    """The lines of ``shown`` that are not in ``printed``; numbers may differ, and ``...`` stands for anything."""
    return [line for line in shown.splitlines() if line and not re.search(_pattern(line), printed, re.MULTILINE)]


def _pattern(line: str) -> str:
    parts = re.split(r"(\d[\d.,]*(?:e-?\d+)?|\.\.\.|\s+)", line)
    return "".join(
        r"[^\n]*"
        if part == "..."
        else r"[\d.,e-]+"
        if part[:1].isdigit()
        else r"\s+"
        if part.isspace()
        else re.escape(part)
        for part in parts
    )
