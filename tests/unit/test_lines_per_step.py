"""The loops that run once per env and step do no more than they must: a few lines an env, and nothing per agent."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest

from sfactory.actor.agents_group import AgentsGroup
from sfactory.actor.env_group import EnvGroup
from sfactory.env.foreign_agents import agents_env_of
from sfactory_envs.synthetic.costfree import CostFree
from sfactory_envs.synthetic.costfree_agents import CostFreeLists, CostFreeParallel

FEW, MANY = 4, 24


def lines_of(code: CodeType, work: Callable[[], None]) -> int:
    """How many lines of ``code`` are run by ``work``."""
    lines = 0

    def local(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return local

    def tracer(frame: FrameType, event: str, _: Any) -> Any:
        return local if frame.f_code is code else None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def single(envs: int) -> int:
    group = EnvGroup([CostFree() for _ in range(envs)])
    group.reset(range(envs))
    return lines_of(EnvGroup.step.__code__, lambda: group.step([0] * envs))


def many(form: type, envs: int, agents: int) -> tuple[int, int]:
    """Lines of the group's loop, and of what makes one of such envs an AgentsEnv."""
    made = [agents_env_of(form(agents)) for _ in range(envs)]
    group = AgentsGroup([env for env in made if env is not None])
    group.reset(range(envs))

    def work() -> None:
        group.step([0] * (envs * agents))

    adaptor: Any = type(group.envs[0]).step
    return lines_of(AgentsGroup.step.__code__, work), lines_of(adaptor.__code__, work)


def test_an_ordinary_step_of_a_single_env_is_three_lines() -> None:
    assert single(MANY) - single(FEW) == 3 * (MANY - FEW)


@pytest.mark.parametrize("form", [CostFreeLists, CostFreeParallel])
def test_an_ordinary_step_of_an_env_of_many_agents_is_as_many_whatever_their_number(form: type) -> None:
    loop, adaptor = many(form, MANY, 3)
    fewer, adaptor_of_fewer = many(form, FEW, 3)

    assert loop - fewer == 3 * (MANY - FEW)
    assert (loop, adaptor) == many(form, MANY, 12)
    assert adaptor / MANY == adaptor_of_fewer / FEW
    assert adaptor / MANY <= 12
