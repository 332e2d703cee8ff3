"""Rows that a collector records are exactly what a TensorEnv did, and collecting reads no value on the host."""

from __future__ import annotations

from typing import Any

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from sfactory.config.schema import AlgoConfig, LearnerConfig, ModelConfig, SamplingConfig
from sfactory.env.conversion import BadObservation
from sfactory.env.tensor_env import TensorEnv, TensorStep
from sfactory.errors import EnvError, EnvFaults
from sfactory.inference.acting_policy import ActingPolicy
from sfactory.layout import Layout
from sfactory.learner.batch import Batch
from sfactory.learner.staging import FINAL_VALUE
from sfactory.model.actor_critic import ActorCritic
from sfactory.planning.tensor_env_check import check_tensor_env
from sfactory.resident.collector import Collector
from sfactory.resident.dataset import DataChecks, ResidentDataset, Rollout
from sfactory.resident.episodes import EpisodeSums
from sfactory.spec import EnvSpec
from sfactory_envs.synthetic.counting import FIELD_LIMIT
from sfactory_envs.synthetic.counting_tensors import CountingTensors
from tests.support.counting_check import Column, Resets, check_columns
from tests.support.one_process import Dataset, snapshot

STEPS, ENVS, ROLLOUTS = 7, 5, 30
STEPPED = torch.ones(STEPS, ENVS, dtype=torch.bool)
NONE = ~STEPPED
BAD_FINAL = "final observations with numbers that are not finite, or choices that their space does not have"
MEMORY = ModelConfig(encoder_mlp_layers=(8,), use_rnn=True, rnn_size=4, obs_scale=float(FIELD_LIMIT))


