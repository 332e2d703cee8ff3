"""Runs are read from their files, put together by their settings, drawn, and served to this machine alone."""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sfactory import plot, report_page
from sfactory.config.commands import read_page_line
from sfactory.config.flags import config_of
from sfactory.config.saved_config import run_dirs, write_config
from sfactory.experiment.run_dir import RunDir
from sfactory.results import figure, server
from sfactory.results.page import data_of, data_text, embedded_or_linked
from sfactory.results.runs import RETURN, Run, grouped, labelled
from sfactory.results.server import LivePage, PageServer
from tests.support.processes import eventually

STEPS = (0, 1000, 2000, 4000)


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def save_run(name: str, returns: Sequence[float | None], steps: Sequence[int] = STEPS, **flags: Any) -> Path:
    run_dir = Path("train_dir") / name
    run_dir.mkdir(parents=True)
    flags = {"env": "CartPole-v1", "experiment": name, **flags}
    write_config(run_dir, config_of(flags), dict.fromkeys(flags, "command line"))
    rows = [
        {"time": "2026-11-27T10:00:00+00:00", "env_steps": at, RETURN: value, "perf/train_seconds": at / 100}
        for at, value in zip(steps[: len(returns)], returns, strict=True)
    ]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"env_steps": 5')
    return run_dir


def save_runs() -> list[Path]:
    """Two seeds of one setting and two of another."""
    return [
        save_run(f"lr_{rate}_{seed}", [None, 10.0 * seed, 20.0, 100.0 * seed], learning_rate=rate, seed=seed)
        for rate in (0.001, 0.0001)
        for seed in (1, 2)
    ]


def test_seeds_are_together_and_settings_name_their_groups() -> None:
    save_runs()
    paths = sorted(Path("train_dir").iterdir())

    groups = grouped([Run(path) for path in paths])

    assert [group.label for group in groups] == ["learning_rate=0.0001", "learning_rate=0.001"]
    assert [len(group.runs) for group in groups] == [2, 2]
    assert [group.label for group in grouped([Run(path) for path in paths[:2]])] == ["lr_0.0001"]
    other = save_run("other", [1.0] * 4, env="Acrobot-v1", gamma=0.9, rollout=8, num_workers=3)
    assert [group.label for group in grouped([Run(paths[0]), Run(other)])] == ["CartPole-v1", "Acrobot-v1"]
    empty = Path("empty")
    empty.mkdir()
    assert len(grouped([Run(empty), Run(empty)])) == 2  # nothing says that they are the same
    assert len(Run(empty).problems) == 2


def test_curves_are_over_steps_frames_and_minutes_and_bands_as_far_as_all_runs_go() -> None:
    first = save_run("a_1", [None, 10.0, 20.0, 40.0], env_frameskip=4)
    second = save_run("a_2", [0.0, 20.0, 30.0, 35.0], steps=(0, 1000, 3000, 2000), env_frameskip=4)  # resumed at 2000

    assert Run(first).curve(RETURN, "frames").x.tolist() == [4000, 8000, 16000]
    repeated = save_run("b", [None, 10.0, 20.0, 40.0], env_frameskip=2, action_repeat=3)
    assert Run(repeated).curve(RETURN, "frames").x.tolist() == [6000, 12000, 24000]
    assert Run(first).curve(RETURN, "minutes").x.tolist() == pytest.approx([1 / 6, 1 / 3, 2 / 3])
    assert Run(second).curve(RETURN).values.tolist() == [0.0, 20.0, 35.0]
    (group,) = grouped([Run(first), Run(second)])
    band = group.band(RETURN, "env_steps", points=3)
    assert band is not None
    assert band.x.tolist() == [1000, 1500, 2000]
    assert band.mean.tolist() == [15.0, (15.0 + 27.5) / 2, 27.5]
    assert (band.low[0], band.high[0]) == (10.0, 20.0)
    assert group.band("train/nothing", "env_steps") is None


