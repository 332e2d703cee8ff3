"""Says what to type in this installation where a package is missing."""

from __future__ import annotations

import functools
import importlib.util
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# The extra of sfactory that installs a module; env families say so themselves of those that they need.
EXTRAS: Mapping[str, str] = MappingProxyType({"imageio_ffmpeg": "video", "mpe2": "pettingzoo", "pygame": "video"})


def pip_install() -> str:
    """``pip install``, or where the shell's pip is not that of this Python, what installs for this one."""
    found = shutil.which("pip")
    is_own = found is not None and Path(found).parent == Path(sys.executable).parent
    return f"{'pip' if is_own else f'{shlex.quote(sys.executable)} -m pip'} install"


def install_command(extra: str) -> str:
    """``pip install`` with this extra: of the installed package, or of the folder that sfactory runs from.

    Then it takes the versions in constraints.txt there, if all packages of the extra are: others may not fit them.
    """
    folder = Path(__file__).parents[1]
    if not (folder / "pyproject.toml").is_file():
        return f"{pip_install()} {shlex.quote(f'sfactory[{extra}]')}"
    tested = folder / "constraints.txt"
    constraints = f" -c {shlex.quote(str(tested))}" if _packages_of(extra) <= _packages_in(tested) else ""
    return f"{pip_install()} -e {shlex.quote(f'{folder}[{extra}]')}{constraints}"


def other_versions(extra: str) -> list[str]:
    """A sentence for each installed package whose version is not one that ``extra`` asks for."""
    found = ((each, _installed_version(each.name)) for each in _requirements_of(extra))
    return [
        f"{each.name} is installed in version {version}, and the extra {extra!r} asks for {each.specifier}; "
        f"if it fails, run: {install_command(extra)}"
        for each, version in found
        if version and not each.specifier.contains(version, prereleases=True)
    ]


def _installed_version(package: str) -> str:
    """Its version, or "" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@functools.cache  # otherwise they would take half the time of reading a command line
def _requirement(line: str) -> Requirement:
    from packaging.requirements import Requirement  # help needs none of it

    return Requirement(line)


def _requirements_of(extra: str) -> list[Requirement]:
    """What sfactory needs with ``extra`` and not without it."""
    try:
        needed = [_requirement(line) for line in metadata.requires("sfactory") or []]
    except metadata.PackageNotFoundError:
        return []
    without, with_it = {"extra": ""}, {"extra": extra}
    return [each for each in needed if each.marker and each.marker.evaluate(with_it) > each.marker.evaluate(without)]


def _packages_of(extra: str) -> set[str]:
    from packaging.utils import canonicalize_name

    return {canonicalize_name(each.name) for each in _requirements_of(extra)} or {""}


def _packages_in(file: Path) -> set[str]:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = file.read_text().splitlines() if file.is_file() else []
    return {canonicalize_name(Requirement(line).name) for line in lines if line and not line.startswith("#")}


def install_advice(module: str, extras: Mapping[str, str] = EXTRAS) -> str:
    """``; run: pip install ...`` if the package of ``module`` is known, else ""; extras: as EXTRAS."""
    package = module.partition(".")[0]
    return f"; run: {install_command(extras[package])}" if package in extras else ""


def missing(modules: Iterable[str]) -> list[str]:
    """Those of ``modules`` (of top level) that are not installed; none is imported."""
    return [module for module in modules if not _is_installed(module)]


def lack_of(modules: Iterable[str], extra: str) -> str:
    """``needs minigrid, which is not installed; run: pip install ...`` if one of them is missing, else ""."""
    absent = missing(modules)
    if not absent:
        return ""
    are = "is" if len(absent) == 1 else "are"
    return f"needs {' and '.join(absent)}, which {are} not installed" + (
        f"; run: {install_command(extra)}" if extra else ""
    )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # ValueError: it is loaded, and came from no file
        return module in sys.modules


def env_plugin(namespace: str | None) -> metadata.EntryPoint | None:
    """The function by which an installed package registers its ids, ``namespace/Id``; Gymnasium no longer calls it."""
    return next(iter(metadata.entry_points(group="gymnasium.envs", name=namespace or "")), None)


def missing_module(error: BaseException) -> str:
    """The module that ``error`` did not find; "" if it says something else, such as a library that is missing."""
    return error.name or "" if isinstance(error, ModuleNotFoundError) else ""
