"""Sets and refuses flags of a run with a ``TensorEnv``, which collects and learns in turn in one process.

What the env is becomes known only once it was made, so these rules are not among those of the config.
"""

from __future__ import annotations

from sfactory.config.flags import assigned, values_of
from sfactory.config.resolve import DEFAULT, Resolved, fitted_to_agents
from sfactory.config.rule import is_default
from sfactory.config.validation import find_problems
from sfactory.errors import ConfigError

_SOURCE = "tensor env"
# One process, one env of N rows, datasets of whole rollouts, and no collection while the learner learns.
_FIXED: dict[str, object] = {
    "serial_mode": True,
    "async_rl": False,
    "inference": "local",
    "num_workers": 1,
    "worker_num_splits": 1,
}
_IS_ONE = "the env is a TensorEnv, which one process steps on the device of the network"
# What is not there in this form, with the reason or what to do instead.
_REFUSED: dict[str, str] = {
    "num_policies": "one policy plays all of its rows",
    "with_pbt": "a population has several policies",
    "opponent_pool": "its envs have one agent each",
    "replay_proportion": "old rows are not kept",
    "core_inputs": "put them into the observations of the env",
    "actor_worker_gpus": "--device names the GPU",
    "remote_actors_port": "actors that joined would have nothing to step",
    "benchmark": "a benchmark measures the processes of a run",
    "autotune": "there are no processes to tune",
}


def fitted_to_tensors(resolved: Resolved) -> Resolved:
    """``resolved`` for a TensorEnv; raises ConfigError for flags that the user has set and that it cannot have.

    Without --num_envs_per_worker there are as many envs as a dataset has rows.
    """
    values, given = values_of(resolved.config), resolved.given
    problems = [
        f"{assigned(name, values[name])}: {_IS_ONE}: leave it out, or set {assigned(name, value)}"
        for name, value in _FIXED.items()
        if name in given and values[name] not in (value, "auto")
    ]
    problems += [
        f"{assigned(name, values[name])}: {_IS_ONE}, and {why}: leave it out"
        for name, why in _REFUSED.items()
        if not is_default(resolved.config, name)
    ]
    if problems:
        raise ConfigError(problems)
    learner, sampling = resolved.config.learner, resolved.config.sampling
    source = resolved.sources["num_envs_per_worker"]
    if source == DEFAULT or source.startswith("task"):
        rows = learner.batch_size * learner.num_batches_per_epoch // sampling.rollout
        resolved = resolved.replaced({"num_envs_per_worker": rows}, _SOURCE)
    resolved = fitted_to_agents(resolved.replaced(_FIXED, _SOURCE), agents=1)
    if found := find_problems(resolved.config, chosen=given):
        raise ConfigError([f"{problem.text} ({_IS_ONE})" for problem in found])
    return resolved
