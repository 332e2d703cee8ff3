"""Calls an env and checks each value that it returns; collects what is wrong instead of raising it."""

from __future__ import annotations

import contextlib
import inspect
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any, Literal, NamedTuple

import gymnasium.spaces as spaces
import numpy as np

from sfactory.actor.episode_stats import EXTRA_STATS, STATISTICS
from sfactory.clock import now
from sfactory.config.import_strings import described
from sfactory.env.conversion import BEYOND, NO_LEGAL_ACTION, NOT_FINITE, BlockWriter, ObsWriter
from sfactory.env.vector import info_of, infos_of_ends, unreadable
from sfactory.errors import EnvError, Passing, SFactoryError, named, raised_at
from sfactory.spec import OBS_KEY, EnvSpec, key_of, leaves
from sfactory.tensor_spec import MASK_KEY

Kind = Literal["violation", "warning", "hint"]
Call = Literal["make", "reset", "step", "close"]

_MOST_INFO_BYTES = 65_536
_MENDS_OF_NUMBERS = {
    NOT_FINITE: "find where it is divided by 0 or overflows",
    BEYOND: "clip it, or mark what is missing by a number that float32 holds",
}


class Finding(NamedTuple):
    """One thing that was found. code: its name, for scripts. number: how often; ``text`` is of the first time."""

    kind: Kind
    code: str
    text: str
    mend: str
    number: int = 1


class Broken(SFactoryError):
    """The env gave nothing with which its episode can continue; a finding says why."""


