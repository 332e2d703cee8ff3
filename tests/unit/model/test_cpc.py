"""CPC|A learns what memory and actions predict; invalid steps and ends of episodes have no effect."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sfactory.action_heads import BoxHead, DiscreteHead
from sfactory.config.schema import AlgoConfig
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.cpc import NEGATIVES, ActionInputs, CpcAction, Trace, can_predict, choose, draw_others
from sfactory.spec import EnvSpec, TensorSpec
from tests.support.parts import model_of

JUMP = DiscreteHead("jump", 3)
ARM = BoxHead("arm", (2,), "float32", (-2.0, 0.0), (2.0, 1.0))
STEPS, ROWS, EMBEDDING, MEMORY = 12, 5, 7, 6


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cpc_of(
    heads: tuple[DiscreteHead | BoxHead, ...] = (JUMP, ARM),
    embedding_size: int = EMBEDDING,
    memory_size: int = MEMORY,
    **sizes: int,
) -> CpcAction:
    torch.manual_seed(0)
    chosen: dict[str, Any] = {"forward_steps": 4, "time_subsample": 5, "forward_subsample": 2, **sizes}
    config = AlgoConfig(**{f"cpc_{name}": size for name, size in chosen.items()})
    return CpcAction(heads, embedding_size, memory_size, config)


def random_trace(seed: int = 1, **changes: Tensor) -> Trace:
    """12 steps of 5 rows, all valid ones of one episode, with gradients."""
    generator = seeded(seed)
    trace = Trace(
        embeddings=torch.randn(STEPS, ROWS, EMBEDDING, generator=generator).requires_grad_(),
        memory=torch.rand(STEPS, ROWS, MEMORY, generator=generator).sub(0.5).requires_grad_(),
        actions={
            "jump": torch.randint(0, 3, (STEPS, ROWS), generator=generator),
            "arm": torch.randn(STEPS, ROWS, 2, generator=generator),
        },
        is_first=torch.zeros(STEPS, ROWS, dtype=torch.bool),
        valid=torch.ones(STEPS, ROWS, dtype=torch.bool),
    )
    return trace._replace(**dict[str, Any](changes))


def broken_up(seed: int) -> tuple[Tensor, Tensor]:
    """is_first and valid [T, R] of many short episodes with invalid steps in them."""
    generator = seeded(seed)
    is_first = torch.rand(STEPS, ROWS, generator=generator) < 0.15
    valid = torch.rand(STEPS, ROWS, generator=generator) > 0.15
    return is_first, valid


# A walk on a ring of 8 places by one step left or right. If the classifier knows place and actions, the log-odds of the
# true place are ln 8, and the loss (ln(9/8) + ln(9) / 8) / 2 = 0.196. Without the actions it is at best that of k = 1,
# where two of eight places are possible: (ln(5/4) + ln(5) / 4) / 2 = 0.313. If places are noise, it is ln 2 = 0.693.
PLACES = 8
BEST, WITHOUT_ACTIONS, CHANCE = 0.196, 0.313, math.log(2.0)
RING_HEADS = (DiscreteHead("action", 2),)
RING = EnvSpec(obs=(("obs", TensorSpec((2,), "float32")),), actions=RING_HEADS)


def walks(kind: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Observations [T, R, 2] of a walk (or noise) and its actions [T, R] (or other ones)."""
    rows = 24
    actions = torch.randint(0, 2, (STEPS, rows), generator=generator)
    start = torch.randint(0, PLACES, (1, rows), generator=generator)
    places = torch.cat((start, start + (2 * actions[:-1] - 1).cumsum(0))) % PLACES
    if kind == "noise":
        places = torch.randint(0, PLACES, (STEPS, rows), generator=generator)
    if kind == "other actions":
        actions = torch.randint(0, 2, (STEPS, rows), generator=generator)
    angle = 2.0 * math.pi / PLACES * places
    return torch.stack((angle.cos(), angle.sin()), dim=-1), actions


