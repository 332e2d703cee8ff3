"""Collects experience on this machine for a run on another one: ``python -m sfactory.remote_actors --connect=...``.

stdout carries one JSON line: what the run has acknowledged. Everything else goes to stderr.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sfactory.clock import now
from sfactory.config.env_names import env_name_of
from sfactory.config.flags import Reading, all_flags, assigned, config_of, shown
from sfactory.config.launcher import RemoteConfig, read_remote_line
from sfactory.config.trust import CODE_FLAGS, names_code
from sfactory.errors import ConfigError
from sfactory.process.command import Command, importing_torch, show_result
from sfactory.process.signals import Interrupted
from sfactory.remote.joining import read_token, require_host
from sfactory.system.cores import Cores, set_for_children
from sfactory.system.optional_packages import required

if TYPE_CHECKING:
    from sfactory.config.resolve import Resolved
    from sfactory.planning.plan import Plan

_STARTED_AT = now()


def main(argv: Sequence[str] | None = None) -> int:
    """Collect as ``argv`` (default: the command line) says; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    set_for_children()
    with Command("sf-remote") as command:
        config = read_remote_line(arguments)
        required("zmq", "remote actors", "remote")
        token, env = read_token("token_file", config.token_file), env_name_of(config.env)
        require_host(config.connect)
        with importing_torch(f"joining {config.connect}"):
            from sfactory.process.spawn import Spawner

            spawner = Spawner()
            spawner.open()
            from sfactory.remote.link import Link, open_link
            from sfactory.remote_actors.host import Host
            from sfactory.runner.session import Session

        logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s", datefmt="%H:%M:%S")
        asked = open_link(lambda: Link(config.connect, token, env), config.reconnect_sec)
        asked.close()
        resolved = _resolved(config, env, asked.welcome)
        plan = Session(resolved, arguments, spawner, command.interrupts, _STARTED_AT).plan()
        _require_fit(plan, asked.welcome)
        host = Host(
            *(resolved.config, plan, spawner, asked),
            lambda: Link(config.connect, token, env, plan.weight_bytes),
            config.reconnect_sec,
        )
        try:
            host.run()
        except Interrupted:
            command.interrupts.raising = False
            command.exit_code = command.interrupts.exit_code
            print("interrupted: the result is what the run has acknowledged", file=sys.stderr, flush=True)
        finally:
            command.interrupts.raising = False
            host.close()
            show_result(host.result._asdict())
    return command.exit_code


def _resolved(remote: RemoteConfig, env: str, welcome: Mapping[str, Any]) -> Resolved:
    """The settings of the run for this machine, checked as those of a command line.

    Raises ConfigError for values that no flag can have, and for code that only the run names.
    """
    from sfactory.config.resolve import Resolved
    from sfactory.config.validation import check_env_name, find_problems

    source, flags, reading = f"the run at {remote.connect}", all_flags(), Reading()
    for name, data in welcome["settings"].items():
        if name in flags:
            reading.take(flags[name], data, f" (of {source})")
        else:
            reading.problems.append(f"{shown(name)}: {source} sets it, and here it is no flag")
    values = reading.values
    if values.get("env") != env:
        reading.problems.append(f"{assigned('env', env)}: {source} trains {shown(str(values.get('env')))}")
    if not remote.trust_learner:
        reading.problems += [
            f"{assigned(name, values[name])}: only {source} names this code; if you trust it, add --trust_learner=True"
            for name in CODE_FLAGS
            if name != "env" and name in values and names_code(name, values[name], env)
        ]
    if not reading.problems:
        values |= {
            # A slot is as wide as there.
            **dict.fromkeys(("worker_num_splits", "policy_workers_per_policy"), 1),
            "num_envs_per_worker": welcome["envs"],
            "num_workers": remote.num_workers or Cores.available().count,
            "inference": "local",
            "device": "cpu",
            "task_defaults": False,
            "seed": welcome["seed"],
        }
        reading.problems += [problem.text for problem in find_problems(config_of(values))] + check_env_name(env)
    if reading.problems:
        raise ConfigError(reading.problems)
    return Resolved(config_of(values), dict.fromkeys(flags, source), [], frozenset(flags))


def _require_fit(plan: Plan, welcome: Mapping[str, Any]) -> None:
    """Raise ConfigError if the env of this machine is not that of the run, or the network another."""
    from sfactory.remote.frames import SlotFormat

    here = {
        "spec": repr(plan.spec),
        "shapes": SlotFormat(plan.spec, plan.layout).shapes,
        "weight_bytes": plan.weight_bytes,
    }
    problems = [
        f"the environment of this machine differs from that of the run in its {name}: {value}, there {welcome[name]}; "
        "install the same versions here"
        for name, value in here.items()
        if value != welcome[name]
    ]
    if problems:
        raise ConfigError(problems)
