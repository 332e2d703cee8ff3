"""The table of sfactory's subcommands."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import NamedTuple

from sfactory.config.flags import Flag


class Subcommand(NamedTuple):
    """A subcommand.

    module: its function ``main(argv)`` runs it. usage: what follows its name. about: what it does. flags: where its
    flags by name are, as module:name; "" if it has none. words: what its command line begins with in any case.
    """

    module: str
    usage: str
    about: str
    flags: str = ""
    words: tuple[str, ...] = ()

    def known_flags(self) -> Mapping[str, Flag]:
        """Its flags by name."""
        module, _, name = self.flags.partition(":")
        found = getattr(import_module(module), name, None) if module else None
        flags: Mapping[str, Flag] = (found() if callable(found) else found) or {}
        return flags


_CONFIG = "sfactory.config"
_TRAIN_FLAGS = f"{_CONFIG}.flags:all_flags"
# In the order of the list that users see.
SUBCOMMANDS: Mapping[str, Subcommand] = MappingProxyType(
    {
        "init": Subcommand("sfactory.cli.starter", "[DIR]", "a first project: env, network, settings, test"),
        "train": Subcommand("sfactory.train", "--env=ENV [flags]", "train (--help lists the flags)", _TRAIN_FLAGS),
        "enjoy": Subcommand(
            "sfactory.enjoy", "--experiment=NAME [flags]", "play what was trained", f"{_CONFIG}.enjoy:enjoy_flags"
        ),
        "evaluate": Subcommand(
            "sfactory.evaluate",
            "--experiment=NAME [flags]",
            "episodes in several processes, with intervals",
            f"{_CONFIG}.commands:evaluate_flags",
        ),
        "plot": Subcommand(
            "sfactory.plot",
            "curves RUN ...",
            "pictures of runs: curves, compare, population",
            f"{_CONFIG}.commands:plot_flags",
        ),
        "report": Subcommand(
            "sfactory.report_page", "RUN ... [--serve]", "runs in a browser", f"{_CONFIG}.commands:page_flags"
        ),
        "match": Subcommand(
            "sfactory.match", "RUN ... [flags]", "policies against each other", f"{_CONFIG}.commands:match_flags"
        ),
        "export": Subcommand(
            "sfactory.export",
            "--experiment=NAME [flags]",
            "the policy for other programs (--format), or for the Hub",
            f"{_CONFIG}.commands:export_flags",
        ),
        "launch": Subcommand(
            "sfactory.launcher", "--run=WHAT [flags]", "many runs", f"{_CONFIG}.launcher:launcher_flags"
        ),
        "remote-actors": Subcommand(
            "sfactory.remote_actors",
            "--connect=HOST:PORT [flags]",
            "actors of this machine for a run on another",
            f"{_CONFIG}.launcher:remote_flags",
        ),
        "check-env": Subcommand(
            "sfactory.check_env", "--env=ENV", "what is wrong with an environment", f"{_CONFIG}.commands:check_flags"
        ),
        "envs": Subcommand("sfactory.envs", "[FAMILY]", "environments by name, and what each family needs"),
        "bench": Subcommand(
            "sfactory.train", "--env=ENV [flags]", "measure throughput", _TRAIN_FLAGS, ("--benchmark=True",)
        ),
        "completion": Subcommand("sfactory.cli.completion", "SHELL", "completion for bash, zsh or fish"),
    }
)


def overview() -> str:
    """The list of all subcommands."""
    heads = {f"sfactory {name} {known.usage}": known.about for name, known in SUBCOMMANDS.items()}
    widest = max(map(len, heads))
    lines = [f"  {head:<{widest}}  {about}" for head, about in heads.items()]
    return "\n".join(["sfactory's commands:", *lines]) + "\n"
