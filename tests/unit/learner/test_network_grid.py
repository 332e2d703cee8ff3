"""Kinds of observations, actions, memory, masks and agents in all pairs: what is learned is what was acted.

Real splits of random envs are recorded by an acting policy, and two updates are made of them.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, NamedTuple

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from torch import Tensor, distributions

from sfactory.action_heads import BoxHead
from sfactory.actor.local_actor import SlotActing
from sfactory.actor.multi_agent_split import MultiAgentSplit
from sfactory.actor.policy_assignment import PolicyAssignment
from sfactory.actor.split import Split
from sfactory.config.schema import AlgoConfig, LearnerConfig, ModelConfig
from sfactory.inference.acting_policy import ActingPolicy
from sfactory.learner.batch import Batch
from sfactory.learner.staging import Staging
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.shared.trajectories import TrajectoryBuffer
from sfactory.shared.weights import SharedWeights
from sfactory.spec import EnvSpec
from tests.support.long import long
from tests.support.parts import small_layout, trainer_for
from tests.support.random_env import RandomAgents, RandomEnv

T, ENVS, RECURRENCE = 8, 2, 4
CPU = torch.device("cpu")
NUMBERS = spaces.Box(-2.0, 2.0, (4,), np.float32)
IMAGE = spaces.Box(0, 255, (16, 16, 3), np.uint8)
OBS: dict[str, dict[str, spaces.Space[Any]]] = {
    "numbers": {"x": NUMBERS},
    "choices": {"x": spaces.MultiDiscrete([3, 5])},
    "image": {"camera": IMAGE},
    "entities": {"units": spaces.Box(-1.0, 1.0, (5, 3), np.float32), "units_mask": spaces.MultiBinary(5)},
    "several": {"x": NUMBERS, "place": spaces.Discrete(4), "camera": IMAGE, "units": spaces.Box(-1.0, 1.0, (2, 3))},
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(5),
    "multi": spaces.MultiDiscrete([3, 4]),
    "box": spaces.Box(-1.0, 3.0, (2,), np.float32),
    "mixed": spaces.Dict(arm=spaces.Box(-1.0, 1.0, (2,), np.float32), fire=spaces.Discrete(3)),
}
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {"encoder_conv_architecture": "resnet_impala"},
    "normed": {"encoder_conv_architecture": "resnet_impoola", "use_layer_norm": True, "encoder_per_key": True},
}


class Case(NamedTuple):
    obs: str
    actions: str
    memory: str
    masked: bool
    agents: int
    layers: str
    core_inputs: bool


def grid() -> list[Case]:
    """All combinations that there are: Box actions have no masks, and only a memory has inputs of its own."""
    axes = (OBS, ACTIONS, ("none", "gru", "mingru"), (False, True), (1, 3), LAYERS, (False, True))
    cases = (Case(*choice) for choice in itertools.product(*axes))
    return [
        case
        for case in cases
        if not (case.masked and case.actions == "box") and not (case.core_inputs and case.memory == "none")
    ]


def covering(cases: list[Case]) -> list[Case]:
    """Few of ``cases`` in which every pair of values occurs that occurs in any."""

    def pairs(case: Case) -> set[Any]:
        return set(itertools.combinations(enumerate(case), 2))

    missing, chosen = set().union(*map(pairs, cases)), []
    while missing:
        chosen.append(max(cases, key=lambda case: len(pairs(case) & missing)))
        missing -= pairs(chosen[-1])
    return chosen


def config_of(case: Case) -> ModelConfig:
    memory = {} if case.memory == "none" else {"use_rnn": True, "rnn_type": case.memory, "rnn_size": 6}
    return ModelConfig(
        **{**LAYERS[case.layers], **memory},
        encoder_mlp_layers=(8,),
        encoder_conv_mlp_layers=(8,),
        encoder_entity_size=8,
        encoder_entity_heads=2,
        obs_layout=tuple(f"{key}=hwc" if key == "camera" else f"{key}=entities" for key in ("camera", "units"))
        if case.obs == "several"
        else {"image": ("camera=hwc",), "entities": ("units=entities",)}.get(case.obs, ()),
        core_inputs=("action", "reward") if case.core_inputs else (),
    )


class Recorder:
    """A split with an acting policy; ``record`` fills a slot with its steps."""

    def __init__(self, case: Case) -> None:
        make = RandomEnv if case.agents == 1 else RandomAgents
        envs: list[Any] = [make(OBS[case.obs], ACTIONS[case.actions], case.masked) for _ in range(ENVS)]
        self.config = config_of(case)
        agents = envs[0].agents if case.agents > 1 else ()
        self.spec = EnvSpec.of_spaces(envs[0].observation_space, envs[0].action_space, agents).for_model(self.config)
        torch.manual_seed(0)
        self.model = ActorCritic(self.spec, self.config)
        with torch.no_grad():
            self.model.policy_head.linear.weight.mul_(50.0)
        rows = ENVS * case.agents
        self._layout = small_layout(
            num_actors=1,
            slots_per_split=1,
            rows=rows,
            rollout=T,
            recurrence=RECURRENCE,
            state_size=self.model.state_size,
            dataset_rows=rows,
            agents=case.agents,
        )
        self._flat = FlatState(self.model)
        self._weights = SharedWeights(self._flat.block.numel())
        self._policy = ActingPolicy(self.spec, self.config, self._weights, CPU)
        self._acting, self._state = SlotActing([self._policy], RECURRENCE), self._policy.fresh_state(rows)
        self._slot = TrajectoryBuffer(self.spec, self._layout).slot(0)
        if case.agents == 1:
            self._split = Split.of_envs(0, envs, self.spec, T)
        else:
            self._split = MultiAgentSplit(
                0, envs, self.spec, T, assignment=PolicyAssignment(rows, case.agents, 0, None, 1)
            )
        self._split.reset(list(range(ENVS)), "actor 0")

    def record(self, version: int) -> tuple[Batch, Tensor]:
        """The next rollout, acted with the model's present weights, and where the policy acted: [T, R] bool."""
        self._weights.publish(self._flat.to_host(), version)
        self._policy.refresh()
        split, slot = self._split, self._slot
        split.begin(slot)
        for t in range(T):
            self._state = self._acting.act(slot, t, self._state, split.policies)
            split.step()
        split.finish()
        staging = Staging(self.spec, self._layout, pin=False)
        staging.take(slot, 0)
        acted = np.ones(slot.valid.shape, bool) if slot.policy_id is None else slot.policy_id >= 0
        return Batch.of(staging, AlgoConfig(), LearnerConfig(), version, CPU), torch.from_numpy(acted)