class Collected:
    """``ROLLOUTS`` rollouts of an env, two in each dataset, by a policy with a GRU. ended, bad_final: of each."""

    def __init__(self, env: TensorEnv, rollouts: int = ROLLOUTS, device: str = "cpu") -> None:
        self.spec = EnvSpec.of_spaces(env.single_observation_space, env.single_action_space).for_model(MEMORY)
        sampling = SamplingConfig(num_workers=1, num_envs_per_worker=ENVS, rollout=STEPS, async_rl=False)
        learner = LearnerConfig(batch_size=2 * ENVS * STEPS)
        torch.manual_seed(3)
        policy = ActingPolicy(self.spec, MEMORY, None, torch.device(device))
        self.model: ActorCritic = policy._model
        self.layout = Layout.plan(sampling, learner, "local", policy.state_size, resident=True)
        self.dataset = ResidentDataset(self.spec, self.layout, torch.device(device))
        self.datasets: list[Dataset] = []
        self.ended: list[Tensor] = []
        self.bad_final: list[Tensor] = []
        self.episodes: list[tuple[float, int, float]] = []
        sums, collector = EpisodeSums(ENVS, torch.device(device)), Collector(env, self.spec, policy, self.layout)
        collector.begin(self.dataset, seed=11)
        for _ in range(rollouts):
            rollout = collector.collect(self.dataset)
            assert rollout is not None
            self.ended.append(rollout.ended.clone())
            self.bad_final.append(rollout.bad_final.clone())
            if device == "cpu":
                DataChecks(self.spec, torch.device("cpu")).read(self.dataset, rollout)
                rewards = self.dataset.scalars["reward"][:, rollout.rows]
                found = sums.add(rewards, rollout.stepped, rollout.ended, rollout.stats)
                self.episodes += zip(found.returns, found.lengths, found.stats["action"], strict=True)
            if self.dataset.full:
                self.datasets.append(snapshot(self.dataset))
                self.dataset.clear()

    def columns(self) -> list[Column]:
        """The rows of each env."""
        columns = []
        for env in range(ENVS):
            slots = []
            for number, ended in enumerate(self.ended):
                place = env + ENVS * (number % 2)
                fields = {name: value[:, place].numpy() for name, value in self.datasets[number // 2].items()}
                of_slot: dict[str, Any] = {**fields, "obs": fields["obs:obs"], "action": fields["action:action"]}
                slots.append({**of_slot, "truncated": ended[:, env].numpy() & ~fields["terminated"]})
            columns.append(Column.of_slots(slots, STEPS))
        return columns


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_each_step_is_recorded_once_whole_and_in_order(mode: Resets) -> None:
    env = CountingTensors(ENVS, "cpu", STEPS * ROLLOUTS, mode)

    collected = Collected(env)
    columns = collected.columns()
    counts = check_columns(columns, env.rules, mode)

    assert sum(count.ends for count in counts) == len(collected.episodes) > 100
    ends = [np.flatnonzero(column.terminated | column.truncated) % STEPS for column in columns]
    assert set(np.concatenate(ends)) == set(range(STEPS))
    assert all((data["policy_version"] == -1).all() for data in collected.datasets)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_returns_lengths_and_statistics_of_episodes_are_those_of_their_rows(mode: Resets) -> None:
    collected = Collected(CountingTensors(ENVS, "cpu", STEPS * ROLLOUTS, mode))

    columns, due = collected.columns(), []
    totals, lengths = np.zeros(ENVS), np.zeros(ENVS, int)
    for row in range(STEPS * ROLLOUTS):
        for env, column in enumerate(columns):
            is_reset = mode == "NextStep" and not column.valid[row]
            totals[env] += column.reward[row]
            lengths[env] += not is_reset
            if column.terminated[row] or column.truncated[row]:
                due.append((totals[env], lengths[env], float(column.action[row])))
                totals[env], lengths[env] = 0.0, 0
    assert collected.episodes == due


def test_memory_and_values_are_those_of_the_recorded_observations() -> None:
    collected = Collected(CountingTensors(ENVS, "cpu", STEPS * 4), rollouts=4)

    for data in collected.datasets:
        state = data["rnn_states"][0]
        for t in range(STEPS):
            state = state.masked_fill(data["is_first"][t].unsqueeze(-1), 0.0)
            with torch.inference_mode():
                due = collected.model.forward({"obs": data["obs:obs"][t]}, state)
            torch.testing.assert_close(data["value"][t], due.value)
            state = due.state
        torch.testing.assert_close(data["rnn_states"][-1], state)
    before, after = collected.datasets
    goes_on = ~before["is_first"][0, ENVS:]
    assert torch.equal(before["rnn_states"][-1][:ENVS][goes_on], before["rnn_states"][0][ENVS:][goes_on])
    assert torch.equal(before["obs:obs"][-1][ENVS:], after["obs:obs"][0][:ENVS])


def test_a_truncated_step_gets_the_value_of_its_final_observation() -> None:
    plain = Collected(CountingTensors(ENVS, "cpu", STEPS * 4, "SameStep"), rollouts=4)
    env = CountingTensors(ENVS, "cpu", STEPS * 4, "SameStep", final_obs=True)
    collected = Collected(env, rollouts=4)

    algo, learner = AlgoConfig(gamma=0.5, reward_scale=0.25, reward_clip=20.0), LearnerConfig()
    batch = Batch.of(collected.dataset, algo, learner, 0, torch.device("cpu"))
    data, without = collected.datasets[-1], plain.datasets[-1]

    ended = torch.cat(collected.ended[-2:], dim=1)
    truncated = ended & ~without["terminated"]
    assert truncated.sum() >= 3
    assert torch.equal(data["action:action"], without["action:action"])
    assert torch.equal(without["valid"], ~truncated)
    assert data["valid"].all()
    assert torch.equal(batch.discounts == 0.0, ended)
    finals = data[FINAL_VALUE]
    assert torch.equal(finals != 0.0, truncated)
    torch.testing.assert_close(batch.rewards, (data["reward"] * 0.25).clamp(-20.0, 20.0) + 0.5 * finals)
    for t, row in truncated.nonzero().tolist():
        shown = env._final[2 * STEPS + (row >= ENVS) * STEPS + t, row % ENVS]
        with torch.inference_mode():
            state = _state_after(collected.model, data, t, row)
            due = collected.model.forward({"obs": shown.unsqueeze(0)}, state)
        torch.testing.assert_close(finals[t, row], due.value[0])


def _state_after(model: ActorCritic, data: Dataset, t: int, row: int) -> Tensor:
    """[1, S]: the memory of ``row`` after step ``t``."""
    state = data["rnn_states"][0, row : row + 1]
    for step in range(t + 1):
        if data["is_first"][step, row]:
            state = torch.zeros_like(state)
        state = model.forward({"obs": data["obs:obs"][step, row : row + 1]}, state).state
    return state


class AbstractEnv(TensorEnv):
    """Tensors without values: whatever reads one raises. Has observations, actions and statistics of all kinds."""

    def __init__(self, mode: str, final_obs: bool) -> None:
        self.num_envs, self.device = ENVS, torch.device("meta")
        self.single_observation_space = spaces.Dict(
            {"x": spaces.Box(-1, 1, (3,), np.float32), "kind": spaces.Discrete(4), "image": spaces.Box(0, 9, (2,))}
        )
        self.single_action_space = spaces.Tuple(
            (spaces.Discrete(3), spaces.Box(-2, 2, (2,), np.float32), spaces.MultiDiscrete([2, 3]))
        )
        self.autoreset_mode = AutoresetMode(mode)
        self._final = final_obs

    def reset(self, seed: int) -> Any:
        kind = torch.zeros(ENVS, dtype=torch.int64, device=self.device)
        return {
            "x": torch.zeros(ENVS, 3, device=self.device),
            "kind": kind,
            "image": torch.zeros(ENVS, 2, device=self.device),
        }

    def step(self, actions: Any) -> TensorStep:
        assert [action.shape for action in actions] == [(ENVS,), (ENVS, 2), (ENVS, 2)]
        flags = torch.zeros(ENVS, dtype=torch.bool, device=self.device)
        shown, rewards = self.reset(0), torch.zeros(ENVS, device=self.device)
        return TensorStep(shown, rewards, flags, flags, shown if self._final else None, {"speed": rewards})


@pytest.mark.parametrize(("mode", "final_obs"), [("NextStep", False), ("SameStep", False), ("SameStep", True)])
def test_a_rollout_reads_no_value_on_the_host(mode: str, final_obs: bool) -> None:
    collected = Collected(AbstractEnv(mode, final_obs), rollouts=2, device="meta")

    assert collected.dataset.scalars["reward"].is_meta
    with pytest.raises(RuntimeError, match="meta"):  # so that the test would have failed
        collected.ended[0].any().item()


class Broken(CountingTensors):  # type: ignore[misc]
    """Returns what ``change`` makes of the tenth step."""

    def __init__(self, change: Any) -> None:
        super().__init__(ENVS, "cpu", STEPS * 2)
        self._change = change

    def step(self, actions: Tensor) -> TensorStep:
        step = super().step(actions)
        changed: TensorStep = self._change(step) if self._at == 10 else step
        return changed


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda step: step._replace(obs=step.obs[:, :3]), "observation 'obs' has shape (5, 3)"),
        (lambda step: step._replace(obs=step.obs.numpy()), "is a ndarray, not a torch.Tensor"),
        (lambda step: step._replace(rewards=step.rewards.unsqueeze(1)), "the rewards has shape (5, 1)"),
        (lambda step: step._replace(terminated=step.terminated.float()), "terminated has shape (5,) and dtype"),
        (lambda step: step._replace(stats={}), "give all names in every step"),
    ],
)
def test_a_step_of_another_form_is_refused(change: Any, text: str) -> None:
    with pytest.raises((BadObservation, EnvFaults)) as error:
        Collected(Broken(change), rollouts=2)
    assert text in str(error.value)


