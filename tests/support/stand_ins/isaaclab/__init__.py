"""Isaac Lab, as far as it takes to make an env."""
