"""The costs of env steps and forward passes are measured with the env and the model of the run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sfactory.config.flags import config_of
from sfactory.errors import ConfigError, ResourceError
from sfactory.planning import step_cost
from sfactory.planning.plan import choose_device, device_of, plan_sizes, steps_are_timed
from sfactory.planning.step_cost import env_step_us, forward_us
from tests.support.parts import SCALAR, TINY, VECTOR
from tests.support.scripted_env import ScriptedEnv

STEP_S = 0.004


class TimedEnv(ScriptedEnv):
    """Moves its own clock: by STEP_S for a step, far more for a reset. Episodes of two steps."""

    def __init__(self) -> None:
        super().__init__([(2, "terminated")] * 100)
        self.at = 0.0

    def reset(self, **given: Any) -> Any:
        self.at += 10 * STEP_S
        return super().reset(**given)

    def step(self, action: int) -> Any:
        self.at += STEP_S
        return super().step(action)


@pytest.mark.parametrize(("seconds", "steps"), [(0.2, 10), (0.0, 1)])
def test_at_least_one_step_is_measured_and_no_reset(
    seconds: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = TimedEnv()
    monkeypatch.setattr(step_cost, "now", lambda: env.at)

    assert env_step_us(env, SCALAR, seconds) == pytest.approx(1e6 * STEP_S)
    assert len(env.taken) == steps


def test_a_forward_pass_is_measured_per_row_and_leaves_no_trace() -> None:
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()

    narrow, wide = forward_us(VECTOR, TINY, 1, 0.3), forward_us(VECTOR, TINY, 256, 0.3)

    assert 0 < wide < narrow  # rows share the fixed cost of a pass
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("flags", "gpu", "timed"),
    [
        ({"inference": "auto"}, True, True),
        ({"inference": "auto"}, False, False),
        ({"inference": "auto", "device": "cpu"}, True, False),
        ({"inference": "local"}, True, False),
    ],
)
def test_steps_are_timed_only_where_their_cost_decides(
    flags: dict[str, object], gpu: bool, timed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(gpu))

    assert steps_are_timed(config_of(flags)) == timed


@pytest.mark.parametrize(
    ("env_step_us", "chosen", "why"),
    [
        (1e6, "local", "a step of the environment costs 1e+06 us"),
        (1e-3, "central", "a step of the environment costs 0.001 us"),
        (None, "central", "not known"),
    ],
)
def test_with_a_gpu_the_plan_weighs_an_env_step_against_a_forward_pass(
    env_step_us: float | None, chosen: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

    plan = plan_sizes(config_of({"inference": "auto", "encoder_mlp_layers": (8,)}), VECTOR, env_step_us)

    assert plan.layout.inference == chosen
    assert why in plan.why_inference


@pytest.mark.parametrize(
    ("wanted", "gpus", "devices"),
    [
        ("auto", 0, ["cpu", "cpu"]),
        ("cpu", 2, ["cpu", "cpu"]),
        *((name, 2, ["cuda:0", "cuda:1"]) for name in ("auto", "gpu", "cuda", "cuda:0")),
        ("cuda:1", 2, ["cuda:1", "cuda:0"]),
    ],
)
def test_policies_are_distributed_over_the_gpus_from_the_one_that_is_named(
    wanted: str, gpus: int, devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)

    assert [device_of(policy, choose_device(wanted)) for policy in (0, 1)] == devices


@pytest.mark.parametrize(("wanted", "gpus"), [("gpu", 0), ("cuda", 0), ("cuda:1", 0), ("cuda:2", 2)])
def test_a_gpu_that_is_not_there_is_refused(wanted: str, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)

    with pytest.raises(ConfigError, match=f"--device={wanted}: torch finds"):
        choose_device(wanted)


def test_the_start_says_how_large_the_network_is() -> None:
    plan = plan_sizes(config_of({"encoder_mlp_layers": (8,)}), VECTOR)

    assert plan.reading[-1] == "the network has 59 parameters"


@pytest.mark.parametrize(("rows", "width", "threads"), [(256, 64, 1), (256, 512, 2), (1024, 512, 8)])
def test_a_learner_gets_no_more_threads_than_its_minibatches_keep_busy(rows: int, width: int, threads: int) -> None:
    flags = {"batch_size": rows, "encoder_mlp_layers": (width, width)}

    assert plan_sizes(config_of(flags), VECTOR).cores.learner_use == threads


@pytest.mark.parametrize(
    ("flags", "alone"),
    [
        ({"batch_size": 128}, True),
        ({"batch_size": 64}, False),  # of two actors one goes on
        ({"batch_size": 128, "num_batches_to_accumulate": 2}, False),
        ({"batch_size": 64, "num_policies": 2}, False),  # each learns while the other collects
    ],
)
def test_a_learner_has_all_cores_where_a_dataset_is_all_that_actors_can_collect(
    flags: dict[str, Any], alone: bool
) -> None:
    round_of_128 = {"num_workers": 2, "num_envs_per_worker": 2, "rollout": 32, "num_batches_to_accumulate": 0}

    cores = plan_sizes(config_of({**round_of_128, **flags}), VECTOR).cores

    assert cores.learner_alone == alone


def test_weights_that_no_memory_holds_are_refused() -> None:
    with pytest.raises(ResourceError, match=r"^the network has [\d,]+ MiB of weights, for which there is no memory"):
        plan_sizes(config_of({"encoder_mlp_layers": (10**8, 10**8)}), VECTOR)
