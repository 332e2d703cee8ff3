"""The finished episodes that a tracker would send to main."""

from __future__ import annotations

from sfactory.actor.episode_stats import EpisodeTracker
from sfactory.messages import EpisodeEnd, EpisodesDone


def finished_episodes(tracker: EpisodeTracker) -> list[tuple[float, int]]:
    """(return, length) of the episodes of policy 0 in the order they ended; those of all policies are taken."""
    sent: list[EpisodesDone] = []

    def accept(message: EpisodesDone | EpisodeEnd) -> bool:
        assert isinstance(message, EpisodesDone)
        sent.append(message)
        return True

    assert tracker.send(0, accept)
    return [
        (float(episode_return), int(length))
        for message in sent
        if message.policy == 0
        for episode_return, length in zip(message.returns, message.lengths, strict=True)
    ]
