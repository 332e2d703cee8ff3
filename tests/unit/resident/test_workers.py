"""What a rollout of a TensorEnv adds to the statistics of its run."""

from __future__ import annotations

import json
from unittest import mock

from sfactory.actor.episode_stats import EpisodeRecorder, EpisodeTracker, ExtraStatsTracker
from sfactory.messages import EpisodeEnd
from sfactory.resident.episodes import Ended
from sfactory.resident.workers import ResidentActor


def test_each_episode_of_a_rollout_has_its_own_statistics_also_where_an_env_ended_several() -> None:
    actor = object.__new__(ResidentActor)
    actor._episodes, actor._extras, actor._row = EpisodeTracker(2), ExtraStatsTracker(), mock.Mock()
    actor._episodes.recorder = actor._extras.recorder = EpisodeRecorder(0, agents=1)

    actor._keep(Ended([1, 0, 1], [1.0, 2.0, 3.0], [4, 5, 6], {"goals": [10.0, 20.0, 30.0]}))

    put = mock.Mock(return_value=True)
    actor._episodes.send(0, put)
    sent = [call.args[0] for call in put.call_args_list]
    shown = [(each.env, json.loads(each.numbers)[0]) for each in sent if isinstance(each, EpisodeEnd)]
    assert shown == [
        (1, {"goals": 10.0, "return": 1.0, "length": 4, "agent": 0}),
        (0, {"goals": 20.0, "return": 2.0, "length": 5, "agent": 0}),
        (1, {"goals": 30.0, "return": 3.0, "length": 6, "agent": 0}),
    ]