def rollout_at(row: int, stepped: Tensor = STEPPED, bad_final: Tensor = NONE) -> Rollout:
    return Rollout(slice(row, row + ENVS), stepped, NONE, bad_final, {})


def test_numbers_that_cannot_be_learned_from_are_counted() -> None:
    def spoil(step: TensorStep) -> TensorStep:
        rewards, obs = step.rewards.clone(), step.obs.clone()
        rewards[:] = torch.nan
        obs[1, :2] = torch.inf
        return step._replace(rewards=rewards, obs=obs)

    collected = Collected(Broken(spoil), rollouts=2)
    checks = DataChecks(collected.spec, torch.device("cpu"))
    first, second = (
        dict(zip(checks.names, checks.counts(collected.dataset, rollout_at(at)).tolist(), strict=True))
        for at in (0, ENVS)
    )

    assert set(first.values()) == {0}
    in_resets = int(collected.ended[1][1].sum())  # the tenth step is the third of the second rollout
    assert second == {
        "rewards that are not finite": ENVS - in_resets,
        "numbers of observation 'obs' that are not finite": 2,
        BAD_FINAL: 0,
    }
    said = checks.described([0, 2, 0], collected.dataset, rollout_at(ENVS))
    assert said == "2 numbers of observation 'obs' that are not finite (first in env 1)"


