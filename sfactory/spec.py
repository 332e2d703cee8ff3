"""Describes observations and actions of an environment as flat, picklable facts.

``EnvSpec`` is made of gymnasium spaces; trajectory memory, models and the decoding of actions are derived from it.
Nested spaces become flat dicts keyed by path ("image", "goal/position"); a single space has the key "obs" or "action".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium.spaces as spaces
import numpy as np

from sfactory.action_heads import ActionHead, BoxHead, DiscreteHead, heads_of
from sfactory.config.schema import Kind, ModelConfig, keys_and_layouts
from sfactory.errors import EnvError, named
from sfactory.plain_spaces import plain_space
from sfactory.tensor_spec import MASK_KEY, ObsSpec, Reader, is_mask, presence_of, with_layouts
from sfactory.tensor_spec import TensorSpec as TensorSpec

_MOST_VALUES = 2**31  # of a choice: each has numbers of its own in the network

OBS_KEY = "obs"
ACTION_KEY = "action"
LAST_ACTION, LAST_REWARD = "last_action", "last_reward"

# dtypes that torch computes with only in part, and what holds their values
_STORED = {"float16": "float32", "float128": "float64", "uint16": "int32", "uint32": "int64", "uint64": "float64"}


_HEADS: Mapping[str, type[ActionHead]] = {kind.__name__: kind for kind in (DiscreteHead, BoxHead)}


@dataclass(frozen=True)
class EnvSpec:
    """What one agent sees and does. ``obs`` and ``actions`` are ordered; order is part of the contract.

    agents: names of the env's agents, all of whom see and do the same; none where an env is its own agent.
    unread: paths of observations that no network here can read, and why.
    in_turns: whether the agents act in turn (``AgentsEnv.in_turns``).
    kinds: by agent, its kind if agents have different spaces, see NOTE [Unequal agents]; else ().
    part_of: the kind whose agents alone see and do this, see ``part``; else "".
    plain_spaces: the env's spaces of observations and actions in plain form; () in files of older versions.
    """

    obs: ObsSpec
    actions: tuple[ActionHead, ...]
    agents: tuple[str, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    in_turns: bool = False
    kinds: tuple[str, ...] = ()
    part_of: str = ""
    plain_spaces: tuple[Any, ...] = dataclasses.field(default=(), compare=False, repr=False)

    @staticmethod
    def of_spaces(
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        agents: tuple[str, ...] = (),
        in_turns: bool = False,
    ) -> EnvSpec:
        """Flatten gymnasium spaces; raises EnvError naming the path of a space that is not supported."""
        obs = _leaves_by_path("observation", observation_space, OBS_KEY)
        actions = _leaves_by_path("action", action_space, ACTION_KEY)
        heads = tuple(head for path, space in actions for head in heads_of(path, space))
        _require_distinct("action", [head.key for head in heads])
        problems = [(path, _obs_problem(path, space)) for path, space in obs]
        unread = tuple((path, problem) for path, problem in problems if problem)
        tensors = tuple((path, _tensor_of(space)) for path, space in obs if path not in dict(unread))
        if not tensors:
            raise EnvError(unread[0][1])
        own = _with_heads(with_layouts(tensors, ModelConfig()), heads)
        plain = plain_space(observation_space), plain_space(action_space)
        return EnvSpec(own, heads, agents, unread, in_turns, plain_spaces=plain)

    def for_model(self, config: ModelConfig) -> EnvSpec:
        """The same with the observations that the flags choose, in their layouts, and Box actions in their unit.

        Raises EnvError for observations that the network cannot read, keys that do not exist, and layouts that do not
        fit.
        """
        paths = [path for path, _ in (*self.obs, *self.unread)]
        read = _chosen(paths, config)
        for path, problem in self.unread:
            if path in read:
                raise EnvError(f"{problem}; leave it out with --ignore_obs_keys={path}")
        obs = with_layouts(tuple(leaf for leaf in self.obs if leaf[0] in read), config)
        obs = _with_heads(obs, self.actions)
        _require_masks_fit(obs, self.actions)
        if not (config.encoder or config.model):
            _require_choices_fit(obs)
        if all(leaf.is_mask for _, leaf in obs):
            raise EnvError("there is no observation beside the action mask")
        obs = _with_readers(obs, paths, config)
        for path, leaf in self._core_inputs(config):
            if path in paths:
                raise EnvError(f"--core_inputs: the env has an observation {path!r} of its own: rename it")
            obs = (*obs, (path, leaf))
        if not config.normalize_actions:
            return dataclasses.replace(self, obs=obs)
        squashed = config.continuous_distribution == "squashed"
        heads = (head.normalized(squashed) if isinstance(head, BoxHead) else head for head in self.actions)
        return dataclasses.replace(self, obs=obs, actions=tuple(heads))

    def masked_by(self, obs_layout: tuple[str, ...]) -> EnvSpec:
        """The same with the action masks that ``--obs_layout`` leaves and names.

        Raises EnvError if it names one that there is not, or where agents have different spaces.
        """
        obs = dict(self.obs)
        named = [path for path, layout in keys_and_layouts(obs_layout) if path and layout == "mask"]
        if wrong := [path for path in named if path not in obs or self.kinds]:
            raise EnvError(
                f"--obs_layout={wrong[0]}=mask: write KEY=mask with one of the keys {', '.join(obs)}; a Dict or Tuple "
                "of masks, and the mask of a kind where agents have different spaces, is known by its name: call it "
                "action_mask in the env"
            )
        for path, leaf in self.obs:
            if leaf.is_mask != is_mask(path, obs_layout):
                obs[path] = dataclasses.replace(leaf, layout="flat" if leaf.is_mask else "mask")
        return dataclasses.replace(self, obs=_with_heads(tuple(obs.items()), self.actions))

    def _core_inputs(self, config: ModelConfig) -> Iterator[tuple[str, TensorSpec]]:
        """The observations that actors make of actions and rewards, see PreviousSteps."""
        if "action" in config.core_inputs:
            width = sum(head.n if isinstance(head, DiscreteHead) else head.size for head in self.actions)
            yield LAST_ACTION, TensorSpec((width,), "float32", layout="last_action")
        if "reward" in config.core_inputs:
            yield LAST_REWARD, TensorSpec((1,), "float32", layout="last_reward")

    def part(self, kind: str) -> EnvSpec:
        """What agents of ``kind`` see and do; all of it for "", where all agents are alike."""
        if not kind:
            return self

        def own(path: str) -> bool:
            return f"{path}/".removeprefix(f"{MASK_KEY}/").startswith(f"{kind}/")

        obs, actions = (leaf for leaf in self.obs if own(leaf[0])), (head for head in self.actions if own(head.key))
        return dataclasses.replace(self, obs=tuple(obs), actions=tuple(actions), kinds=(), part_of=kind)

    def plain(self) -> dict[str, Any]:
        """The spec as dicts, tuples, numbers and text, which checkpoints and JSON can hold."""
        return {
            "obs": {key: dataclasses.asdict(tensor) for key, tensor in self.obs},
            "actions": [{"kind": type(head).__name__, **dataclasses.asdict(head)} for head in self.actions],
            "agents": self.agents,
            "unread": self.unread,
            "in_turns": self.in_turns,
            "kinds": self.kinds,
            "part_of": self.part_of,
            "plain_spaces": self.plain_spaces,
        }

    @staticmethod
    def of_plain(plain: Any) -> EnvSpec:
        """The spec of which ``plain`` is the plain form, also after JSON; raises ValueError if it is of none."""
        try:
            obs = tuple((str(key), _of_fields(TensorSpec, fields)) for key, fields in plain["obs"].items())
            heads = tuple(
                _of_fields(_HEADS[fields["kind"]], {name: fields[name] for name in fields if name != "kind"})
                for fields in plain["actions"]
            )
            agents, in_turns = tuple(map(str, plain["agents"])), bool(plain.get("in_turns", False))
            unread = _tuples(plain["unread"])
            kinds, spaces_ = (_tuples(plain.get(name, ())) for name in ("kinds", "plain_spaces"))
            return EnvSpec(obs, heads, agents, unread, in_turns, kinds, str(plain.get("part_of", "")), spaces_)
        except (AttributeError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"it is not the spec of an env: {named(error)}") from error

    def differences(self, other: EnvSpec) -> list[str]:
        """A text for each property of observations, actions and agents in which ``other`` differs; [] if in none."""
        here, there = self._properties(), other._properties()
        names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
        return [f"{name}: {there.get(name, 'none')} there, {here.get(name, 'none')} here" for name in names]

    def _properties(self) -> dict[str, object]:
        leaves_ = [(f"observation {path!r}", leaf) for path, leaf in self.obs]
        parts = [*leaves_, *((f"action {head.key!r}", head) for head in self.actions)]
        found = {f"{name} of {part}": value for part, of in parts for name, value in dataclasses.asdict(of).items()}
        return {**found, "agents": self.agents}

    @property
    def kind(self) -> Kind:
        """What decides on the defaults of flags."""
        if any(tensor.is_image for _, tensor in self.obs):
            return "images"
        if any(isinstance(head, BoxHead) for head in self.actions):
            return "continuous"
        seen = [tensor for _, tensor in self.obs if not (tensor.is_mask or tensor.is_core_input)]
        return "table" if all(tensor.categorical for tensor in seen) else "vector"

    @property
    def masks(self) -> ObsSpec:
        """The observations that are action masks."""
        return tuple(leaf for leaf in self.obs if leaf[1].is_mask)

    def read_by(self, reader: Reader) -> ObsSpec:
        """The observations that the actor or the critic reads; the actor's with the action masks."""
        return tuple(leaf for leaf in self.obs if leaf[1].sole_reader in (None, reader))

    @property
    def reads_apart(self) -> bool:
        """Whether actor and critic read different observations."""
        return any(leaf.sole_reader for _, leaf in self.obs)

    @property
    def has_critic_group(self) -> bool:
        """Whether the observations are in the groups policy and critic, and others."""
        return {"policy", "critic"} <= {path.partition("/")[0] for path, _ in self.obs}

    def of_actor(self) -> EnvSpec:
        """The same with what the actor reads alone."""
        obs = ((path, dataclasses.replace(leaf, sole_reader=None)) for path, leaf in self.read_by("actor"))
        return dataclasses.replace(self, obs=tuple(obs))

    @property
    def num_agents(self) -> int:
        """A: agents of one env, each of which is a row."""
        return len(self.agents) or 1


