"""Actors on other machines: what they and a run send each other, and the gateway, the run's side of it."""
