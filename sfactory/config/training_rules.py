"""Room: what must hold between flags of the learner. In: a ``Config``. Out: ``LEARNING_RULES``.

Room: what must hold between flags of the objective. In: a ``Config``. Out: ``OBJECTIVE_RULES``.

Room: what must hold between flags of the optimizer. In: a ``Config``. Out: ``OPTIMIZER_RULES``.
"""

from __future__ import annotations

import importlib.util
import math

from sfactory.config.flags import did_you_mean
from sfactory.config.rule import Rule, idle_unless
from sfactory.config.schedule_text import LR_WORDS, POINTS_FORM, parse_points
from sfactory.config.schema import Config

# What training in a thread of its own depends on.
_BACKGROUND = ("train_in_background_thread", "async_rl", "num_batches_to_accumulate", "serial_mode")
# Of larger numbers the divisors between this and its counterpart are not looked for.
_LARGEST_DIVISOR = 10**6


def _one_at_a_time(config: Config) -> str:
    """The settings because of which the learner holds one dataset and trains between assembling; "" if none does."""
    learner = config.learner
    why = (
        ("serial_mode=True", config.run.serial_mode),
        ("async_rl=False", not config.sampling.async_rl),
        ("num_batches_to_accumulate=0", learner.num_batches_to_accumulate == 0),
        ("train_in_background_thread=False", not learner.train_in_background_thread),
    )
    return " and ".join(text for text, holds in why if holds)


def _datasets_advice(config: Config, what: str, needed: int) -> str | None:
    """What to say if fewer than ``needed`` datasets, which ``what`` take, may be held."""
    if config.learner.num_batches_to_accumulate >= needed:
        return None
    return f"{what} take {needed} datasets: --num_batches_to_accumulate={needed} or more holds so many"


def _ring_has_datasets(config: Config) -> str | None:
    ring, batchers = config.learner.minibatch_ring_size, config.learner.num_batchers
    if ring == 1:
        return None
    if why := _one_at_a_time(config):
        return f"must be 1 with {why}: the learner then holds one dataset at a time"
    return _datasets_advice(config, "those turned over and one in the making by each of num_batchers", ring + batchers)


def _batchers_have_datasets(config: Config) -> str | None:
    ring, batchers = config.learner.minibatch_ring_size, config.learner.num_batchers
    if batchers == 1:
        return None
    if why := _one_at_a_time(config):
        return f"must be 1 with {why}: the learner then assembles one dataset at a time"
    # Of a ring that has too few datasets _ring_has_datasets speaks.
    return (
        _datasets_advice(config, "the one learned from and one in the making by each", 1 + batchers)
        if ring == 1
        else None
    )


def _batchers_have_workers(config: Config) -> str | None:
    workers = config.sampling.num_workers
    if config.learner.num_batchers <= workers:
        return None
    return f"must be at most num_workers ({workers}), whose trajectories they assemble"


def _warm_up_ends(config: Config) -> str | None:
    warmup, epochs = config.learner.ring_warmup, config.learner.num_epochs
    if warmup <= epochs:
        return None
    return f"must be at most num_epochs ({epochs}), which the number of passes rises to"


def _what_is_dropped_waits(config: Config) -> str | None:
    learner = config.learner
    if learner.learner_queue_policy == "block":
        return None
    if why := _one_at_a_time(config):
        return f"with {why} no dataset waits that could be dropped: leave one of them out"
    what = "those learned from, one in the making by each of num_batchers, and one that waits"
    return _datasets_advice(config, what, learner.minibatch_ring_size + learner.num_batchers + 1)


def _replay_has_slots(config: Config) -> str | None:
    if not config.learner.replay_proportion or config.learner.replay_slots:
        return None
    return "there are no trajectories to replay: say how many are kept, for example --replay_slots=100"


