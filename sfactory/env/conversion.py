"""Writes observations of envs into rows.

Writers are built once per split from the observation space, so that no step looks anything up or decides per env.
``ObsWriter`` is for single envs, ``BlockWriter`` for vector envs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextvars import Context
from functools import reduce
from operator import getitem
from typing import Any, Literal, NamedTuple

import gymnasium.spaces as spaces
import numpy as np
import numpy.typing as npt

from sfactory.errors import SFactoryError, named
from sfactory.spec import OBS_KEY, EnvSpec, key_of, leaves
from sfactory.tensor_spec import TensorSpec

Array = npt.NDArray[Any]
Rows = Mapping[str, Array]
_Casting = Literal["safe", "same_kind"]


class BadObservation(SFactoryError, ValueError):
    """An observation is none of the env's observation space, or none that an action can be chosen for."""


NOT_FINITE = "holds NaN or infinity"
BEYOND = "holds numbers beyond float32, which are infinite to a network"
TOO_LARGE = "holds numbers that are none of"
OUT_OF_RANGE = "holds a choice that its space does not have"
NO_LEGAL_ACTION = "allows no action"
OF_VALUES = (NOT_FINITE, BEYOND, OUT_OF_RANGE, NO_LEGAL_ACTION)  # flaws of what was written as it is
REWARD = "reward"
LARGEST_READ = float(np.finfo(np.float32).max)  # by networks, which read float64 as float32


class Flaw(NamedTuple):
    """Why data from an env is invalid.

    key: path of the observation, or REWARD. text: the problem. agent: added to error messages of multi-agent envs.
    """

    key: str
    text: str
    agent: str = ""

    def __str__(self) -> str:
        what = REWARD if self.key == REWARD else f"observation {self.key!r}"
        return f"{what} {self.text}{self.agent}"


def quiet_context() -> Context:
    """What runs in it gets no floating-point errors from numpy, whatever an env has set (``np.seterr``).

    For one thread. Entering it takes 0.1 us, and ``np.errstate`` some microseconds.
    """
    context = Context()
    context.run(np.seterr, all="ignore")
    return context


class ObsWriter:
    """Writes the observations of N envs, given as a sequence, into one row block per key."""

    def __init__(self, spec: EnvSpec, space: spaces.Space[Any]) -> None:
        """``space``: observation space of one env."""
        self._specs, self._agents = dict(spec.obs), spec.agents
        self._may_wait = spec.agents and not spec.in_turns
        paths = ((key_of(path, OBS_KEY), path) for path, _ in leaves(space))
        self._leaves = [(key, path) for key, path in paths if key in self._specs]
        # Integers, until some come in a dtype that holds more than the space's; those are compared then.
        self._safe = {key for key, leaf in spec.obs if np.dtype(leaf.dtype).kind in "iu" and not leaf.heads}
        self._compared: set[str] = set()

    def write(self, observations: Sequence[Any], rows: Rows) -> None:
        """Copy ``observations`` into ``rows`` {key: [N, ...]}; raises BadObservation if one does not fit."""
        try:
            for key, path in self._leaves:
                leaf = [reduce(getitem, path, obs) for obs in observations] if path else observations
                self._write_leaf(key, leaf, rows[key])
        except Exception:  # the env's own objects may raise anything when they are read
            for index, obs in enumerate(observations):
                self.check(obs, f"{self.named(index)} of the split")
            raise

    def _write_leaf(self, key: str, leaf: Any, row: Array) -> None:
        if key in self._compared:
            leaf = np.asarray(leaf)  # once, to copy and to compare
        try:
            self._copy(leaf, row, "safe" if key in self._safe else "same_kind")
        except TypeError:
            if key not in self._safe:
                raise
            self._copy(leaf, row, "same_kind")
            self._safe.remove(key)
            self._compared.add(key)
        if key in self._compared and not np.array_equal(row, leaf):
            raise BadObservation(f"observation {key!r} {TOO_LARGE} {row.dtype}")

    def _copy(self, leaf: Any, row: Array, casting: _Casting) -> None:
        if row.ndim == 1:
            np.copyto(row, leaf, casting=casting)
        else:
            if {*map(len, leaf)} != {row.shape[1]}:  # concatenate sees only the sum of the lengths
                raise ValueError
            np.concatenate(leaf, out=row.reshape(-1, *row.shape[2:]), casting=casting)

    def named(self, row: int) -> str:
        """The name of ``row`` in error messages: the env, and the agent if there are several."""
        if not self._agents:
            return f"env {row}"
        env, place = divmod(row, len(self._agents))
        return f"env {env}, agent {self._agents[place]!r}"

    def check_all(self, observations: Sequence[Any], size: int, where: str) -> None:
        """Raise BadObservation unless ``observations`` of ``size`` envs match the space's shapes and dtypes."""
        for env, obs in enumerate(observations):
            self.check(obs, f"{where}, {self.named(env)}")

    def check(self, obs: Any, where: str, size: int | None = None) -> None:
        """Raise BadObservation unless ``obs``, or a batch of ``size``, has the space's shapes and castable dtypes."""
        for key, path in self._leaves:
            if misfit := self._misfit(obs, key, path, size):
                raise BadObservation(f"{where}: observation {key!r} {misfit}")

    def flaws(self, observations: Sequence[Any], size: int, unplayed: Container[int] = ()) -> dict[int, Flaw]:
        """Find envs with an observation of wrong shape or dtype, or with a value that its space does not have. Slow.

        unplayed: envs in which no action is taken next, so that none need be legal.
        """
        found: dict[int, Flaw] = {}
        for env, obs in enumerate(observations):
            for key, path in self._leaves:
                text = self._misfit(obs, key, path) or value_flaw(reduce(getitem, path, obs), self._specs[key])
                # An agent among several that may do nothing waits for its turn, unless the env says whose turn it is.
                if text and not (text == NO_LEGAL_ACTION and (self._may_wait or env in unplayed)):
                    found.setdefault(env, Flaw(key, text))
        return found

    def _misfit(self, observations: Any, key: str, path: tuple[object, ...], size: int | None = None) -> str:
        """How a leaf of one env's observation, or of a batch of ``size``, differs from the space; '' if it matches."""
        maker = "env" if size is None else "vector env"
        try:
            leaf = np.asarray(reduce(getitem, path, observations))
        except Exception as error:  # see ``write``
            return (
                f"is missing or no array: the {maker} gave a {type(observations).__name__} "
                f"({named(error)}); correct the {maker} or its observation_space"
            )
        spec = self._specs[key]
        shape = spec.shape if size is None else (size, *spec.shape)
        if leaf.shape == shape and np.can_cast(leaf.dtype, spec.dtype, "same_kind"):
            return ""
        promise = (
            "the env's observation_space promises"
            if size is None
            else f"{size} envs and the vector env's single_observation_space promise"
        )
        return (
            f"has shape {leaf.shape} and dtype {leaf.dtype}, but {promise} {shape} and {spec.dtype}; correct the "
            f"{maker} or its space"
        )