def _of_fields(kind: type[Any], fields: Mapping[str, Any]) -> Any:
    return kind(**{name: _tuples(value) for name, value in fields.items()})


def _tuples(value: Any) -> Any:
    """``value`` with tuples where JSON has lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def leaves(
    space: spaces.Space[Any], path: tuple[object, ...] = ()
) -> Iterator[tuple[tuple[object, ...], spaces.Space[Any]]]:
    """The spaces in ``space`` that are no containers, with their index paths; () for a space that is not nested."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        yield path, space
        return
    for name, child in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
        yield from leaves(child, (*path, name))


def key_of(path: tuple[object, ...], sole: str) -> str:
    """The key of the leaf at an index path; ``sole``: of a space that is not nested."""
    return "/".join(map(str, path)) or sole


def _leaves_by_path(kind: str, space: spaces.Space[Any], sole: str) -> list[tuple[str, spaces.Space[Any]]]:
    """The leaves of a space with their paths; ``sole``: of a space that is not nested."""
    found = [(key_of(path, sole), leaf) for path, leaf in leaves(space)]
    if not found:
        raise EnvError(f"the {kind} space {space} is empty")
    _require_distinct(kind, [path for path, _ in found])
    return found


def _require_distinct(kind: str, paths: list[str]) -> None:
    if doubled := next((path for path in paths if paths.count(path) > 1), ""):
        raise EnvError(f"two leaves of the {kind} space have the path {doubled!r}: rename the key with a slash")


