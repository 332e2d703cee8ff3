"""Families of simulators that could not be installed where sfactory is developed: see docs/envs.md."""
