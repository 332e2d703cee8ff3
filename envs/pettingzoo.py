"""Makes PettingZoo's environments, named ``pettingzoo:`` and a module.

``pettingzoo:mpe2.simple_spread_v3`` is the result of ``parallel_env()`` of the module ``mpe2.simple_spread_v3``, of any
package; of a module without one, whose agents act in turn, it is the result of ``env()``.
``pettingzoo:butterfly.pistonball_v6`` is a module of PettingZoo itself; ``pettingzoo.`` may stand before it.
``--env_kwargs`` are passed on. Games of ``atari`` take their ROMs from ale-py.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

from sfactory.errors import EnvError
from sfactory.packages import install_command, missing, missing_module, pip_install

from .registered import LARGE_MINIBATCHES, PPO, Rows

_PREFIX = "pettingzoo:"
_PACKAGE = "pettingzoo"
# What has left PettingZoo: the module that has the envs of that kind today.
_MOVED: Mapping[str, str] = {"mpe": "mpe2", "magent": "magent2.environments"}
# Episodes of the particle worlds are 25 steps: PPO with a dataset of one round of two actors where three agents share a
# policy. It learned simple_spread (docs/results.md).
_PARTICLES: Mapping[str, object] = {
    **PPO,
    **LARGE_MINIBATCHES,
    "rollout": 25,
    "batch_size": 1200,
    "num_batches_to_accumulate": 1,  # with 0 several policies would need splits of their own
    "num_epochs": 8,
    "learning_rate": 1e-3,
    "lr_schedule": "linear_decay",
    "gamma": 0.95,
    "exploration_loss_coeff": 0.01,
    "train_for_env_steps": 600_000,
}
# Of the board games measured in docs/multi_agent.md, but with two actors.
_BOARD: Mapping[str, object] = {"num_workers": 2, "num_envs_per_worker": 32, "batch_size": 4096}
# The ball moves, so frames are stacked. Most pistons do not see it, so their returns are noise: a short horizon and a
# small share of the value loss. The background is subtracted: with it all units of the first layer died (of relu).
_PISTONBALL: Mapping[str, object] = {
    **PPO,
    "num_envs_per_worker": 4,
    "num_batches_per_epoch": 40,
    "num_epochs": 4,
    "lr_schedule": "linear_decay",
    "gamma": 0.95,
    "value_loss_coeff": 0.05,
    "obs_grey": True,
    "obs_resize": (84, 84),
    "env_framestack": 4,
    "encoder_conv_architecture": "convnet_impala",
    "encoder_conv_mlp_layers": (256,),
    "obs_subtract_mean": 74.0,
    "obs_scale": 32.0,
    "normalize_input": False,
    "adaptive_stddev": False,
    "exploration_loss_coeff": 0.0,
    "train_for_env_steps": 50_000,
}
_TASKS: Mapping[str, Mapping[str, object]] = {
    "pistonball": _PISTONBALL,
    "connect_four": {
        **_BOARD,
        "encoder_mlp_layers": (128,),
        "learning_rate": 1e-3,
        "train_for_env_steps": 1_000_000,
    },
    "tictactoe": {
        **_BOARD,
        "learning_rate": 2e-3,
        "lr_schedule": "linear_decay",
        "train_for_env_steps": 300_000,
    },
}


@dataclass(frozen=True)
class PettingZoo:
    """The family of environments with PettingZoo's interfaces."""

    name: str = "pettingzoo"
    extra: str = "pettingzoo"
    modules: tuple[str, ...] = (_PACKAGE,)
    rows: ClassVar[Rows] = {
        f"{_PREFIX}mpe2.simple_spread_v3": ("spread",),
        f"{_PREFIX}mpe2.simple_speaker_listener_v4": ("speaker_listener",),
        f"{_PREFIX}butterfly.pistonball_v6": ("pistonball",),
        f"{_PREFIX}classic.connect_four_v3": ("connect_four",),
    }

    def names(self) -> Sequence[str]:
        """Some of them."""
        return (*self.rows, f"{_PREFIX}classic.tictactoe_v3")

    def matches(self, env_name: str) -> bool:
        """Whether ``env_name`` is ``pettingzoo:`` and a module."""
        return env_name.startswith(_PREFIX)

    def make(self, env_name: str, **kwargs: object) -> Any:
        """The result of ``parallel_env(**kwargs)`` of the module, or of ``env(**kwargs)``. Raises EnvError without."""
        module = _module(env_name)
        make = getattr(module, "parallel_env", None) or getattr(module, "env", None)
        if not callable(make):
            raise EnvError(f"--env={env_name}: {module.__name__} has no parallel_env() and no env(), so it is no env")
        if module.__name__.startswith(f"{_PACKAGE}.atari.") and (roms := _roms()):
            kwargs = {"auto_rom_install_path": roms, **kwargs}
        try:
            return make(**kwargs)
        except ImportError as error:
            if not module.__name__.startswith(f"{_PACKAGE}."):
                raise
            text = f"{module.__name__} cannot be made ({error}); {_advice(module.__name__, error)}"
            raise EnvError(f"--env={env_name}: {text}") from error

    def lacks(self) -> Sequence[str]:
        """What single kinds of ``names`` need that is not installed."""
        needs = {
            "mpe2.*": ("mpe2", install_command(self.extra)),
            "butterfly.pistonball_v6": ("pymunk", _extra("butterfly")),
        }
        return [
            f"{_PREFIX}{name} needs {module}, which is not installed; run: {command}"
            for name, (module, command) in needs.items()
            if missing([module])
        ]

    def defaults(self, env_name: str) -> Mapping[str, object]:
        """Flags for particle worlds and pistonball, and with which two board games learn; none for others."""
        package, _, task = _wanted(env_name).removeprefix(f"{_PACKAGE}.").partition(".")
        if package == "mpe2":
            return _PARTICLES
        return _TASKS.get(task.rpartition("_v")[0], {}) if package in ("classic", "butterfly") else {}


