"""A worker is back when its own process works, whatever its forerunner has done."""

from __future__ import annotations

from dataclasses import replace

from tests.support.standing import Standing

ACTOR = Standing("running", waits=False, pid=7, messages=0, env_steps=100)
POLICY_WORKER = replace(ACTOR, env_steps=None)


def test_an_actor_that_took_over_is_not_back_before_it_has_taken_steps_of_its_own() -> None:
    assert ACTOR.works
    assert not ACTOR.went_on_since(ACTOR)
    assert replace(ACTOR, env_steps=101).went_on_since(ACTOR)


def test_steps_of_another_process_do_not_count() -> None:
    assert not replace(ACTOR, env_steps=101, pid=8).went_on_since(ACTOR)


def test_who_starts_or_has_no_process_is_not_back() -> None:
    for standing in (replace(ACTOR, env_steps=101, state="starting"), replace(ACTOR, env_steps=101, pid=0)):
        assert not standing.works
        assert not standing.went_on_since(replace(standing, env_steps=100))


def test_a_policy_worker_takes_no_steps_and_works_once_it_runs() -> None:
    assert POLICY_WORKER.works
    assert POLICY_WORKER.went_on_since(POLICY_WORKER)
    assert not replace(POLICY_WORKER, state="starting").works
