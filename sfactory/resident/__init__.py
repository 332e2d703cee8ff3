"""Collects from a ``TensorEnv`` on the device of the learner, in turn with learning, without slots or messages."""
