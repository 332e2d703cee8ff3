"""Loads a saved policy into a program, which asks it for actions: ``sfactory.load``.

No process is started and no shared memory is allocated; the env is made only if it is asked for.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import secrets
import threading
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple, get_args

import gymnasium.spaces as spaces
import numpy as np
import numpy.typing as npt
import torch

from sfactory.action_heads import DiscreteHead
from sfactory.actor.previous_steps import PreviousSteps
from sfactory.checkpoint.directory import Kind
from sfactory.config.commands import ENDINGS, PolicyFlags
from sfactory.env.conversion import NO_LEGAL_ACTION, BadObservation
from sfactory.errors import CheckpointError, ConfigError, RunDirError, named
from sfactory.experiment.saved_policy import SavedPolicy, Typed
from sfactory.experiment.summary import RunResult
from sfactory.exporting.exported_policy import read_export
from sfactory.model.distributions import num_params
from sfactory.model.torch_state import OwnTorchState
from sfactory.plain_spaces import space_of_plain
from sfactory.play.action_chooser import ActionChooser
from sfactory.play.rendering import AnyEnv
from sfactory.seeds import ENV_SEED_BITS
from sfactory.spec import LAST_ACTION, LAST_REWARD, OBS_KEY, EnvSpec, key_of, leaves
from sfactory.tensor_spec import MASK_KEY, TensorSpec

Space = spaces.Space[Any]

_KEPT_SIZES = 8  # of batches that buffers are kept for

# One thread at a time reads observations and computes: calls share buffers, and torch's settings are of the process.
# A network may ask another policy meanwhile.
_COMPUTING = threading.RLock()


@dataclasses.dataclass
class PolicyState:
    """What a policy remembers of B episodes; ``act`` takes it and returns the next one.

    memory: [B, S] float32; S is 0 without memory. reward: what the last action earned, a number or [B]: set it after
    ``env.step`` for a policy that reads it (``--core_inputs reward``); no other needs it.
    """

    memory: torch.Tensor
    reward: npt.ArrayLike | None = None
    _previous: PreviousSteps | None = None
    _actions: dict[str, npt.NDArray[Any]] = dataclasses.field(default_factory=dict)


class PolicyOutput(NamedTuple):
    """What a policy's network says of B observations; tensors on the CPU, without gradients.

    parameters: {key: [B, P] float32} of the distribution of each action: n logits of a discrete one; of a continuous
    one of D numbers D means and then D log standard deviations, as the network has them: before a tanh, and where
    ``--normalize_actions`` has scaled bounds to [-1, 1], in that scale. probabilities: {key: [B, n] float32} of the
    discrete ones; 0 where a mask forbids a choice. values: [B] float32, in the unit of rewards; 0 if the critic
    alone has read some observations. state: for the next call.
    """

    parameters: dict[str, torch.Tensor]
    probabilities: dict[str, torch.Tensor]
    values: torch.Tensor
    state: PolicyState


class Policy:
    """A saved policy. It acts on the CPU, for observations as the run's env gives them, in the run's wrappers.

    observation_space, action_space: of the env, or of one of its agents. saved: the run's config and the weights.
    """

    def __init__(self, saved: SavedPolicy, seed: int | None = None) -> None:
        """``seed``: of the actions that are drawn. Raises CheckpointError as ``load``."""
        spec = saved.state.spec
        if spec is None or not spec.plain_spaces:
            raise CheckpointError(
                f"{saved.checkpoint} is of an older version, which did not save the spaces of the env: resume the run "
                "for some steps, which saves them, or play it with python -m sfactory.enjoy"
            )
        self.saved, self._spec = saved, spec
        with _COMPUTING:
            self._model = saved.model(spec)
            with OwnTorchState(), torch.random.fork_rng(devices=()):
                torch.manual_seed(secrets.randbits(62) if seed is None else seed)
                self._model.draw_privately()
        try:
            self._observed, chosen = map(space_of_plain, spec.plain_spaces)
            self.observation_space, self.action_space = _spaces_of_kind(spec, self._observed, chosen)
        except (AssertionError, KeyError, ValueError) as error:
            raise CheckpointError(f"{saved.checkpoint} does not hold the spaces of an env: {named(error)}") from error
        self._choosers: dict[tuple[int, bool], ActionChooser] = {}
        found, of_model = [path for path, _ in leaves(self._observed)], dict(spec.obs)
        # Other leaves may be anything, as texts are; batches are counted in the first.
        self._leaves = {path: of_model[key_of(path, OBS_KEY)] for path in found if key_of(path, OBS_KEY) in of_model}
        self._counted = next(iter(self._leaves))

    def __getstate__(self) -> dict[str, Any]:
        """Without buffers, so that a policy can be sent to another process."""
        return {**vars(self), "_choosers": {}}

    def act(
        self, obs: Any, state: PolicyState | None = None, *, deterministic: bool = False
    ) -> tuple[Any, PolicyState]:
        """An action for one observation, as the env takes it, and the state for the next one.

        state: what the last call returned; None at the start of an episode. deterministic: the most probable action
        instead of a random one. Raises BadObservation, a ValueError, if ``obs`` is not of ``observation_space``, holds
        NaN or infinity, or has an action mask that allows nothing.
        """
        try:
            actions, state = self._chosen([obs], state, None, deterministic)
        except BadObservation as error:
            raise self._explained(error, [obs]) from None
        return actions[0], state

    def act_batch(
        self,
        observations: Any,
        state: PolicyState | None = None,
        *,
        first: npt.ArrayLike | None = None,
        deterministic: bool = False,
    ) -> tuple[Any, PolicyState]:
        """Actions for B observations, each of an episode of its own; otherwise as ``act``.

        observations: a list of B, for which a list of actions is returned, or a batch as a vector env gives it ([B,
        ...], or a Dict or tuple of these), for which a batch is. first: [B] bool - which begin an episode.
        """
        try:
            return self._chosen(observations, state, first, deterministic)
        except BadObservation as error:
            raise self._explained(error, observations, may_be_one=True) from None

    def forward(
        self, observations: Any, state: PolicyState | None = None, *, first: npt.ArrayLike | None = None
    ) -> PolicyOutput:
        """What the network says of B observations, of which it chooses no action; arguments as in ``act_batch``."""
        try:
            with _COMPUTING:
                _, obs, memory, previous = self._read(observations, state, first, acts=False)
                with OwnTorchState(), torch.no_grad():  # inference tensors could be no target of a gradient
                    params, values, memory = self._model.forward(obs, memory)
                    memory = memory.clone()  # it may be a view of the observations, see ActionChooser
        except BadObservation as error:
            raise self._explained(error, observations, may_be_one=True) from None
        heads = self._spec.actions
        pieces = torch.split(params, [num_params((head,)) for head in heads], dim=-1)
        parameters = {head.key: piece for head, piece in zip(heads, pieces, strict=True)}
        discrete = [head.key for head in heads if isinstance(head, DiscreteHead)]
        probabilities = {key: parameters[key].softmax(-1) for key in discrete}
        return PolicyOutput(parameters, probabilities, values, PolicyState(memory, None, previous))

    def make_env(self, render_mode: str | None = None, **env_kwargs: Any) -> AnyEnv:
        """The run's env in the run's wrappers, with ``env_kwargs`` beside those of the run.

        A vector env that is seeded when it is made gets a random seed, unless ``env_kwargs`` have one.
        Raises ConfigError if only the run's files name its code, unless the policy was loaded with trust_run_dir=True.
        """
        factory = self.saved.env_factory(self.saved.wanted)
        seed = secrets.randbits(ENV_SEED_BITS)
        if factory.makes_vectors:
            seed = env_kwargs.pop("seed", seed)
        return dataclasses.replace(factory, kwargs={**factory.kwargs, **env_kwargs}).either(render_mode, seed)

    def _chosen(
        self, observations: Any, state: PolicyState | None, first: npt.ArrayLike | None, deterministic: bool
    ) -> tuple[Any, PolicyState]:
        with _COMPUTING:
            chooser, obs, memory, previous = self._read(observations, state, first)
            chosen = chooser.act(obs, memory, deterministic)
        return chosen.actions, PolicyState(chosen.state, None, previous, chosen.rows)

    def _read(
        self, observations: Any, state: PolicyState | None, first: npt.ArrayLike | None, acts: bool = True
    ) -> tuple[ActionChooser, dict[str, torch.Tensor], torch.Tensor, PreviousSteps | None]:
        """What reads the observations, these as the model takes them, the memory and the steps before them."""
        in_batches = not isinstance(observations, list)
        shown = self._shown(observations) if in_batches else [self._shown(obs) for obs in observations]
        if not (size := self._size(shown) if in_batches else len(observations)):
            raise ValueError("there is no observation to act for: give at least one")
        memory = self._model.fresh_state(size) if state is None else state.memory
        if len(memory) != size:
            raise ValueError(f"the state is of {len(memory)} episodes, and there are {size} observations")
        begins = np.zeros(size, bool) if first is None else np.broadcast_to(np.asarray(first, bool), (size,))
        if begins.any():
            memory = torch.where(torch.from_numpy(begins.copy()).unsqueeze(-1), 0.0, memory)
        previous, chooser = self._before(state, size, begins), self._chooser(size, in_batches)
        obs = chooser.read(shown, previous)
        for row, flaw in sorted(chooser.flaws(shown).items()):
            if not acts and flaw.text == NO_LEGAL_ACTION:
                continue
            where = f" of row {row}" if size > 1 else ""
            advice = ": a row that needs no action may be any valid observation" if where else ""
            raise BadObservation(f"observation {flaw.key!r}{where} {flaw.text}{advice}")
        return chooser, obs, memory, previous

    def _size(self, batch: Any) -> int:
        """B of a batch; raises BadObservation if it has none."""
        try:
            return len(reduce(getitem, self._counted, batch))
        except (LookupError, TypeError) as error:
            key = key_of(self._counted, OBS_KEY)
            raise BadObservation(f"the batch has no observations {key!r} of several rows ({named(error)})") from error

    def _explained(self, error: BadObservation, observations: Any, may_be_one: bool = False) -> BadObservation:
        """What is wrong with the shapes that a program gave, in place of ``error``, which is of envs; else ``error``.

        may_be_one: ``observations`` may be a single one, which ``act`` takes.
        """
        shown = self._shown(observations)
        if may_be_one and self._rows_of(shown) == ():
            return BadObservation("this is one observation: give it to act, or as [obs] to act_batch and forward")
        if isinstance(observations, list):
            return next(filter(None, map(self._misfit_of_one, observations)), error)
        rows: tuple[int, ...] = ()
        with contextlib.suppress(Exception):  # objects of a program may raise anything when they are read
            rows = np.shape(reduce(getitem, self._counted, shown))[:1]
        return self._misfit(shown, rows) or error

    def _misfit_of_one(self, observation: Any) -> BadObservation | None:
        shown = self._shown(observation)
        if rows := self._rows_of(shown):
            return BadObservation(f"this is a batch of {rows[0]} observations: give it to act_batch")
        return self._misfit(shown, ())

    def _misfit(self, shown: Any, rows: tuple[int, ...]) -> BadObservation | None:
        """The first observation of another shape than that of the policy's, in ``rows``, or another dtype."""
        for path, leaf in self._leaves.items():
            if flaw := _flaw(shown, path, leaf, rows):
                return BadObservation(f"observation {key_of(path, OBS_KEY)!r} {flaw}")
        return None

    def _rows_of(self, shown: Any) -> tuple[int, ...] | None:
        """(B,) if all that is read has the shapes of a batch of B, () if those of one observation; else None."""
        found = set[tuple[int, ...] | None]()
        for path, leaf in self._leaves.items():
            try:
                shape = np.shape(reduce(getitem, path, shown))
            except Exception:  # see ``_explained``
                return None
            rows = shape[: len(shape) - len(leaf.shape)]
            found.add(rows if len(rows) <= 1 and shape == (*rows, *leaf.shape) else None)
        return found.pop() if len(found) == 1 else None

    def _before(self, state: PolicyState | None, size: int, begins: npt.NDArray[np.bool_]) -> PreviousSteps | None:
        """The last actions and rewards, for a policy that reads them. The state stays as it is."""
        if state is None or state._previous is None or begins.all():
            return PreviousSteps.of(self._spec, size)
        previous, read = copy.deepcopy(state._previous), [path for path, leaf in self._spec.obs if leaf.is_core_input]
        if state.reward is None and LAST_REWARD in read:
            raise ValueError("the policy reads the last reward: set state.reward after env.step")
        if not state._actions and LAST_ACTION in read:
            raise ValueError("the policy reads the last action, and forward chooses none: go on from the state of act")
        rewards = np.broadcast_to(np.asarray(0.0 if state.reward is None else state.reward, float), (size,))
        with np.errstate(all="ignore"):  # whatever an env has set
            previous.record(state._actions, rewards, (), np.flatnonzero(begins).tolist())
        return previous

    def _chooser(self, size: int, in_batches: bool) -> ActionChooser:
        """Kept for the last few sizes, as most programs ask for batches of no more."""
        key = size, in_batches
        chooser = self._choosers.pop(key, None)
        if chooser is None:
            chooser = ActionChooser(
                *(self._model, self._spec, self._observed, self.action_space, size),
                in_batches=in_batches,
                prefix=self._spec.part_of,
            )
        self._choosers[key] = chooser  # in the order of their last use
        if len(self._choosers) > _KEPT_SIZES:
            del self._choosers[next(iter(self._choosers))]
        return chooser

    def _shown(self, obs: Any) -> Any:
        """The observation, or batch, of an agent as NOTE [Unequal agents] has it."""
        kind = self._spec.part_of
        if not kind:
            return obs
        masked = isinstance(obs, dict) and MASK_KEY in obs
        return {kind: obs, MASK_KEY: {kind: obs[MASK_KEY]}} if masked else {kind: obs}


