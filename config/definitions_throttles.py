"""Settings that are only ever dynamic: Kafka reads them from nowhere else, and tells of them only where they are set.

Rows: name, type, default, bounds, importance, update mode, use, help (definitions.Setting).
"""

from __future__ import annotations

from pybroker.config.modes import CLUSTER_WIDE, LONG, MEDIUM, SERVED, Row

# fmt: off
THROTTLE_SETTINGS: tuple[Row, ...] = (
    ("follower.replication.throttled.rate", LONG, None, "[0,...]", MEDIUM, CLUSTER_WIDE, SERVED,
     "Bytes a second that this broker fetches at most of the replicas in follower.replication.throttled.replicas."),
    ("leader.replication.throttled.rate", LONG, None, "[0,...]", MEDIUM, CLUSTER_WIDE, SERVED,
     "Bytes a second that this broker sends at most of the replicas in leader.replication.throttled.replicas, to "
     "followers that are not in sync."),
    ("replica.alter.log.dirs.io.max.bytes.per.second", LONG, None, "[0,...]", MEDIUM, CLUSTER_WIDE, SERVED,
     "Bytes a second that are copied at most when replicas move between log directories."),
)
