"""Which replica a consumer had better read from (KIP-392): Kafka's ReplicaSelector, called at the leader.

replica.selector.class names one of SELECTORS; a Java class of somebody's own can't be loaded here.
"""

from __future__ import annotations

from collections.abc import Callable

from pybroker.replication.fetch import Prefer
from pybroker.replication.partition import Partition

RackOf = Callable[[int], str | None]


def rack_aware(rack_of: RackOf) -> Prefer:
    """The in-sync replica in the consumer's rack that has most of the log; this broker if it is in that rack itself.

    `rack_of` tells a live broker's rack.
    """

    def prefer(partition: Partition, offset: int, rack: str) -> int | None:
        leader = partition.leader
        if leader is None or rack_of(partition.local_id) == rack:
            return None
        fit = [
            (progress.log_end_offset, progress.last_caught_up_ms, replica)
            for replica, progress in leader.followers.items()
            if replica in leader.isr
            and progress.log_start_offset <= offset <= progress.log_end_offset
            and rack_of(replica) == rack
        ]
        return max(fit)[2] if fit else None

    return prefer


_PACKAGE = "org.apache.kafka.common.replica."
SELECTORS: dict[str, Callable[[RackOf], Prefer] | None] = {
    _PACKAGE + "RackAwareReplicaSelector": rack_aware,
    _PACKAGE + "LeaderSelector": None,
}
