"""Megaverse, as far as it takes to make an env."""
