"""Room: flags: code of the user's that a run calls. In: nothing. Out: ``HooksConfig``."""

from __future__ import annotations

from dataclasses import dataclass

from sfactory.config.flag import flag


@dataclass(frozen=True)
class HooksConfig:
    """Code of your own that is called as training goes on."""

    observers: tuple[str, ...] = flag(
        (),
        "classes, each as module:Class, of which one instance each is told of start, training steps and end in the "
        "main process, and may add to the summaries",
    )
    after_train_step: tuple[str, ...] = flag(
        (), "functions, each as module:function, that the learner calls after its training steps"
    )