class Inspector:
    """Calls an env and checks what it returns.

    findings: by code and subject. seconds: of each call, by kind of call. where: the last call ("step 17").
    rewards: the least and the largest. masks_in_info: whether an info had an action mask. unread_masks: what to
    do about one in an info, which training does not read; "" if it may have one. tell: called before each call of the
    env, with ``where``. obs_layout: the flag, which may name masks.
    """

    def __init__(self, tell: Callable[[str], None], obs_layout: tuple[str, ...]) -> None:
        self.findings: dict[tuple[str, str], Finding] = {}
        self.seconds: dict[Call, array[float]] = {name: array("d") for name in ("make", "reset", "step", "close")}
        self.rewards = (math.inf, -math.inf)
        self.where, self.masks_in_info, self.unread_masks = "", False, ""
        self._tell, self.obs_layout = tell, obs_layout

    def add(self, kind: Kind, code: str, text: str, mend: str = "", subject: str = "") -> None:
        """Count a finding; the first one of a code and a ``subject`` keeps its text."""
        known = self.findings.get((code, subject))
        new = Finding(kind, code, text, mend) if known is None else known._replace(number=known.number + 1)
        self.findings[code, subject] = new

    def violation(self, code: str, text: str, mend: str = "", subject: str = "") -> None:
        """``add`` a violation of the last call."""
        self.add("violation", code, f"{self.where}: {text}", mend, subject)

    def call(self, what: Call, function: Callable[..., Any], *given: Any, **by_name: Any) -> Any:
        """What ``function`` returns; raises Broken if it raises."""
        times = self.seconds[what]
        self.where = what if what in ("make", "close") else f"{what} {len(times) + 1}"
        self._tell(self.where)
        before = now()
        try:
            return function(*given, **by_name)
        except Passing:
            raise
        except EnvError as error:  # of our own code around the env, which says what to do
            self.violation(what, str(error))
            raise Broken(str(error)) from error
        except BaseException as error:  # foreign code may raise anything, and may even call sys.exit
            text = f"{self.where} raised {named(error)}{raised_at(error, everywhere=True)}"
            with_what = f" for the action {given[0]!r}" if what == "step" and given else ""
            kind: Kind = "warning" if what == "close" else "violation"
            self.add(kind, f"{what}.raised", text + with_what, _AFTER_RAISING.get(what, ""))
            raise Broken(text) from error
        finally:
            times.append(now() - before)

    def take_seeds(self, env: Any, needed: Sequence[str] = ("seed", "options")) -> None:
        """Have ``env.reset`` accept the arguments ``needed``; those that it does not take are a violation."""
        try:
            parameters = inspect.signature(env.reset).parameters
        except (AttributeError, TypeError, ValueError):
            return
        takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
        if takes_all or parameters.keys() >= set(needed):
            return
        lacks = " and ".join(name for name in needed if name not in parameters)
        mend = "write def reset(self, *, seed=None, options=None), and begin it with super().reset(seed=seed)"
        self.add("violation", "reset.arguments", f"reset() takes no {lacks}", mend)
        own, known = env.reset, parameters.keys() & {"seed", "options"}

        def reset(**given: Any) -> Any:
            return own(**{name: value for name, value in given.items() if name in known})

        env.reset = reset

    def parts(self, given: Any, size: int, what: str, form: str) -> tuple[Any, ...] | None:
        """``given`` if it is a tuple of ``size``; else None, and a violation."""
        if isinstance(given, tuple) and len(given) == size:
            return given
        got = f"a tuple of {len(given)}" if isinstance(given, tuple) else described(given)
        old = "; as in the old gym: its done is terminated, or truncated at a limit of time"
        mend = f"return {form}{old if size == 5 and isinstance(given, tuple) and len(given) == 4 else ''}"
        self.add("violation", f"{what}.form", f"{self.where} returned {got}", mend)
        return None

    def reward(self, value: Any, of: str = "") -> float:
        """The number that ``value`` is, or 0."""
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            self.violation("reward", f"the reward{of} is {_short(value)}, no number", "return a float")
            return 0.0
        if not math.isfinite(number):
            mend = "find where it is divided by 0 or overflows; rewards must be finite"
            self.violation("reward.finite", f"the reward{of} is {number}", mend)
            return 0.0
        self.rewards = min(self.rewards[0], number), max(self.rewards[1], number)
        return number

    def flag(self, name: str, value: Any, of: str = "") -> bool:
        """The truth of ``value``, which has to be a bool."""
        if not isinstance(value, bool | np.bool_):
            self.violation("flag", f"{name}{of} is {_short(value)}, {described(value)}", f"return bool({name})", name)
        try:
            return bool(value)
        except ValueError:  # an array of several
            return True

    def info(self, value: Any, of: str = "", is_batch: bool = False) -> dict[Any, Any]:
        """``value``, or an empty dict if it is none. is_batch: of a vector env; see ``batch_statistics``."""
        if not isinstance(value, dict):
            self.violation("info", f"the info{of} is {described(value)}", "return a dict, {} if empty")
            return {}
        self.masks_in_info |= MASK_KEY in value
        if MASK_KEY in value and self.unread_masks:
            text = f"the info{of} has {MASK_KEY!r}, which training does not read: the first reset had none"
            self.violation("masks", text, self.unread_masks)
        if strange := [key for key in value if not isinstance(key, str)]:
            text = f"{self.where}: the info{of} has the key {strange[0]!r}"
            self.add("warning", "info.keys", text, "use text as keys")
        if (size := sum(getattr(entry, "nbytes", 0) for entry in value.values())) > _MOST_INFO_BYTES:
            text = f"{self.where}: the info{of} has arrays of {size:,} bytes"
            self.add("warning", "info.size", text, "give them only where they are needed: each step makes them")
        if not is_batch:
            self._statistics(value)
        return value

    def batch_statistics(self, infos: Mapping[Any, Any], size: int, ended: Sequence[int]) -> None:
        """Look at what the ``infos`` of ``size`` envs say of the episodes of those that have ``ended``."""
        given = infos_of_ends(infos)
        if problem := unreadable(given, size, STATISTICS):
            mend = "give an array, with one entry for each env, or a dict of arrays"
            self.add("warning", "info.statistics", f"{self.where}: {problem}", mend)
        for env in ended:
            self._statistics(info_of(given, env, size))

    def _statistics(self, info: Mapping[Any, Any]) -> None:
        statistics = info.get(EXTRA_STATS, {})
        if not isinstance(statistics, Mapping) or any(isinstance(number, str) for number in statistics.values()):
            text = f"{self.where}: info[{EXTRA_STATS!r}] is {_short(statistics)}"
            self.add("warning", "info.statistics", text, "give a dict of names and numbers there, when an episode ends")


_AFTER_RAISING = {
    "reset": "correct reset(); it must work at any time, also in the middle of an episode",
    "step": "correct step(), or action_space if it promises actions that step() does not take",
    "close": "correct close(); nothing is lost by it",
}


def _in_obs(path: tuple[object, ...]) -> str:
    return "obs" + "".join(f"[{step!r}]" for step in path)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


