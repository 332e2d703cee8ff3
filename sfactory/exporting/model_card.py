"""Writes the model card of a policy: its env, algorithm, return and settings, and how to play it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

import yaml

from sfactory import __version__
from sfactory.config.argv import assignment
from sfactory.config.flags import all_flags, values_of
from sfactory.config.rule import waits_for_learner
from sfactory.config.saved_config import NOT_RESUMED, SUMMARY_NAME
from sfactory.config.schema import Config
from sfactory.config.trust import NETWORKS, TRUST, untrusted
from sfactory.experiment.saved_policy import SavedPolicy
from sfactory.experiment.summary import Summary
from sfactory.exporting.hub import CARD
from sfactory.pbt.ranking import REWARD

_CARD = """---
{head}---

# A policy for {env}

| | |
|---|---|
| environment | `{env}` |
| algorithm | {algorithm} |
| trained for | {env_steps} env steps |
| return | {result} |

Trained with sfactory {version}. `policy.safetensors` holds the weights with their description, and no code.

## Play it

In a checkout of sfactory, with its extras: `pip install -e '.[hub,safetensors]'`. Then:

```
{command}
```

## Settings

All that differ from the defaults:

```json
{settings}
```
"""
# What the objective of a best checkpoint is, by --save_best_metric; others are no returns.
_BEST = {
    REWARD: "the mean of the last episodes of training when it was best",
    "eval_return": "the mean of an evaluation",
}


def model_card(saved: SavedPolicy, repository: str) -> str:
    """Markdown with a head of YAML, as the Hub reads it. See ``_result`` for the return."""
    config, env = saved.config, saved.config.run.env
    result = _result(saved)
    head: dict[str, object] = {
        "library_name": "sfactory",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "deep-reinforcement-learning", "sfactory", env],
    }
    if result is not None:
        metric = {"type": "mean_reward", "name": "mean return", "value": result, "verified": False}
        task, data = {"type": "reinforcement-learning", "name": "reinforcement-learning"}, {"name": env, "type": env}
        results = [{"task": task, "dataset": data, "metrics": [metric]}]
        head["model-index"] = [{"name": _algorithm(config), "results": results}]
    values = values_of(config)
    return _CARD.format(
        head=yaml.safe_dump(head, sort_keys=False, allow_unicode=True),
        env=env,
        algorithm=_algorithm(config),
        env_steps=f"{saved.state.env_steps:,}",
        result=result or "not known",
        version=__version__,
        command=shlex.join(["python", "-m", "sfactory.enjoy", *_words(values, repository)]),
        settings=json.dumps(_settings(values), indent=2, default=dict),
    )


def _result(saved: SavedPolicy) -> str | None:
    """The return of this checkpoint, of which summary.json may say nothing; then None.

    That of an evaluation with its range over the episodes; of a best checkpoint that by which it is the best; else the
    mean at the end of training.
    """
    summary, state = Summary.read(saved.named_in.with_name(SUMMARY_NAME)), saved.state
    played = (None if summary is None or summary.policies else summary.evaluation) or {}
    mean, least, most = (played.get(f"episode_return_{name}") for name in ("mean", "min", "max"))
    is_of_it = played.get("policy_env_steps") == state.env_steps
    if is_of_it and mean is not None and least is not None and most is not None:
        return f"{mean:.2f}, between {least:.2f} and {most:.2f} in {played['episodes']} episodes of an evaluation"
    if saved.checkpoint.name.startswith("best_") and state.best_metric in _BEST:
        return f"{state.best_objective:.2f}, {_BEST[state.best_metric]}"
    if summary is None:
        return None
    at_end = summary.of_policy(saved.wanted.policy_index, len(summary.policies) or 1)
    mean = at_end.get("episode_return_mean") if at_end.get("env_steps") == state.env_steps else None
    return None if mean is None else f"{mean:.2f}, the mean of the last episodes of training"


def _algorithm(config: Config) -> str:
    """The algorithm in a few words."""
    loss = "PPO" if config.algo.policy_loss == "ppo_clip" else "policy gradient"
    targets = "V-trace" if config.algo.with_vtrace else "GAE"
    sampling = "synchronous sampling" if waits_for_learner(config) else "asynchronous sampling"
    return f"{loss} with {targets}, {sampling}"


def _words(values: Mapping[str, object], repository: str) -> list[str]:
    """The flags that play the policy; code that it names has to be trusted by name."""
    words = [f"--load_from_hub={repository}"]
    if untrusted(values, {"env": CARD}):
        words += assignment("env", values["env"])
    if untrusted(values, dict.fromkeys(("env_kwargs", "wrapper", *NETWORKS), CARD)):
        words.append(f"--{TRUST}=True")
    return words


def _settings(values: Mapping[str, object]) -> dict[str, object]:
    return {
        name: value for name, value in values.items() if name not in NOT_RESUMED and value != all_flags()[name].default
    }
