"""Room: one dataset while it is learned from. In: a batch, its targets. Out: what each pass needs of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sfactory.learner.batch import Batch
from sfactory.learner.minibatches import Minibatches
from sfactory.learner.record import Learned, Means
from sfactory.learner.targets import Targets


@dataclass
class Dataset:
    """A dataset between ``Trainer.open`` and ``Trainer.close``. Several may be open at once.

    batch: as it was opened; passes see it as old as it is by then. targets: of GAE, None with V-trace.
    observed: its observations are in the statistics that normalize them already.
    minibatches: None before the first pass, which decides by its train step how they are drawn.
    passes: begun so far. learned: steps learned from, each counted once however many passes there are.
    last_loss: mean policy loss of the last pass; NaN where there was none. means: of what its updates told.
    """

    batch: Batch
    targets: Targets | None
    observed: bool
    minibatches: Minibatches | None = None
    passes: int = 0
    learned: Learned = field(default_factory=Learned)
    last_loss: float = math.nan
    means: Means = field(default_factory=Means)