def _replay_is_corrected(config: Config) -> str | None:
    if not config.learner.replay_proportion or config.algo.with_vtrace:
        return None
    return "replayed trajectories are of old policies, which V-trace alone corrects: needs --with_vtrace=True"


def _replay_goes_with_asynchrony(config: Config) -> str | None:
    if not config.learner.replay_proportion:
        return None
    if config.sampling.async_rl and config.learner.num_batches_to_accumulate:
        return None
    return (
        "collection that waits for training (async_rl=False or num_batches_to_accumulate=0) learns from new steps "
        "alone: leave one of them out"
    )


def _datasets_hold_something_new(config: Config) -> str | None:
    learner, rollout = config.learner, config.sampling.rollout
    rows = learner.batch_size // rollout * learner.num_batches_per_epoch
    # A batch of no whole rollouts is another rule's affair.
    if not learner.replay_proportion or learner.batch_size % rollout or learner.replay_proportion <= rows - 1:
        return None
    return (
        f"a dataset has {rows} rows (batch_size / rollout x num_batches_per_epoch), and one new one with all that it "
        f"brings along takes {1 + math.ceil(learner.replay_proportion)}: make datasets larger or this smaller"
    )


def _what_collection_waits_for_is_published(config: Config) -> str | None:
    if config.learner.publish_interval == 1:
        return None
    if config.sampling.async_rl and config.learner.num_batches_to_accumulate:
        return None
    return (
        "must be 1 where collection waits for training (async_rl=False or num_batches_to_accumulate=0): what it waits "
        "for is the weights"
    )


