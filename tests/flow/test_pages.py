"""All pages run: quickstart and tutorials as they stand, and print what they show; all other pages with fewer steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import (
    LEFT_OUT,
    blocks,
    missing_lines,
    printed_by,
    run_page,
    short,
    table_commands,
    why_left_out,
)
from tests.support.source import ROOT, documents

# These pages have tests of their own.
OWN = {
    "docs/examples/gridagent/README.md": "tests/flow/test_examples.py",
    "docs/export.md": "tests/flow/test_export_page.py",
    "docs/library.md": "tests/flow/test_library.py",
    "docs/own_agent.md": "tests/flow/test_examples.py",
    "docs/tensor_envs.md": "tests/flow/test_tensor_envs.py",
}
COMMANDS = {path: [command for block in blocks(path) for command in block.commands] for path in documents()}
AS_IT_STANDS = ("docs/quickstart", "docs/tutorials/", "docs/coming_from/sb3")
# Without a GPU, docs/tutorials/gpu.md does not print what it shows.
TRIED = [path for path in COMMANDS if path.startswith(AS_IT_STANDS) and not path.endswith("/gpu.md")]
SHORT = [
    path
    for path, found in COMMANDS.items()
    if path not in {*OWN, *TRIED} and not all(why_left_out(command) for command in found)
]
TABLES = [path for path in COMMANDS if path.startswith("docs/coming_from/")]
# Code that pages name and other pages have, or that stands for the reader's own.
CODE = {
    "my_envs.py": ("README.md", "docs/tutorials/many_agents.md"),
    "my_agent.py": ("docs/tutorials/own_network.md",),
    "my_watch.py": ("docs/own_agent.md",),
    "my_games.py": ("docs/tutorials/self_play.md",),
    "my_search.py": ("docs/launcher.md",),
    "search.toml": ("docs/tutorials/several_machines.md",),
}
OF_THE_READER = {
    "my_envs.py": """

class MyEnv(Corridor):
    def __init__(self, size: int = 8, config: dict[str, int] | None = None) -> None:
        super().__init__(config["size"] if config else size)


class battle(Meet):
    pass


def who(agent, episode, env):
    return int(agent.startswith("blue"))


make_env = Corridor
""",
    "my_agent.py": "\n\nclass Encoder(Residual):\n    pass\n\n\nclass Net(Residual):\n    pass\n",
    "my_games.py": "\n\nclass connect_four(Nim):\n    pass\n",
}
# Runs that a page looks at.
BEFORE = {
    "docs/report.md": [
        *(
            f"sfactory train --env=CartPole-v1 --experiment=lr_{rate}_{seed} --learning_rate={rate} --seed={seed}"
            for rate in ("0.001", "0.0001")
            for seed in (1, 2)
        ),
        "sfactory train --env=CartPole-v1 --experiment=NAME --num_policies=2 --with_pbt=True",
    ]
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the code that pages name."""
    for name, pages in CODE.items():
        text = "\n\n".join(block.text for path in pages for block in blocks(path) if block.file == name)
        if name == "my_envs.py":
            text = text.replace('"left"', '"red_0"').replace('"right"', '"blue_0"')
        (tmp_path / name).write_text(short(text) + OF_THE_READER.get(name, ""), encoding="utf-8")
    (tmp_path / "my_experiments.py").write_text("from my_search import RUNS as RUN_DESCRIPTION\n")
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "examples").symlink_to(ROOT / "docs" / "examples")
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize("path", TRIED)
def test_a_page_runs_as_it_stands(path: str, tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    shown = {block.text for block in blocks(path) if block.kind == "text"}

    missing = [missing_lines(text, printed) for text, printed in run_page(path, tmp_path) if text in shown]

    assert len(missing) == len([block for block in blocks(path) if block.kind == "text"])
    assert [line for lines in missing for line in lines] == []


@pytest.mark.long
@pytest.mark.parametrize("path", SHORT)
def test_a_page_runs_with_fewer_steps(path: str, folder: Path) -> None:
    for command in BEFORE.get(path, ()):
        printed_by(short(command), folder)

    ran = [command for command, _ in run_page(path, folder, shortened=True)]

    assert len(ran) >= len([command for command in COMMANDS[path] if not why_left_out(command)])


@pytest.mark.long
@pytest.mark.parametrize("path", TABLES)
def test_the_commands_of_tables_run(path: str, folder: Path) -> None:
    seen = set[str]()
    for number, text in enumerate(table_commands(path)):
        command = short(text.replace("=NAME", "=CartPole-v1"))
        # A second training of an env would resume the first.
        for env in re.findall(r"^sfactory train (?!.*--experiment=).*(--env=\S+)", command):
            command += f" --experiment=table_{number}" if env in seen else ""
            seen.add(env)
        if not why_left_out(command):
            printed_by(command, folder)


def test_each_command_of_a_page_runs_in_a_test_or_says_why_not() -> None:
    of_tables = [command for path in TABLES for command in table_commands(path)]
    every = [*of_tables, *(command for found in COMMANDS.values() for command in found if command)]

    unused = [pattern for pattern in LEFT_OUT if not any(re.search(pattern, command) for command in every)]
    assert unused == []
    for path, test in OWN.items():
        assert Path(path).name in (ROOT / test).read_text(encoding="utf-8")
    code = [block for path in (*TRIED, *SHORT) for block in blocks(path) if block.kind in ("python", "toml")]
    assert [block for block in code if not block.file and "__main__" not in block.text] == []
    left_out = [command for command in every if why_left_out(command)]
    print(f"{len(every) - len(left_out)} commands run, {len(left_out)} do not")  # pytest -rP shows it
