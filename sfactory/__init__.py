"""sfactory: fast, dependable reinforcement learning on one machine.

``sfactory.train(env=...)`` trains; docs/library.md shows all of it. The public names below are imported when they are
first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sfactory.api import RunResult, evaluate, run, sampler, train
    from sfactory.launch.param_search import ParamGrid
    from sfactory.launch.run_description import Experiment, RunDescription
    from sfactory.play.evaluation import Evaluation
    from sfactory.play.policy import Policy, PolicyOutput, PolicyState, load
    from sfactory.report.observers import Observer
    from sfactory.runner.sampler import Sampler, Trajectories
else:
    _PUBLIC = {
        "run": "sfactory.api",
        "train": "sfactory.api",
        "evaluate": "sfactory.api",
        "sampler": "sfactory.api",
        "Sampler": "sfactory.runner.sampler",
        "Trajectories": "sfactory.runner.sampler",
        "load": "sfactory.play.policy",
        "Policy": "sfactory.play.policy",
        "PolicyOutput": "sfactory.play.policy",
        "PolicyState": "sfactory.play.policy",
        "Evaluation": "sfactory.play.evaluation",
        "RunResult": "sfactory.api",
        "Experiment": "sfactory.launch.run_description",
        "RunDescription": "sfactory.launch.run_description",
        "ParamGrid": "sfactory.launch.param_search",
        "Observer": "sfactory.report.observers",
    }

    def __getattr__(name: str) -> object:
        if name in _PUBLIC:
            return getattr(import_module(_PUBLIC[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__version__ = "0.1.0"
__all__ = [
    "Evaluation",
    "Experiment",
    "Observer",
    "ParamGrid",
    "Policy",
    "PolicyOutput",
    "PolicyState",
    "RunDescription",
    "RunResult",
    "Sampler",
    "Trajectories",
    "__version__",
    "evaluate",
    "load",
    "run",
    "sampler",
    "train",
]


def __dir__() -> list[str]:
    return [*__all__]


# Names of modules that version 0.1.0 documented, and where they are now. To be removed after the next release.
_MOVED = {
    "sfactory.runtime": "sfactory.report",
    "sfactory.runtime.observer": "sfactory.report.observers",
    "sfactory.launch.description": "sfactory.launch.run_description",
    "sfactory.launch.search": "sfactory.launch.param_search",
    "sfactory.env.agents": "sfactory.env.multi_agent",
    "sfactory.env.api": "sfactory.env.factory",
}


class _MovedModules(Loader):
    """Finds and loads the modules of _MOVED: each looks its names up in the module that has them now."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, cls(), is_package=name == "sfactory.runtime") if name in _MOVED else None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        moved_to = import_module(_MOVED[module.__name__])
        module.__dict__["__getattr__"] = lambda name: getattr(moved_to, name)


sys.meta_path.append(_MovedModules)
