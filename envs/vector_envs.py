"""Makes vector envs, ``vector:ID`` and ``envpool:ID``, Procgen's among them, and gives defaults of flags for them.

``vector:CartPole-v1``, ``vector:ALE/Breakout-v5`` and ``vector:package:Id-v0`` are vector forms that Gymnasium has
registered for the id (its ``vector_entry_point``), after importing the package if one is named;
``envpool:Breakout-v5`` is EnvPool's. Defaults of flags are those of the family of the id.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfactory.errors import EnvError
from sfactory.packages import lack_of

from .atari import FAMILY as ATARI
from .atari.games import lacks_sticky_actions, rom_of
from .procgen import DEFAULTS, IDS
from .registered import PrefixedFamily, require_frameskip

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

# Rewards are raw: the learner clips them. One thread, since actors share the cores. Ids of ale-py have sticky actions.
_ALE_KWARGS: Mapping[str, object] = {"reward_clipping": False, "num_threads": 1, "repeat_action_probability": 0.0}

# Games of EnvPool beyond the 57, as its ids write them.
_MORE_GAMES = (
    *("Adventure", "AirRaid", "Atlantis2", "Backgammon", "BasicMath", "Blackjack", "Carnival", "Casino"),
    *("Crossbow", "Darkchambers", "DonkeyKong", "Earthworld", "ElevatorAction", "Entombed", "Et", "FlagCapture"),
    *("Frogger", "Galaxian", "Hangman", "HauntedHouse", "HumanCannonball", "JourneyEscape", "Kaboom"),
    *("KeystoneKapers", "KingKong", "Klax", "Koolaid", "LaserGates", "LostLuggage", "MarioBros"),
    *("MiniatureGolf", "MrDo", "Othello", "Pacman", "Pitfall2", "Pooyan", "SirLancelot", "SpaceWar", "Superman"),
    *("Tetris", "TicTacToe3d", "Trondead", "Turmoil", "VideoCheckers", "VideoChess", "VideoCube", "WordZapper"),
)

# EnvPool's scenarios of VizDoom, which hold an action for several frames.
_DOOM = frozenset(
    f"{scenario}-v1"
    for scenario in (
        *("Basic", "BasicAudio", "BasicNotifications", "Cig", "D1Basic", "D2Navigation", "D3Battle", "D4Battle2"),
        *("DeadlyCorridor", "Deathmatch", "DefendTheCenter", "DefendTheLine", "HealthGathering"),
        *("HealthGatheringSupreme", "MultiDuel", "MyWayHome", "PredictPosition", "RocketBasic", "SimplerBasic"),
        *("TakeCover", "VizdoomCustom"),
    )
)


def _is_atari(env_id: str) -> bool:
    """Whether an id is a game of ale-py, or one of Atari as EnvPool writes it."""
    is_one_of_the_57 = rom_of(env_id) is not None or rom_of(f"ALE/{env_id}") is not None
    return is_one_of_the_57 or env_id.startswith("ALE/") or env_id.removesuffix("-v5") in _MORE_GAMES


def _of_game(
    env_name: str, is_atari: bool, skips: str, env_frameskip: int, kwargs: Mapping[str, object]
) -> dict[str, object]:
    """The arguments that make a game that of the Atari family, and ``kwargs``; others have these, and use every frame.

    skips: what the package calls the frameskip. Both packages press the fire button at a reset, unless asked not to.
    """
    if is_atari:
        require_frameskip(env_name, env_frameskip, skips, kwargs)
        return {skips: env_frameskip, "use_fire_reset": False, **kwargs}
    if env_frameskip != 1:
        raise EnvError(f"--env={env_name}: takes every frame; leave out --env_frameskip={env_frameskip}")
    return {**kwargs}


class _VectorFamily(PrefixedFamily):
    """A family of vector envs, each with the flags of its id."""

    def defaults(self, env_name: str) -> Mapping[str, object]:
        """Flags with which the environment learns."""
        from sfactory.env.vector import defaults_of_form

        env_id = env_name.removeprefix(self.prefix)
        return ATARI.defaults(env_id) if _is_atari(env_id) else defaults_of_form(env_id)


@dataclass(frozen=True)
class RegisteredVectors(_VectorFamily):
    """The family of vector envs that are registered with Gymnasium."""

    def flag_warnings(self, env_name: str, flags: Mapping[str, object]) -> Sequence[str]:
        """Says of an id of ale-py, which has sticky actions, that this env has none."""
        env_id = env_name.rpartition(":")[2]
        if not (_is_atari(env_id) and lacks_sticky_actions(env_id, flags)):
            return ()
        return (
            f"--env={env_name}: made as games of the Atari family, without the sticky actions (0.25) that ale-py has "
            """for this id; --env_kwargs='{"repeat_action_probability": 0.25}' has them""",
        )

    def make(
        self, env_name: str, *, num_envs: int, env_frameskip: int = 1, **kwargs: object
    ) -> VectorEnv[Any, Any, Any]:
        """``num_envs`` of them in one. Raises EnvError if the id has no vectorized form, or one that is not drawn."""
        import gymnasium

        from sfactory.env.registered import registered_spec

        env_id = env_name.removeprefix(self.prefix)
        if _is_atari(env_id):
            if lack := lack_of(ATARI.modules, ATARI.extra):
                raise EnvError(f"--env={env_name}: {lack}")
            gymnasium.register_envs(importlib.import_module("ale_py"))
        spec = registered_spec(env_id, env_name)
        if spec.vector_entry_point is None:
            raise EnvError(
                f"--env={env_name}: Gymnasium has no vectorized form of {env_id}; --env={env_id} steps them one by one"
            )
        is_atari = str(spec.vector_entry_point).startswith("ale_py.")
        if is_atari and kwargs.pop("render_mode", None) is not None:
            play = f"add --env={spec.id} to play that one, or " if ATARI.matches(spec.id) else ""
            flags = "--save_video, --render=window or --eval_video"
            raise EnvError(f"--env={env_name}: ale-py's vector form cannot be drawn: {play}leave out {flags}")
        options: dict[str, Any] = {**_ALE_KWARGS} if is_atari else {}
        options |= _of_game(env_name, is_atari, "frameskip", env_frameskip, kwargs)
        return gymnasium.make_vec(spec.id, num_envs=num_envs, vectorization_mode="vector_entry_point", **options)


@dataclass(frozen=True)
class EnvPool(_VectorFamily):
    """The family of EnvPool's environments."""

    code_kwargs: tuple[str, ...] = ("path", "args")  # of the game that VizDoom starts, and of its files

    def matches(self, env_name: str) -> bool:
        """Whether ``env_name`` begins with the prefix, and is no game of Procgen."""
        return super().matches(env_name) and not PROCGEN.matches(env_name)

    def warnings(self, env_name: str) -> Sequence[str]:
        """Says of VizDoom that its frames are not counted."""
        if env_name.removeprefix(self.prefix) not in _DOOM:
            return ()
        return (
            f"--env={env_name} holds an action for frame_skip frames (of --env_kwargs, 4 by default), which are not "
            "counted: its frames, as of --train_for_frames and in summary.json, are env steps",
        )

    def make(
        self, env_name: str, *, num_envs: int, seed: int = 0, env_frameskip: int = 1, **kwargs: object
    ) -> VectorEnv[Any, Any, Any]:
        """``num_envs`` of them in one pool with one thread. Raises EnvError if EnvPool has no such id."""
        from .seeded_pool import SeededPool

        envpool: Any = importlib.import_module("envpool")
        env_id = env_name.removeprefix(self.prefix)
        if env_id not in envpool.list_all_envs():
            raise EnvError(f"--env={env_name}: EnvPool has no {env_id}; envpool.list_all_envs() names what it has")
        options: dict[str, Any] = {"num_threads": 1, "env_type": "gymnasium", "num_envs": num_envs}
        options |= _of_game(env_name, _is_atari(env_id), "frame_skip", env_frameskip, kwargs)
        return SeededPool(functools.partial(envpool.make, env_id, **options), seed)


@dataclass(frozen=True)
class Procgen(EnvPool):
    """The family of Procgen's games, which EnvPool makes."""

    def matches(self, env_name: str) -> bool:
        """Whether ``env_name`` is a game in a mode that it has."""
        return env_name in self.names()

    def defaults(self, env_name: str) -> Mapping[str, object]:
        """The same for all games."""
        return self.flags


VECTOR = RegisteredVectors("vector", "vector:", ("CartPole-v1", "ALE/Breakout-v5"))
_ROWS = {"envpool:HalfCheetah-v4": ("halfcheetah_envpool",), "envpool:Breakout-v5": ("breakout_envpool",)}
_IN_POOL: Mapping[str, Any] = {"prefix": "envpool:", "modules": ("envpool",), "extra": "envpool"}
ENVPOOL = EnvPool(
    "envpool", suggested=("CartPole-v1", "Breakout-v5", "HalfCheetah-v4", "HalfCheetah-v5"), rows=_ROWS, **_IN_POOL
)
PROCGEN = Procgen("procgen", suggested=IDS, flags=DEFAULTS, rows={"envpool:CoinrunEasy-v0": ("coinrun",)}, **_IN_POOL)
