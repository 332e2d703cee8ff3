"""``import sfactory`` is quick: what takes a second to import is imported when something needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sfactory
from sfactory import api

SLOW = ("torch", "gymnasium", "numpy")


@pytest.mark.parametrize(("code", "slow"), [("import sfactory", SLOW), ("import sfactory; sfactory.run", SLOW[:2])])
def test_importing_the_package_imports_nothing_slow(code: str, slow: tuple[str, ...]) -> None:
    program = f"import sys\n{code}\nprint([name for name in {slow!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout == "[]\n"


def test_what_the_package_hands_out_is_that_of_its_room() -> None:
    assert (sfactory.run, sfactory.RunResult) == (api.run, api.RunResult)
    with pytest.raises(AttributeError, match="has no attribute 'walk'"):
        sfactory.walk  # type: ignore[attr-defined]  # noqa: B018