class ObsChecks:
    """Checks observations of one space, leaf by leaf; as well whether arrays change after they were returned.

    ranges: the least and the largest number of each leaf, by its key.
    """

    def __init__(
        self, inspector: Inspector, space: spaces.Space[Any], spec: EnvSpec | None, size: int | None = None
    ) -> None:
        """spec: of the whole env, if it is supported; size: of a batch."""
        self._inspector, self._size = inspector, size
        self.ranges: dict[str, tuple[float, float]] = {}
        self._kept: dict[str, tuple[Any, list[tuple[tuple[object, ...], Any]]]] = {}
        self._leaves: list[tuple[str, tuple[object, ...], spaces.Space[Any], ObsWriter]] = []
        for path, leaf in leaves(space):
            key = key_of(path, OBS_KEY)
            with contextlib.suppress(EnvError):  # a leaf that no network reads
                alone = EnvSpec.of_spaces(leaf, spaces.Discrete(1)).obs[0][1]
                tensor = dict(spec.obs).get(key, alone) if spec is not None else alone
                one = EnvSpec(((key, tensor),), ())
                writer = ObsWriter(one, space) if size is None else BlockWriter(one, space)
                self._leaves.append((key, path, leaf, writer))

    def look(self, obs: Any, of: str = "", final: bool = False) -> None:
        """Check an observation, or a batch. of: ", agent 'x'". final: no action follows, so none has to be legal."""
        add, where = self._inspector.add, f"{self._inspector.where}{of}"
        self._find_changed(of)
        kept = []
        for key, path, leaf, writer in self._leaves:
            flaws = writer.flaws([obs] if self._size is None else obs, self._size or 1)
            flaw = next(iter(flaws.values()), None)
            if flaw is not None and flaw.text == NO_LEGAL_ACTION:
                if not final:
                    mend = "allow at least one action wherever one is taken"
                    add("violation", "obs.mask", f"{where}: observation {key!r} {flaw.text}", mend, key)
                continue
            if flaw is not None:
                mend = self._dtype_mend(obs, path, leaf) or "return what its space describes, or correct the space"
                mend = _MENDS_OF_NUMBERS.get(flaw.text, mend)
                code = "obs.finite" if flaw.text in _MENDS_OF_NUMBERS else "obs.form"
                add("violation", code, f"{where}: observation {key!r} {flaw.text}", mend, key)
                continue
            value = reduce(getitem, path, obs)
            self._check_values(key, path, value, leaf, where)
            if isinstance(value, np.ndarray):
                kept.append((path, value.copy()))
        self._kept[of] = obs, kept

    def _dtype_mend(self, obs: Any, path: tuple[object, ...], leaf: spaces.Space[Any]) -> str:
        """What to do about a leaf of which only the dtype is wrong; "" for other flaws."""
        with contextlib.suppress(Exception):  # the env's own objects may raise anything when they are read
            array, dtype = np.asarray(reduce(getitem, path, obs)), np.dtype(leaf.dtype)
            if array.shape[self._size is not None :] == leaf.shape and not np.can_cast(array.dtype, dtype, "same_kind"):
                return f"return {_in_obs(path)}.astype(np.{dtype}), or give its space dtype=np.{array.dtype}"
        return ""

    def _check_values(
        self, key: str, path: tuple[object, ...], value: Any, leaf: spaces.Space[Any], where: str
    ) -> None:
        """Check what Gymnasium's spaces promise and a network could do without, of a leaf without other flaws."""
        add, values = self._inspector.add, np.asarray(value)
        low, high = self.ranges.get(key, (math.inf, -math.inf))
        least, largest = values.min(), values.max()
        self.ranges[key] = min(low, float(least)), max(high, float(largest))
        if isinstance(leaf, spaces.Box):
            if isinstance(value, np.ndarray | np.generic) and not np.can_cast(value.dtype, leaf.dtype):
                text = f"{where}: observation {key!r} has dtype {value.dtype}, and its space {leaf.dtype}"
                add("violation", "obs.dtype", text, f"return {_in_obs(path)}.astype(np.{leaf.dtype})", key)
            elif values.dtype.kind == "f":  # numbers of Python, too, are compared as the space rounds its bounds
                values = values.astype(leaf.dtype)
            outside = (values < leaf.low) | (values > leaf.high)
        elif isinstance(leaf, spaces.MultiBinary):
            outside = (values != 0) & (values != 1)
        else:
            return  # choices are checked by the writer
        if outside.any():
            first = values[outside].flat[0]
            text = f"{where}: observation {key!r} has the value {first:.6g}, outside the bounds of its space"
            add("violation", "obs.bounds", text, "widen the bounds of observation_space, or clip", key)

    def _find_changed(self, of: str) -> None:
        """Compare the last observation with the copy that was made of it."""
        obs, kept = self._kept.pop(of, (None, []))
        for path, copy in kept:
            value = reduce(getitem, path, obs)
            if not np.array_equal(value, copy, equal_nan=copy.dtype.kind == "f"):
                key = key_of(path, OBS_KEY)
                text = f"{self._inspector.where} changed observation {key!r}, which an earlier call had returned{of}"
                mend = "return a copy: sfactory copies observations at once, but programs that store them see changes"
                self._inspector.add("warning" if self._size is None else "hint", "obs.shared", text, mend, key)