def _flaw(shown: Any, path: tuple[object, ...], leaf: TensorSpec, rows: tuple[int, ...]) -> str:
    """How what is at ``path`` of one observation, or of a batch of (B,) ``rows``, differs from that of training."""
    try:
        array = np.asarray(reduce(getitem, path, shown))
    except Exception as error:  # objects of a program may raise anything when they are read
        return f"is missing or no array: {named(error)}"
    if array.shape == (*rows, *leaf.shape) and np.can_cast(array.dtype, leaf.dtype, "same_kind"):
        return ""
    each = f" in each of {rows[0]} rows" if rows else ""
    here = f"has shape {array.shape} and dtype {array.dtype}"
    return f"{here}, and the policy was trained with {leaf.shape} and {leaf.dtype}{each}"


def load(
    path: str | Path | RunResult,
    policy: int = 0,
    kind: Kind = "latest",
    *,
    trust_run_dir: bool = False,
    seed: int | None = None,
) -> Policy:
    """The policy that a run saved.

    path: the folder of a run, a checkpoint file in it, or a safetensors file of ``python -m sfactory.export``; or what
        ``sfactory.train`` has returned, whose code is trusted. policy, kind: which of a run: the number of the policy,
        and its newest, best or newest milestone checkpoint.
    trust_run_dir: True imports networks of your own that the files name as module:Class. seed: of the actions.

    Raises:
        RunDirError, CheckpointError: there is no such run or checkpoint, it is damaged, or of an older version.
        ConfigError: the files name code, and trust_run_dir is False; there is no such policy or kind; or the file is an
            export for other programs.
    """
    return Policy(find_saved(path, policy, kind, trust_run_dir), seed)


