"""The moving picture of README.md: an agent at milestones of its training, beside its learning curve.

    python -m sfactory.train --env=LunarLander-v3 --train_for_env_steps=400000 --experiment=lander --seed=1 \
        --save_milestones_sec=2 --experiment_summaries_interval=1
    python scripts/draw_agent.py train_dir/lander docs/agent.gif

Of each policy it shows, of five greedy episodes, the one whose return is in the middle.
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import sfactory

HEIGHT, SCENE, CHART, FINE = 220, 330, 310, 2  # pixels; charts are drawn finer, and made smaller
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 30, 30  # of the axes, within the chart
EVERY, FRAMES, PAUSE, FRAME_MS = 6, 60, 8, 80
COLOURS = 48
INK, GREY, LINE = (40, 40, 40), (190, 190, 190), (63, 81, 181)


class Shown(NamedTuple):
    """A policy after ``env_steps``: the return of an episode, and its frames."""

    env_steps: int
    episode_return: float
    frames: list[Image.Image]


def played(checkpoint: Path) -> Shown:
    """The episode in the middle of five greedy ones."""
    policy = sfactory.load(checkpoint, seed=0)
    env = policy.make_env("rgb_array")
    episodes: list[tuple[float, list[Image.Image]]] = []
    for seed in range(5):
        (obs, _), state, total, over, frames = env.reset(seed=seed), None, 0.0, False, []
        while not over:
            if len(frames) < FRAMES * EVERY:
                frames.append(env.render())
            action, state = policy.act(obs, state, deterministic=True)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        pictures = [Image.fromarray(np.asarray(frame)).resize((SCENE, HEIGHT)) for frame in frames[::EVERY]]
        episodes.append((total, pictures))
    env.close()
    total, pictures = sorted(episodes, key=lambda episode: episode[0])[len(episodes) // 2]
    return Shown(int(checkpoint.stem.split("_")[-1]), total, pictures)


def chosen(run: Path, count: int) -> list[Path]:
    """The first and the last checkpoint, and those between them at equal distances on the curve."""
    folder = run / "checkpoint_p0"
    found = [*folder.glob("milestones/*.pth"), max(folder.glob("checkpoint_*.pth"))]
    found.sort(key=lambda path: int(path.stem.split("_")[-1]))
    places = np.linspace(0, 1, count) ** 1.5 * (len(found) - 1)  # more of the start, where more changes
    return [found[place] for place in sorted(set(places.round().astype(int).tolist()))]


class Chart:
    """The learning curve of a run, as far as a policy has come."""

    def __init__(self, run: Path) -> None:
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        wanted = "train/episode_return_mean"
        self._curve = [(row["env_steps"], row[wanted]) for row in rows if row.get(wanted) is not None]
        self._steps = self._curve[-1][0]
        lowest, highest = min(y for _, y in self._curve), max(y for _, y in self._curve)
        self._low, self._high = np.floor(lowest / 100) * 100, np.ceil(highest / 100) * 100

    def until(self, shown: Shown) -> Image.Image:
        """The chart beside a policy."""
        image = Image.new("RGB", (CHART * FINE, HEIGHT * FINE), "white")
        draw = ImageDraw.Draw(image)
        font, small = (ImageFont.load_default(size * FINE) for size in (13, 11))
        draw.text((LEFT * FINE, 7 * FINE), f"{shown.env_steps:,} env steps", INK, font)
        for value in np.arange(self._low, self._high + 1, 100):
            x, y = self._place(0, value)
            draw.line((x, y, self._place(self._steps, value)[0], y), GREY, 1)
            draw.text((x - 6 * FINE, y), f"{value:.0f}", INK, small, anchor="rm")
        middle = self._place(self._steps / 2, self._low)
        draw.text((middle[0], middle[1] + 14 * FINE), "mean return of 100 episodes", INK, small, anchor="mm")
        points = [self._place(*point) for point in self._curve]
        reached = [place for place, (steps, _) in zip(points, self._curve, strict=True) if steps <= shown.env_steps]
        for line in pairwise(reached or points[:1]):
            draw.line((*line[0], *line[1]), LINE, 2 * FINE)
        x, y = (reached or points)[-1 if reached else 0]
        draw.ellipse((x - 4 * FINE, y - 4 * FINE, x + 4 * FINE, y + 4 * FINE), LINE)
        return image.resize((CHART, HEIGHT), Image.Resampling.LANCZOS)

    def _place(self, steps: float, value: float) -> tuple[float, float]:
        right = steps / self._steps * (CHART - LEFT - RIGHT)
        down = (self._high - value) / (self._high - self._low) * (HEIGHT - TOP - BOTTOM)
        return (LEFT + right) * FINE, (TOP + down) * FINE


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a run with milestones")
    parser.add_argument("target", type=Path, help="the GIF")
    parser.add_argument("--policies", type=int, default=5, help="how many are shown")
    given = parser.parse_args()
    chart, pictures = Chart(given.run), []
    for checkpoint in chosen(given.run, given.policies):
        shown = played(checkpoint)
        beside = chart.until(shown)
        print(f"{shown.env_steps:,} env steps: return {shown.episode_return:.1f}, {len(shown.frames)} frames")
        for frame in [*shown.frames, *[shown.frames[-1]] * PAUSE]:
            pictures.append(Image.new("RGB", (SCENE + CHART, HEIGHT), "white"))
            pictures[-1].paste(frame, (0, 0))
            pictures[-1].paste(beside, (SCENE, 0))
    save(pictures, given.target)


def save(pictures: list[Image.Image], target: Path) -> None:
    """Write them with one palette and without dithering, so that what stays the same costs nothing."""
    sample = Image.new("RGB", (pictures[0].width, HEIGHT * 4))
    for place in range(4):
        sample.paste(pictures[place * (len(pictures) - 1) // 3], (0, place * HEIGHT))
    palette = sample.quantize(COLOURS)
    few: list[Any] = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    few[0].save(target, save_all=True, append_images=few[1:], duration=FRAME_MS, loop=0, optimize=False)
    print(f"{target}: {len(few)} frames, {target.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