class BlockWriter(ObsWriter):
    """Writes the observations of all N envs of a vector env, given as one batch in the env's structure."""

    def write(self, observations: Any, rows: Rows) -> None:
        """See ObsWriter."""
        size = len(next(iter(rows.values())))
        try:
            for key, path in self._leaves:
                self._write_leaf(key, reduce(getitem, path, observations), rows[key])
        except Exception:  # see ObsWriter
            self.check_all(observations, size, "a step")
            raise

    def _copy(self, leaf: Any, row: Array, casting: _Casting) -> None:
        if np.shape(leaf) != row.shape:
            raise ValueError
        np.copyto(row, leaf, casting=casting)

    def check_all(self, observations: Any, size: int, where: str) -> None:
        """See ObsWriter."""
        self.check(observations, where, size)

    def flaws(self, observations: Any, size: int, unplayed: Container[int] = ()) -> dict[int, Flaw]:
        """See ObsWriter. A wrong shape or dtype is reported for all envs."""
        found: dict[int, Flaw] = {}
        for key, path in self._leaves:
            if misfit := self._misfit(observations, key, path, size):
                return dict.fromkeys(range(size), Flaw(key, misfit))
            leaf = reduce(getitem, path, observations)
            for env in range(size):
                text = value_flaw(leaf[env], self._specs[key])
                if text and not (text == NO_LEGAL_ACTION and env in unplayed):
                    found.setdefault(env, Flaw(key, text))
        return found


def tree_of(space: spaces.Space[Any], leaf: Callable[..., Any], *trees: Any) -> Any:
    """A tree in the structure of ``space``, of what ``leaf`` makes of each of its leaves and of those of ``trees``."""
    if isinstance(space, spaces.Dict):
        return {name: tree_of(child, leaf, *(tree[name] for tree in trees)) for name, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(tree_of(child, leaf, *parts) for child, *parts in zip(space.spaces, *trees, strict=True))
    return leaf(space, *trees)


def value_flaw(leaf: Any, spec: TensorSpec) -> str:
    """What is wrong with the values of one observation, or a batch, of the right shape and dtype; '' if nothing is."""
    if spec.heads:
        masks = np.asarray(leaf).reshape(-1, sum(spec.heads))
        return "" if has_legal_action(masks, first_choices(spec)).all() else NO_LEGAL_ACTION
    if limits := spec.limits:
        values = np.asarray(leaf)
        return "" if bool(((values >= limits[0]) & (values <= limits[1])).all()) else OUT_OF_RANGE
    kind = np.dtype(spec.dtype).kind
    if kind in "iu":
        values, ends = np.asarray(leaf), np.iinfo(spec.dtype)
        return "" if bool(((values >= ends.min) & (values <= ends.max)).all()) else f"{TOO_LARGE} {spec.dtype}"
    if kind != "f":
        return ""
    with np.errstate(all="ignore"):  # values too large for the dtype become infinite
        values = np.asarray(leaf).astype(spec.dtype)
        if not np.isfinite(values).all():
            return NOT_FINITE
        return "" if (np.abs(values) <= LARGEST_READ).all() else BEYOND


def first_choices(spec: TensorSpec) -> npt.NDArray[np.int64]:
    """[H] - where the choices of each head begin in an action mask."""
    return np.cumsum((0, *spec.heads[:-1]))


def has_legal_action(masks: Array, firsts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """[N] - whether each of N action masks [N, *shape] allows a choice for each head; see ``first_choices``."""
    legal = np.logical_or.reduceat(masks.reshape(len(masks), -1), firsts, axis=1)
    return np.asarray(legal.all(axis=1))