class BadFinals(CountingTensors):  # type: ignore[misc]
    """Its final observations have infinity, which need not make the value of a policy infinite."""

    def __init__(self, **rules: Any) -> None:
        super().__init__(ENVS, "cpu", STEPS * 4, "SameStep", final_obs=True, **rules)

    def step(self, actions: Tensor) -> TensorStep:
        step: TensorStep = super().step(actions)
        final = step.final_obs.clone()
        final[:, 0] = torch.inf
        return step._replace(final_obs=final)


def test_final_observations_that_cannot_be_valued_are_counted_where_an_env_was_truncated() -> None:
    env = BadFinals()
    collected = Collected(env, rollouts=4)
    checks = DataChecks(collected.spec, torch.device("cpu"))

    truncated = (env._truncated & ~env._terminated)[: 4 * STEPS]
    assert 3 <= truncated.sum() < env._terminated.sum()
    assert torch.equal(torch.cat(collected.bad_final), truncated)
    last = collected.dataset, rollout_at(ENVS, bad_final=collected.bad_final[-1])
    assert checks.counts(*last).tolist() == [0, 0, collected.bad_final[-1].sum()]
    first = int(collected.bad_final[-1].any(0).int().argmax())
    assert checks.described([0, 0, 1], *last) == f"1 {BAD_FINAL} (first in env {first})"


class BadEnds(CountingTensors):  # type: ignore[misc]
    """The final observations of its terminated episodes have infinity."""

    def step(self, actions: Tensor) -> TensorStep:
        step: TensorStep = super().step(actions)
        return step._replace(obs=step.obs.masked_fill(step.terminated.unsqueeze(1), torch.inf))


def test_the_final_observation_of_a_terminated_episode_may_have_any_numbers_where_the_next_step_resets() -> None:
    usual, bad = (Collected(kind(ENVS, "cpu", STEPS * 30)) for kind in (CountingTensors, BadEnds))
    checks = DataChecks(bad.spec, torch.device("cpu"))

    for good, found in zip(usual.datasets, bad.datasets, strict=True):
        assert all(torch.isfinite(found[name]).all() for name in ("obs:obs", "value", "log_prob"))
        stepped = good["valid"]
        for name in ("obs:obs", "action:action", "value", "log_prob", "reward", "valid"):
            assert torch.equal(found[name][:STEPS][stepped], good[name][:STEPS][stepped])
    assert any(found["terminated"][-1].any() for found in bad.datasets)  # the next rollout shows its end, too
    assert not checks.counts(bad.dataset, rollout_at(ENVS)).any()
    check_tensor_env(BadEnds(ENVS, "cpu", 60, max_length=2, ends="terminated"), "--env=mine")


