"""Agents of different spaces are played by a policy for each kind, or by those that patterns of names say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sfactory.config.flags import config_of
from sfactory.config.resolve import Resolved
from sfactory.env.factory import EnvFactory
from sfactory.errors import ConfigError
from sfactory.planning.agent_policies import kinds_of_policies, with_policies_of_kinds
from sfactory.planning.plan import plan_sizes, require_mapping

SPEC = EnvFactory("tests.support.unequal_agents:Unequal").agents().spec
EQUAL = replace(SPEC, kinds=())
EXACT = "guide=0,mover_0=1,mover_1=1"


def resolved(**flags: Any) -> Resolved:
    return Resolved(config_of(flags), {}, [], frozenset())


def test_by_default_each_kind_has_a_policy() -> None:
    found = with_policies_of_kinds(resolved(), SPEC).config

    assert (found.population.num_policies, found.population.policy_mapping) == (2, EXACT)
    assert kinds_of_policies(found, SPEC) == ("guide", "mover_0")
    assert with_policies_of_kinds(resolved(), EQUAL).config == config_of({})
    own = {"num_policies": 3, "policy_mapping": "guide=2,*_0=0,mover_*=1"}
    assert with_policies_of_kinds(resolved(**own), SPEC).config == config_of(own)
    assert kinds_of_policies(config_of(own), SPEC) == ("mover_0", "mover_0", "guide")
    assert kinds_of_policies(config_of(own), EQUAL) == ()


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"num_policies": 2}, f"--num_policies=2 --policy_mapping={EXACT}"),
        ({"num_policies": 2, "policy_mapping": "m:who"}, "agents of one kind, by their names"),
        ({"num_policies": 2, "policy_mapping": "guide=0,mover_0=1"}, "no pattern fits agent 'mover_1'"),
        ({"num_policies": 2, "policy_mapping": "*=0,guide=1"}, "policy 1 plays none of guide, mover_0, mover_1"),
        ({"num_policies": 2, "policy_mapping": "*_1=1,*=0"}, "policy 0 plays 'guide' and 'mover_0', which have"),
        ({"num_policies": 2, "policy_mapping": EXACT, "with_pbt": True}, "--with_pbt: policies copy"),
        ({"num_batches_to_accumulate": 0}, "--num_batches_to_accumulate: where collection waits"),
    ],
)
def test_a_policy_plays_agents_of_one_kind(flags: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        kinds_of_policies(with_policies_of_kinds(resolved(**flags), SPEC).config, SPEC)

    assert problem in str(error.value)


def as_in_rllib(agent_id: str, episode: int, **kwargs: object) -> str:
    """A mapping with the arguments of RLlib's."""
    return "red"


def test_a_mapping_of_another_form_is_answered_with_the_form() -> None:
    config = config_of({"num_policies": 2, "policy_mapping": f"{__name__}:as_in_rllib"})

    with pytest.raises(ConfigError, match="takes 2 positional arguments but 3 were given") as error:
        require_mapping(config, plan_sizes(config, EQUAL))

    assert str(error.value).endswith("; it is called as f(agent, episode, env) and returns the number of a policy")
