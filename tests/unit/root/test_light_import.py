"""``import sfactory`` is quick: what takes a second to import is imported when something needs it."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import sfactory
from sfactory import api
from sfactory.env.factory import make_env
from sfactory.env.multi_agent import AgentsEnv
from sfactory.launch.param_search import ParamGrid
from sfactory.launch.run_description import RunDescription
from sfactory.report.observers import Observer

SLOW = ("torch", "gymnasium", "numpy")


def modules_after(code: str) -> set[str]:
    """The modules of a new interpreter that has run ``code``."""
    program = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import sfactory", SLOW),
        ("import sfactory; sfactory.run", SLOW[:2]),
        (
            "import sfactory.env.factory; from sfactory.config.resolve import read_command_line as read; "
            "read(['--env=CartPole-v1'])",
            SLOW,
        ),
        (
            "from sfactory import remote_actors; from sfactory.train import main; env = '--env=CartPole-v1'; "
            "assert main([env, '--remote_actors_port=5555', '--remote_actors_token_file=none']) == 2; "
            "assert remote_actors.main([env, '--connect=localhost:5555', '--token_file=none']) == 2",
            SLOW[:1],
        ),
        ("from sfactory.experiment import summary; from sfactory.report import writers, console", SLOW[:1]),
    ],
)
def test_what_needs_no_slow_module_imports_none(code: str, absent: tuple[str, ...]) -> None:
    assert not modules_after(code).intersection(absent)


def test_the_fork_server_imports_the_code_of_every_kind_of_child_and_learning_not_the_compiler_of_torch() -> None:
    roles = ("actor.actor_process", "actor.local_actor", "inference.policy_worker", "learner.learner_process")
    children = {f"sfactory.{role}" for role in roles}

    # The compiler takes nearly as long to import as torch itself.
    modules = modules_after(
        "import sys, torch, sfactory.supervise.preload\n"
        f"assert {children} <= sys.modules.keys()\n"
        "from sfactory.config.flags import config_of\n"
        "from sfactory.learner.gradient_step import GradientStep\n"
        "from sfactory.model.actor_critic import ActorCritic\n"
        "from sfactory.planning.plan import plan_sizes\n"
        "from tests.support.parts import VECTOR\n"
        "config = config_of({'env': 'any', 'one_hot_max': 4, 'use_spectral_norm': True})\n"
        "plan_sizes(config, VECTOR)\n"
        "updater = GradientStep(ActorCritic(VECTOR, config.model), config.optim)\n"
        "for weight in updater.optimizer.parameters:\n"
        "    weight.grad = torch.ones_like(weight)\n"
        "updater.optimizer.step(0.1, torch.tensor(True))\n"
        "updater.optimizer.load_state_dict(updater.optimizer.state_dict())\n"
    )

    assert "torch.optim.adam" in modules
    assert not modules.intersection({"torch._dynamo", "sympy"})


def test_public_names_are_reachable_from_the_package() -> None:
    public = (sfactory.run, sfactory.RunResult, sfactory.Observer, sfactory.RunDescription, sfactory.ParamGrid)

    assert public == (api.run, api.RunResult, Observer, RunDescription, ParamGrid)
    assert dir(sfactory) == sorted(sfactory.__all__)
    assert all(getattr(sfactory, name) for name in dir(sfactory))
    code = "import sfactory, sfactory.train, sfactory.evaluate; print(sfactory.train.main, callable(sfactory.evaluate))"
    assert "True" in modules_after(code)
    with pytest.raises(AttributeError, match="has no attribute 'walk'"):
        sfactory.walk  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("old", "name", "there"),
    [
        ("sfactory.runtime.observer", "Observer", Observer),
        ("sfactory.launch.description", "RunDescription", RunDescription),
        ("sfactory.launch.search", "ParamGrid", ParamGrid),
        ("sfactory.env.agents", "AgentsEnv", AgentsEnv),
        ("sfactory.env.api", "make_env", make_env),
    ],
)
def test_modules_that_moved_are_found_under_their_old_names(old: str, name: str, there: object) -> None:
    assert getattr(importlib.import_module(old), name) is there
