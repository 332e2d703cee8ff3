"""Illegal actions have probability 0, and what is computed of a policy equals torch's over the legal ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Normal

from sfactory.action_heads import ActionHead, BoxHead, DiscreteHead
from sfactory.config.schema import ModelConfig
from sfactory.errors import EnvError
from sfactory.model.action_mask import ActionMask
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.distributions import ActionDistribution, num_params
from sfactory.spec import EnvSpec, TensorSpec
from tests.support.parts import TINY

MOVE, FIRE = DiscreteHead("move", 12), DiscreteHead("fire", 2)
STEER = BoxHead("steer", (3,), "float32", (-1.0,) * 3, (1.0,) * 3)
PUSH = BoxHead("push", (1,), "float32", (-1.0,), (1.0,))
ROWS = 16
SEEN = ("seen", TensorSpec((4,), "float32"))


def spec_of(heads: tuple[ActionHead, ...], **masks: TensorSpec) -> EnvSpec:
    obs = (*((path.replace("__", "/"), mask) for path, mask in masks.items()), SEEN)
    return EnvSpec(obs, heads).for_model(TINY)


def flags(*shape: int, dtype: str = "int8") -> TensorSpec:
    return TensorSpec(shape, dtype)


CASES = {
    "one head": spec_of((MOVE,), action_mask=flags(12, dtype="bool")),
    "one head, as an image": spec_of((MOVE,), action_mask=flags(3, 4, dtype="uint8")),
    "all heads, flat": spec_of((MOVE, FIRE), action_mask=flags(14)),
    "between reals": spec_of((STEER, MOVE, PUSH, FIRE), action_mask=flags(14)),
    "a tree": spec_of((FIRE, STEER, MOVE), action_mask__fire=flags(2), action_mask__move=flags(12)),
    "a part of a tree": spec_of((FIRE, MOVE), action_mask__move=flags(12)),
}


def drawn(spec: EnvSpec) -> dict[str, Tensor]:
    """Observations, with masks that allow at least the first choice of each head."""
    obs = {"seen": torch.randn(ROWS, 4)}
    for path, mask in spec.masks:
        legal = torch.rand(ROWS, sum(mask.heads)) < 0.4
        for column in (0, *torch.tensor(mask.heads[:-1]).cumsum(0).tolist()):
            legal[:, column] = True
        obs[path] = legal.view(ROWS, *mask.shape).to(getattr(torch, mask.dtype))
    return obs


@pytest.mark.parametrize("name", CASES)
def test_log_prob_and_entropy_equal_those_of_torch_over_legal_choices(name: str) -> None:
    torch.manual_seed(0)
    spec = CASES[name]
    obs = drawn(spec)
    logits = torch.randn(ROWS, num_params(spec.actions), dtype=torch.float64, requires_grad=True)
    ours = ActionDistribution(spec.actions, ActionMask(spec).forward(logits, obs))
    actions, log_prob = ours.sample_with_log_prob()

    flat = torch.cat([obs[path].flatten(1) for path, _ in spec.masks], dim=1).bool()
    columns = iter(flat.unbind(1))
    expected_log_prob, expected_entropy, column = torch.zeros(ROWS), torch.zeros(ROWS), 0
    for head in spec.actions:
        size = num_params((head,))
        params, column = logits[:, column : column + size], column + size
        if isinstance(head, BoxHead):
            mean, log_std = params.chunk(2, dim=1)
            normal = Normal(mean, log_std.exp())
            expected_log_prob = expected_log_prob + normal.log_prob(actions[head.key]).sum(1)
            expected_entropy = expected_entropy + normal.entropy().sum(1)
            continue
        masked = name != "a part of a tree" or head is MOVE
        legal = torch.stack([next(columns) for _ in range(head.n)], 1) if masked else torch.ones(ROWS, head.n).bool()
        assert legal.gather(1, actions[head.key].unsqueeze(1)).all()
        theirs = Categorical(logits=params.masked_fill(~legal, -torch.inf))
        expected_log_prob = expected_log_prob + theirs.log_prob(actions[head.key])
        of_legal = torch.where(legal, theirs.probs * theirs.logits, 0.0)
        expected_entropy = expected_entropy - of_legal.sum(1)
    torch.testing.assert_close(log_prob, expected_log_prob)
    torch.testing.assert_close(ours.entropy(), expected_entropy)
    (ours.entropy() + ours.log_prob(actions)).sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_distance_to_the_uniform_policy_is_that_to_legal_choices() -> None:
    spec = CASES["one head"]
    legal = torch.zeros(1, 12, dtype=torch.bool)
    legal[0, [2, 5, 6]] = True
    logits = torch.randn(1, 12, dtype=torch.float64)

    masked = ActionDistribution(spec.actions, ActionMask(spec).forward(logits, {"action_mask": legal}))
    alone = ActionDistribution((DiscreteHead("move", 3),), logits[:, [2, 5, 6]])

    torch.testing.assert_close(masked.symmetric_kl_to_uniform(), alone.symmetric_kl_to_uniform())


def test_row_without_a_legal_choice_gives_finite_numbers() -> None:
    spec = CASES["all heads, flat"]
    logits = torch.randn(2, 14, requires_grad=True)
    nothing = torch.zeros(2, 14, dtype=torch.int8)

    distribution = ActionDistribution(spec.actions, ActionMask(spec).forward(logits, {"action_mask": nothing}))
    actions, log_prob = distribution.sample_with_log_prob()

    torch.testing.assert_close(distribution.entropy(), torch.tensor(12.0).log() + torch.tensor(2.0).log().expand(2))
    (log_prob + distribution.log_prob(actions) + distribution.entropy()).sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("use_rnn", [False, True])
@pytest.mark.parametrize("share", [False, True])
def test_unrolled_policy_equals_that_of_single_steps(use_rnn: bool, share: bool) -> None:
    torch.manual_seed(0)
    spec = CASES["a tree"]
    config = ModelConfig(encoder_mlp_layers=(8,), use_rnn=use_rnn, rnn_size=4, actor_critic_share_weights=share)
    model = ActorCritic(spec, config).eval()
    steps = [drawn(spec) for _ in range(5)]
    state, singles = model.fresh_state(ROWS), []
    for obs in steps:
        params, _, state = model(obs, state)
        singles.append(params)

    rollout = {path: torch.stack([obs[path] for obs in steps]) for path in steps[0]}
    is_first = torch.zeros(5, ROWS, dtype=torch.bool)
    states = model.fresh_state(ROWS).unsqueeze(0)
    unrolled = model.unroll(rollout, states, is_first, 4)  # 4 steps, and the value after them

    torch.testing.assert_close(unrolled.dist_params, torch.cat(singles[:4]), rtol=1e-5, atol=1e-5)


def test_masks_are_neither_normalized_nor_read() -> None:
    spec = CASES["one head"]
    model = ActorCritic(spec, ModelConfig(encoder_mlp_layers=(8,)))
    assert not model.normalizes("action_mask")
    assert model.normalizes("seen")
    assert next(iter(model.tower.encoder.parameters())).shape == (8, 4)


@pytest.mark.parametrize(
    ("heads", "masks", "words"),
    [
        (
            (MOVE,),
            {"action_mask": flags(11)},
            r"shape \(11,\) .* 12 choices \(12 of 'move'\).*--obs_layout=action_mask",
        ),
        ((STEER,), {"action_mask": flags(3)}, "have no choices"),
        ((MOVE, FIRE), {"action_mask__fire": flags(3)}, "2 choices"),
        ((MOVE, FIRE), {"action_mask__jump": flags(2)}, "no choices"),
    ],
)
def test_mask_that_does_not_fit_the_actions_is_refused(
    heads: tuple[ActionHead, ...], masks: dict[str, TensorSpec], words: str
) -> None:
    with pytest.raises(EnvError, match=words):
        spec_of(heads, **masks)


def test_mask_of_any_name_is_chosen_by_its_layout() -> None:
    obs = (("legal", flags(12)), SEEN)
    plain = EnvSpec(obs, (MOVE,))

    assert not plain.for_model(TINY).masks
    chosen = plain.for_model(ModelConfig(obs_layout=("legal=mask",), obs_keys=("legal", "seen")))
    assert [path for path, _ in chosen.masks] == ["legal"]
    unread = EnvSpec((("action_mask", flags(11)), SEEN), (MOVE,))
    assert not unread.for_model(ModelConfig(obs_layout=("action_mask=flat",))).masks
    assert not unread.for_model(ModelConfig(ignore_obs_keys=("action_mask",))).masks
    with pytest.raises(EnvError, match="no observation beside the action mask"):
        EnvSpec(obs[:1], (MOVE,)).for_model(ModelConfig(obs_layout=("legal=mask",)))


def test_two_masks_of_one_action_are_refused() -> None:
    spec = EnvSpec((("action_mask", flags(12)), ("afford", flags(12)), SEEN), (MOVE,))

    with pytest.raises(EnvError, match=r"'action_mask' and 'afford' both say .*--obs_layout=afford=flat"):
        spec.for_model(ModelConfig(obs_layout=("afford=mask",)))


def test_obs_keys_keep_the_mask() -> None:
    spec = EnvSpec((("action_mask", flags(12)), SEEN, ("other", flags(3))), (MOVE,))
    assert [path for path, _ in spec.for_model(ModelConfig(obs_keys=("seen",))).obs] == ["action_mask", "seen"]
    by_layout = EnvSpec((("legal", flags(12)), SEEN, ("other", flags(3))), (MOVE,))
    found = by_layout.for_model(ModelConfig(obs_keys=("seen",), obs_layout=("legal=mask",)))
    assert [(path, leaf.is_mask) for path, leaf in found.obs] == [("legal", True), ("seen", False)]
