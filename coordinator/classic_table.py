"""States of a classic group, and what each means for whoever asks: literal tables, after Kafka's GroupState."""

from __future__ import annotations

from enum import Enum

from pybroker.protocol.errors import Errors


class State(Enum):
    """The value is the name that clients and tools see."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Event(Enum):
    REBALANCE = "somebody came, went or changed"
    JOINED = "everybody joined, or the time for it is up"
    ALL_GONE = "the join phase ended without members"
    ASSIGNED = "the leader's assignment is written"
    REMOVED = "deleted, or coordinated elsewhere"


E, P, C, S, D = State.EMPTY, State.PREPARING, State.COMPLETING, State.STABLE, State.DEAD

TRANSITIONS: dict[tuple[State, Event], State] = {
    (E, Event.REBALANCE): P,
    (C, Event.REBALANCE): P,
    (S, Event.REBALANCE): P,
    (P, Event.JOINED): C,
    (P, Event.ALL_GONE): E,
    (C, Event.ASSIGNED): S,
    (E, Event.REMOVED): D,
    (P, Event.REMOVED): D,
    (C, Event.REMOVED): D,
    (S, Event.REMOVED): D,
    (D, Event.REMOVED): D,
}

NONE, UNKNOWN, REBALANCING, GONE = (
    Errors.NONE, Errors.UNKNOWN_MEMBER_ID, Errors.REBALANCE_IN_PROGRESS, Errors.COORDINATOR_NOT_AVAILABLE,
)  # fmt: skip

# What a member of the right generation is told (NONE: go on).
HEARTBEAT = {E: UNKNOWN, P: REBALANCING, C: NONE, S: NONE, D: GONE}
SYNC = {E: UNKNOWN, P: REBALANCING, C: NONE, S: NONE, D: GONE}
# Between join and sync a member does not know what it owns, so it can't know what it has consumed.
COMMIT = {E: NONE, P: NONE, C: REBALANCING, S: NONE, D: GONE}

# How a member hears of a write that failed, by what the log answered.
WRITE_FAILED = {
    Errors.UNKNOWN_TOPIC_OR_PARTITION: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_ENOUGH_REPLICAS: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_LEADER_OR_FOLLOWER: Errors.NOT_COORDINATOR,
    Errors.KAFKA_STORAGE_ERROR: Errors.NOT_COORDINATOR,
    Errors.REQUEST_TIMED_OUT: Errors.REBALANCE_IN_PROGRESS,
    Errors.MESSAGE_TOO_LARGE: Errors.UNKNOWN_SERVER_ERROR,
    Errors.RECORD_LIST_TOO_LARGE: Errors.UNKNOWN_SERVER_ERROR,
}
