"""The loops that run once per env and step do a few lines an env, and per agent at most an entry of a dict."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest

from sfactory.actor.env_batch import EnvBatch
from sfactory.actor.multi_agent_batch import MultiAgentBatch
from sfactory.env.multi_agent_adapters import agents_env_of
from sfactory_envs.synthetic.costfree import CostFree
from sfactory_envs.synthetic.costfree_agents import CostFreeLists, CostFreeParallel

FEW, MANY = 4, 24  # envs
SMALL, LARGE = 3, 12  # agents of an env
LINES_OF_AN_ENV = 3  # in the loop over envs
MOST_LINES = 12  # of an env's adaptor, but for the entries of a dict


def lines_of(code: CodeType, work: Callable[[], None]) -> int:
    """How many lines of ``code``, and of what else stands in its file, are run by ``work``."""
    lines = 0

    def local(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return local

    def tracer(frame: FrameType, event: str, _: Any) -> Any:
        return local if frame.f_code.co_filename == code.co_filename else None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def single(envs: int) -> int:
    group = EnvBatch([CostFree() for _ in range(envs)])
    group.reset(range(envs))
    return lines_of(EnvBatch.step.__code__, lambda: group.step([0] * envs))


def many(form: type, envs: int, agents: int) -> tuple[int, int]:
    """Lines of the group's loop, and of what makes one of such envs an AgentsEnv."""
    made = [agents_env_of(form(agents)) for _ in range(envs)]
    group = MultiAgentBatch([env for env in made if env is not None])
    group.reset(range(envs))

    def work() -> None:
        group.step([0] * (envs * agents))

    adaptor: Any = type(group.envs[0]).step
    return lines_of(MultiAgentBatch.step.__code__, work), lines_of(adaptor.__code__, work)


def test_an_ordinary_step_of_a_single_env_is_three_lines() -> None:
    assert single(MANY) - single(FEW) == LINES_OF_AN_ENV * (MANY - FEW)


# An interface of dicts needs an entry per agent, whoever makes it: two lines of a loop take less time than dict() and
# zip() (decision 0032), so they are counted, and no other line per agent is let in.
@pytest.mark.parametrize(("form", "lines_per_agent"), [(CostFreeLists, 0), (CostFreeParallel, 2)])
def test_an_ordinary_step_of_an_env_of_many_agents_does_nothing_per_agent_but_the_entries_of_a_dict(
    form: type, lines_per_agent: int
) -> None:
    loop, adaptor = many(form, MANY, SMALL)
    loop_of_fewer, adaptor_of_fewer = many(form, FEW, SMALL)
    loop_of_larger, adaptor_of_larger = many(form, MANY, LARGE)

    assert loop - loop_of_fewer == LINES_OF_AN_ENV * (MANY - FEW)
    assert loop_of_larger == loop
    assert adaptor_of_larger - adaptor == lines_per_agent * (LARGE - SMALL) * MANY
    assert adaptor / MANY == adaptor_of_fewer / FEW
    assert adaptor / MANY - lines_per_agent * SMALL <= MOST_LINES
