"""Plays saved policies against each other in an env of several agents, and rates them."""

from __future__ import annotations

import itertools
import json
import logging
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch

from sfactory.actor.multi_agent_split import MOST_NAMED
from sfactory.actor.opponents import sides_of
from sfactory.checkpoint.directory import CheckpointDir, Kind
from sfactory.config.commands import MatchConfig, PolicyFlags
from sfactory.config.env_names import env_name_of
from sfactory.config.flags import assigned, shown, values_of
from sfactory.config.population_rules import agents_by_pattern
from sfactory.config.saved_config import OF_ENV, checkpoint_folder
from sfactory.env.lifecycle import close_env
from sfactory.env.multi_agent import AgentsEnv
from sfactory.errors import ConfigError
from sfactory.experiment.saved_policy import SavedPolicy, Typed
from sfactory.model.actor_critic import ActorCritic
from sfactory.play.joint_policy import JointPolicy
from sfactory.play.player import Episode, Player
from sfactory.play.ratings import Array, ratings
from sfactory.play.rendering import show_nothing
from sfactory.seeds import Branch, seed_at

_log = logging.getLogger(__name__)

_FORM = re.compile(r"(.+?)(?::(\d+)(?::(latest|best|milestone|\d+))?)?")
_OF_ENV = OF_ENV | {"info_action_mask"}


class Contestant(NamedTuple):
    """A saved policy under the name that the table shows. wanted: the flags that load it."""

    name: str
    wanted: PolicyFlags
    saved: SavedPolicy


def play_matches(runs: Sequence[str], config: MatchConfig) -> str:
    """Play every pair, and log the table; returns one line of JSON.

    Raises ConfigError if the policies cannot meet, and the errors of SavedPolicy and Player.
    """
    torch.set_num_threads(1)
    contestants = [each for run in runs for each in _contestants(run, config)]
    first = contestants[0].saved
    _require_one_env(contestants, config.env or first.config.run.env)
    _warn_of_other_settings(contestants)
    name = f"--env={first.config.run.env}"
    # Both sides of a game play the same env: a curriculum is at the difficulty of the newest.
    newest = max(each.saved.state.env_steps for each in contestants)
    env = replace(first.env_factory(contestants[0].wanted), env_steps=newest).either()
    try:
        if not isinstance(env, AgentsEnv) or not 2 <= len(env.agents) <= MOST_NAMED:
            raise ConfigError([f"{name}: a match needs an environment of 2 to {MOST_NAMED} agents"])
        if env.spec.kinds:
            raise ConfigError([f"{name}: its agents have different spaces, so that no policy can play both sides"])
        if len(contestants) < 2:
            more = "name another run, or one with older milestones and --snapshots above 0"
            raise ConfigError([f"{' '.join(runs)}: a match needs two policies, and this is one; {more}"])
        specs = [each.saved.spec_of(env) for each in contestants]
        if any(spec != specs[0] for spec in specs):
            raise ConfigError(
                ["the policies read observations or choose actions in different ways (flags of the network's inputs)"]
            )
        models = [each.saved.model(spec) for each, spec in zip(contestants, specs, strict=True)]
        points = np.zeros((len(models), len(models)))
        for i, j in itertools.combinations(range(len(models)), 2):
            won = sum(_points(env, models[i], models[j], config, name, (i, j)))
            points[i, j], points[j, i] = won, config.episodes - won
    finally:
        close_env(env, name)
    return _result(contestants, points, first.config.run.env, config)


def _require_one_env(contestants: Sequence[Contestant], env: str) -> None:
    """Raise ConfigError unless all were trained in ``env``, which the match plays."""
    trained = {each.wanted.experiment: each.saved.config.run.env for each in contestants}
    if others := [run for run, name in trained.items() if env_name_of(name) != env_name_of(env)]:
        runs = " and ".join(f"{run} was trained with {assigned('env', trained[run])}" for run in others)
        match = f"the match is in {assigned('env', env)}"
        raise ConfigError([f"{runs}, and {match}: all runs of a match must have been trained with the same --env"])


def _warn_of_other_settings(contestants: Sequence[Contestant]) -> None:
    """Say which runs were trained in an env with other settings than that of the first, in which all play, or with
    policies for some of the agents, which play all of a side here."""
    runs = {(each.wanted.train_dir, each.wanted.experiment): each for each in contestants}
    for each in runs.values():
        spec = each.saved.state.spec
        if spec is not None and spec.part_of:  # of one kind of agents, so that it is refused
            continue
        if agents_by_pattern(mapping := each.saved.config.population.policy_mapping):
            text = "%s was trained with %s: here each of its policies plays either side, also agents of other policies"
            _log.warning(text, each.wanted.experiment, assigned("policy_mapping", mapping))
    first, *others = runs.values()
    here = values_of(first.saved.config)
    for each in others:
        there = values_of(each.saved.config).items()
        if other := [assigned(flag, value) for flag, value in there if flag in _OF_ENV and value != here[flag]]:
            text = "%s was trained with %s, and plays in the env of %s, which differs in that"
            _log.warning(text, each.wanted.experiment, " ".join(other), first.wanted.experiment)


