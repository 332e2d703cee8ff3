"""The page of real runs in a browser: it draws everything, asks for nothing, and runs nothing of what runs hold."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.chromium import PROGRAM, Chromium
from sfactory import report_page
from sfactory.errors import ExitCode
from sfactory.play.video import VideoFile
from sfactory.results.server import LivePage, PageServer
from sfactory.system.optional_packages import find_ffmpeg
from tests.support.processes import eventually
from tests.support.trainer import RunTrainer

PHONE = {"width": 390, "height": 844}
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
ENDS_SCRIPT = f"</script><script>document.title='owned'</script>{HOSTILE}"
FLAGS: dict[str, Any] = {
    "train_for_env_steps": 10_000,
    "num_workers": 1,
    "worker_num_splits": 1,
    "inference": "local",
    "experiment_summaries_interval": 0.2,
}
POPULATION: dict[str, Any] = {
    "train_for_env_steps": 6_000,
    "num_policies": 2,
    "with_pbt": True,
    "stats_avg": 5,
    "pbt_start_mutation": 2000,
    "pbt_period_env_steps": 2000,
    "pbt_replace_fraction": 0.5,
    "pbt_replace_reward_gap": 0.0,
}
# The number of points in each line of each chart, by the title of the chart.
POINTS = """Object.fromEntries([...document.querySelectorAll(".card")].filter((card) => card.querySelector("svg")).map(
    (card) => [card.querySelector("b").textContent, [...card.querySelectorAll("path.line")].map(
        (line) => line.getAttribute("d").split(/[LMV]/).length - 1)]))"""
LOG = """(() => { const titles = [...document.querySelectorAll("#population b")];
    const button = titles.find((title) => title.textContent === "learning_rate").parentElement.querySelector("button");
    const pressed = () => button.getAttribute("aria-pressed"), before = pressed();
    button.click();
    return [before, pressed()]; })()"""
HOVER = """(() => { const svg = document.querySelector("#learning svg"), box = svg.getBoundingClientRect();
    svg.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + box.width / 2, clientY: box.top + 50 }));
    return document.querySelector("#learning .tip").textContent; })()"""


@pytest.fixture
def runs(run_trainer: RunTrainer) -> list[Path]:
    """Two seeds, and a population whose files hold markup."""
    started = [run_trainer(**FLAGS, experiment=f"seed_{seed}", seed=seed) for seed in (1, 2)]
    started.append(run_trainer(**{**FLAGS, **POPULATION, "experiment": "population"}))
    for run in started:
        run.assert_ended(ExitCode.DONE)
    paths = [run.run_dir for run in started]
    with VideoFile(paths[0] / "replay.mp4", 30.0, find_ffmpeg()) as video:
        for shade in range(30):
            video.write(np.full((64, 64, 3), 8 * shade, np.uint8))
    hostile = paths[2].rename(paths[2].with_name(HOSTILE.replace("/", "")))
    saved = json.loads((hostile / "config.json").read_text())
    saved["config"]["env"] = saved["config"][ENDS_SCRIPT] = ENDS_SCRIPT
    (hostile / "config.json").write_text(json.dumps(saved))
    with (hostile / "sf_log.txt").open("a") as log:
        log.write(f"[10:00:00] WARNING: {ENDS_SCRIPT}\n")
    facts = json.loads((hostile / "run.json").read_text())
    (hostile / "run.json").write_text(json.dumps({**facts, "status": ENDS_SCRIPT, "hostname": ENDS_SCRIPT}))
    return [*paths[:2], hostile]


@pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed: apt-get install chromium")
def test_page_of_runs_draws_everything_asks_for_nothing_and_runs_nothing_of_theirs(
    runs: list[Path], tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    assert report_page.main([*map(str, runs), f"--out={page}"]) == 0
    with Chromium(tmp_path) as browser:
        browser.show(page.as_uri())
        assert browser.complaints == []
        points = browser.value(POINTS)
        learning = ("Return of episodes", "Episode length", "Policy loss", "Entropy (nats)", "Return of each policy")
        speed = ("Env steps per second, trained", "Busy processes", "Memory of all processes (MiB)")
        for title in (*learning, *speed, "Who got whose weights", "learning_rate"):
            assert max(points[title]) >= 2, (title, points)
        assert 100 in points["Return of episodes"]  # the band of the two seeds
        assert browser.value("document.querySelectorAll('path.band').length") > 10
        assert re.search(r"env steps.*CartPole-v1[\d.]+ \[[\d.]+, [\d.]+\]", browser.value(HOVER))
        assert browser.value("document.querySelector('video').error === null")
        steps = browser.value("document.querySelector('#learning svg').textContent")
        browser.value("document.querySelector('[data-axis=minutes]').click()")
        assert "minutes of training" in browser.value("document.querySelector('#learning svg').textContent") != steps
        # A click on a chart with an axis that is logarithmic from the beginning.
        assert browser.value(LOG) == ["true", "false"]
        browser.value("document.getElementById('others').open = true")
        _assert_harmless(browser)
        browser.show(page.as_uri(), **PHONE, dark=True)
        assert browser.value("document.documentElement.scrollWidth") == PHONE["width"]
        assert browser.value("document.documentElement.dataset.theme") == "dark"
        _assert_harmless(browser)
        assert set(browser.requests) == {page.as_uri()}
        assert browser.complaints == []

        with PageServer(LivePage(runs), 0) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            browser.show(server.url)
            with (runs[0] / "metrics.jsonl").open("a") as file:
                row = {"env_steps": 50_000, "train/episode_return_mean": 4321.0, "perf/train_seconds": 60}
                file.write(json.dumps(row) + "\n")
            assert eventually(lambda: "4321" in browser.value("document.getElementById('runs').textContent"), 150)
            _assert_harmless(browser)
            server.shutdown()
        assert all(url.startswith((page.as_uri(), server.url)) for url in browser.requests)
        assert browser.complaints == []


def _assert_harmless(browser: Chromium) -> None:
    """What the hostile run holds is on the page, as text alone."""
    assert "owned" not in browser.value("document.title").replace(HOSTILE, "")
    assert browser.value("document.querySelectorAll('img, iframe, script[src]').length") == 0
    assert browser.value("document.querySelectorAll('script').length") == 2
    assert ENDS_SCRIPT in browser.value("document.getElementById('events').textContent")
