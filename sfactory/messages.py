"""Messages between processes, and how they are encoded as bytes.

No pickle: each message is a tag byte and a fixed struct, which some follow up with arrays or text. The unions below
name what each kind of process may receive.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt


class ActRequest(NamedTuple):
    """Actor -> policy worker: obs of step ``t`` of ``slot`` is written, actions are wanted.

    phase: 0 or 1, which of the split's two states is the one before this step (NOTE [State phases]).
    incarnation: of the actor that asks (NOTE [Incarnations]).
    """

    actor: int
    split: int
    slot: int
    t: int
    phase: int
    incarnation: int


class ActReply(NamedTuple):
    """Policy worker -> actor: the actions that ``policy`` chose for step ``t`` are written in the split's slot."""

    split: int
    t: int
    policy: int = 0


class SlotFreed(NamedTuple):
    """Learner -> actor: a wake-up; the truth is in the SlotTable."""

    slot: int


class TrajectoryReady(NamedTuple):
    """Actor -> learner: ``slot`` is complete and READY. It may be sent twice; the truth is in the SlotTable."""

    actor: int
    slot: int


class EpisodesDone(NamedTuple):
    """Actor -> main: returns (float64, raw) and lengths (int64, env steps) of a policy's episodes, as they ended."""

    actor: int
    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    policy: int = 0


class EpisodeExtras(NamedTuple):
    """Actor -> main: values (float64) that a policy's finished episodes gave for the extra statistic ``name``.

    name: at most MAX_STAT_NAME_CHARS characters; TRUE_OBJECTIVE is what an env itself calls its objective.
    """

    actor: int
    name: str
    values: npt.NDArray[np.float64]
    policy: int = 0


class ExtrasRefused(NamedTuple):
    """Actor -> main: an env gave extra statistics that are left out; why, for the one warning about it."""

    actor: int
    reason: str


class EpisodeEnd(NamedTuple):
    """Actor -> main: one finished episode, sent only if an observer looks at each.

    env: its number among all envs of the run. numbers: JSON of [stats, info], which are mappings of names to finite
    numbers, see ``sfactory.report.observers.Observer.on_episode``.
    """

    actor: int
    policy: int
    env: int
    numbers: str


class EpisodeTotals(NamedTuple):
    """Sums over episodes, which can be merged. Returns are raw.

    return_sum, return_min and return_max cover the ``finite`` returns, objective_sum the ``objectives`` finite true
    objectives.
    """

    episodes: int = 0
    finite: int = 0
    return_sum: float = 0.0
    return_min: float = math.inf
    return_max: float = -math.inf
    length_sum: int = 0
    objectives: int = 0
    objective_sum: float = 0.0

    @staticmethod
    def of(episode_return: float, length: int, objective: float = math.nan) -> EpisodeTotals:
        """One episode; ``objective``: its true objective, NaN if the env reports none."""
        totals = EpisodeTotals(episodes=1, length_sum=length)
        if math.isfinite(episode_return):
            totals = EpisodeTotals(1, 1, episode_return, episode_return, episode_return, length)
        return totals._replace(objectives=1, objective_sum=objective) if math.isfinite(objective) else totals

    def merged(self, other: EpisodeTotals) -> EpisodeTotals:
        """Of the episodes of both."""
        sums = EpisodeTotals._make(mine + theirs for mine, theirs in zip(self, other, strict=True))
        return_min = min(self.return_min, other.return_min)
        return sums._replace(return_min=return_min, return_max=max(self.return_max, other.return_max))


class EvaluationPart(NamedTuple):
    """Evaluator -> main: what its episodes of the evaluation ``number`` came to. policy_env_steps: as a video has."""

    evaluator: int
    number: int
    policy_version: int
    policy_env_steps: int
    totals: EpisodeTotals


@dataclass(frozen=True)
class PolicyLag:
    """By how many updates the weights that acted were older than those that learned; None where there was no step."""

    min: float | None = None
    mean: float | None = None
    max: float | None = None


class TrainStats(NamedTuple):
    """Learner -> main: means over the updates since the last report, and the coefficients in force.

    This is the only list of training statistics; TRAIN_STATISTICS and the code that makes or shows them follow it.
    ``updates``: how many there were. A number that none of them had is NaN.
    ``lag``, ``replay_lag``: of new steps and of replayed steps.
    """

    policy: int
    updates: float
    policy_loss: float
    value_loss: float
    entropy: float
    kl: float
    replay_kl: float
    clip_fraction: float
    ratio_mean: float
    explained_variance: float
    value_mean: float
    reward_clipped: float
    advantage_std: float
    valid_fraction: float
    replayed_fraction: float
    aux_loss: float
    grad_norm: float
    learning_rate: float
    value_learning_rate: float
    exploration_coeff: float
    kl_coeff: float
    rnd_reward: float
    rnd_return: float
    lag: PolicyLag
    replay_lag: PolicyLag


