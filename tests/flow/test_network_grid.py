"""Kinds of observations, actions, memory, masks, agents and layouts in all pairs: what is learned is what was acted.

The actors and policy workers of a run sample random envs in turn, and each policy makes two updates of what came.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, distributions

from sfactory.action_heads import BoxHead
from sfactory.config.schema import (
    AlgoConfig,
    Config,
    LearnerConfig,
    ModelConfig,
    PopulationConfig,
    RunConfig,
    SamplingConfig,
)
from sfactory.env.factory import EnvFactory
from sfactory.learner.batch import Batch
from sfactory.learner.staging import Staging
from sfactory.model.actor_critic import ActorCritic
from sfactory.planning.env_probe import examine
from sfactory.spec import EnvSpec
from tests.support.long import long
from tests.support.parts import trainer_for
from tests.support.random_env import ACTIONS, OBS
from tests.support.sampling import SerialSampler

T, ENVS, RECURRENCE = 8, 4, 4
CPU = torch.device("cpu")
# Weights of the policy's head are larger by SCALE, so that actions depend on what is seen. So is what float32 rounds in
# front of it: convolutions and products of matrices add up in another order in batches of another size, on some CPUs.
# Without the factor log-probabilities differ by 1e-6 at most.
SCALE = 50.0
LOG_PROB_ATOL = 1e-6 * SCALE
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {"encoder_conv_architecture": "resnet_impala"},
    "normed": {"encoder_conv_architecture": "resnet_impoola", "use_layer_norm": True, "encoder_per_key": True},
}
IMAGES = "camera=hwc"
LAYOUTS_OF_OBS = {"image": (IMAGES,), "entities": ("units=entities",), "several": (IMAGES, "units=entities")}


class Case(NamedTuple):
    obs: str
    actions: str
    memory: str
    masked: bool
    agents: str
    layers: str
    core_inputs: bool
    layout: str

    @property
    def exists(self) -> bool:
        """Box actions have no masks, only a memory has inputs of its own, and agents are in no vector env."""
        needs = (
            not self.masked or self.actions != "box",
            not self.core_inputs or (self.memory != "none" and self.agents != "unequal"),
            self.layout != "vector" or self.agents == "one",
        )
        return all(needs)


def grid() -> list[Case]:
    """All combinations that there are."""
    memories, agents, layouts = ("none", "gru", "mingru"), ("one", "three", "unequal"), ("central", "local", "vector")
    axes = (OBS, ACTIONS, memories, (False, True), agents, LAYERS, (False, True), layouts)
    return [case for choice in itertools.product(*axes) if (case := Case(*choice)).exists]


def covering(cases: list[Case]) -> list[Case]:
    """Few of ``cases`` in which every pair of values occurs that occurs in any."""
    pairs_of = {case: frozenset(itertools.combinations(enumerate(case), 2)) for case in cases}
    missing, chosen = set[Any]().union(*pairs_of.values()), []
    while missing:
        chosen.append(max(cases, key=lambda case: len(pairs_of[case] & missing)))
        missing -= pairs_of[chosen[-1]]
    return chosen


def thinned(cases: list[Case]) -> list[Case]:
    """One of all that differ in ``layers`` and ``core_inputs`` alone, each time another one."""
    alike: dict[Case, list[Case]] = {}
    for case in cases:
        alike.setdefault(case._replace(layers="", core_inputs=False), []).append(case)
    return [group[number % len(group)] for number, group in enumerate(alike.values())]


def config_of(case: Case) -> Config:
    memory = {} if case.memory == "none" else {"use_rnn": True, "rnn_type": case.memory, "rnn_size": 6}
    # Of unequal agents an observation has its kind in its path.
    below = "a/" if case.agents == "unequal" else ""
    obs_layout = tuple(below + entry for entry in LAYOUTS_OF_OBS.get(case.obs, ()))
    kwargs = {"obs": case.obs, "actions": case.actions, "masked": case.masked, "agents": case.agents}
    unequal: dict[str, Any] = {"num_policies": 2, "policy_mapping": "a=0,b=1,c=0"} if case.agents == "unequal" else {}
    return Config(
        run=RunConfig(
            env=f"tests.support.random_env:random_{'vector' if case.layout == 'vector' else 'env'}",
            env_kwargs=kwargs,
            device="cpu",
        ),
        sampling=SamplingConfig(
            num_workers=1,
            num_envs_per_worker=ENVS,
            worker_num_splits=2,
            inference="central" if case.layout == "central" else "local",
            rollout=T,
            decorrelate_envs_on_one_worker=False,
        ),
        learner=LearnerConfig(
            batch_size=ENVS * T, num_epochs=1, recurrence=RECURRENCE, train_in_background_thread=False
        ),
        model=ModelConfig(
            **{**LAYERS[case.layers], **memory},
            encoder_mlp_layers=(8,),
            encoder_conv_mlp_layers=(8,),
            encoder_entity_size=8,
            encoder_entity_heads=2,
            obs_layout=obs_layout,
            core_inputs=("action", "reward") if case.core_inputs else (),
        ),
        population=PopulationConfig(**unequal),
    )


class Policy:
    """What acts for one kind of agents, and learns from it."""

    def __init__(self, sampler: SerialSampler, policy: int) -> None:
        shared, learner = sampler.shared, sampler.config.learner
        self.spec, self.model = shared.spec_of(policy), sampler.models[policy]
        self.batcher, self.staging = sampler.batcher(policy), Staging(self.spec, sampler.layout, False, policy=policy)
        self._learner, self._trainer = learner, trainer_for(self.model, learner=learner)

    def needs_steps(self) -> bool:
        """Take the steps that have come; whether more are needed."""
        return not self.batcher.advance(self.staging, 0)

    def learn(self, version: int) -> None:
        """Check that what has come is what the present weights give, and update them."""
        batch = Batch.of(self.staging, AlgoConfig(), self._learner, version, CPU)
        # A sleeping agent does not act, and one that is over is not learned from.
        acts = batch.taken if batch.held is None else batch.taken & ~batch.held
        assert bool((batch.policy_version[acts] == version).all())
        check_acted(self.model, self.spec, batch, acts)
        before = [parameter.detach().clone() for parameter in self.model.parameters()]
        assert self._trainer.train(batch) == int(batch.valid.sum()) > T
        after = list(self.model.parameters())
        assert all(bool(torch.isfinite(parameter).all()) for parameter in after)
        assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def check_acted(model: ActorCritic, spec: EnvSpec, batch: Batch, acts: Tensor) -> None:
    """Unrolled over a rollout, the model gives what it gave step by step, and what torch.distributions gives.

    acts: [T, R] bool - where a policy has acted.
    """
    with torch.no_grad():
        unrolled = model.unroll(batch.obs, batch.rnn_states[:-1], batch.is_first, RECURRENCE, batch.held)
        distribution = model.distribution(unrolled.dist_params)
        actions = {key: tensor.flatten(0, 1) for key, tensor in batch.actions.items()}
        values = model.value_head.denormalize(unrolled.values[:-1])
        expected_log_prob, expected_entropy = reference(spec, unrolled.dist_params, actions)
    cells, close = acts.flatten(), partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)
    log_prob, entropy = distribution.log_prob(actions)[cells], distribution.entropy()[cells]
    close(log_prob, batch.behavior_log_prob.flatten()[cells], atol=LOG_PROB_ATOL, rtol=1e-6)
    close(values.flatten()[cells], batch.behavior_value.flatten()[cells])
    close(log_prob, expected_log_prob[cells])
    close(entropy, expected_entropy[cells])


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
    config = config_of(case)
    spec = examine(EnvFactory.of(config)).spec.for_model(config.model)
    torch.manual_seed(0)
    sampler = SerialSampler(config, spec, kinds=("a", "b") if spec.kinds else ())
    with torch.no_grad():
        for model in sampler.models:
            model.policy_head.linear.weight.mul_(SCALE)
    with sampler:
        policies = [Policy(sampler, policy) for policy in range(sampler.layout.num_policies)]
        for version in range(2):
            if version:
                sampler.wait_until_held_back()
                for policy in policies:
                    policy.batcher.discard()  # what was acted with the old weights
                    policy.staging.clear()
                sampler.publish(version)
            sampler.turns_until(lambda: sum(map(Policy.needs_steps, policies)) == 0, "no datasets came")
            for policy in policies:
                policy.learn(version)


def spoiled(batch: Batch) -> dict[str, Batch]:
    """``batch`` with faults that a run might have."""
    obs = {path: torch.cat((leaf[:3], leaf[2:-1])) for path, leaf in batch.obs.items()}
    states, first = batch.rnn_states, torch.zeros_like(batch.is_first)
    return {
        "a dropped frame": replace(batch, obs=obs),
        "the memory of an earlier chunk": replace(batch, rnn_states=states[:1].expand_as(states)),
        "a memory that goes on into the next episode": replace(batch, is_first=first),
        "the memory of another row": replace(batch, rnn_states=states.roll(1, dims=1)),
    }


def test_faults_are_far_beyond_what_float32_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    found, held_to = dict[str, float](), check_acted

    def compared(model: ActorCritic, spec: EnvSpec, batch: Batch, acts: Tensor) -> None:
        for name, wrong in spoiled(batch).items():
            with torch.no_grad():
                params = model.unroll(wrong.obs, wrong.rnn_states[:-1], wrong.is_first, RECURRENCE).dist_params
            chosen = {key: tensor.flatten(0, 1) for key, tensor in batch.actions.items()}
            log_prob = model.distribution(params).log_prob(chosen)
            deviation = (log_prob - batch.behavior_log_prob.flatten())[acts.flatten()].abs().max()
            found[name] = max(float(deviation), found.get(name, 0.0))
            with pytest.raises(AssertionError):
                held_to(model, spec, wrong, acts)
        held_to(model, spec, batch, acts)

    monkeypatch.setattr(sys.modules[__name__], "check_acted", compared)
    check(Case("image", "box", "gru", False, "one", "plain", False, "local"))
    assert len(found) == 4
    assert min(found.values()) > 100 * LOG_PROB_ATOL, found


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
    for case in thinned(grid()):
        if (case.obs, case.actions) == (obs, actions):
            check(case)