def learned_loss(kind: str) -> tuple[float, float]:
    """Mean loss of the first 10 and the last 30 of 100 updates of model and module, each on new walks."""
    model = model_of(RING, use_rnn=True, rnn_size=32, encoder_mlp_layers=(32,))
    cpc = cpc_of(RING_HEADS, embedding_size=32, memory_size=32, forward_steps=3, time_subsample=6)
    optimizer = torch.optim.Adam([*model.parameters(), *cpc.parameters()], lr=1e-2)
    generator, losses = seeded(2), []
    for _ in range(100):
        obs, actions = walks(kind, generator)
        loss = cpc.loss(trace_of(model, obs, actions), generator)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[:10]) / 10, sum(losses[-30:]) / 30


def trace_of(model: ActorCritic, obs: Tensor, actions: Tensor) -> Trace:
    """The trace of a rollout on RING: one episode from its start."""
    steps, rows = actions.shape
    is_first = torch.zeros(steps, rows, dtype=torch.bool)
    is_first[0] = True
    unrolled = model.unroll({"obs": obs}, torch.zeros(1, rows, model.state_size), is_first, steps)
    return Trace(unrolled.embeddings, unrolled.memory, {"action": actions}, is_first, torch.ones_like(is_first))


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [("walk", 0.0, BEST + 0.03), ("other actions", WITHOUT_ACTIONS, 0.6), ("noise", CHANCE - 0.01, CHANCE + 0.01)],
)
def test_loss_falls_to_the_minimum_that_memory_and_actions_allow(kind: str, least: float, most: float) -> None:
    first, last = learned_loss(kind)

    assert first == pytest.approx(CHANCE, abs=0.1)
    assert least < last < most


def test_gradient_reaches_encoder_memory_and_module_but_no_head() -> None:
    model = model_of(RING, use_rnn=True)
    cpc = cpc_of(RING_HEADS, embedding_size=8, forward_steps=3)

    torch.autograd.backward(cpc.loss(trace_of(model, *walks("walk", seeded(3))), seeded(4)))

    reached = {name for name, p in model.named_parameters() if p.grad is not None and bool(p.grad.any())}
    assert reached == {name for name, _ in model.named_parameters() if name.startswith(("tower.encoder", "tower.core"))}
    assert all(p.grad is not None and bool(p.grad.any()) for p in cpc.parameters())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("forward_steps", [1, 4, 11, 20])
def test_predictions_need_valid_steps_of_one_episode(seed: int, forward_steps: int) -> None:
    is_first, valid = broken_up(seed)

    can = can_predict(is_first, valid, forward_steps)

    assert can.shape == (ROWS, STEPS - 1, forward_steps)
    for row in range(ROWS):
        for t in range(STEPS - 1):
            for k in range(1, forward_steps + 1):
                way = slice(t, t + k + 1)
                inside = t + k < STEPS and bool(valid[way, row].all()) and not bool(is_first[way, row][1:].any())
                assert bool(can[row, t, k - 1]) is inside


@pytest.mark.parametrize("seed", range(3))
def test_possible_predictions_are_drawn_first_and_none_twice(seed: int) -> None:
    can = can_predict(*broken_up(seed), forward_steps=4)

    chosen = choose(can, 5, 2, seeded(seed))

    assert chosen.starts.shape == (ROWS, 5)
    assert chosen.possible.shape == chosen.ahead.shape == (ROWS, 5, 2)
    for row in range(ROWS):
        starts = chosen.starts[row].tolist()
        assert len(set(starts)) == 5
        begun = [t for t in starts if bool(can[row, t, 0])]
        assert len(begun) == min(5, int(can[row, :, 0].sum()))
        for place, t in enumerate(starts):
            ahead, possible = chosen.ahead[row, place], chosen.possible[row, place]
            assert len(set(ahead.tolist())) == 2
            assert torch.equal(possible, can[row, t, ahead])
            assert int(possible.sum()) == min(2, int(can[row, t].sum()))