# The statistics of a learner's updates, by name.
TRAIN_STATISTICS = TrainStats._fields[TrainStats._fields.index("policy_loss") : TrainStats._fields.index("lag")]


class LearnerTimes(NamedTuple):
    """Learner -> main: mean milliseconds since the last report; NaN of what there was none.

    grad_ms: a pass over a dataset. update_ms: an update, its share of the passes. load_ms: a dataset on its way to the
    device. load_wait_ms: training waited for a dataset. dequeue_ms: a dataset was assembled, waits for slots included.
    publish_ms: weights were checked and published.
    """

    policy: int
    grad_ms: float
    update_ms: float
    load_ms: float
    load_wait_ms: float
    dequeue_ms: float
    publish_ms: float


ToPolicy = ActRequest
ToActor = ActReply | SlotFreed
ToLearner = TrajectoryReady
ToMain = EpisodesDone | EpisodeExtras | EpisodeEnd | ExtrasRefused | TrainStats | LearnerTimes | EvaluationPart

M = TypeVar("M")


class Codec(Generic[M]):
    """Bytes of one message of a closed set of types: ``encode`` and ``decode`` are each other's inverse."""

    _FORMATS: ClassVar[dict[type, struct.Struct]] = {
        ActRequest: struct.Struct("<BHHIIBH"),
        ActReply: struct.Struct("<BHIH"),
        SlotFreed: struct.Struct("<BI"),
        TrajectoryReady: struct.Struct("<BHI"),
        EvaluationPart: struct.Struct("<BHIqqIIdddqId"),
        TrainStats: struct.Struct(f"<BH{len(TrainStats._fields) - 3 + 6}d"),  # its lags have three numbers each
        LearnerTimes: struct.Struct(f"<BH{len(LearnerTimes._fields) - 1}d"),
    }

    def __init__(self, *types: type) -> None:
        self._tags = {kind: tag for tag, kind in enumerate(types)}
        self._decoders: list[Callable[[bytes], M]] = [_decoder(kind, self._FORMATS.get(kind)) for kind in types]
        self.max_fixed_bytes = max((self._FORMATS[kind].size for kind in types if kind in self._FORMATS), default=0)

    def __reduce__(self) -> tuple[type[Codec[M]], tuple[type, ...]]:
        return (Codec, tuple(self._tags))

    def encode(self, message: M) -> bytes:
        """Bytes of ``message``; KeyError for a type that does not belong to this codec."""
        kind = type(message)
        tag = self._tags[kind]
        if kind in _VARIABLE:
            return _VARIABLE[kind][0](tag, message)
        assert isinstance(message, tuple)
        return self._FORMATS[kind].pack(tag, *message)

    def decode(self, data: bytes) -> M:
        """The message in ``data``; ValueError or struct.error for bytes that are none."""
        data = bytes(data)
        if not data or data[0] >= len(self._decoders):
            raise ValueError(f"message of {len(data)} bytes with an unknown tag")
        return self._decoders[data[0]](data)


TRUE_OBJECTIVE = "true_objective"
# Extra statistics of episodes, TRUE_OBJECTIVE not counted. Longer names are refused, not cut.
MAX_STAT_NAMES = 64
MAX_STAT_NAME_CHARS = 100
MAX_REASON_CHARS = 300
MAX_INFO_NUMBERS = 32

_EPISODES = struct.Struct("<BHHI")
_EXTRAS = struct.Struct("<BHHHI")
_END = struct.Struct("<BHHI")
_REFUSED = struct.Struct("<BH")
MAX_EPISODES_PER_REPORT = 4096
# The largest message to main. Others are smaller: a character is at most 4 bytes, an extra value 8.
MAX_REPORT_BYTES = _EPISODES.size + 16 * MAX_EPISODES_PER_REPORT


def _decoder(kind: type, layout: struct.Struct | None) -> Callable[[bytes], Any]:
    if kind in _VARIABLE:
        return _VARIABLE[kind][1]
    assert layout is not None, f"{kind.__name__} has no layout"
    make: Callable[[Sequence[float]], Any] = kind._make  # type: ignore[attr-defined]
    unpack = layout.unpack
    return lambda data: make(unpack(data)[1:])


