"""Makes the page of runs: one HTML file with their numbers as JSON, which the script in page.html draws.

NOTE [Nothing runs]: what stands in a run directory stays text. It enters the page only as JSON in which ``<``, ``>``
and ``&`` are escaped. The script puts it into the document only as text or attributes, and the page's policy allows no
script but the one of the template, by its hash, and no request but those for its own data and videos.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from sfactory import __version__, atomic
from sfactory.config.hyperparameters import is_number
from sfactory.config.saved_config import LOG_NAME, VIDEOS_NAME
from sfactory.errors import SFactoryError
from sfactory.experiment.summary import finite
from sfactory.pbt.event_log import EVENT_LOG_NAME
from sfactory.pbt.plot import Curve, read_history
from sfactory.results.runs import RETURN, Array, Axis, Group, Run, grouped, setting_text
from sfactory.statistics import bootstrap_interval, interquartile_mean

TEMPLATE = Path(__file__).with_name("page.html")
# Charts by section: metric and title. All other metrics follow in a section of their own.
SECTIONS: Mapping[str, Mapping[str, str]] = {
    "learning": {
        RETURN: "Return of episodes",
        "eval/episode_return_mean": "Return in evaluations",
        "train/true_objective_mean": "True objective",
        "eval/true_objective_mean": "True objective in evaluations",
        "train/episode_length_mean": "Episode length",
        "match/rating": "Rating against past versions",
    },
    "speed": {
        "perf/fps_10s": "Env steps per second, trained",
        "perf/sample_fps": "Env steps per second, sampled",
        "policy_lag/mean": "Policy lag (updates)",
        "memory/total_mb": "Memory of all processes (MiB)",
    },
    "optimisation": {
        "train/policy_loss": "Policy loss",
        "train/value_loss": "Value loss",
        "train/entropy": "Entropy (nats)",
        "train/kl": "KL to the behavior policy",
        "train/clip_fraction": "Share of clipped ratios",
        "train/explained_variance": "Explained variance",
        "train/grad_norm": "Gradient norm",
        "train/learning_rate": "Learning rate",
    },
}
KINDS = ("actor", "policy", "learner")
# What runs write themselves that says the same as others, or would fill pages; numbers of envs and observers are drawn.
_LEFT_OUT = re.compile(
    r"env_steps|time|rollout/ep_(len|rew)_mean|time/(fps|iterations|time_elapsed|total_timesteps)"
    r"|train/(approx_kl|entropy_loss|n_updates|policy_gradient_loss)"
    r"|load/(actor|policy|learner)_(busy|waiting)|memory/sf-.*_mb"
    r"|eval/(episodes|policy_env_steps|policy_version|episode_return_(min|max))"
    r"|(policy|replay)_lag/(min|max)|ring/\w+_(count|std|min|p10|p50|p90|max)"
    r"|train/(episode_length|episode_return|true_objective|extra/.*)_(min|max)"
    rf"|policy_\d+/(?!{RETURN}$)(perf|policy_lag|replay_lag|train)/.*"
)
_FAULTS = {
    "perf/worker_restarts": "workers replaced",
    "perf/env_restarts": "envs recreated after an exception",
    "perf/bad_env_data": "steps with invalid data",
    "perf/dropped_steps": "steps dropped",
    "perf/discarded_steps": "steps lost with workers",
}
_ENDS = {
    "failed": ("fault", "run failed"),
    "interrupted": ("warning", "run interrupted"),
    "killed": ("fault", "run killed: its main process is gone"),
}
_MESSAGE = re.compile(r"^(?=\[[\d :-]+\] |RESULT )", re.MULTILINE)  # in a log begins here; it may have several lines
_STAMP = re.compile(r"\[([^\]]*)\] (?:(WARNING|ERROR|CRITICAL): |(bound by ))?")
_CAUSE = re.compile(r"RESULT failed .*? cause: (.*?)(?: resume: .*)?$")
_TRACEBACK = "Traceback (most recent call last)"
_LOG_BYTES, _MOST_LINES = 1 << 18, 100
_POINTS, _RESAMPLES = 200, 400  # of a curve; of a band, which is drawn and not read
_MOST_EMBEDDED = 8 << 20  # bytes of videos
_MOST_EVALUATIONS = 8  # of a run of which videos are shown

VideoUrl = Callable[[int, Path], str]


def title_of(metric: str) -> str:
    """The title of a chart of this metric: its name, if it has no other."""
    return next((charts[metric] for charts in SECTIONS.values() if metric in charts), metric)


def page_of(data: Mapping[str, Any]) -> bytes:
    """The page that shows ``data``, as ``data_of`` returns it; see NOTE [Nothing runs]."""
    template = TEMPLATE.read_text(encoding="utf-8")
    script = template.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return template.replace("@@HASH@@", digest, 1).replace("@@DATA@@", data_text(data), 1).encode()


def data_text(data: Mapping[str, Any]) -> str:
    """``data`` as JSON that may stand in HTML: in ASCII, without ``<``, ``>`` and ``&``."""
    text = json.dumps(finite(data), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def data_of(
    paths: Sequence[Path], video_url: VideoUrl, serving: bool = False, read: Callable[[Path], Run] = Run
) -> dict[str, Any]:
    """Everything that the page shows of the runs in ``paths``.

    video_url: of a video of a run, by the run's number. read: reads a run.
    """
    groups = grouped([read(path) for path in paths])
    runs = [(at, run) for at, group in enumerate(groups) for run in group.runs]
    return {
        "version": __version__,
        "written": datetime.now().astimezone().isoformat(timespec="seconds"),
        "serving": serving,
        "groups": [_group(group) for group in groups],
        "runs": [_run(at, run) for at, run in runs],
        "charts": list(_charts(groups)),
        "busy": [_busy(group) for group in groups],
        "settings": _settings(groups),
        "populations": [each for number, (_, run) in enumerate(runs) if (each := _population(number, run))],
        "videos": [
            {"run": number, "name": video.name, "url": video_url(number, video)}
            for number, (_, run) in enumerate(runs)
            for video in videos_of(run.path)
        ],
        "events": [event for number, (_, run) in enumerate(runs) for event in _events(number, run)],
    }


def videos_of(run_dir: Path) -> list[Path]:
    """Those that enjoy has written into the folder of a run, then the last of evaluations, the newest first."""
    of_enjoy, of_evaluations = (
        sorted(path for path in folder.glob("*.mp4") if path.is_file() and not (path.is_symlink() or leads_away))
        for folder, leads_away in ((run_dir, False), (run_dir / VIDEOS_NAME, (run_dir / VIDEOS_NAME).is_symlink()))
    )
    return [*of_enjoy, *of_evaluations[::-1][:_MOST_EVALUATIONS]]


def embedded_or_linked(target: Path) -> VideoUrl:
    """URLs for a page at ``target``: the content of videos as long as there is little, then relative links."""
    left = _MOST_EMBEDDED

    def url(_number: int, video: Path) -> str:
        nonlocal left
        size = video.stat().st_size
        if size <= left:
            left -= size
            return "data:video/mp4;base64," + base64.b64encode(atomic.read_bytes(video)).decode()
        return quote(os.fsencode(os.path.relpath(video.resolve(), target.resolve().parent)))

    return url


def _group(group: Group) -> dict[str, Any]:
    reached = [value for run in group.runs if (value := run.last(RETURN)) is not None]
    found = {"iqm": float(interquartile_mean(reached)), "interval": bootstrap_interval(reached)} if reached else {}
    return {"label": group.label, "env": setting_text(group.runs[0].settings.get("env", "")), **found}


def _run(group: int, run: Run) -> dict[str, Any]:
    facts, last = run.facts, run.rows[-1] if run.rows else {}
    seconds = run.last("perf/train_seconds")
    return {
        "name": run.name,
        "group": group,
        "seed": run.settings.get("seed", facts.get("seed")),
        "status": run.status,
        "started": str(facts.get("started", "")),
        "updated": str(last.get("time", facts.get("updated", ""))),
        "host": str(facts.get("hostname", "")),
        "cpu": f"{facts.get('cpus', '?')} cores of {facts.get('cpu', '?')}",
        "commit": str(facts.get("git_commit") or "")[:10] + ("+" if facts.get("git_dirty") else ""),
        "sessions": len(facts["sessions"]) if isinstance(facts.get("sessions"), list) else 0,
        "env_steps": last.get("env_steps"),
        "minutes": None if seconds is None else seconds / 60,
        "fps": run.last("perf/fps_300s"),
        "return": run.last(RETURN),
        "best": run.last("train/best_episode_return_mean"),
        "frameskip": run.frameskip,
    }


def _charts(groups: Sequence[Group]) -> Iterator[dict[str, Any]]:
    """One chart for each metric of which any run has a number other than 0, or, of learning, any number."""
    titles = {metric: (section, title) for section, charts in SECTIONS.items() for metric, title in charts.items()}
    names = [name for group in groups for run in group.runs for name in run.metrics]
    titles |= {name: ("more", name) for name in names if name not in titles and not _LEFT_OUT.fullmatch(name)}
    if _objective_is_the_return(groups):
        del titles["train/true_objective_mean"]
    for metric, (section, title) in titles.items():
        shows_zeros = section == "learning" or metric.endswith(f"/{RETURN}")  # of several policies
        curves = [run.curve(metric).values for group in groups for run in group.runs]
        if any(len(values) if shows_zeros else np.any(values) for values in curves):
            yield {
                "section": section,
                "metric": metric,
                "title": title,
                "runs": [_thinned(run, metric) for group in groups for run in group.runs],
                "bands": [_bands(group, metric) for group in groups],
            }


def _objective_is_the_return(groups: Iterable[Group]) -> bool:
    objective = "train/true_objective_mean"
    return all(
        row.get(objective) in (None, row.get(RETURN)) for group in groups for run in group.runs for row in run.rows
    )


def _thinned(run: Run, metric: str) -> dict[str, list[float]]:
    """Points of a curve, the last one included."""
    curve, minutes = run.curve(metric), run.curve(metric, "minutes").x
    count = len(curve.x)
    kept = np.linspace(0, max(0, count - 1), min(_POINTS, count)).round().astype(int)
    return {"env_steps": _short(curve.x[kept]), "minutes": _short(minutes[kept]), "y": _short(curve.values[kept])}


def _bands(group: Group, metric: str) -> dict[str, Any] | None:
    """The band over both axes; frames are env steps times a number."""
    axes: Sequence[Axis] = ("env_steps", "minutes")
    found = {axis: group.band(metric, axis, resamples=_RESAMPLES) for axis in axes}
    if not all(found.values()):
        return None
    return {
        axis: {"x": _short(band.x), "y": _short(band.mean), "low": _short(band.low), "high": _short(band.high)}
        for axis, band in found.items()
        if band
    }


def _short(values: Array) -> list[float]:
    """Numbers with as many digits as can be seen."""
    return [float(f"{value:.5g}") for value in values]


def _busy(group: Group) -> dict[str, Any]:
    """Busy shares by kind of process, of the first run of a group that has them."""
    for run in group.runs:
        found = {kind: _thinned(run, f"load/{kind}_busy") for kind in KINDS}
        if any(each["y"] for each in found.values()):
            return {"run": run.name, "kinds": {kind: each for kind, each in found.items() if each["y"]}}
    return {"run": "", "kinds": {}}


def _settings(groups: Sequence[Group]) -> dict[str, Any]:
    """Settings that differ between groups, and those that are not the default in any, by group."""
    firsts = [group.runs[0] for group in groups]
    changed = dict.fromkeys(
        name for run in firsts for name in run.same if run.sources.get(name, "default") not in ("default", "env")
    )
    differing = list(groups[0].differing) if groups else []
    return {
        "differing": [[name, *(group.differing[name] for group in groups)] for name in differing],
        "changed": [
            [name, *(run.same.get(name, "-") for run in firsts), str(firsts[0].sources.get(name, ""))]
            for name in changed
            if name not in differing
        ],
        "all": [[name, *(run.same.get(name, "-") for run in firsts)] for run in firsts[:1] for name in run.same],
    }


def _population(number: int, run: Run) -> dict[str, Any] | None:
    """The history of a population; None without one. A broken one is a problem of the run."""
    if not (run.path / EVENT_LOG_NAME).exists():
        return None
    try:
        history = read_history(run.path)
    except SFactoryError as error:
        if str(error) not in run.problems:
            run.problems.append(str(error))
        return None
    return {
        "run": number,
        "policies": history.policies,
        "returns": _curves(history.returns),
        "births": [
            {"x": event.env_steps, "parent": event.parent, "policy": event.policy} for event in history.replacements
        ],
        "traces": [{"name": trace.name, "log": trace.log, "curves": _curves(trace.curves)} for trace in history.traces],
    }


def _curves(curves: Iterable[Curve]) -> list[dict[str, Any]]:
    short = [(curve.policy, _short(np.array(curve.env_steps)), _short(np.array(curve.values))) for curve in curves]
    return [{"policy": policy, "x": x, "y": y} for policy, x, y in short]


def _events(number: int, run: Run) -> Iterator[dict[str, Any]]:
    """Faults, warnings and advice: of the run's status, its counters, its log, and its files."""
    if run.status in _ENDS:
        kind, text = _ENDS[run.status]
        yield {"run": number, "kind": kind, "time": "", "text": text}
    for metric, words in _FAULTS.items():
        counts = [row[metric] for row in run.rows if is_number(row.get(metric))]
        # A counter starts again with each session.
        total = sum(here for here, after in itertools.pairwise([*counts, 0]) if after < here)
        if total:
            yield {"run": number, "kind": "warning", "time": "", "text": f"{total:,.0f} {words}"}
    for problem in run.problems:
        yield {"run": number, "kind": "fault", "time": "", "text": problem}
    for kind, time, text in _log_events(run.path / LOG_NAME):
        yield {"run": number, "kind": kind, "time": time, "text": text}


def _log_events(path: Path) -> list[tuple[str, str, str]]:
    """The newest messages of a log that say more than progress, and why sessions failed: kind, time and one line."""
    try:
        log = atomic.read_bytes(path, last=_LOG_BYTES).decode(errors="replace")
    except OSError:
        return []
    found, time = [], ""
    for message in _MESSAGE.split(log):
        first, *others = message.splitlines() or [""]
        if stamp := _STAMP.match(first):
            time, level, advises = stamp.groups()
            text = first[stamp.end() :]
            if level:
                says = others[-1] if others and _TRACEBACK in text else text
                found.append(("warning" if level == "WARNING" else "fault", time, says))
            elif advises:
                found.append(("advice", time, advises + text))
        elif failed := _CAUSE.match(first):
            found.append(("fault", time, failed[1]))
    return found[-_MOST_LINES:]