def test_bad_observations_have_numbers_that_are_not_finite_or_choices_that_their_space_does_not_have() -> None:
    space = spaces.Dict(
        x=spaces.Box(-1, 1, (2,)),
        kind=spaces.Discrete(4, start=1),
        image=spaces.Box(0, 9, (2,), np.uint8),
        wide=spaces.Box(-np.inf, np.inf, (1,), np.float64),
    )
    checks = DataChecks(EnvSpec.of_spaces(space, spaces.Discrete(2)), torch.device("cpu"))
    x, kind = torch.zeros(5, 2), torch.tensor([1, 4, 0, 5, 1])
    x[1, 1] = torch.nan

    wide = torch.tensor([3e38, 0, 0, 0, -1e39], dtype=torch.float64).unsqueeze(1)

    bad = checks.bad({"image": torch.zeros(5, 2, dtype=torch.uint8), "kind": kind, "x": x, "wide": wide})

    assert bad.tolist() == [False, True, True, True, True]


def test_final_observations_that_cannot_be_valued_are_refused_before_a_run() -> None:
    with pytest.raises(EnvError, match=r"final_obs of step.*: 'obs' holds NaN or infinity"):
        check_tensor_env(BadFinals(max_length=2, ends="truncated"), "--env=mine")
    check_tensor_env(BadFinals(max_length=2, ends="terminated"), "--env=mine")


class Masked(TensorEnv):
    """Two actions with masks. An episode has 3 steps, and its end allows nothing; env 3 is stuck from ``stuck`` on."""

    def __init__(self, mode: str, stuck: int) -> None:
        self.num_envs, self.device, self.autoreset_mode = ENVS, torch.device("cpu"), AutoresetMode(mode)
        self.single_observation_space = spaces.Dict(seen=spaces.Box(0, 1, (1,)), action_mask=spaces.MultiBinary(5))
        self.single_action_space = spaces.MultiDiscrete([2, 3])
        self._stuck, self._at = stuck, 0

    def reset(self, seed: int) -> Any:
        self._at = 0
        return self._shown(ended=False)

    def step(self, actions: Any) -> TensorStep:
        self._at += 1
        period = 4 if self.autoreset_mode is AutoresetMode.NEXT_STEP else 3  # with the step that resets
        ended = self._at % period == 3 % period
        ends, none = torch.full((ENVS,), ended), torch.zeros(ENVS, dtype=torch.bool)
        shown = self._shown(ended and period == 4)
        return TensorStep(shown, torch.zeros(ENVS), ends, none, stats={"action": torch.zeros(ENVS)})

    def _shown(self, ended: bool) -> Any:
        masks = torch.tensor([1, 0, 1, 1, 0], dtype=torch.int8).repeat(ENVS, 1) * (not ended)
        if self._at >= self._stuck:
            masks[3, 2:] = 0
        return {"seen": torch.zeros(ENVS, 1), "action_mask": masks}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_masks_that_allow_nothing_are_counted_where_an_action_is_taken(mode: str) -> None:
    collected = Collected(Masked(mode, stuck=STEPS), rollouts=2)
    checks, stepped = DataChecks(collected.spec, torch.device("cpu")), torch.ones(2 * STEPS, ENVS, dtype=torch.bool)
    if mode == "NextStep":
        stepped[3::4] = False
    first, second = (
        (collected.dataset, rollout_at(at, stepped[steps : steps + STEPS])) for at, steps in ((0, 0), (ENVS, STEPS))
    )
    place = checks.names.index("action masks 'action_mask' that allow no action")

    assert not checks.counts(*first).any()
    assert checks.counts(*second)[place] == stepped[STEPS:, 3].sum()
    said = checks.described(checks.counts(*second).tolist(), *second)
    assert said.endswith("action masks 'action_mask' that allow no action (first in env 3)")


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_mask_that_allows_nothing_is_refused_before_a_run(mode: str) -> None:
    check_tensor_env(Masked(mode, stuck=100), "--env=mine")
    for stuck, where in ((0, "reset"), (2, "step")):
        with pytest.raises(EnvError, match=rf"{where}\(\), env 3: observation 'action_mask' allows no action"):
            check_tensor_env(Masked(mode, stuck), "--env=mine")
