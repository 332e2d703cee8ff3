"""Imports, once in the fork server, the modules that all children share."""

# Children find these in memory: each process that imports them itself starts later and has a copy of its own.
import sfactory.actor.actor_process
import sfactory.actor.central_actor
import sfactory.actor.local_actor
import sfactory.inference.policy_worker
import sfactory.learner.learner_process  # noqa: F401