def _chosen(paths: list[str], config: ModelConfig) -> frozenset[str]:
    """The paths of the observations that ``--obs_keys`` and ``--ignore_obs_keys`` leave."""
    masks = {path for path in paths if path.partition("/")[0] == MASK_KEY or is_mask(path, config.obs_layout)}
    chosen = set(paths)
    if config.obs_keys:
        chosen = masks.union(_below("obs_keys", config.obs_keys, paths), *_read_alone(paths, config).values())
    layouts = dict(keys_and_layouts(config.obs_layout))
    chosen |= {presence_of(path) for path in chosen if layouts.get(path) == "entities"}.intersection(paths)
    chosen -= _below("ignore_obs_keys", config.ignore_obs_keys, paths)
    if not chosen:
        raise EnvError("--obs_keys and --ignore_obs_keys leave no observation")
    return frozenset(chosen)


def _below(flag: str, keys: tuple[str, ...], paths: list[str]) -> set[str]:
    """The paths that the keys of a flag name; a key stands for all below it."""
    found = {key: {path for path in paths if path == key or path.startswith(f"{key}/")} for key in keys}
    if missing := [key for key in keys if not found[key]]:
        raise EnvError(f"--{flag}={missing[0]}: there is no such observation; there are {', '.join(paths)}")
    return set().union(*found.values())


def _read_alone(paths: list[str], config: ModelConfig) -> dict[Reader, set[str]]:
    """The paths of the observations that the actor or the critic alone reads."""
    critic = _below("critic_obs_keys", config.critic_only, paths)
    actor = _below("actor_obs_keys", config.actor_obs_keys, paths)
    if both := sorted(critic & actor):
        raise EnvError(f"--critic_obs_keys and --actor_obs_keys both name {both[0]}: what both read is in neither")
    return {"actor": actor, "critic": critic}


