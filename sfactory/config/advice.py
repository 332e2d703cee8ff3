"""Room: settings that work and are seldom meant. In: a ``Config`` without problems. Out: one line for each."""

from __future__ import annotations

import math

from sfactory.config.flags import assigned
from sfactory.config.schema import Config


def warnings_of(config: Config) -> list[str]:
    """What is worth a second look, of the form ``--num_batchers=3: ...``."""
    found = (
        ("publish_interval", config.learner.publish_interval, _publication(config)),
        ("vtrace_rho", config.algo.vtrace_rho, _clips(config)),
        ("num_batchers", config.learner.num_batchers, _batchers(config)),
        ("minibatch_ring_size", config.learner.minibatch_ring_size, _ring(config)),
    )
    return [f"{assigned(name, value)}: {text}" for name, value, text in found if text is not None]


def _publication(config: Config) -> str | None:
    learner = config.learner
    # It is looked at after whole passes.
    updates = learner.publish_interval + learner.num_batches_per_epoch - 1
    if updates <= learner.max_policy_lag:
        return None
    return (
        f"weights may be {updates} updates old when they are replaced, and steps are masked from max_policy_lag "
        f"({learner.max_policy_lag}) on"
    )


def _clips(config: Config) -> str | None:
    algo = config.algo
    rho, c = (math.inf if clip is None else clip for clip in (algo.vtrace_rho, algo.vtrace_c))
    if not algo.with_vtrace or rho >= c:
        return None
    return f"is below vtrace_c ({algo.vtrace_c}): V-trace is known to converge for vtrace_rho >= vtrace_c"


def _batchers(config: Config) -> str | None:
    batchers, workers = config.learner.num_batchers, config.sampling.num_workers
    if batchers == 1 or 2 * batchers <= workers:
        return None
    return f"more than half of num_workers ({workers}): one batcher assembles what several workers collect"


def _ring(config: Config) -> str | None:
    if config.learner.minibatch_ring_size == 1 or config.learner.num_epochs > 1:
        return None
    return "with --num_epochs=1 each dataset is passed over once, so that turning over several changes nothing"