def test_starts_and_distances_are_drawn_evenly() -> None:
    can = can_predict(torch.zeros(STEPS, 1, dtype=torch.bool), torch.ones(STEPS, 1, dtype=torch.bool), 4)
    generator, starts, ahead = seeded(0), torch.zeros(STEPS - 1), torch.zeros(4)

    for _ in range(2000):
        chosen = choose(can, 1, 1, generator)
        starts[chosen.starts] += 1
        ahead[chosen.ahead] += int(chosen.starts) < 8  # from where all four are possible

    # Five standard deviations of a count.
    expected = 2000 / 11
    torch.testing.assert_close(starts, torch.full((11,), expected), rtol=0.0, atol=5 * expected**0.5)
    torch.testing.assert_close(ahead, torch.full((4,), 8 * expected / 4), rtol=0.0, atol=5 * (2 * expected) ** 0.5)


def test_negatives_are_drawn_evenly_from_valid_cells_other_than_the_positive() -> None:
    valid = broken_up(1)[1]
    cells = valid.flatten().nonzero().squeeze(1)
    targets = cells.view(-1, 1)

    others, there_are = draw_others(valid, targets, 4000, seeded(0))

    assert bool(there_are)
    assert others.shape == (len(cells), 1, 4000)
    expected = 4000 / (len(cells) - 1)
    for target, drawn in zip(cells.tolist(), others.squeeze(1), strict=True):
        counts = torch.bincount(drawn, minlength=valid.numel()).float()
        assert counts[target] == 0
        assert not bool(counts[~valid.flatten()].any())
        others_of = counts[cells[cells != target]]
        torch.testing.assert_close(others_of, torch.full_like(others_of, expected), rtol=0.0, atol=6 * expected**0.5)


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_is_learned_without_negatives(count: int) -> None:
    valid = torch.zeros(STEPS, ROWS, dtype=torch.bool)
    valid.view(-1)[:count] = True
    cpc, trace = cpc_of(), random_trace(valid=valid)

    loss = cpc.loss(trace, seeded(0))
    torch.autograd.backward(loss)

    assert not bool(draw_others(valid, torch.zeros(1, dtype=torch.int64), 3, seeded(0))[1])
    assert loss.item() == 0.0
    assert trace.memory.grad is None or not bool(trace.memory.grad.any())


def naive_loss(cpc: CpcAction, trace: Trace, generator: torch.Generator, sizes: tuple[int, int, int]) -> Tensor:
    """Predictions one by one: a GRU cell from step to step, the classifier on each pair."""
    forward_steps, starts, distances = sizes
    chosen = choose(can_predict(trace.is_first, trace.valid, forward_steps), starts, distances, generator)
    w_in, w_hidden, b_in, b_hidden = cpc.future.parameters()
    t_of = (chosen.starts.unsqueeze(-1) + chosen.ahead + 1).clamp(max=STEPS - 1)
    targets = t_of * ROWS + torch.arange(ROWS).view(-1, 1, 1)
    others, _ = draw_others(trace.valid, targets, NEGATIVES, generator)

    def score(state: Tensor, cell: int) -> Tensor:
        embedding = trace.embeddings.flatten(0, 1)[cell]
        logit: Tensor = cpc.score(torch.relu(cpc.of_future(state) + cpc.of_embedding(embedding)))
        return logit

    losses = []
    for row, place, drawn in chosen.possible.nonzero().tolist():
        t, k = int(chosen.starts[row, place]), int(chosen.ahead[row, place, drawn]) + 1
        state = trace.memory[t, row].unsqueeze(0)
        for step in range(t, t + k):
            jump = F.one_hot(trace.actions["jump"][step, row], 3).float()
            arm = trace.actions["arm"][step, row].clamp(torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 1.0]))
            done = torch.cat((jump, (arm - torch.tensor([0.0, 0.5])) / torch.tensor([2.0, 0.5])))
            state = torch.gru_cell(done.unsqueeze(0), state, w_in, w_hidden, b_in, b_hidden)
        positive = F.binary_cross_entropy_with_logits(score(state, (t + k) * ROWS + row), torch.ones(1, 1))
        negatives = torch.cat([score(state, cell) for cell in others[row, place, drawn].tolist()])
        losses.append(0.5 * (positive + F.binary_cross_entropy_with_logits(negatives, torch.zeros_like(negatives))))
    return torch.stack(losses).mean()


