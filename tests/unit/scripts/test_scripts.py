"""Scripts can be imported and refuse unknown options; the main ones work on a little data."""

from __future__ import annotations

import importlib
import itertools
import json
import signal
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pyte
import pytest

from scripts import compare_peers, draw_data_path, gpu_check, mutants
from scripts.audit import CLEAN, KNOWN, NOT_ASKED
from scripts.audit import main as audit
from scripts.autotune_check import empty, grid, most_envs, verdict
from scripts.bench import measurements_of
from scripts.bench_files import families_text, joined, report_text
from scripts.command import ROOT, Command, json_line, run
from scripts.disturbed import killed
from scripts.draw_curves import Curve, band, collect
from scripts.draw_live_view import COLOURS, svg
from scripts.process_facts import facts_of
from scripts.results_table import steps_to
from scripts.rounds import Spread, alternating, ratio
from scripts.scaling import ENVS, INFERENCE, WORKERS, cells
from scripts.turns import Order, run_in_turns
from scripts.workloads import FAMILIES, of_families, workloads
from sfactory.config.argv import scan
from sfactory.config.env_families import load_families
from sfactory.config.flags import all_flags
from sfactory.config.resolve import read_command_line
from tests.support.processes import eventually
from tests.support.trainer import within

BENCH = ROOT / "docs/performance/bench.json"
# These need packages that are not installed here.
OF_OTHERS = {"rlax_vtrace", "sb3_rows", "score_sample_factory", "score_sb3"}
SCRIPTS = sorted(path.stem for path in (ROOT / "scripts").glob("*.py") if path.stem not in OF_OTHERS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_can_be_imported_and_refuses_an_unknown_option(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(f"scripts.{name}")
    has_options = hasattr(module, "main") and hasattr(module, "argparse")
    if name == "optuna_search" or not (has_options or hasattr(module, "draw")):  # the main of that one takes its words
        return
    monkeypatch.setattr(sys, "argv", [name, "--no-such-option"])

    with pytest.raises(SystemExit) as caught:
        module.main() if has_options else module.command(module.__doc__, module.draw)

    assert caught.value.code == 2


def test_the_picture_of_the_data_path_is_the_one_that_its_script_draws() -> None:
    assert draw_data_path.TARGET.read_text(encoding="utf-8") == draw_data_path.drawing()


def test_command_ends_with_all_processes_that_it_started(tmp_path: Path) -> None:
    child = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: None); time.sleep(60)"
    parent = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], env={{}})\n"
        "print(f'started {child.pid}.', file=sys.stderr, flush=True)\ntime.sleep(60)"
    )

    with Command([sys.executable, "-c", parent], tmp_path) as running:
        running.wait_for(".", 60)
        pid = int(running.stderr.split()[-1].rstrip("."))
        assert facts_of(pid) is not None

    assert eventually(lambda: facts_of(pid) is None, within(10.0))


def test_failed_command_shows_the_end_of_its_stderr() -> None:
    with pytest.raises(SystemExit, match="why it failed"):
        run([sys.executable, "-c", "raise SystemExit('why it failed')"])


def test_commands_take_turns(tmp_path: Path) -> None:
    script = "import time\nend = time.monotonic() + 0.5\nwhile time.monotonic() < end: pass\nprint('{}')"
    orders = {name: Order([sys.executable, "-c", script], tmp_path, {}) for name in ("a", "b")}

    assert [json_line(output.stdout) for output in run_in_turns(orders, 0.2).values()] == [{}, {}]


def test_rounds_alternate_and_ratios_are_those_of_one_round() -> None:
    calls = itertools.count(1)

    assert alternating(dict.fromkeys("ab", lambda: next(calls)), 2) == {"a": [1, 3], "b": [2, 4]}
    assert ratio({0: 500.0, 1: 300.0, 2: 400.0}, {0: 50.0, 1: 10.0, 2: 20.0}) == Spread(20.0, 10.0, 30.0)
    assert ratio({0: 1.0}, {1: 1.0}) is None


def test_all_workloads_and_layouts_are_given_with_flags_that_exist() -> None:
    simulators = {"dmlab", "isaaclab", "megaverse"}  # which cannot be measured where they cannot be installed
    simulators |= {"brax"}  # and a TensorEnv has no processes to measure
    families = {family.name for family in load_families()[0]} - simulators
    assert families == {name.partition(",")[0] for name in FAMILIES}
    for workload in (*workloads(None).values(), *of_families().values()):
        assert measurements_of(workload, 2, 1.0, None)
        assert scan(workload.arguments("central", 2), all_flags()).problems == []
    for cell in cells(INFERENCE, WORKERS, ENVS):
        assert read_command_line(cell.flags("CartPole-v1")).config.sampling.inference == cell.inference
    most = most_envs(read_command_line(empty("CartPole-v1")).config)
    for setting in grid(most):
        assert scan(setting.flags, all_flags()).problems == []


