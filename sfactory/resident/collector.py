"""Acts in a ``TensorEnv`` and records its steps as rows of a dataset, all on one device.

Rows are as those of a vector env (sfactory/actor/vector_batch.py): in NEXT_STEP mode the step after an end resets, its
row is invalid, and the row shows the true final observation (NOTE [Truncation row]), which may have any numbers if the
episode was terminated. In SAME_STEP mode a truncated step is not learned from, unless the env gives final observations.

NOTE [Final values]: in SAME_STEP mode the value after a truncated step is that of an observation which is no row. If
the env gives it, the acting policy values it, and the step is recorded as terminated with ``final_value``: the learner
adds the discounted value to its reward, after scaling and clipping.

NOTE [Nothing waits]: a rollout reads no value of a tensor on the host: it neither branches on one nor indexes with a
mask. All that the host must know is read once, after the rollout, by ``EpisodeSums`` and ``DataChecks``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from sfactory.env.tensor_actions import tensor_reader
from sfactory.env.tensor_env import TensorEnv, TensorStep, TensorWriter, require_autoreset, require_tensor
from sfactory.errors import EnvFaults
from sfactory.inference.acting_policy import ActingPolicy
from sfactory.layout import Layout
from sfactory.learner.staging import FINAL_VALUE
from sfactory.resident.dataset import DataChecks, ResidentDataset, Rollout
from sfactory.spec import EnvSpec


class Collector:
    """Steps one TensorEnv with one policy, T steps at a time."""

    def __init__(self, env: TensorEnv, spec: EnvSpec, policy: ActingPolicy, layout: Layout) -> None:
        size, device, steps = env.num_envs, env.device, layout.rollout
        self._env, self._policy = env, policy
        self._steps, self._recurrence = steps, layout.recurrence
        self._remembers = policy.state_size > 0
        self._resets_next_step = require_autoreset(env) is AutoresetMode.NEXT_STEP
        self._writer = TensorWriter(spec, env.single_observation_space)
        self._read = tensor_reader(env.single_action_space, spec.actions, device)
        self._obs: dict[str, Tensor] = {}  # of the step that comes next
        self._final: dict[str, Tensor] = {}  # final observations
        self._checks = DataChecks(spec, device)
        self._is_first = torch.ones(size, dtype=torch.bool, device=device)
        self._state = policy.fresh_state(size)
        self._stepped, self._ended = (torch.ones(steps, size, dtype=torch.bool, device=device) for _ in range(2))
        self._bad_final = torch.zeros(steps, size, dtype=torch.bool, device=device)
        # With the last step.
        self._has_ended, self._has_terminated = torch.zeros(2, size, dtype=torch.bool, device=device)
        self._stats: dict[str, Tensor] = {}

    def begin(self, dataset: ResidentDataset, seed: int) -> None:
        """Reset the env for the first time. ``dataset``: one of those that are to be filled."""
        rows = dataset.next_rows
        self._obs = {key: torch.empty_like(block[0, rows]) for key, block in dataset.obs.items()}
        with torch.no_grad():
            self._writer.write(self._env.reset(seed), self._obs)

    def collect(self, dataset: ResidentDataset, stopping: Callable[[], bool] = lambda: False) -> Rollout | None:
        """Fill the next N rows of ``dataset``; None, and nothing is filled, if ``stopping()`` is true before a step."""
        rows = dataset.next_rows
        for key, block in dataset.obs.items():
            block[0, rows] = self._obs[key]
        dataset.is_first[0, rows] = self._is_first
        dataset.scalars["policy_version"][:, rows] = self._policy.version
        with torch.no_grad():
            for t in range(self._steps):
                if stopping():
                    return None
                self._act(dataset, rows, t)
                actions = self._read({key: block[t, rows] for key, block in dataset.actions.items()})
                self._record(dataset, rows, t, self._env.step(actions))
        unvalued = None
        if self._resets_next_step:
            unvalued = torch.cat((self._has_terminated.unsqueeze(0), dataset.scalars["terminated"][:, rows]))
            self._has_terminated = unvalued[-1]
        if self._remembers:
            dataset.rnn_states[-1, rows] = self._state
        for key, block in dataset.obs.items():
            self._obs[key].copy_(block[self._steps, rows])
        dataset.filled += dataset.rows_of_env
        return Rollout(rows, self._stepped, self._ended, self._bad_final, self._stats, unvalued)

    def _act(self, dataset: ResidentDataset, rows: slice, t: int) -> None:
        """Choose actions for step ``t``, and write them, log-probs and values beside its observations."""
        state = self._state
        if self._remembers:
            state = state.masked_fill(self._is_first.unsqueeze(-1), 0.0)
            if t % self._recurrence == 0:
                dataset.rnn_states[t // self._recurrence, rows] = state
        acted = self._policy.act({key: block[t, rows] for key, block in dataset.obs.items()}, state)
        for key, chosen in acted.actions.items():
            dataset.actions[key][t, rows] = chosen
        dataset.scalars["log_prob"][t, rows] = acted.log_prob
        dataset.scalars["value"][t, rows] = acted.value
        self._state = acted.state

    def _record(self, dataset: ResidentDataset, rows: slice, t: int, step: TensorStep) -> None:
        """Write what step ``t`` has returned."""
        self._writer.write(step.obs, {key: block[t + 1, rows] for key, block in dataset.obs.items()})
        row = {name: dataset.scalars[name][t, rows] for name in ("reward", "terminated", "valid")}
        require_tensor("the rewards", step.rewards, row["reward"])
        for what in ("terminated", "truncated"):
            require_tensor(what, getattr(step, what), self._has_ended)
        stepped, ended = self._stepped[t], self._ended[t]
        torch.logical_or(step.terminated, step.truncated, out=ended)
        row["reward"].copy_(step.rewards)
        row["terminated"].copy_(step.terminated)
        if self._resets_next_step:
            torch.logical_not(self._has_ended, out=stepped)
            row["reward"].masked_fill_(self._has_ended, 0.0)
            row["valid"].copy_(stepped)
            self._is_first.copy_(self._has_ended)
        else:
            self._is_first.copy_(ended)
            self._record_final(dataset, rows, t, step)
        dataset.is_first[t + 1, rows] = self._is_first
        self._has_ended.copy_(ended)
        self._record_stats(t, step)

    def _record_final(self, dataset: ResidentDataset, rows: slice, t: int, step: TensorStep) -> None:
        """See NOTE [Final values]. Validity and end of a step in SAME_STEP mode."""
        truncated = step.truncated & ~step.terminated
        scalars = dataset.scalars
        if FINAL_VALUE not in scalars:
            scalars[FINAL_VALUE] = torch.zeros_like(scalars["value"])
        if step.final_obs is None:
            scalars[FINAL_VALUE][t, rows] = 0.0
            self._bad_final[t] = False
            scalars["valid"][t, rows] = ~truncated
            return
        if not self._final:
            self._final = {key: torch.empty_like(obs) for key, obs in self._obs.items()}
        self._writer.write(step.final_obs, self._final)
        torch.logical_and(truncated, self._checks.bad(self._final), out=self._bad_final[t])
        # The mode of the distribution needs no random number, so that actions are the same with and without.
        value = self._policy.act(self._final, self._state, deterministic=True).value
        scalars[FINAL_VALUE][t, rows] = value.masked_fill(~truncated, 0.0)
        scalars["valid"][t, rows] = True
        scalars["terminated"][t, rows] = self._ended[t]

    def _record_stats(self, t: int, step: TensorStep) -> None:
        if not self._stats and step.stats:
            self._stats = {name: torch.zeros_like(self._ended, dtype=torch.float64) for name in step.stats}
        if self._stats.keys() != step.stats.keys():
            raise EnvFaults(
                f"the env has stats {sorted(step.stats)} in a step, and had {sorted(self._stats)} before; give all "
                "names in every step"
            )
        for name, values in step.stats.items():
            require_tensor(f"stats[{name!r}]", values, self._stats[name][t])
            self._stats[name][t] = values
