"""Isaac Gym's simulator, of which nothing is called by name."""
