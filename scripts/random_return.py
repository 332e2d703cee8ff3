"""Prints the mean return of an agent of an env, and its standard error, if all agents act at random.

    python scripts/random_return.py pettingzoo:mpe2.simple_speaker_listener_v4 --episodes 200
    python scripts/random_return.py NetHackScore-v0 --episodes 200

The agents of a PettingZoo env act at the same time. A return is the sum of an agent's rewards in an episode, as
training counts it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from sfactory.env.factory import EnvFactory
from sfactory_envs.pettingzoo import FAMILY


def returns(env: Any, episodes: int) -> list[float]:
    """The return of each episode of one agent. The number of an episode seeds it."""
    found = []
    env.action_space.seed(0)
    for episode in range(episodes):
        env.reset(seed=episode)
        total, ended = 0.0, False
        while not ended:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, ended = total + reward, terminated or truncated
        found.append(total)
    return found


def returns_of_agents(env: Any, episodes: int) -> list[float]:
    """The mean return of the agents in each episode. The number of an episode seeds it."""
    found = []
    for number, agent in enumerate(env.possible_agents):
        env.action_space(agent).seed(number)
    for episode in range(episodes):
        env.reset(seed=episode)
        total = 0.0
        while env.agents:
            rewards = env.step({agent: env.action_space(agent).sample() for agent in env.agents})[1]
            total += sum(rewards.values())
        found.append(total / len(env.possible_agents))
    return found


def main() -> None:
    """Play, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", help="as --env of sfactory.train")
    parser.add_argument("--episodes", type=int, default=200, help="at least 2")
    given = parser.parse_args()
    if given.episodes < 2:
        parser.error("--episodes is at least 2")
    if FAMILY.matches(given.env):
        found = returns_of_agents(FAMILY.make(given.env), given.episodes)
    else:
        found = returns(EnvFactory(given.env)(), given.episodes)
    error = statistics.stdev(found) / len(found) ** 0.5
    print(f"{statistics.mean(found):.4g} ± {error:.2g}")


if __name__ == "__main__":
    main()
