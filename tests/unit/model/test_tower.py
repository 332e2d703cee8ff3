"""A rollout unrolled for learning equals acting step by step, with memory, resets and any length of chunks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sfactory.action_heads import BoxHead, DiscreteHead
from sfactory.model.actor_critic import ActorCritic
from sfactory.spec import EnvSpec, TensorSpec
from tests.support import parts

SPEC = EnvSpec(
    obs=(("obs", TensorSpec((3,), "float32")), ("hint", TensorSpec((), "int64"))),
    actions=(DiscreteHead("jump", 3), BoxHead("arm", (2,), "float32", (-1.0, -1.0), (1.0, 1.0))),
)
STEPS, ROWS = 12, 5


def model_of(**fields: Any) -> ActorCritic:
    return parts.model_of(SPEC, **{"rnn_size": 8, "decoder_mlp_layers": (12,), "normalize_returns": True, **fields})


def rollout() -> tuple[dict[str, Tensor], Tensor]:
    """Observations [T+1, B, ...]; resets in the first row, inside, at the border of chunks, and at the end."""
    obs = parts.observations(SPEC.obs, STEPS + 1, ROWS)
    obs["hint"] %= 5
    is_first = torch.zeros(STEPS + 1, ROWS, dtype=torch.bool)
    is_first[0, 0] = is_first[5, 1] = is_first[6, 2] = is_first[STEPS, 3] = is_first[7, 0] = True
    return obs, is_first


@pytest.mark.parametrize("recurrence", [1, 3, 12])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize(("rnn_type", "layers"), [("gru", 1), ("lstm", 1), ("gru", 2), ("lstm", 3)])
def test_unrolled_rollout_equals_acting_step_by_step(rnn_type: str, layers: int, share: bool, recurrence: int) -> None:
    model = model_of(use_rnn=True, rnn_type=rnn_type, rnn_num_layers=layers, actor_critic_share_weights=share)
    obs, is_first = rollout()
    state = torch.randn(ROWS, model.state_size)
    assert model.state_size == 8 * layers * (2 if rnn_type == "lstm" else 1) * (1 if share else 2)
    params, values, states = [], [], []
    with torch.no_grad():
        for t in range(STEPS + 1):
            state = state.masked_fill(is_first[t].unsqueeze(-1), 0.0)
            states.append(state)
            output = model({key: leaf[t] for key, leaf in obs.items()}, state)
            params.append(output.dist_params)
            values.append(output.value)
            state = output.state

    unrolled = model.unroll(obs, torch.stack(states[:STEPS:recurrence]), is_first, recurrence)

    torch.testing.assert_close(unrolled.dist_params, torch.cat(params[:-1]), atol=1e-5, rtol=1e-5)
    found = model.value_head.denormalize(unrolled.values)
    torch.testing.assert_close(found, torch.stack(values), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("use_rnn", [True, False])
def test_rollout_without_the_step_after_it_gives_the_same(use_rnn: bool) -> None:
    model = model_of(use_rnn=use_rnn)
    obs, is_first = rollout()
    states = torch.zeros(1, ROWS, model.state_size)

    longer = model.unroll(obs, states, is_first, STEPS)
    shorter = model.unroll({key: leaf[:-1] for key, leaf in obs.items()}, states, is_first[:-1], STEPS)

    assert shorter.values.shape == (STEPS, ROWS)
    torch.testing.assert_close(shorter.values, longer.values[:-1])
    torch.testing.assert_close(shorter.dist_params, longer.dist_params)


@pytest.mark.parametrize(("recurrence", "reaches"), [(12, True), (4, False)])
def test_gradients_stop_at_the_border_of_a_chunk(recurrence: int, reaches: bool) -> None:
    model = model_of(use_rnn=True)
    obs, _ = rollout()
    is_first = torch.zeros(STEPS + 1, ROWS, dtype=torch.bool)
    obs["obs"].requires_grad_()
    states = torch.zeros(STEPS // recurrence, ROWS, model.state_size)

    values = model.unroll(obs, states, is_first, recurrence).values
    (gradient,) = torch.autograd.grad(values[5].sum(), obs["obs"])

    assert bool((gradient[4:6] != 0.0).any(dim=2).all())
    assert bool((gradient[:4] != 0.0).any()) is reaches
    assert not bool((gradient[6:] != 0.0).any())


def test_value_after_the_rollout_has_no_gradient_in_memory() -> None:
    model = model_of(use_rnn=True, decoder_mlp_layers=())
    obs, is_first = rollout()

    last = model.unroll(obs, torch.zeros(1, ROWS, model.state_size), is_first, STEPS).values[-1]
    assert model.tower.core is not None
    gradients = torch.autograd.grad(last.sum(), list(model.tower.core.parameters()), allow_unused=True)

    assert all(gradient is None or not bool(gradient.any()) for gradient in gradients)