def _contestants(run: str, config: MatchConfig) -> Iterator[Contestant]:
    """The policies that a word of the command line names."""
    form = _FORM.fullmatch(run)
    if form is None:
        raise ConfigError([f"{shown(run)!r}: must be the name of a run, RUN:POLICY:KIND or RUN:POLICY:STEPS"])
    name, policy, kind = form[1], int(form[2] or 0), form[3] or "latest"
    folder = next((path for path in (Path(config.train_dir) / name, Path(name)) if path.is_dir()), None)
    if folder is None:
        kinds = "; of RUN:POLICY:KIND, KIND is latest, best, milestone or a number of env steps" if ":" in name else ""
        where = f"neither in {config.train_dir} nor as a folder"
        raise ConfigError([f"there is no run {shown(name)!r}, {where}{kinds}"])
    wanted = PolicyFlags(
        experiment=folder.resolve().name,
        train_dir=str(folder.resolve().parent),
        policy_index=policy,
        env=config.env,
        trust_run_dir=config.trust_run_dir,
    )
    typed = Typed(name, lambda policy: f"{name}:{policy}", lambda kind: shlex.quote(f"{name}:{policy}:{kind}"))

    def milestone(env_steps: int) -> Contestant:
        flags = replace(wanted, checkpoint_env_steps=env_steps, load_checkpoint_kind="milestone")
        return Contestant(f"{name}:{policy}:{env_steps}", flags, SavedPolicy.load(flags, typed=typed))

    if kind.isdecimal():
        yield milestone(int(kind))
        return
    flags = replace(wanted, load_checkpoint_kind=cast(Kind, kind))
    newest = Contestant(run, flags, SavedPolicy.load(flags, typed=typed))
    if form[2] is None:
        milestones = CheckpointDir(checkpoint_folder(folder, policy), 1).env_steps_of("milestone")
        older = [env_steps for env_steps in milestones if env_steps != newest.saved.state.env_steps]
        chosen = np.linspace(0, len(older) - 1, min(config.snapshots, len(older))).round().astype(int)
        yield from (milestone(older[place]) for place in chosen)
    yield newest


def _points(
    env: AgentsEnv, one: ActorCritic, other: ActorCritic, config: MatchConfig, name: str, pair: tuple[int, int]
) -> Iterator[float]:
    """The points of ``one`` in each episode, half of them on either side of the env. pair: for the seed."""
    sides = sides_of(env.agents)
    for side, (own, theirs) in enumerate((sides, sides[::-1])):
        policy = JointPolicy({0: one, 1: other}, [int(agent in theirs) for agent in range(len(env.agents))], 0)
        player = Player(env, one.spec, policy, show_nothing, name=name, deterministic=config.eval_deterministic)
        seed = seed_at(config.seed, Branch.MATCH, *pair, side)
        for episode in player.episodes(config.episodes // 2, seed=seed):
            earned = [_returns(episode, env.agents, side) for side in (own, theirs)]
            ahead = np.mean(earned[0]) - np.mean(earned[1]) if all(earned) else 0.0
            yield 0.5 + 0.5 * float(np.sign(ahead))


def _returns(episode: Episode, agents: Sequence[str], side: Sequence[int]) -> list[float]:
    """Of the agents of a side that acted."""
    names = [f"return/{agents[agent]}" for agent in side]
    return [episode.stats[name] for name in names if name in episode.stats]


def _result(contestants: Sequence[Contestant], points: Array, env: str, config: MatchConfig) -> str:
    """Log the table, the best policy first; returns the line of JSON. points: see ``ratings``."""
    matches = points + points.T
    rated = ratings(points, matches)
    players = [
        {"name": each.name, "checkpoint": str(each.saved.checkpoint), "env_steps": each.saved.state.env_steps}
        for each in contestants
    ]
    table = [
        [None if i == j else points[i, j] / matches[i, j] for j in range(len(players))] for i in range(len(players))
    ]
    _log.info("player, rating, share of the points against each player (columns: players 0, 1, ...), name")
    for place in sorted(range(len(players)), key=lambda i: -rated[i]):
        shares = " ".join("   - " if share is None else f"{share:5.2f}" for share in table[place])
        _log.info("%2d %7.1f  %s  %s", place, rated[place], shares, contestants[place].name)
    for player, rating in zip(players, rated, strict=True):
        player["rating"] = rating
    result = {"env": env, "episodes": config.episodes, "seed": config.seed, "players": players}
    return json.dumps({**result, "points": table})