def _encode_episodes(tag: int, message: EpisodesDone) -> bytes:
    head = _EPISODES.pack(tag, message.actor, message.policy, len(message.returns))
    return head + message.returns.tobytes() + message.lengths.tobytes()


def _decode_episodes(data: bytes) -> EpisodesDone:
    _, actor, policy, count = _EPISODES.unpack_from(data)
    if len(data) != _EPISODES.size + 16 * count:
        raise ValueError(f"EpisodesDone of {count} episodes has {len(data)} bytes")
    returns = np.frombuffer(data, np.float64, count, _EPISODES.size)
    lengths = np.frombuffer(data, np.int64, count, _EPISODES.size + 8 * count)
    return EpisodesDone(actor, returns, lengths, policy)


def _encode_extras(tag: int, message: EpisodeExtras) -> bytes:
    name = message.name.encode()
    head = _EXTRAS.pack(tag, message.actor, message.policy, len(name), len(message.values))
    return head + name + message.values.tobytes()


def _decode_extras(data: bytes) -> EpisodeExtras:
    _, actor, policy, name_bytes, count = _EXTRAS.unpack_from(data)
    start = _EXTRAS.size + name_bytes
    if len(data) != start + 8 * count:
        raise ValueError(f"EpisodeExtras of {count} values has {len(data)} bytes")
    values = np.frombuffer(data, np.float64, count, start)
    return EpisodeExtras(actor, data[_EXTRAS.size : start].decode(), values, policy)


def _encode_end(tag: int, message: EpisodeEnd) -> bytes:
    return _END.pack(tag, message.actor, message.policy, message.env) + message.numbers.encode()


def _decode_end(data: bytes) -> EpisodeEnd:
    _, actor, policy, env = _END.unpack_from(data)
    return EpisodeEnd(actor, policy, env, data[_END.size :].decode())


def _encode_refused(tag: int, message: ExtrasRefused) -> bytes:
    return _REFUSED.pack(tag, message.actor) + message.reason.encode()


def _decode_refused(data: bytes) -> ExtrasRefused:
    _, actor = _REFUSED.unpack_from(data)
    return ExtrasRefused(actor, data[_REFUSED.size :].decode())


def _encode_train_stats(tag: int, message: TrainStats) -> bytes:
    lags = (*astuple(message.lag), *astuple(message.replay_lag))
    return Codec._FORMATS[TrainStats].pack(tag, *message[:-2], *(math.nan if lag is None else lag for lag in lags))


def _decode_train_stats(data: bytes) -> TrainStats:
    numbers = Codec._FORMATS[TrainStats].unpack(data)[1:]
    lags = [None if math.isnan(lag) else lag for lag in numbers[-6:]]
    return TrainStats._make((*numbers[:-6], PolicyLag(*lags[:3]), PolicyLag(*lags[3:])))


def _encode_evaluation_part(tag: int, message: EvaluationPart) -> bytes:
    return Codec._FORMATS[EvaluationPart].pack(tag, *message[:-1], *message.totals)


def _decode_evaluation_part(data: bytes) -> EvaluationPart:
    _, evaluator, number, version, env_steps, *totals = Codec._FORMATS[EvaluationPart].unpack(data)
    return EvaluationPart(evaluator, number, version, env_steps, EpisodeTotals(*totals))


# Messages that are more than the numbers of a fixed struct: (encode(tag, message), decode(bytes)).
_VARIABLE: dict[type, tuple[Callable[[int, Any], bytes], Callable[[bytes], Any]]] = {
    EpisodesDone: (_encode_episodes, _decode_episodes),
    EpisodeExtras: (_encode_extras, _decode_extras),
    EpisodeEnd: (_encode_end, _decode_end),
    ExtrasRefused: (_encode_refused, _decode_refused),
    TrainStats: (_encode_train_stats, _decode_train_stats),
    EvaluationPart: (_encode_evaluation_part, _decode_evaluation_part),
}

TO_POLICY: Codec[ToPolicy] = Codec(ActRequest)
TO_ACTOR: Codec[ToActor] = Codec(ActReply, SlotFreed)
TO_LEARNER: Codec[ToLearner] = Codec(TrajectoryReady)
TO_MAIN: Codec[ToMain] = Codec(
    EpisodesDone, EpisodeExtras, EpisodeEnd, ExtrasRefused, TrainStats, LearnerTimes, EvaluationPart
)
