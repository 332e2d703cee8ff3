"""Room: what the fork server imports once for all children. In: nothing. Out: modules in memory, shared by all."""

from __future__ import annotations

import sfactory.actor.life
import sfactory.actor.local
import sfactory.learner.worker
import sfactory.policy.worker  # noqa: F401
