"""Room: what must hold between flags of the learner. In: a ``Config``. Out: ``LEARNING_RULES``."""

from __future__ import annotations

import math

from sfactory.config.rule import Rule, idle_unless
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
