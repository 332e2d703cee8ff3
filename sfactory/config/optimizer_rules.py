"""Room: what must hold between flags of the optimizer. In: a ``Config``. Out: ``OPTIMIZER_RULES``."""

from __future__ import annotations

import importlib.util

from sfactory.config.flags import did_you_mean
from sfactory.config.objective_rules import points_problem
from sfactory.config.rule import Rule, idle_unless
from sfactory.config.schedule_text import LR_WORDS, POINTS_FORM, parse_points
from sfactory.config.schema import Config

_OF_THE_EXTRA = ("lamb", "muon")
_EXTRA_MODULE = "pytorch_optimizer"
_DECAYING = ("adamw", "lamb", "muon")


def _rates_are_scheduled(config: Config) -> str | None:
    text = config.optim.lr_schedule
    if text in LR_WORDS:
        return None
    choices = f"must be one of {', '.join(LR_WORDS)}, or {POINTS_FORM}"
    if ":" not in text:
        return f"{choices}{did_you_mean(text, LR_WORDS)}"
    try:
        parse_points(text)
    except ValueError as error:
        return f"{choices}: {error}"
    return None


def _critic_rates_have_points(config: Config) -> str | None:
    return points_problem(config.optim.value_lr_schedule)


def _optimizer_is_installed(config: Config) -> str | None:
    if config.optim.optimizer not in _OF_THE_EXTRA or importlib.util.find_spec(_EXTRA_MODULE) is not None:
        return None
    return f"needs the package {_EXTRA_MODULE}, which is not installed: run pip install 'sfactory[optimizers]'"


def _critic_has_weights_of_its_own(config: Config) -> str | None:
    if not config.optim.separate_value_optimizer or not config.model.actor_critic_share_weights:
        return None
    shared = "encoder, recurrent core and decoder" if config.model.use_rnn else "encoder and decoder"
    return (
        f"{shared} are shared by actor and critic, so that two optimizers would step them: needs "
        "--actor_critic_share_weights=False"
    )


OPTIMIZER_RULES = (
    Rule(("lr_schedule",), _rates_are_scheduled),
    Rule(("value_lr_schedule",), _critic_rates_have_points),
    Rule(("optimizer",), _optimizer_is_installed),
    Rule(("separate_value_optimizer", "actor_critic_share_weights", "use_rnn"), _critic_has_weights_of_its_own),
    *idle_unless(
        ("value_lr", "value_lr_schedule"),
        ("separate_value_optimizer",),
        lambda config: config.optim.separate_value_optimizer,
        "--separate_value_optimizer=True",
    ),
    *idle_unless(
        ("adam_eps", "adam_beta1", "adam_beta2"),
        ("optimizer",),
        lambda config: config.optim.optimizer != "rmsprop",
        "--optimizer=adam",
    ),
    *idle_unless(
        ("rmsprop_alpha", "rmsprop_momentum", "rmsprop_eps", "rmsprop_tf_style"),
        ("optimizer",),
        lambda config: config.optim.optimizer == "rmsprop",
        "--optimizer=rmsprop",
    ),
    *idle_unless(
        ("weight_decay",), ("optimizer",), lambda config: config.optim.optimizer in _DECAYING, "--optimizer=adamw"
    ),
)