def find_saved(
    path: str | Path | RunResult, policy: int = 0, kind: Kind = "latest", trust_run_dir: bool = False
) -> SavedPolicy:
    """What a path leads to, as ``load`` takes it. Raises as ``load``."""
    if kind not in get_args(Kind):
        raise ConfigError([f"kind={kind!r}: must be one of {', '.join(get_args(Kind))}"])
    if isinstance(path, RunResult):  # this program has named, or trusted, all code of the run
        path, trust_run_dir = path.run_dir, True
    path = Path(path).expanduser()
    try:
        if path.is_file():
            if policy or kind != "latest":
                raise ConfigError([f"{path} holds one policy; leave out policy and kind"])
            form = next((form for form, ending in ENDINGS.items() if ending == path.suffix), "")
            if form == "safetensors":
                return read_export(path, trust_run_dir)
            if form:
                advice = "load the run, or a file of python -m sfactory.export --format=safetensors"
                raise ConfigError([f"{path} is for other programs, as of an export with --format={form}; {advice}"])
            return SavedPolicy.of_file(path, trust_run_dir)
        if not path.is_dir():
            raise RunDirError(f"{path}: there is no such folder of a run, checkpoint or exported file in {Path.cwd()}")
        run = path.absolute()
        wanted = PolicyFlags(run.name, str(run.parent), kind, policy_index=policy, trust_run_dir=trust_run_dir)
        return SavedPolicy.load(wanted, typed=Typed(str(path), "policy={}".format, 'kind="{}"'.format))
    except ConfigError as error:
        problems = [problem.replace("--trust_run_dir", "trust_run_dir") for problem in error.problems]
        raise ConfigError(problems) from error.__cause__


def _spaces_of_kind(spec: EnvSpec, observed: Space, chosen: Space) -> tuple[Space, Space]:
    """The spaces of an agent; where agents are unequal, as its env has them."""
    kind = spec.part_of
    if not kind:
        return observed, chosen
    assert isinstance(observed, spaces.Dict)
    assert isinstance(chosen, spaces.Dict)
    own, masks = observed.spaces[kind], observed.spaces.get(MASK_KEY)
    if isinstance(masks, spaces.Dict) and kind in masks.spaces:
        assert isinstance(own, spaces.Dict)
        own = spaces.Dict([*own.spaces.items(), (MASK_KEY, masks.spaces[kind])])
    return own, chosen.spaces[kind]
