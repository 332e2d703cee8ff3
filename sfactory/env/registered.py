"""Makes envs by ids that Gymnasium has registered, and says what is wrong with an id that it has not."""

from __future__ import annotations

import copy
import importlib
from typing import TYPE_CHECKING, Any

from sfactory.config.flags import did_you_mean
from sfactory.config.import_strings import import_current_directory
from sfactory.errors import EnvError, named
from sfactory.packages import env_plugin

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

    Env = gymnasium.Env[Any, Any]

_SHOWN_IDS = 5


def make_gymnasium_env(env_id: str, typed: str = "", /, **kwargs: object) -> Env:
    """``gymnasium.make`` without the two wrappers that only check the caller's code.

    On CartPole-v1, PassiveEnvChecker takes 0.7 us and OrderEnforcing 0.3 us of a 7.3 us step; envs are checked before
    the run starts. TimeLimit stays because it truncates episodes. ``kwargs`` are those of gymnasium.make, such as
    ``max_episode_steps``. Env families may use this function too; ``typed``: what ``--env`` says, if not ``env_id``.
    """
    import gymnasium

    spec = copy.copy(registered_spec(env_id, typed))
    spec.order_enforce = False
    options: dict[str, Any] = {"disable_env_checker": True, **kwargs}
    env: Env = gymnasium.make(spec, **options)
    return env


def registered_spec(env_id: str, typed: str = "") -> EnvSpec:
    """What Gymnasium has registered for an id, or for ``module:Id`` after importing the module.

    Raises EnvError, which names ``typed`` as what ``--env`` says, if the id is not registered.
    """
    import gymnasium
    from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id, registry

    import_current_directory()
    typed, (module, colon, bare_id) = typed or env_id, env_id.rpartition(":")
    namespace, name, version = parse_env_id(bare_id)
    if colon:
        importlib.import_module(module)
    elif bare_id not in registry and (plugin := env_plugin(namespace)) is not None:
        module = plugin.module
        plugin.load()()
    if version is None:  # take the highest one, as gymnasium.make does
        version = find_highest_version(namespace, name)
    try:
        return gymnasium.spec(get_env_id(namespace, name, version))
    except gymnasium.error.UnregisteredEnv as error:
        if not module:  # the flag was checked in main, where it is registered
            raise EnvError(
                f"--env={typed}: {named(error)} in the process that makes the env; call gymnasium.register in a "
                f"module, and name that, too: --env=my_envs:{env_id}"
            ) from None
        start = module.partition(".")[0]
        own = [known.id for known in registry.values() if _module_of(known.entry_point).partition(".")[0] == start]
        near = did_you_mean(bare_id, own or registry, prefix=typed.removesuffix(bare_id))
        others = f"; it has registered {', '.join(own[:_SHOWN_IDS])}" if own and not near else ""
        raise EnvError(f"--env={typed}: importing {module} has not registered {bare_id}{near or others}") from None


def _module_of(entry_point: object) -> str:
    """The module of what makes an env: of text such as ``module:Class``, or of the class itself."""
    return (
        entry_point.partition(":")[0] if isinstance(entry_point, str) else str(getattr(entry_point, "__module__", ""))
    )
