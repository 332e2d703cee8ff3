"""Makes environments from ``--env``, ``--env_kwargs``, ``--env_frameskip`` and the flags of wrappers.

A name is looked up in this order: env family, ``module:function``, Gymnasium id. The result is a ``gymnasium.Env``, an
``AgentsEnv`` with several agents, a ``gymnasium.vector.VectorEnv`` or a ``TensorEnv``. EnvErrors say how to fix the
problem.

NOTE [Numbers of envs]: an env with a server, a port or files of its own has to know which of the run's envs it is. The
training envs are 0, 1, ... over all actors and ranks; those of actors of another machine count from 0 there. One that
is made in the place of another has its number. A vector env has that of its first env. The evaluators beside training
have the numbers that follow. An env that is made apart from these (the check before a run, check_env, enjoy, export,
match, Policy.make_env) is -1, and those of the processes of ``evaluate`` are -1, -2, ...: they may run beside training.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from sfactory.config.env_families import NUM_ENVS, ONE_BY_ONE, find_family, install_advice, lack_of_family
from sfactory.config.flags import assigned
from sfactory.config.import_strings import Unresolved, described, find_callable
from sfactory.config.schema import Config, WrapperConfig
from sfactory.env.lifecycle import draw_without_screen, warnings_stay_warnings
from sfactory.env.registered import make_gymnasium_env
from sfactory.env.tensor_makers import DEVICE, advice_for, lacks_parameters, misfit, says_tensors
from sfactory.env.training_info import set_training_info
from sfactory.errors import EnvError, Passing, named, raised_at
from sfactory.packages import missing_module

if TYPE_CHECKING:
    import gymnasium

    from sfactory.env.multi_agent import AgentsEnv
    from sfactory.env.tensor_env import TensorEnv
    from sfactory.env.vector import VectorEnv

    Env = gymnasium.Env[Any, Any]

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_FRAMESKIP, _SEED, _INDEX = "env_frameskip", "seed", "env_index"
_NOT_TRAINED = -1
_RENDER_MODE, IMAGES = "render_mode", "rgb_array"
# Metadata key of an env; True if observations depend on env_frameskip, for example as stacked frames.
SPANS_FRAMES = "observation_spans_frames"
# Key of the info of an episode's last step; True if the next reset without a seed goes on with the same game.
GAME_CONTINUES = "game_continues"
_OF_AGENTS = ("obs_grey", "obs_resize", "env_framestack", "flatten_obs")  # flags that change what an agent sees


@dataclass(frozen=True)
class Maker:
    """Makes the environments of one name.

    title: its name in errors
    parameters: parameters that can be passed by name
    own_parameters: True if these are all, with ``render_mode``, as of a user's function; False if it passes others on
    makes_tensors: True if it makes TensorEnvs; it then gets the arguments num_envs and device
    takes_any: True if it has ``**kwargs``, and so may pass ``render_mode`` on
    own_wrappers: by flag of wrappers, the argument for what its envs do themselves
    """

    title: str
    make: Callable[..., object]
    parameters: Mapping[str, inspect.Parameter]
    own_parameters: bool
    makes_tensors: bool = False
    own_wrappers: Mapping[str, str] = field(default_factory=dict)
    takes_any: bool = False


def find_maker(env_name: str) -> Maker:
    """The maker of ``env_name``; raises EnvError if its module or a package that it needs is missing."""
    family = find_family(env_name)
    if family is not None:
        if lack := lack_of_family(family):
            raise EnvError(f"--env={env_name}: {lack}")
        make, tensors = functools.partial(family.make, env_name), bool(getattr(family, "makes_tensors", False))
        parameters, own = _parameters(family.make), getattr(family, "own_wrappers", {})
        return Maker(f"env family {family.name!r}", make, parameters, False, tensors, own)
    _, colon, function = env_name.partition(":")
    if colon and function.isidentifier():
        try:
            factory = find_callable(env_name)
        except Unresolved as error:
            raise EnvError(f"--env={env_name}: {error}") from error.__cause__
        takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in _signature(factory).values())
        return Maker(env_name, factory, _parameters(factory), True, says_tensors(factory), takes_any=takes_any)
    return Maker("gymnasium.make", functools.partial(make_gymnasium_env, env_name), {}, own_parameters=False)


def _parameters(factory: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """Parameters that can be passed to ``factory`` by name."""
    return {name: parameter for name, parameter in _signature(factory).items() if parameter.kind in _BY_NAME}


def _signature(factory: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some builtins have no signature, so their parameters are unknown
        return {}


@dataclass(frozen=True)
class EnvFactory:
    """Makes the environments of a run. Picklable, so that it can be sent to actor processes.

    ``env_frameskip`` is passed on if the family's ``make`` or the function has a parameter of this name, so that one
    flag both sets frame skipping and counts the skipped frames. An env with several frames in one observation sets
    SPANS_FRAMES in its metadata. info_action_mask: the flag; "auto" is for the probe, which finds out. obs_layout: the
    flag, which may name masks. wrappers: see NOTE [Order of wrappers]. device: of TensorEnvs. env_index: for a
    parameter of this name, see NOTE [Numbers of envs]. env_steps: that training has made, for ``set_training_info``.

    All methods raise EnvError if the env cannot be made or has the wrong type; its cause is the maker's exception.
    """

    name: str
    kwargs: Mapping[str, object] = field(default_factory=dict)
    env_frameskip: int = 1
    info_action_mask: str = "off"
    wrappers: WrapperConfig = field(default_factory=WrapperConfig)
    device: str = "cpu"
    env_index: int = _NOT_TRAINED
    env_steps: int = 0
    obs_layout: tuple[str, ...] = ()

    @staticmethod
    def of(config: Config) -> EnvFactory:
        """The factory that the flags describe."""
        run, sampling = config.run, config.sampling
        kwargs, frameskip, masks = dict(run.env_kwargs), sampling.env_frameskip, sampling.info_action_mask
        layouts = config.model.obs_layout
        return EnvFactory(run.env, kwargs, frameskip, masks, config.wrappers, obs_layout=layouts)

    @property
    def makes_vectors(self) -> bool:
        """True if the maker returns vector envs, because it has a parameter ``num_envs``."""
        return NUM_ENVS in find_maker(self.name).parameters

    @property
    def makes_tensors(self) -> bool:
        """True if the maker returns TensorEnvs, which it says itself: see ``Maker``."""
        return find_maker(self.name).makes_tensors

    def __call__(self, render_mode: str | None = None) -> Env:
        """Make one single-agent environment."""
        import gymnasium

        env = self.either(render_mode)
        if not isinstance(env, gymnasium.Env):
            raise self._error(f"has {len(env.agents)} agents, where one of one agent is needed")
        return env

    def agents(self) -> AgentsEnv:
        """Make one multi-agent environment."""
        from sfactory.env.multi_agent import AgentsEnv

        env = self.either()
        if not isinstance(env, AgentsEnv):
            raise self._error("made an env of one agent where it had made one of many")
        return env

    def either(self, render_mode: str | None = None, seed: int = 0) -> Env | AgentsEnv:
        """Make one single-agent or multi-agent environment. A maker of vector envs makes one of size 1, as an Env.

        seed: of a vector env, as for ``vector``.
        """
        import gymnasium

        if IMAGES in (render_mode, self.kwargs.get(_RENDER_MODE)):
            draw_without_screen()  # before the import of a package that reads it
        maker = find_maker(self.name)
        if NUM_ENVS in maker.parameters:
            from sfactory.env.vector import SoleEnv

            return SoleEnv(self.vector(1, seed, render_mode))
        env = _informed(self._in_own_wrappers(self._made_by(maker, self._arguments(maker, render_mode))), self)
        if (many := self._adapted(env)) is not None:
            self._require_own_wrappers_alone("has many agents", *_OF_AGENTS)
            return cast("AgentsEnv", self._wrapped(many, maker))
        if isinstance(env, gymnasium.vector.VectorEnv):
            raise self._error(
                f"{maker.title} returned a vector env, {described(env)}; give it a parameter num_envs: how many envs "
                "it is to have"
            )
        if not isinstance(env, gymnasium.Env):
            raise self._error(
                f"{maker.title} returned {described(env)}; it must return an instance of gymnasium.Env (the package "
                f"gymnasium, not the older gym), or an env of many agents (docs/multi_agent.md){advice_for(env)}"
            )
        env = cast("Env", self._wrapped(env, maker))
        if self.info_action_mask != "on":
            return env
        from sfactory.env.info_masks import InfoMaskEnv

        return InfoMaskEnv(env)

    def vector(self, num_envs: int, seed: int, render_mode: str | None = None) -> VectorEnv:
        """Make one vector env of ``num_envs`` environments.

        A parameter ``seed`` of the maker gets ``seed``, because some vector envs can only be seeded here.
        """
        maker = find_maker(self.name)
        kwargs = self._arguments(maker, render_mode) | {NUM_ENVS: num_envs}
        if _SEED in maker.parameters:
            if _SEED in kwargs:  # all vector envs of a run would be the same
                raise self._error("leave seed out of --env_kwargs: --seed gives each vector env one of its own")
            kwargs[_SEED] = seed
        return self._vector_env(maker, kwargs)

    def tensors(self, num_envs: int) -> TensorEnv:
        """Make one TensorEnv of ``num_envs`` environments on ``device``."""
        maker = find_maker(self.name)
        if DEVICE in self.kwargs:
            raise self._error("leave the device out of --env_kwargs: --device says where env and network are")
        return self._tensor_env(maker, self._arguments(maker, None) | {NUM_ENVS: num_envs, DEVICE: self.device})

    def _tensor_env(self, maker: Maker, kwargs: Mapping[str, object]) -> TensorEnv:
        self._require_own_wrappers_alone("is a TensorEnv")
        if maker.own_parameters and (problem := lacks_parameters(maker.parameters)):
            raise self._error(f"{maker.title}: {problem}")
        if self.info_action_mask == "on":
            raise self._error("--info_action_mask=on: a TensorEnv has no infos; action masks are observations of it")
        env: Any = self._in_own_wrappers(self._made_by(maker, kwargs))
        if problem := misfit(env, kwargs[NUM_ENVS], kwargs[DEVICE]):
            raise self._error(f"{maker.title}: {problem}")
        return cast("TensorEnv", env)

    def _arguments(self, maker: Maker, render_mode: str | None) -> dict[str, object]:
        kwargs, skipped = dict(self.kwargs), self.env_frameskip
        if maker.own_wrappers and self.wrappers.used:
            from sfactory.env.wrappers import own_arguments

            kwargs |= own_arguments(self.name, self.wrappers.used, maker.own_wrappers, kwargs)
        if _FRAMESKIP in maker.parameters and kwargs.setdefault(_FRAMESKIP, skipped) != skipped:
            raise self._error(
                f"--env_frameskip={skipped}, but --env_kwargs say env_frameskip={kwargs[_FRAMESKIP]!r}; set only "
                "--env_frameskip, which is also used to count frames"
            )
        if _INDEX in maker.parameters:
            kwargs.setdefault(_INDEX, self.env_index)
        if not maker.own_parameters:
            return kwargs if render_mode is None else {**kwargs, _RENDER_MODE: render_mode}
        mode = maker.parameters.get(_RENDER_MODE)
        is_demanded = mode is not None and mode.default is inspect.Parameter.empty
        if is_demanded or (render_mode is not None and (mode is not None or maker.takes_any)):
            kwargs.setdefault(_RENDER_MODE, render_mode)
        return kwargs

    def _made_by(self, maker: Maker, kwargs: Mapping[str, object]) -> object:
        """Call ``maker``; turn any exception into an EnvError that names the maker.

        One with ``**kwargs`` that refuses ``render_mode`` is called without it: its envs draw nothing.
        """
        try:
            with warnings_stay_warnings():
                return maker.make(**kwargs)
        except (EnvError, Passing):
            raise
        except BaseException as error:  # foreign code may raise anything, and may even call sys.exit
            was_added = maker.takes_any and _RENDER_MODE in kwargs and _RENDER_MODE not in self.kwargs
            if was_added and isinstance(error, TypeError):
                return self._made_by(maker, {name: value for name, value in kwargs.items() if name != _RENDER_MODE})
            listed = ", ".join(f"{name}={value!r}" for name, value in kwargs.items())
            call = f"{maker.title}({listed})" if maker.own_parameters else maker.title
            what, where = named(error), raised_at(error)
            if isinstance(cause := error.__cause__, ImportError):  # behind Gymnasium's DependencyNotInstalled
                if advice := install_advice(missing_module(cause)):  # then Gymnasium's own is left out
                    what = type(error).__name__
                where = f" (cause: {named(cause)}){advice}"
            may_misfit = isinstance(error, TypeError) and self.kwargs and kwargs
            fits = "; do --env_kwargs fit its parameters?" if may_misfit else ""
            if kwargs and _may_be_of_plain(self.kwargs, error):
                fits += "; tuples and arrays in env_kwargs arrive as lists, and Paths as text"
            raise self._error(f"{call} raised {what}{where}{fits}") from error

    def _in_own_wrappers(self, env: object) -> object:
        """``env``, as it was made, in the wrappers of ``--wrapper``."""
        for name in self.wrappers.wrapper:
            try:
                make = functools.partial(find_callable(name), env)
            except Unresolved as error:
                raise self._error(f"--wrapper={name}: {error}") from error.__cause__
            env = self._made_by(Maker(f"--wrapper={name}", make, {}, own_parameters=False), {})
            if not hasattr(env, "step"):
                raise self._error(f"--wrapper={name} returned {described(env)}; it must return an env")
        return env

    def _require_own_wrappers_alone(self, what: str, *fitting: str) -> None:
        for name, value in self.wrappers.used.items():
            if name not in ("wrapper", *fitting):
                raise self._error(f"{assigned(name, value)} {ONE_BY_ONE.format(what)}")

    def _wrapped(self, env: Any, maker: Maker) -> Any:
        """An Env or AgentsEnv in the wrappers of the other flags."""
        used: dict[str, Any] = {k: value for k, value in self.wrappers.used.items() if k not in maker.own_wrappers}
        if used.keys() <= {"wrapper"}:
            return env
        import gymnasium

        from sfactory.env.info_masks import shows_mask
        from sfactory.env.wrappers import WrappedAgents, wrapped

        has_masks = self.info_action_mask == "on" or shows_mask(env.observation_space, self.obs_layout)
        for name, value in used.items():
            if problem := _lack_of_wrapper(name, value, env, maker, has_masks):
                raise self._error(f"{assigned(name, value)}: {problem}")
        try:
            wrap = wrapped if isinstance(env, gymnasium.Env) else WrappedAgents
            return wrap(env, WrapperConfig(**used), self.obs_layout)
        except EnvError as error:
            raise self._error(str(error)) from error.__cause__

    def _vector_env(self, maker: Maker, kwargs: Mapping[str, object]) -> VectorEnv:
        import gymnasium

        if maker.makes_tensors:
            from sfactory.env.tensor_vector import TensorVectorEnv

            return TensorVectorEnv(self._tensor_env(maker, {DEVICE: "cpu", **kwargs}))
        self._require_own_wrappers_alone("is a vector env")
        env = _informed(self._in_own_wrappers(self._made_by(maker, kwargs)), self)
        if not isinstance(env, gymnasium.vector.VectorEnv):
            if self._adapted(env) is not None:
                raise self._error(
                    f"{maker.title} takes num_envs, and returned an env of many agents, {described(env)}; envs of many "
                    "agents are made one by one: leave num_envs out of its parameters"
                )
            raise self._error(
                f"{maker.title} takes num_envs, and returned {described(env)}; it must return an instance of "
                f"gymnasium.vector.VectorEnv (or not take num_envs){advice_for(env)}"
            )
        if env.num_envs != kwargs[NUM_ENVS]:
            raise self._error(f"{maker.title} was asked for num_envs={kwargs[NUM_ENVS]}, and returned {env.num_envs}")
        if self.info_action_mask != "on":
            return env
        from sfactory.env.info_masks import InfoMaskVectorEnv

        return InfoMaskVectorEnv(env)

    def _adapted(self, env: object) -> AgentsEnv | None:
        """``env`` as an AgentsEnv if it has several agents."""
        from sfactory.env.multi_agent_adapters import agents_env_of

        try:
            return agents_env_of(env, self.info_action_mask == "on")
        except EnvError as error:
            raise self._error(str(error)) from None

    def _error(self, text: str) -> EnvError:
        return EnvError(f"--env={self.name}: {text}")


def _informed(env: object, factory: EnvFactory) -> object:
    """``env`` of ``factory``, which knows now how far training is, if it has a method for that."""
    inform = functools.partial(set_training_info, env, factory.env_steps)
    factory._made_by(Maker("set_training_info()", inform, {}, own_parameters=False), {})
    return env


def _may_be_of_plain(kwargs: Mapping[str, object], error: BaseException) -> bool:
    """Whether an error may be that of an argument which became plain data on its way, see ``words_of``."""
    kinds, may = set(map(type, kwargs.values())), isinstance(error, AttributeError | TypeError | ValueError)
    return may and (list in kinds or (str in kinds and "'str'" in str(error)))


def _lack_of_wrapper(name: str, value: object, env: Any, maker: Maker, has_masks: bool) -> str:
    """Why the wrapper of flag ``name`` does not fit ``env``; "" if it does."""
    if name == "env_framestack" and env.metadata.get(SPANS_FRAMES):
        return "observations of this env have several frames already; leave it out"
    if name == "action_repeat" and _FRAMESKIP in maker.parameters:
        return f"this env repeats actions itself: use --env_frameskip={value}"
    if name in ("action_repeat", "sticky_actions") and has_masks:
        return "an action that is taken again may be illegal by then, as the env has action masks; leave it out"
    return ""


def make_env(
    env_name: str, env_kwargs: Mapping[str, object], render_mode: str | None = None, env_frameskip: int = 1
) -> Env:
    """Make one single-agent environment, see EnvFactory."""
    return EnvFactory(env_name, env_kwargs, env_frameskip)(render_mode)


def takes_frameskip(env_name: str) -> bool:
    """True if the maker of ``env_name`` gets ``--env_frameskip``; raises EnvError if it cannot be imported."""
    return _FRAMESKIP in find_maker(env_name).parameters
