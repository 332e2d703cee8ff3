"""What several tests share: running a whole trainer, and proving that recorded trajectories are whole."""