def _with_readers(obs: ObsSpec, paths: list[str], config: ModelConfig) -> ObsSpec:
    """The observations with who alone reads them. paths: of all that there are."""
    alone = _read_alone(paths, config)
    reader_of: dict[str, Reader] = {path: reader for reader, those in alone.items() for path in those}
    for path, leaf in obs:
        if leaf.layout == "entities":  # who reads a set reads which of its entities there are
            reader_of.pop(presence_of(path), None)
            reader_of |= {presence_of(path): reader_of[path]} if path in reader_of else {}
        if leaf.is_mask and path in alone["critic"]:
            raise EnvError(f"--critic_obs_keys names the action mask {path}, without which the actor cannot act")
    for reader, other in (("actor", "critic"), ("critic", "actor")):
        if all(leaf.is_mask or leaf.layout == "present" or reader_of.get(path) == other for path, leaf in obs):
            raise EnvError(
                f"--{other}_obs_keys leaves the {reader} no observation: leave out one of {', '.join(reader_of)}"
            )
    return tuple((path, dataclasses.replace(leaf, sole_reader=reader_of.get(path))) for path, leaf in obs)


def masked_heads(path: str, actions: Sequence[ActionHead]) -> list[DiscreteHead]:
    """The heads of the action mask ``path``: a leaf of a tree masks those at its own path, any other one all."""
    discrete = [head for head in actions if isinstance(head, DiscreteHead)]
    root, _, below = path.partition("/")
    if root == MASK_KEY and below:
        places = f"{below}/", f"{ACTION_KEY}/{below}/"
        return [head for head in discrete if f"{head.key}/".startswith(places)]
    return discrete


def _with_heads(obs: ObsSpec, actions: Sequence[ActionHead]) -> ObsSpec:
    """The observations; action masks with the heads that they mask, or with none if they do not fit them."""

    def heads(path: str, leaf: TensorSpec) -> tuple[int, ...]:
        sizes = tuple(head.n for head in masked_heads(path, actions)) if leaf.is_mask else ()
        return sizes if sum(sizes) == math.prod(leaf.shape) else ()

    return tuple((path, dataclasses.replace(leaf, heads=heads(path, leaf))) for path, leaf in obs)


def _require_masks_fit(obs: ObsSpec, actions: Sequence[ActionHead]) -> None:
    mask_of: dict[str, str] = {}  # by head
    for path, leaf in (each for each in obs if each[1].is_mask):
        if not leaf.heads:
            raise EnvError(_misfit(path, leaf, actions))
        for head in masked_heads(path, actions):
            if (other := mask_of.setdefault(head.key, path)) != path:
                raise EnvError(
                    f"observations {other!r} and {path!r} both say which choices of {head.key!r} are legal: join them "
                    f"in the env, or use another layout for one of them: --obs_layout={path}=flat"
                )


def _require_choices_fit(obs: ObsSpec) -> None:
    for path, leaf in obs:
        if leaf.is_choice and (most := max(leaf.sizes)) > _MOST_VALUES:
            raise EnvError(
                f"observation {path!r} is a choice of {most:,} values, too many for a network: read it as a number "
                f"with --obs_layout={path}=flat, or leave it out with --ignore_obs_keys={path}"
            )


def _misfit(path: str, mask: TensorSpec, actions: Sequence[ActionHead]) -> str:
    heads = masked_heads(path, actions)
    listed = ", ".join(f"{head.n} of {head.key!r}" for head in heads)
    choices = f"{sum(head.n for head in heads)} choices ({listed})" if heads else "no choices"
    return (
        f"observation {path!r} of shape {mask.shape} is the mask of legal actions, and the discrete actions that it "
        f"belongs to have {choices}: correct the env, or use another layout: --obs_layout={path}=flat"
    )


def _obs_problem(where: str, space: spaces.Space[Any]) -> str:
    """Why no network here can read the leaf; '' if one can."""
    if not isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete | spaces.Discrete):
        return (
            f"observation space {where!r} is a {type(space).__name__}; supported are Box, Discrete, MultiDiscrete, "
            "MultiBinary, and Dict or Tuple of these"
        )
    if np.dtype(space.dtype).kind not in "fiub":
        return f"observation {where!r} has dtype {space.dtype}, which is not numeric"
    return "" if math.prod(space.shape or ()) else f"observation {where!r} of shape {space.shape} holds no numbers"


def _tensor_of(space: spaces.Space[Any]) -> TensorSpec:
    """How observations of a leaf are stored."""
    name = np.dtype(space.dtype).name
    return TensorSpec(tuple(map(int, space.shape or ())), _STORED.get(name, name), *_values(space))


def _values(space: spaces.Space[Any]) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """``sizes``, ``starts`` and ``categorical`` of a TensorSpec."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),), (int(space.start),), True
    if isinstance(space, spaces.MultiDiscrete):
        return _alike(np.ravel(space.nvec).tolist()), _alike(np.ravel(space.start).tolist()), True
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind in "iu":
        low, high = space.low.ravel().tolist(), space.high.ravel().tolist()
        return _alike([last - first + 1 for first, last in zip(low, high, strict=True)]), _alike(low), False
    return (), (), False


def _alike(values: list[int]) -> tuple[int, ...]:
    """The values, or one of them if all are equal."""
    return (values[0],) if len(set(values)) == 1 else tuple(values)
