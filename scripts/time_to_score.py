"""Wall-clock seconds until CartPole is solved: from the start of the command until the mean return of the last 100
episodes reaches the bar (475), for sfactory, Sample Factory and Stable-Baselines3 on the same environment code.

``--settings speed`` gives each the sizes of compare_peers.py, ``--settings learning`` the sizes with which it learns
from fewest steps of those tried. A system that has not reached the bar within ``--limit`` seconds is ended, and
reported with the best mean that it had. The seconds of training alone leave out what comes before the first step.

    python scripts/time_to_score.py --bench BENCH --peers PEERS --out docs/performance/time_to_score.json
    python scripts/time_to_score.py --bench BENCH --rounds 1 --limit 60
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.command import TRAIN, Command, folder, shown
from scripts.peers import FEED_FORWARD, SAMPLE_FACTORY, SAMPLE_FACTORY_FLAGS, SB3
from scripts.record import machine, write_json
from scripts.rounds import alternating, ratio
from scripts.workloads import CART_POLE_IN_BENCH, PLAIN, SMALL, WIDE


@dataclass(frozen=True)
class Settings:
    """Flags of sfactory and of Sample Factory, and what SB3's PPO is given for so many envs."""

    ours: str
    sample_factory: str
    sb3_envs: int
    sb3: Mapping[str, object]


# What decides on learning, apart from sizes, is the same for the two: it is that of sfactory's own CartPole.
_LEARNING = (
    "--learning_rate=2e-3 --reward_scale=0.05 --gamma=0.99 --exploration_loss_coeff=0.01 --ppo_clip_ratio=0.2 "
    "--num_epochs=2"
)
_OURS = f"{CART_POLE_IN_BENCH} {PLAIN} --num_workers=2 {SMALL} {_LEARNING}"
_SAMPLE_FACTORY = f"{SAMPLE_FACTORY_FLAGS} {FEED_FORWARD} {SMALL} {_LEARNING}"

SETTINGS: Mapping[str, Settings] = MappingProxyType(
    {
        "speed": Settings(
            ours=f"{_OURS} {WIDE}",
            sample_factory=f"{_SAMPLE_FACTORY} --num_envs_per_worker=256 --batch_size=16384",
            sb3_envs=1024,
            sb3={"n_steps": 16, "batch_size": 16384, "n_epochs": 2, "learning_rate": 2e-3, "ent_coef": 0.01},
        ),
        "learning": Settings(
            ours=f"{_OURS} --num_envs_per_worker=32 --batch_size=1024 --num_batches_per_epoch=2",
            sample_factory=f"{_SAMPLE_FACTORY} --num_envs_per_worker=16 --batch_size=1024 --normalize_returns=False",
            # As tuned for CartPole-v1 in RL Baselines3 Zoo, its schedules (linear to 0) left out: they need an end.
            sb3_envs=8,
            sb3={
                "n_steps": 32,
                "batch_size": 256,
                "n_epochs": 20,
                "gae_lambda": 0.8,
                "gamma": 0.98,
                "ent_coef": 0.0,
                "learning_rate": 1e-3,
                "clip_range": 0.2,
            },
        ),
    }
)


HERE = Path(__file__).resolve().parent
BAR = 475.0
EPISODES = 100
_POLL_S = 0.05


class Score(NamedTuple):
    """The mean return of the last EPISODES episodes at one moment of a run. train_s: seconds of training until then."""

    mean: float
    train_s: float
    env_steps: int


@dataclass(frozen=True)
class Attempt:
    """The result of a run. Seconds and steps are None if it was not reached; wall_s includes the start."""

    reached: bool
    wall_s: float | None
    train_s: float | None
    env_steps: int | None
    best_mean: float | None

    def __str__(self) -> str:
        """One line for the progress."""
        if self.reached:
            return f"{self.wall_s:.1f} s, {self.train_s:.1f} s of them training, {self.env_steps:,} env steps"
        return f"not reached; best mean {'none' if self.best_mean is None else format(self.best_mean, '.0f')}"


@dataclass(frozen=True)
class System:
    """A trainer. ``command``: of a seed and a folder for what it leaves. ``scores``: the file that tells its scores,
    below that folder; None: its stdout. ``read``: a score out of one of its lines."""

    command: Callable[[int, Path], list[str]]
    read: Callable[[str], Score | None]
    scores: str | None = None


def read_row(line: str) -> Score | None:
    """The score in a row of metrics.jsonl, once there are enough episodes."""
    row = json.loads(line)
    if row.get("train/episodes", 0) < EPISODES or row.get("train/episode_return_mean") is None:
        return None
    return Score(row["train/episode_return_mean"], row["perf/train_seconds"], row["env_steps"])


def read_reported(line: str) -> Score | None:
    """The score in a line that a peer's runner has printed among its own."""
    _, marker, text = line.partition("SCORE {")
    if not marker:
        return None
    values = json.loads("{" + text)
    return Score(values["mean"], values["train_s"], values["env_steps"])


class Tail:
    """The whole lines that were added to a file since the last look; the file may come into being later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def lines(self) -> list[str]:
        """New lines."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.decode(errors="replace").splitlines()


def attempt(system: System, seed: int, bench: Path, bar: float, limit_s: float) -> Attempt:
    """Run one system until it reaches ``bar`` or ``limit_s`` seconds are over."""
    with tempfile.TemporaryDirectory() as name:
        left = Path(name)
        with Command(system.command(seed, left), left, bench) as run:
            tail = Tail(run.stdout_path if system.scores is None else left / system.scores)
            return _watch(run, tail, system.read, bar, limit_s)