def _wanted(env_name: str) -> str:
    """The module as the name has it, with dots."""
    return env_name.removeprefix(_PREFIX).replace("/", ".")


def _module(env_name: str) -> Any:
    """The module of that name, or of that name in the package pettingzoo."""
    wanted = _wanted(env_name)
    if not all(part.isidentifier() for part in wanted.split(".")):
        raise EnvError(f"--env={env_name}: {wanted!r} is no name of a module; for example --env={FAMILY.names()[0]}")
    package = wanted.partition(".")[0]
    is_own = importlib.util.find_spec(f"{_PACKAGE}.{package}") is not None
    full = f"{_PACKAGE}.{wanted}" if is_own and package != _PACKAGE else wanted
    if full.partition(".")[0] in sys.stdlib_module_names:
        raise EnvError(f"--env={env_name}: {full} is a module of Python's standard library, which has no envs")
    with warnings.catch_warnings():
        # PettingZoo wants its own modules to be imported by way of its registry, which then imports them.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return importlib.import_module(full)
        except ImportError as error:
            text = f"{full} cannot be imported ({error}); {_advice(full, error)}"
            raise EnvError(f"--env={env_name}: {text}") from error


def _advice(module: str, error: ImportError) -> str:
    if alike := _alike(module):
        return f"did you mean {_PREFIX}{alike}?"
    package, _, rest = module.partition(".")
    if package != _PACKAGE:
        return f"is the package {package} installed? for the particle worlds: {install_command(_PACKAGE)}"
    kind, _, task = rest.partition(".")
    if kind in _MOVED:
        return _moved(kind, task)
    if missing_module(error) == module:
        names = ", ".join(_names_in(f"{_PACKAGE}.{kind}")) or "none"
        return f"the installed version has no such env; its envs of this kind: {names}"
    extras = metadata.metadata(_PACKAGE).get_all("Provides-Extra") or []
    return (
        f"what its {kind} envs need comes with: {_extra(kind)}" if kind in extras else "is what it imports installed?"
    )


def _extra(kind: str) -> str:
    """The command that installs what PettingZoo's envs of that kind need."""
    return f"{pip_install()} '{_PACKAGE}[{kind}]'"


def _moved(kind: str, task: str) -> str:
    """What the env ``task`` of a kind that has left PettingZoo is called today."""
    new = f"{_MOVED[kind]}.{task}"
    package = new.partition(".")[0]
    today = f"its name is {_PREFIX}{_alike(new) or new} today"
    if not missing([package]):
        return today
    command = install_command(_PACKAGE) if package == "mpe2" else f"{pip_install()} {package}"
    return f"{today}, which needs {package}; run: {command}"


def _alike(module: str) -> str | None:
    """The existing module with the most similar name in the same package; None if none is similar."""
    package, _, wanted = module.rpartition(".")
    names = _modules_in(package)
    near = [] if wanted in names else difflib.get_close_matches(wanted, names, n=1)
    return f"{package}.{near[0]}" if near else None


def _names_in(package: str) -> list[str]:
    """The modules of ``package`` that are envs by their names, which have a version."""
    return [name for name in _modules_in(package) if re.search(r"_v\d+$", name)]


def _modules_in(package: str) -> list[str]:
    """The modules of ``package``; none if it cannot be imported."""
    try:
        places = importlib.import_module(package).__path__
    except (ImportError, AttributeError, ValueError):
        return []
    return [found.name for found in pkgutil.iter_modules(places)]


def _roms() -> str:
    """The folder of ale-py's ROMs, which PettingZoo looks for elsewhere; "" without that package."""
    spec = importlib.util.find_spec("ale_py")
    return str(Path(spec.origin).parent / "roms") if spec and spec.origin else ""


FAMILY = PettingZoo()
