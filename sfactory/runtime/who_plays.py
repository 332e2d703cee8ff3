"""Room: whether a mapping of policies can be used, before anything starts. In: config, plan. Out: an error, or not.

The first episode of every env is asked for: what is wrong with all answers is found here, what is wrong with some later
ones ends the actor that got them.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from sfactory.actor.casting import SOLE_AGENT, MappedDraw, Mapping
from sfactory.config.flags import assigned
from sfactory.config.references import Unresolved, find_callable
from sfactory.config.schema import Config
from sfactory.errors import ConfigError, named, raised_at
from sfactory.runtime.plan import Plan
from sfactory.runtime.stdout import stdout_to_stderr


def require_mapping(config: Config, plan: Plan) -> None:
    """Raise ConfigError, or EnvError of ``MappedDraw``, unless ``--policy_mapping`` gives policies."""
    layout, name = plan.layout, config.population.policy_mapping
    if layout.num_policies == 1 or layout.mapping != "function":
        return
    flag = assigned("policy_mapping", name)
    try:
        with stdout_to_stderr():  # modules may print when they are imported
            function = cast(Mapping, find_callable(name))
    except Unresolved as error:
        raise ConfigError([f"{flag}: {error}"]) from error.__cause__
    draw = MappedDraw(name, function, plan.spec.agents or (SOLE_AGENT,), 0, layout.num_policies)
    nobody = np.zeros(layout.agents, np.int16)
    for env in range(layout.num_splits * layout.envs):
        try:
            draw.draw(env, 0, nobody)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ConfigError([f"{flag} raised {named(error)}{raised_at(error)} for env {env}, episode 0"]) from error