# (forward_steps, time_subsample, forward_subsample)
@pytest.mark.parametrize("sizes", [(4, 5, 2), (1, 20, 1), (6, 3, 6)])
def test_loss_and_gradients_equal_those_of_predictions_one_by_one(sizes: tuple[int, int, int]) -> None:
    is_first, valid = broken_up(2)
    forward_steps, starts, distances = sizes
    cpc = cpc_of(forward_steps=forward_steps, time_subsample=starts, forward_subsample=distances)
    trace = random_trace(is_first=is_first, valid=valid)
    leaves = [trace.embeddings, trace.memory, *cpc.parameters()]

    loss, expected = cpc.loss(trace, seeded(7)), naive_loss(cpc, trace, seeded(7), sizes)

    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    gradients = torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, leaves)
    for mine, naive in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, naive, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e6])
def test_invalid_cells_change_nothing(garbage: float) -> None:
    is_first, valid = broken_up(2)
    cpc, clean = cpc_of(), random_trace(is_first=is_first, valid=valid)

    def spoiled(tensor: Tensor) -> Tensor:
        return tensor.detach().masked_fill(~valid.unsqueeze(-1), garbage).requires_grad_()

    dirty = clean._replace(
        embeddings=spoiled(clean.embeddings),
        memory=spoiled(clean.memory),
        actions={
            "jump": clean.actions["jump"].masked_fill(~valid, -(2**40)),
            "arm": clean.actions["arm"].masked_fill(~valid.unsqueeze(-1), garbage),
        },
        is_first=is_first ^ ~valid,
    )
    found = []
    for trace in (clean, dirty):
        loss = cpc.loss(trace, seeded(5))
        found.append((loss, *torch.autograd.grad(loss, [trace.embeddings, trace.memory, *cpc.parameters()])))

    for mine, other in zip(*found, strict=True):
        assert torch.equal(mine, other)
    assert found[0][0].item() > 0.0
    assert not bool(found[0][1][~valid].any())
    assert not bool(found[0][2][~valid].any())


def test_actions_become_one_hot_and_scaled_vectors() -> None:
    free = BoxHead("free", (1,), "float32", (-math.inf,), (math.inf,))
    inputs = ActionInputs((ARM, JUMP, free, DiscreteHead("fire", 2)))
    actions = {
        "arm": torch.tensor([[[1.0, 0.75], [-9.0, 9.0]]]),
        "jump": torch.tensor([[2, 0]]),
        "free": torch.tensor([[[123.0], [-4.0]]]),
        "fire": torch.tensor([[0, 1]]),
    }

    vectors = inputs(actions)

    assert inputs.size == 2 + 3 + 1 + 2
    expected = [[0.5, 0.5, 0, 0, 1, 123.0, 1, 0], [-1.0, 1.0, 1, 0, 0, -4.0, 0, 1]]
    torch.testing.assert_close(vectors, torch.tensor([expected]))
    assert not inputs.state_dict()


def test_embeddings_may_have_a_short_format() -> None:
    cpc, trace = cpc_of(), random_trace()
    short = trace._replace(embeddings=trace.embeddings.detach().bfloat16().requires_grad_())

    loss = cpc.loss(short, seeded(0))
    torch.autograd.backward(loss)

    assert loss.dtype is torch.float32
    assert loss.item() == pytest.approx(cpc.loss(trace, seeded(0)).item(), rel=1e-2)
    assert short.embeddings.grad is not None
    assert short.embeddings.grad.dtype is torch.bfloat16