def reference(spec: EnvSpec, params: Tensor, actions: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy [B] by torch.distributions."""
    log_prob, entropy, column = torch.zeros(len(params)), torch.zeros(len(params)), 0
    for head in spec.actions:
        if isinstance(head, BoxHead):
            mean, log_std = params[:, column : column + 2 * head.size].chunk(2, dim=1)
            normal = distributions.Independent(distributions.Normal(mean, log_std.exp()), 1)
            column += 2 * head.size
            log_prob, entropy = log_prob + normal.log_prob(actions[head.key]), entropy + normal.entropy()
        else:
            choice = distributions.Categorical(logits=params[:, column : column + head.n])
            column += head.n
            log_prob, entropy = log_prob + choice.log_prob(actions[head.key]), entropy + choice.entropy()
    return log_prob, entropy


def check(case: Case) -> None:
    recorder = Recorder(case)
    model = recorder.model
    trainer = trainer_for(model, learner=LearnerConfig(batch_size=T * ENVS * case.agents, num_epochs=1))
    for version in range(2):
        batch, acts = recorder.record(version)
        with torch.no_grad():
            unrolled = model.unroll(batch.obs, batch.rnn_states[:-1], batch.is_first, RECURRENCE, batch.held)
            distribution = model.distribution(unrolled.dist_params)
            actions = {key: tensor.flatten(0, 1) for key, tensor in batch.actions.items()}
            log_prob, entropy = distribution.log_prob(actions), distribution.entropy()
            values = model.value_head.denormalize(unrolled.values[:-1])
            expected = reference(recorder.spec, unrolled.dist_params, actions)
            expected_log_prob, expected_entropy = (tensor.view_as(acts)[acts] for tensor in expected)
            log_prob, entropy = (tensor.view_as(acts)[acts] for tensor in (log_prob, entropy))
        close = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)
        close(log_prob, batch.behavior_log_prob[acts])
        close(values[acts], batch.behavior_value[acts])
        close(log_prob, expected_log_prob)
        close(entropy, expected_entropy)

        before = [parameter.detach().clone() for parameter in model.parameters()]
        assert trainer.train(batch) == int(batch.valid.sum()) > T
        after = list(model.parameters())
        assert all(bool(torch.isfinite(parameter).all()) for parameter in after)
        assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_all_pairs_learn_from_what_they_acted() -> None:
    cases = covering(grid())
    assert len(cases) < 40
    for case in cases:
        try:
            check(case)
        except Exception as error:
            error.add_note(str(case))
            raise


@pytest.mark.parametrize("obs", [long(name) for name in OBS])
@pytest.mark.parametrize("actions", list(ACTIONS))
def test_all_combinations_learn_from_what_they_acted(obs: str, actions: str) -> None:
    for case in grid():
        if (case.obs, case.actions) == (obs, actions):
            check(case)
