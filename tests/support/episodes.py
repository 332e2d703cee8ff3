"""The finished episodes and extra statistics that trackers would send to main."""

from __future__ import annotations

from sfactory.actor.episode_stats import EpisodeTracker, ExtraStatsTracker
from sfactory.messages import EpisodeEnd, EpisodeExtras, EpisodesDone


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


def extra_stats(tracker: ExtraStatsTracker) -> dict[str, list[float]]:
    """Numbers by name, of the policy that is sent last; those of all policies are taken."""
    sent: dict[str, list[float]] = {}

    def put(message: object) -> bool:
        assert isinstance(message, EpisodeExtras)
        sent[message.name] = message.values.tolist()
        return True

    assert tracker.send(0, put)
    return sent