def _microbatches_fill_a_minibatch(config: Config) -> str | None:
    size, batch, rollout = config.learner.microbatch_size, config.learner.batch_size, config.sampling.rollout
    if size == 0 or batch % rollout:
        return None
    whole = config.algo.with_vtrace or config.model.use_rnn
    unit = rollout if whole else 1
    if size < batch and batch % size == 0 and size % unit == 0:
        return None
    rows = " and a multiple of rollout, since V-trace and memory keep rollouts whole," if whole else ""
    must = f"must be a divisor of batch_size ({batch}){rows} and less than it"
    legal = sorted(unit * divisor for divisor in _divisors(batch // unit) if unit * divisor < batch)
    if not legal:
        return f"{must}, and there is none: leave it at 0"
    nearest = [each for each in legal if each < size][-1:] + [each for each in legal if each > size][:1]
    return f"{must}: nearest {'is' if len(nearest) == 1 else 'are'} {' and '.join(map(str, nearest))}"


def _divisors(number: int) -> set[int]:
    small = [each for each in range(1, min(math.isqrt(number), _LARGEST_DIVISOR) + 1) if number % each == 0]
    return {*small, *(number // each for each in small)}


LEARNING_RULES = (
    Rule(("minibatch_ring_size", "num_batchers", *_BACKGROUND), _ring_has_datasets),
    Rule(("num_batchers", "minibatch_ring_size", *_BACKGROUND), _batchers_have_datasets),
    Rule(("num_batchers", "num_workers"), _batchers_have_workers),
    Rule(("ring_warmup", "num_epochs"), _warm_up_ends),
    Rule(("learner_queue_policy", "minibatch_ring_size", "num_batchers", *_BACKGROUND), _what_is_dropped_waits),
    Rule(("replay_proportion", "replay_slots"), _replay_has_slots),
    Rule(("replay_proportion", "with_vtrace"), _replay_is_corrected),
    Rule(("replay_proportion", "async_rl", "num_batches_to_accumulate"), _replay_goes_with_asynchrony),
    Rule(("replay_proportion", "batch_size", "rollout", "num_batches_per_epoch"), _datasets_hold_something_new),
    Rule(
        ("publish_interval", "async_rl", "num_batches_to_accumulate"),
        _what_collection_waits_for_is_published,
    ),
    Rule(("microbatch_size", "batch_size", "rollout", "with_vtrace", "use_rnn"), _microbatches_fill_a_minibatch),
    *idle_unless(
        ("ring_nonblocking",),
        ("minibatch_ring_size",),
        lambda config: config.learner.minibatch_ring_size > 1,
        "--minibatch_ring_size=2",
    ),
    *idle_unless(
        ("replay_slots", "replay_include_new", "max_replay_lag"),
        ("replay_proportion",),
        lambda config: config.learner.replay_proportion > 0,
        "--replay_proportion=1",
    ),
    *idle_unless(
        ("early_stop_kl",), ("num_epochs",), lambda config: config.learner.num_epochs > 1, "--num_epochs=2 or more"
    ),
    *idle_unless(
        ("learner_cores",),
        ("set_workers_cpu_affinity",),
        lambda config: config.sampling.set_workers_cpu_affinity,
        "--set_workers_cpu_affinity=True",
    ),
)


_OF_VTRACE = (
    "vtrace_rho",
    "vtrace_pg_rho",
    "vtrace_c",
    "vtrace_lambda",
    "vtrace_adv_weighting",
    "vtrace_drop_last_ts",
)


def points_problem(text: str) -> str | None:
    """What is wrong with the points of a schedule that may be left empty."""
    try:
        if text:
            parse_points(text)
    except ValueError as error:
        return f"must be {POINTS_FORM}: {error}"
    return None


def _exploration_has_points(config: Config) -> str | None:
    return points_problem(config.algo.exploration_loss_coeff_schedule)


def _a_dropped_step_leaves_others(config: Config) -> str | None:
    if not config.algo.vtrace_drop_last_ts or config.sampling.rollout >= 2:
        return None
    return "with --rollout=1 the last step is the only one, and nothing would be learned: use --rollout=2 or more"


def _divergence_has_a_price(config: Config) -> str | None:
    if not config.algo.kl_target or config.algo.kl_loss_coeff > 0:
        return None
    return "adapts kl_loss_coeff, which is 0 and would stay so: say where it starts, for example --kl_loss_coeff=0.2"


def _targets_clip_ratios(config: Config) -> str | None:
    if not config.algo.use_target_net or config.algo.policy_loss == "ppo_clip":
        return None
    return "the target network is one side of a clipped ratio: needs --policy_loss=ppo_clip"


def _targets_give_importance_weights(config: Config) -> str | None:
    if not config.algo.use_target_net or config.algo.with_vtrace:
        return None
    return "the target network gives importance weights to V-trace: needs --with_vtrace=True"


def _norms_belong_to_their_weights(config: Config) -> str | None:
    algo = config.algo
    if not algo.use_target_net or algo.target_tau == 1.0 or not config.model.use_spectral_norm:
        return None
    return (
        "a mean of two networks has other spectral norms than either: use --target_tau=1.0 with "
        "--use_spectral_norm=True"
    )


OBJECTIVE_RULES = (
    Rule(("exploration_loss_coeff_schedule",), _exploration_has_points),
    Rule(("vtrace_drop_last_ts", "rollout"), _a_dropped_step_leaves_others),
    Rule(("kl_target", "kl_loss_coeff"), _divergence_has_a_price),
    Rule(("use_target_net", "policy_loss"), _targets_clip_ratios),
    Rule(("use_target_net", "with_vtrace"), _targets_give_importance_weights),
    Rule(("target_tau", "use_spectral_norm"), _norms_belong_to_their_weights),
    *idle_unless(_OF_VTRACE, ("with_vtrace",), lambda config: config.algo.with_vtrace, "--with_vtrace=True"),
    *idle_unless(
        ("target_update_interval", "target_tau", "target_worker_clip"),
        ("use_target_net",),
        lambda config: config.algo.use_target_net,
        "--use_target_net=True",
    ),
    *idle_unless(
        ("exploration_loss_coeff_schedule",),
        ("exploration_loss",),
        lambda config: config.algo.exploration_loss != "none",
        "--exploration_loss=entropy",
    ),
)


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