def test_pictures_of_curves_and_of_a_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    save_runs()

    assert plot.main(["curves", "train_dir", "--over=minutes", "--out=curves.svg", "--label=return"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [group["iqm"] for group in result["groups"]] == [150.0, 150.0]
    svg = Path("curves.svg").read_text()
    parts = ("mean-0", "band-0", "run-0-1", "mean-1")
    assert [svg.count(f'id="{part}"') for part in (*parts, "mean-2")] == [1, 1, 1, 1, 0]

    pairs = ["lr_0.001_1", "lr_0.001_2", "vs", "train_dir/lr_0.0001_1"]
    assert plot.main(["compare", *pairs, "--out=compare.png"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["probability_of_improvement"] == 0.75
    assert [group["label"] for group in result["groups"]] == ["learning_rate=0.001", "learning_rate=0.0001"]
    assert Path("compare.png").read_bytes().startswith(b"\x89PNG")


def test_runs_of_one_row_are_points_and_a_group_of_them_is_once_in_the_legend() -> None:
    pytest.importorskip("matplotlib")
    for gamma, seed in ((0.5, 1), (0.5, 2), (0.9, 1)):
        save_run(f"{gamma}_{seed}", [1.0], gamma=gamma, seed=seed)

    assert plot.main(["curves", "train_dir", "--out=curves.svg"]) == 0

    svg = Path("curves.svg").read_text()
    assert [svg.count(f"<!-- gamma={gamma} -->") for gamma in (0.5, 0.9)] == [1, 1]
    for run in ("run-0-0", "run-0-1", "run-1-0"):
        assert "<use" in svg.partition(f'id="{run}"')[2].partition("</g>")[0]


def test_pictures_warn_of_runs_that_are_not_done_or_end_early_and_have_where_each_ends(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure, "write_picture", lambda *_: None)

    def save(name: str, status: str, last: int, **flags: Any) -> None:
        run = save_run(name, [1.0, 2.0, 3.0, 4.0], [0, 1000, 2000, last], **flags)
        (run / "run.json").write_text(json.dumps({"status": status, "hostname": "elsewhere", "pid": 1}))

    for number, (status, last) in enumerate([("interrupted", 100_000), ("done", 1_000_000), ("done", 1_010_000)]):
        save(f"b_{number}", status, last)
    save("c_0", "running", 1_010_000, gamma=0.5)
    save("c_1", "done", 3000, gamma=0.5)
    early = "train_dir/b_0 ends at 100,000 of 1,010,000 env steps (interrupted): leave it out or resume it"
    running = "train_dir/c_0 ends at 1,010,000 env steps (running): leave it out, or draw it at its end"
    short = "train_dir/c_1 ends at 3,000 of 1,010,000 env steps (done): leave it out or train it for longer"

    assert plot.main(["curves", "train_dir", "--out=curves.svg"]) == 0
    assert caplog.messages == [early, running, short]
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [group["env_steps"] for group in groups] == [[100_000, 1_000_000, 1_010_000], [1_010_000, 3000]]

    caplog.clear()
    assert plot.main(["curves", "b_1", "b_2", "c_1", "--out=curves.svg"]) == 0  # each group ends where it ends
    assert caplog.messages == []
    assert plot.main(["compare", "b_1", "vs", "c_1", "--out=compare.svg"]) == 0
    assert caplog.messages == [short.replace("1,010,000", "1,000,000")]

    caplog.clear()
    assert plot.main(["curves", "b_0", "c_0", "c_1", "--over=minutes", "--out=curves.svg"]) == 0
    assert caplog.messages == [early.replace(" of 1,010,000", ""), running]

    caplog.clear()
    Path("train_dir/b_1/run.json").write_text("{")
    assert plot.main(["curves", "b_1", "--out=curves.svg"]) == 0
    assert ["run.json cannot be read" in message for message in caplog.messages] == [True]


def test_runs_that_have_reached_the_same_limit_end_alike_whatever_their_last_datasets_add(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure, "write_picture", lambda *_: None)
    for number, last in enumerate((22_528, 20_480, 19_000)):
        of_steps, of_frames = f"steps_{number}", f"frames_{number}"
        save_run(of_steps, [1.0] * 4, [0, 1000, 2000, last], train_for_env_steps=20_000)
        flags = {"train_for_frames": 80_000, "env_frameskip": 4, "num_policies": 3, "train_policies": [1, 2]}
        save_run(of_frames, [1.0] * 4, [0, 1000, 2000, 2 * last], **flags)

    for runs in (["curves", "steps_0", "steps_1"], ["compare", "frames_0", "vs", "frames_1"]):
        assert plot.main([*runs, "--out=runs.svg"]) == 0
    assert caplog.messages == []
    assert plot.main(["curves", "train_dir", "--over=frames", "--out=runs.svg"]) == 0
    assert [message.partition(" (")[0] for message in caplog.messages] == [
        "train_dir/frames_2 ends at 152,000 of 160,000 frames",
        "train_dir/steps_2 ends at 19,000 of 20,000 frames",
    ]


def test_settings_that_were_edited_into_wrong_types_are_named_and_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure, "write_picture", lambda *_: None)
    wrong: dict[str, Any] = {"train_for_env_steps": None, "num_policies": "3", "env_frameskip": 0, "train_policies": 7}
    save_run("edited", [1.0] * 4, **wrong)

    assert plot.main(["curves", "edited", "--over=frames", "--out=runs.svg"]) == 0
    named = [f"{name}={value} is no number above 0" for name, value in list(wrong.items())[:3]]
    assert sorted(caplog.messages) == sorted(f"train_dir/edited/config.json: --{each}" for each in named)


def test_groups_that_are_compared_are_named_by_the_settings_that_all_of_their_runs_have() -> None:
    def group(gamma: float, env: str = "CartPole-v1") -> list[Run]:
        names = {seed: f"ppo_seed_{seed}_gamma_{gamma}_env_{env}" for seed in (1111, 2222)}
        return [Run(save_run(name, [1.0] * 4, seed=seed, gamma=gamma, env=env)) for seed, name in names.items()]

    first, second = group(0.97), group(0.99)
    assert [each.label for each in labelled([first, second])] == ["gamma=0.97", "gamma=0.99"]
    assert [each.label for each in labelled([first, first])] == ["ppo_seed (1)", "ppo_seed (2)"]
    envs = [[*first, *group(0.97, "Acrobot-v1")], [*second, *group(0.99, "Acrobot-v1")]]
    assert [each.label for each in labelled(envs)] == ["gamma=0.97", "gamma=0.99"]
    assert [each.label for each in labelled([envs[0], [*first, *second]])] == ["ppo_seed (1)", "ppo_seed (2)"]
    assert [len(each.runs) for each in labelled(envs)] == [4, 4]


@pytest.mark.parametrize(
    ("command", "argv", "text"),
    [
        (plot, ["curves"], "of which run?"),
        (plot, ["curves", "a_1", "b", "c"], "there is no run 'c'"),
        (plot, ["curves", "a_1", "--metric=train/episode_return_meen"], "did you mean train/episode_return_mean?"),
        (plot, ["curves", "a_1", "--over=days"], "--over=days"),
        (plot, ["compare", "a_1"], "which runs are compared with which?"),
        (plot, ["compare", "a_1", "vs"], "which runs are compared with which?"),
        (plot, ["compare", "missing", "a_1", "vs", "empty"], "there is no run 'empty'"),
        (plot, ["population", "a_1", "--over=minutes"], "--over=minutes: is for curves and compare; leave it out"),
        (report_page, ["a_1", "--port=9000"], "--port=9000: needs --serve=True"),
        (report_page, [], "of which runs?"),
        (report_page, ["missing"], "there is no run 'missing'"),
        (report_page, ["a_1", "empty"], "there is no run 'empty'"),
        (plot, ["curves", "empty"], "there is no run 'empty'"),
        (report_page, ["a_1", "--out=x.pdf"], "--out=x.pdf"),
        (report_page, ["a_1", "--out=x.html", "--serve"], "--serve=True"),
        (report_page, ["a_1", "--out=no/x.html"], "no/x.html cannot be written"),
    ],
)
def test_wrong_arguments_are_refused(command: Any, argv: list[str], text: str, capsys: Any) -> None:
    save_run("a_1", [1.0] * 4)
    Path("empty").mkdir()

    assert command.main(argv) == 2
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.out == ""


def test_words_are_runs_folders_of_runs_and_runs_that_have_lost_their_settings() -> None:
    named, bare = save_run("named", [1.0] * 4), save_run("bare", [1.0] * 4)
    (bare / "config.json").unlink()

    assert run_dirs(["train_dir", "bare", "named"], "train_dir") == [named, bare]


def test_a_folder_of_runs_stands_for_all_but_those_that_a_restart_has_renamed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, of_this_name = save_run("run", [1.0] * 4), save_run("other_old0001", [1.0] * 4)
    renamed = [save_run(name, [1.0] * 4) for name in ("run_old0001", "run_overwritten", "run_overwritten0001")]
    for folder in renamed:
        write_config(folder, config_of({"env": "CartPole-v1", "experiment": "run"}), {})

    assert run_dirs(["train_dir"], "train_dir") == [of_this_name, run]
    assert "train_dir: run_old0001, run_overwritten, run_overwritten0001" in capsys.readouterr().err
    assert run_dirs(["train_dir", "run_old0001"], "train_dir") == [of_this_name, run, renamed[0]]
    for folder in (run, of_this_name):
        folder.rename(folder.name)
    assert run_dirs(["train_dir"], "train_dir") == renamed


def test_page_data_has_all_that_runs_tell_and_no_markup() -> None:
    runs = save_runs()
    with (runs[0] / "sf_log.txt").open("w") as log:
        log.write(
            "[10:00:00] WARNING: sf-actor-0: <b>slow</b>\n[10:00:01] env_steps=3\n[10:00:02] bound by actor: why\n"
        )
    (runs[0] / "run.json").write_text('{"status": "failed", "seed": 5, "sessions": 3}')
    (runs[1] / "run.json").write_text("[]")
    (runs[1] / "population.jsonl").write_text("{}\n")
    row = {"env_steps": 5000, "perf/env_restarts": 2, "perf/bad_env_data": float("nan"), "own/number": 3}
    rows = [row, {**row, "perf/env_restarts": 1}, {**row, "perf/env_restarts": 4}]
    (runs[0] / "metrics.jsonl").open("a").write("\n" + "".join(json.dumps(row) + "\n" for row in rows))

    data = data_of(runs, lambda number, video: "")

    assert [run["seed"] for run in data["runs"]] == [1, 2, 1, 2]  # of config.json
    texts = {(event["kind"], event["text"]) for event in data["events"] if event["run"] == 0}
    assert texts == {
        ("fault", "run failed"),
        ("warning", "6 envs recreated after an exception"),
        ("warning", "sf-actor-0: <b>slow</b>"),
        ("advice", "bound by actor: why"),
    }
    assert ["population.jsonl, line 1" in event["text"] for event in data["events"] if event["run"] == 1] == [True]
    charts = {chart["metric"]: chart for chart in data["charts"]}
    assert charts.keys() >= {RETURN, "own/number"}
    assert charts[RETURN]["runs"][0] == {
        "env_steps": [1000, 2000, 4000],
        "minutes": [0.16667, 0.33333, 0.66667],
        "y": [10.0, 20.0, 100.0],
    }
    assert data["settings"]["differing"] == [["learning_rate", "0.001", "0.0001"]]
    assert ["env", "CartPole-v1", "CartPole-v1", "command line"] in data["settings"]["changed"]
    assert json.loads(data_text(data))["events"] == data["events"]
    assert not set("<>&") & set(data_text(data))


def test_page_draws_the_numbers_of_envs_and_observers_whatever_their_names_and_rows() -> None:
    run = save_run("a_1", [1.0] * 4)
    own = ("score_max", "own/items_count", "eval/own_std", "time/own", "memory/own", "load/own", "policy_0/own_min")
    of_evaluation = ("eval/true_objective_mean", "eval/episode_length_mean")
    of_run = (f"policy_0/{RETURN}", f"policy_12/{RETURN}", "train/extra/kills_mean", "ring/replies_mean")
    left_out = (
        *("eval/policy_version", "eval/episodes", "eval/episode_return_max", "load/actor_busy", "memory/sf-main_mb"),
        *("rollout/ep_rew_mean", "time/fps", "train/approx_kl", "policy_lag/max", "ring/replies_p50"),
        *("train/extra/kills_max", "train/episode_return_min", "policy_0/train/kl", "policy_0/perf/grad_ms"),
    )
    first = [dict.fromkeys(names, 2) for names in (own, of_evaluation, (*of_run, *left_out))]
    rows = [{"env_steps": 5000 + at, RETURN: 1.0, **(first[at] if at < 3 else {})} for at in range(50)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    charts = {chart["metric"] for chart in data_of([run], lambda number, video: "")["charts"]}

    assert charts == {RETURN, *own, *of_evaluation, *of_run}


def test_page_draws_returns_that_are_all_0() -> None:
    run = save_run("a_1", [0.0] * 4)
    row = {"env_steps": 5000, RETURN: 0.0, f"policy_1/{RETURN}": 0.0, "perf/dropped_steps": 0, "own/number": 0}
    (run / "metrics.jsonl").write_text(json.dumps(row))

    charts = data_of([run], lambda number, video: "")["charts"]

    assert [(chart["metric"], chart["runs"][0]["y"]) for chart in charts] == [
        (RETURN, [0.0]),
        (f"policy_1/{RETURN}", [0.0]),
    ]


def test_page_says_why_each_session_failed_by_the_last_line_of_a_traceback() -> None:
    run = save_run("a_1", [1.0] * 4)
    (run / "sf_log.txt").write_text(
        "ValueError: of a message that began before\n"
        "[2026-11-29 10:00:00] env_steps=3\n"
        "RESULT failed env_steps=3 return=1.000 saved=3 cause: sf-actor-0 was killed by SIGKILL resume: python\n"
        "[2026-11-29 10:01:00] ERROR: Traceback (most recent call last):\n  File\n\nKeyError: 1\nobserver b failed\n"
        "[2026-11-29 10:01:01] WARNING: env 3 raised\nTraceback (most recent call last):\nValueError: 2\n"
        "[2026-11-29 10:01:02] error: Traceback (most recent call last):\n  File\nKeyError: 3\nobserver a failed: 3\n"
        "RESULT failed env_steps=4 return=none cause: observer a failed: 3\n"
        "[2026-11-29 10:02:00] env_steps=5\n"
        "RESULT done env_steps=5 return=1.000 saved=5 resume: python\n"
    )

    events = data_of([run], lambda number, video: "")["events"]

    assert [(event["kind"], event["time"], event["text"]) for event in events] == [
        ("fault", "2026-11-29 10:00:00", "sf-actor-0 was killed by SIGKILL"),
        ("fault", "2026-11-29 10:01:00", "observer b failed"),
        ("warning", "2026-11-29 10:01:01", "env 3 raised"),
        ("fault", "2026-11-29 10:01:02", "observer a failed: 3"),
    ]


def test_a_run_is_not_running_once_its_main_process_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    here, nowhere, run = socket.gethostname(), 1 << 23, save_run("a_1", [1.0] * 4)
    page = LivePage([run])
    monkeypatch.setattr(server, "_REST", 0.0)

    def status_of(host: str, pid: int) -> str:
        (run / "run.json").write_text(json.dumps({"status": "running", "hostname": host, "pid": pid}))
        return str(page.data()["runs"][0]["status"])

    with RunDir.open("train_dir", "a_1"):
        assert status_of(here, nowhere) == "running"  # in another container, for example
    assert page.data()["runs"][0]["status"] == "killed"  # although no file has changed
    assert [(event["kind"], event["text"]) for event in page.data()["events"]] == [
        ("fault", "run killed: its main process is gone"),
    ]
    assert status_of(here, os.getpid()) == "running"
    assert status_of("elsewhere", nowhere) == "running"


def test_a_served_folder_shows_runs_that_begin_later_after_the_others_and_keeps_those_that_it_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "_REST", 0.0)
    save_run("b_1", [1.0] * 4)
    save_run("b_1_old0001", [1.0] * 4, experiment="b_1")
    served = read_page_line(["train_dir", "--serve"])
    capsys.readouterr()
    page = LivePage(served.runs, served.find)

    def shown() -> list[str]:
        return [run["name"] for run in page.data()["runs"]]

    assert shown() == ["b_1"]
    save_run("a_2", [2.0] * 4, gamma=0.5)
    assert shown() == ["b_1", "a_2"]
    Path("train_dir").rename("moved")
    assert shown() == ["b_1", "a_2"]
    assert capsys.readouterr().err == ""  # a line says at the start what is left out


def test_few_videos_are_embedded_and_others_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    run = save_run("a 1", [1.0] * 4)
    for name, size in (("one.mp4", 3), ("two#.mp4", 9), ("\udcff.mp4", 9)):  # the last is not UTF-8
        (run / name).write_bytes(b"x" * size)
    (run / "link.mp4").symlink_to("/etc/passwd")
    monkeypatch.setattr("sfactory.results.page._MOST_EMBEDDED", 8)

    videos = data_of([run], embedded_or_linked(Path("pages/report.html")))["videos"]

    linked = ["../train_dir/a%201/two%23.mp4", "../train_dir/a%201/%FF.mp4"]
    assert [video["url"] for video in videos] == ["data:video/mp4;base64,eHh4", *linked]


def test_the_newest_videos_of_evaluations_come_after_those_of_enjoy() -> None:
    run = save_run("a_1", [1.0] * 4)
    (run / "videos").mkdir()
    for name in ("replay", *(f"videos/eval_{steps:012d}" for steps in range(12))):
        (run / f"{name}.mp4").write_bytes(b"video")
        (run / f"{name}.gif").write_bytes(b"picture")

    names = [video["name"] for video in data_of([run], lambda number, video: "")["videos"]]

    assert names == ["replay.mp4", *(f"eval_{steps:012d}.mp4" for steps in range(11, 3, -1))]


def test_server_answers_this_machine_alone_with_the_page_its_data_and_videos() -> None:
    run = save_run("a_1", [1.0] * 4)
    (run / "play.mp4").write_bytes(b"video")
    (run / "videos").mkdir()
    (run / "videos" / "\udcff.mp4").write_bytes(b"odd")
    (run / "secret.mp4").symlink_to("/etc/passwd")
    with PageServer(LivePage([run]), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def get(path: str, **headers: str) -> tuple[int, bytes, Mapping[str, str]]:
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            found = answer.status, answer.read(), dict(answer.getheaders())
            connection.close()
            return found

        status, page, _ = get("/")
        assert (status, b"a_1" in page) == (200, True)
        _, data, headers = get("/data.json")
        first, odd = json.loads(data)["videos"]
        assert first == {"run": 0, "name": "play.mp4", "url": "videos/0/play.mp4"}
        assert get(f"/{odd['url']}")[:2] == (200, b"odd")
        assert get("/data.json", **{"If-None-Match": headers["ETag"]})[:2] == (304, b"")
        assert get("/videos/0/play.mp4")[:2] == (200, b"video")
        for part, answered, content in (
            ("bytes=0-", "bytes 0-4/5", b"video"),
            ("bytes=1-3", "bytes 1-3/5", b"ide"),
            ("bytes=3-99", "bytes 3-4/5", b"eo"),
            ("bytes=5-", None, b"video"),  # there is no such part
            ("bytes=-2", None, b"video"),
        ):
            status, found, headers = get("/videos/0/play.mp4", Range=part)
            assert (status, found) == (206 if answered else 200, content)
            assert headers.get("Content-Range") == answered
        assert get("/videos/0/play.mp4", **{"Range": "bytes=1-", "If-Range": '"an older one"'})[:2] == (200, b"video")
        for path in ("/videos/0/secret.mp4", "/videos/0/../config.json", "/config.json", "/../../etc/passwd"):
            assert get(path)[0] == 404
        for name in (
            "evil.example",
            f"evil.example:{server.server_port}",
            "localhost.evil.example:80",
            "",
            "a:localhost",
        ):
            status, refusal, _ = get("/", Host=name)
            assert status == 403
            assert b"127.0.0.1 or localhost" in refusal
        for name in ("localhost", "LOCALHOST:9999", "127.0.0.1:9999"):  # another port, as ssh forwards it
            assert get("/", Host=name)[0] == 200
        with (run / "metrics.jsonl").open("a") as file:
            file.write("\n" + json.dumps({"env_steps": 9000, RETURN: 77.0}) + "\n")
        assert eventually(lambda: json.loads(get("/data.json")[1])["runs"][0]["return"] == 77.0, 60.0)
        with pytest.raises(Exception, match="--port=0 finds one"):
            PageServer(LivePage([run]), server.server_port)
        server.shutdown()


def test_of_a_long_video_only_the_part_that_a_browser_takes_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    run, ended, failures = save_run("a_1", [1.0] * 4), threading.Event(), []
    with (run / "play.mp4").open("wb") as video:
        video.truncate(1 << 40)  # more than fits into memory
    monkeypatch.setattr(PageServer, "handle_error", lambda *_: failures.append(sys.exception()))
    monkeypatch.setattr(PageServer, "shutdown_request", lambda *_: ended.set())
    page = LivePage([run])
    page.data()
    with PageServer(page, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for part, asked in ((b"0-", 1), (b"1099511627774-", 999)):  # a connection may be closed before the end
            with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as client:
                client.sendall(b"GET /videos/0/play.mp4 HTTP/1.1\r\nHost: localhost\r\nRange: bytes=%b\r\n\r\n" % part)
                client.recv(asked)
            assert ended.wait(20)
            ended.clear()
        server.shutdown()

    assert failures == []


def test_a_served_page_is_computed_for_a_twentieth_of_the_time_at_most_and_reads_what_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs, time, computed, read = [save_run("a_1", [1.0] * 4), save_run("a_2", [2.0] * 4)], [100.0], [], []

    def takes_2_s(*given: Any, **options: Any) -> dict[str, Any]:
        computed.append(time[0])
        time[0] += 2.0
        return data_of(*given, **options)

    def reads(path: Path) -> Run:
        read.append(path)
        return Run(path)

    monkeypatch.setattr(server, "now", lambda: time[0])
    monkeypatch.setattr(server, "data_of", takes_2_s)
    monkeypatch.setattr(server, "Run", reads)
    page = LivePage(runs)

    for _ in range(30):  # a run writes, and a browser asks, every 3 s
        with (runs[0] / "metrics.jsonl").open("a") as file:
            file.write("\n" + json.dumps({"env_steps": 9000, RETURN: 77.0}) + "\n")
        page.answer("/data.json")
        page.answer("/")
        time[0] += 3.0

    assert computed == [100.0, 141.0, 182.0]
    assert read == [*runs, runs[0], runs[0]]
    assert page.data()["runs"][0]["return"] == 77.0