def test_gpu_check_writes_after_each_step_kills_what_takes_too_long_and_names_what_is_left_out(tmp_path: Path) -> None:
    out, python = tmp_path / "out.json", sys.executable
    seen: list[int] = []

    class Watching(gpu_check.Check):
        def _write(self) -> None:
            super()._write()
            seen.append(len(json.loads(out.read_text())["steps"]))

    sleeping = f"import subprocess; subprocess.run([{python!r}, '-c', 'import time; time.sleep(60)'])"
    steps = [
        gpu_check.Step("works", [python, "-c", "print('{\"rate\": 5}')"], 1.0, 30.0),
        gpu_check.Step("sleeps", [python, "-c", sleeping], 1.0, 1.5),
        gpu_check.Step("has no time", [python, "-c", "pass"], 1000.0, 1000.0),
    ]
    began = time.monotonic()

    assert not Watching(out, 60.0, "cpu", False).run(steps, tmp_path)

    result = json.loads(out.read_text())
    assert seen == [1, 2, 2]
    assert [(row["name"], row["exit_code"], row["killed"]) for row in result["steps"]] == [
        ("works", 0, False),
        ("sleeps", -signal.SIGKILL, True),
    ]
    assert result["steps"][0]["result"] == {"rate": 5}
    assert result["left_out"] == ["has no time"]
    assert time.monotonic() - began < 30.0


@pytest.mark.parametrize(("device", "quick", "runs"), [("gpu", False, 26), ("gpu", True, 22), ("cpu", True, 18)])
def test_commands_of_gpu_check_have_flags_of_today(
    device: str, quick: bool, runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "CORES", 2)  # datasets fit to the number of actors
    check = gpu_check.Check(tmp_path / "out.json", 1.0, device, quick)
    stages, simulated = [], set[str]()
    for step in gpu_check.all_steps(device, quick):
        argv = check.completed(step, tmp_path)
        if argv[2] == "sfactory.train":
            config = read_command_line(argv[3:]).config
            stages.append(config.benchmark.stage)
            assert config.run.device in (device, "cpu")
            if config.benchmark.stage == "env":
                simulated.add(step.family)
            assert step.family in simulated | {""}, "pure simulation is measured first"
            eager = "eager" in step.name
            assert not (eager and config.model.cuda_graphs)
            assert not quick or config.learner.batch_size <= 1024
    assert len(stages) == runs
    assert {"env", "sample", "learn", "full"} == set(stages)


def test_recorded_files_are_summarised_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = json.loads(BENCH.read_text())
    again = joined([measured])
    assert again["workloads"].keys() == measured["workloads"].keys()
    assert all("| " in report_text(name, workload) for name, workload in again["workloads"].items())
    assert families_text(again["workloads"], 2).count("steps alone ") == len(again["workloads"])

    file = tmp_path / "peers.json"
    file.write_text((ROOT / "docs/performance/cartpole_peers.json").read_text())
    before = json.loads(file.read_text())
    monkeypatch.setattr(sys, "argv", ["compare_peers.py", "--summarise", str(file)])
    compare_peers.main()
    assert json.loads(file.read_text())["medians"] == before["medians"]

    found = verdict({"autotuned": [89.0], "best by hand": [100.0], "second by hand": [50.0]})
    assert (found["compared_with"], found["within_bounds"]) == ("best by hand", False)


def test_curves_are_collected_and_joined(tmp_path: Path) -> None:
    rows = [{"env_steps": 1000 * at, "score": at} for at in range(1, 4)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    collect([tmp_path], "plain", "score", tmp_path / "curves.json")

    (found,) = json.loads((tmp_path / "curves.json").read_text())["plain"]["runs"]
    curve = Curve(found["env_steps"], found["values"])
    assert (steps_to(2.0, curve), steps_to(9.0, curve)) == (2000, None)
    assert band([curve, Curve([2000, 3000], [8.0, 9.0])]).most == [8.0, 9.0]


def test_one_actor_is_killed_in_each_turn(tmp_path: Path) -> None:
    with Command([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path) as running:
        pid = running.session
        assert killed({pid: "sf-actor-0"}, 0) == 1
        assert running.wait(60) == -signal.SIGKILL
    assert killed({pid: "sf-learner-0"}, 0) == 0


@pytest.mark.parametrize(
    ("packages", "code"),
    [([{"name": "a", "version": "1", "vulns": []}], CLEAN), ([{"name": "a", "skip_reason": "none"}], NOT_ASKED)],
)
def test_audit_tells_clean_from_not_asked(tmp_path: Path, packages: list[dict[str, object]], code: int) -> None:
    script = tmp_path / "pip_audit.py"
    script.write_text(f"print({json.dumps({'dependencies': packages})!r})")

    assert audit([sys.executable, str(script)]) == code != KNOWN


def test_the_picture_of_a_terminal_has_its_text_blocks_and_colours() -> None:
    screen = pyte.Screen(40, 6)
    pyte.Stream(screen).feed("a < b\r\n\x1b[1mrun\x1b[0m \x1b[33m███░\x1b[0m ▁▅")

    picture = ElementTree.fromstring(svg(screen))

    tags = [child.tag.partition("}")[2] for child in picture]
    assert tags == ["rect", "text", "text", "rect", "rect", "rect", "rect"]  # the first one is the paper
    assert [child.text for child in picture if child.text] == ["a < b", "run"]
    assert [float(child.get("width", 0)) for child in picture][3:] == [25.2, 8.4, 8.4, 8.4]
    assert [child.get("fill") for child in picture][3:5] == [COLOURS["brown"]] * 2
    assert float(picture.get("viewBox", "").split()[3]) == 64  # two rows


def test_each_mutant_has_one_place() -> None:
    sources = "\0".join(path.read_text() for path in sorted((ROOT / "sfactory").rglob("*.py")))

    for mutant in mutants.read_table():
        assert any(sources.count(text) == 1 for text, _ in mutant.changes), mutant.name
