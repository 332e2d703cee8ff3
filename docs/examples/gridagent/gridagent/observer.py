"""The observer ``grid_doors``."""

from sfactory import Observer


class Doors(Observer):
    """Adds the share of right doors to the metrics, and prints how many episodes each policy has played."""

    def __init__(self):
        self.episodes = {}

    def on_episode(self, policy, env, stats, info):
        self.episodes[policy] = self.episodes.get(policy, 0) + 1
        return {"right_door": info["right_door"]}

    def on_stop(self, outcome):
        for policy, count in sorted(self.episodes.items()):
            print(f"policy {policy} has played {count} episodes")