def _watch(run: Command, tail: Tail, read: Callable[[str], Score | None], bar: float, limit_s: float) -> Attempt:
    """The result. Ends the program if it has ended by itself."""
    best: float | None = None
    while time.monotonic() - run.started < limit_s:
        for score in filter(None, map(read, tail.lines())):
            best = score.mean if best is None else max(best, score.mean)
            if score.mean >= bar:
                wall_s = time.monotonic() - run.started
                return Attempt(True, round(wall_s, 2), round(score.train_s, 2), score.env_steps, best)
        if run.exit_code is not None:
            raise run.failure(f"ended with {run.exit_code} before its time")
        time.sleep(_POLL_S)
    return Attempt(False, None, None, None, best)


def systems_of(settings: Settings, peers: Path | None) -> dict[str, System]:
    """sfactory with both kinds of inference, and the peers if they are wanted."""

    def ours(inference: str) -> System:
        def command(seed: int, left: Path) -> list[str]:
            run = [f"--seed={seed}", f"--train_dir={left}", "--experiment=score", f"--inference={inference}"]
            report = ["--experiment_summaries_interval=0.25", "--with_tensorboard=False"]
            return [*TRAIN, *settings.ours.split(), *run, *report]

        return System(command, read_row, "score/metrics.jsonl")

    found = {f"sfactory {inference}": ours(inference) for inference in ("local", "central")}
    if peers is None:
        return found

    def sample_factory(seed: int, left: Path) -> list[str]:
        script = str(HERE / "score_sample_factory.py")
        return [str(peers / "sf/bin/python"), script, *settings.sample_factory.split(), f"--seed={seed}"]

    def sb3(seed: int, left: Path) -> list[str]:
        sizes = ["--envs", str(settings.sb3_envs), "--seed", str(seed), json.dumps(settings.sb3)]
        return [str(peers / "sb/bin/python"), str(HERE / "score_sb3.py"), *sizes]

    return {**found, SAMPLE_FACTORY: System(sample_factory, read_reported), SB3: System(sb3, read_reported)}


def median_seconds(attempts: Sequence[Attempt], which: str) -> float | None:
    """The median of ``wall_s`` or ``train_s``; None if it is not known, because too many were not reached."""
    seconds = [float("inf") if not each.reached else float(getattr(each, which)) for each in attempts]
    median = statistics.median(seconds)
    return None if median == float("inf") else round(median, 2)


def report(results: dict[str, list[Attempt]]) -> dict[str, Any]:
    """All attempts and their medians, by system."""
    return {
        name: {
            "reached": sum(each.reached for each in attempts),
            "median_wall_s": median_seconds(attempts, "wall_s"),
            "median_train_s": median_seconds(attempts, "train_s"),
            "attempts": [asdict(each) for each in attempts],
        }
        for name, attempts in results.items()
    }


def times_as_fast(results: dict[str, list[Attempt]]) -> dict[str, dict[str, dict[str, float]]]:
    """By our layouts and then by peer: how many times as long the peer took in the rounds in which both came there."""
    seconds = {
        name: {at: each.wall_s for at, each in enumerate(attempts, 1) if each.wall_s is not None}
        for name, attempts in results.items()
    }
    found: dict[str, dict[str, dict[str, float]]] = {}
    for ours in filter(_is_ours, seconds):
        for peer in seconds:
            times = None if _is_ours(peer) else ratio(seconds[peer], seconds[ours])
            if times is not None:
                found.setdefault(ours, {})[peer] = times.to_json()
    return found


def _is_ours(name: str) -> bool:
    return name.startswith("sfactory ")


def main() -> None:
    """Run the rounds, print the medians, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", type=folder, required=True)
    parser.add_argument("--peers", type=folder)
    parser.add_argument("--settings", choices=tuple(SETTINGS), default="speed")
    parser.add_argument("--only", nargs="+", metavar="SYSTEM", help="some of the systems")
    parser.add_argument("--bar", type=float, default=BAR)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    systems = systems_of(SETTINGS[given.settings], given.peers)
    if given.only:
        if unknown := set(given.only) - systems.keys():
            parser.error(f"unknown systems {sorted(unknown)}; there are {list(systems)} (peers need --peers)")
        systems = {name: system for name, system in systems.items() if name in given.only}

    def attempts_of(system: System) -> Callable[[], Attempt]:
        seeds = iter(range(1, given.rounds + 1))
        return lambda: attempt(system, next(seeds), given.bench, given.bar, given.limit)

    results = alternating({name: attempts_of(system) for name, system in systems.items()}, given.rounds)
    figures, faster = report(results), times_as_fast(results)
    medians = {name: each["median_wall_s"] for name, each in figures.items()}
    print(json.dumps({"median_wall_s": medians, "times_as_fast": faster}, indent=1))
    if given.out is not None:
        asked = {"settings": given.settings, "bar": given.bar, "limit_s": given.limit, "rounds": given.rounds}
        commands = {
            name: shown(system.command(1, Path("DIR")), given.bench, given.peers) for name, system in systems.items()
        }
        write_json(given.out, {**machine(), **asked, "systems": figures, "times_as_fast": faster, "commands": commands})


if __name__ == "__main__":
    main()
