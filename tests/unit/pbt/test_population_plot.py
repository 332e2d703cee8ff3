"""A population is drawn from the files of its run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from sfactory import plot
from sfactory.config.flags import config_of
from sfactory.config.saved_config import write_config
from sfactory.errors import RunDirError
from sfactory.pbt.event_log import Event, Kind, append_event
from sfactory.pbt.plot import Curve, read_history
from sfactory.pbt.shared_dir import SharedDir, member_dir
from sfactory.pbt.state import Member, PopulationState

FLAGS: dict[str, Any] = {"env": "CartPole-v1", "num_policies": 2, "with_pbt": True, "pbt_optimize_gamma": True}


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def event(kind: Kind, policy: int, env_steps: int, rate: float, gamma: float, hit: float, **more: Any) -> Event:
    return Event(kind, policy, env_steps, {"learning_rate": rate, "gamma": gamma}, {"win": 1.0, "hit": hit}, **more)


EVENTS = [
    event(Kind.BEGIN, 0, 0, 1e-4, 0.99, hit=0.5),
    event(Kind.BEGIN, 1, 0, 2e-4, 0.99, hit=0.6),
    event(Kind.MUTATE, 0, 1000, 1e-4, 0.985, hit=0.5),
    event(Kind.REPLACE, 1, 1100, 3e-4, 0.99, hit=0.5, parent=0),
]


def save_run(name: str = "run", events: list[Event] = EVENTS, **flags: Any) -> Path:
    run_dir = Path("train_dir") / name
    run_dir.mkdir(parents=True)
    write_config(run_dir, config_of({**FLAGS, **flags}), {})
    for number, each in enumerate(events):
        append_event(run_dir, number, each)
    rows = [
        {"env_steps": 2 * steps, **row(0, steps, value), **row(1, steps, None if steps < 1000 else value / 2)}
        for steps, value in ((500, 10.0), (1000, 20.0), (1500, 40.0))
    ]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    return run_dir


def row(policy: int, steps: int, value: float | None) -> dict[str, float | None]:
    prefix = f"policy_{policy}"
    return {f"{prefix}/train/episode_return_mean": value, f"{prefix}/perf/trained_env_steps": steps}


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The error message of a refused command line."""
    code = plot.main(argv)
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    return captured.err


def test_history_has_returns_replacements_and_hyperparameters() -> None:
    history = read_history(save_run())

    assert history.policies == (0, 1)
    assert history.returns == (Curve(0, (500, 1000, 1500), (10.0, 20.0, 40.0)), Curve(1, (1000, 1500), (10.0, 20.0)))
    assert history.replacements == (EVENTS[-1],)
    traces = {trace.name: trace for trace in history.traces}
    logs = {name: trace.log for name, trace in traces.items()}
    assert logs == {"learning_rate": True, "gamma": False, "reward_shaping.hit": True}
    assert traces["learning_rate"].curves == (
        Curve(0, (0, 1000, 1500), (1e-4, 1e-4, 1e-4)),
        Curve(1, (0, 1100, 1500), (2e-4, 3e-4, 3e-4)),
    )
    assert traces["gamma"].curves[0] == Curve(0, (0, 1000, 1500), (0.99, 0.985, 0.985))


def test_resume_from_an_older_checkpoint_removes_later_points() -> None:
    run_dir = save_run(pbt_hyperparameters={"learning_rate": {"how": "uniform"}})
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row(0, 800, 15.0)) + "\n" + '{"policy_0/train/ep')

    history = read_history(run_dir)

    assert history.returns[0] == Curve(0, (500, 800), (10.0, 15.0))
    # The scale follows from the kind of mutation.
    assert [trace.log for trace in history.traces if trace.name == "learning_rate"] == [False]


def test_a_member_whose_run_cannot_be_read_is_left_out_by_name(caplog: pytest.LogCaptureFixture) -> None:
    one, gone = save_run("one", EVENTS[::2], num_policies=1), Path("elsewhere")
    shared = Path("shared")
    for number, run_dir in enumerate((gone, one)):
        member_dir(shared, number).mkdir(parents=True)
        member = Member(number, {}, None, None, 1000, 1)
        published = SharedDir(shared, number, "CartPole-v1", run_dir)
        published.publish(PopulationState(5, 1, None, {number: member}), "reward", 1000, 1.0)

    assert read_history(shared).policies == (0,)

    assert f"member 0 is left out, as its run in {gone} cannot be read: {gone} is not a run" in caplog.text
    one.rename("moved")
    with pytest.raises(RunDirError, match="of the 2 runs of the population in shared none can be read"):
        read_history(shared)


def test_picture_of_a_run_by_name_or_directory_has_a_line_for_everything(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    run_dir = save_run()

    assert plot.main(["population", "run"]) == 0

    svg = (run_dir / "population.svg").read_text()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result == {"out": str(run_dir / "population.svg"), "policies": 2, "births": 1, "hyperparameters": 3}
    lines = ("return-0", "return-1", "birth-0-1", "learning_rate-0", "learning_rate-1", "gamma-1")
    assert [svg.count(f'id="{line}"') for line in (*lines, "birth-1-0")] == [1] * len(lines) + [0]
    assert plot.main(["population", "train_dir/run", "--out", "picture.png"]) == 0
    assert Path("picture.png").read_bytes().startswith(b"\x89PNG")
    Path("train_dir").rename("elsewhere")
    assert plot.main(["population", "run", "--train_dir=elsewhere", "--out=again.svg"]) == 0
    assert Path("again.svg").read_text() == svg


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([], "plot population RUN"),
        (["populaton", "run"], "'populaton'"),
        (["population"], "of which run?"),
        (["population", "a", "b"], "'b': unexpected"),
        (["population", "missing"], "there is no run 'missing'"),
        (["population", "missing", "--out=x.pdf"], "--out=x.pdf"),
        (["population", "missing", "--output=x.svg"], "did you mean --out?"),
        (["population", "plain"], "--with_pbt=True"),
        (["population", "empty"], "no config.json"),
        (["population", "train_dir"], "--pbt_dir"),
    ],
)
def test_wrong_arguments_are_refused(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    save_run("plain", events=[])
    save_run("run")
    Path("empty").mkdir()

    assert text in refused(capsys, *argv)


def test_missing_matplotlib_and_unwritable_file_are_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_run()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        said = refused(capsys, "population", "run")
        assert "pip install" in said
        assert "[plot]" in said
    assert not Path("train_dir/run/population.svg").exists()

    pytest.importorskip("matplotlib")
    assert "no/such/dir.svg cannot be written" in refused(capsys, "population", "run", "--out=no/such/dir.svg")
