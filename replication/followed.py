"""A partition that is followed, as its fetcher holds it; and what a leader is asked of it beside a Fetch."""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from pybroker.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from pybroker.replication.fetch_requests import Key
from pybroker.replication.follower import Follower
from pybroker.replication.partition import Partition

LATEST, EARLIEST = -1, -2


class Followed:
    """A partition that is followed. `asked` is the fetch offset that the leader was told last."""

    __slots__ = ("asked", "follower", "key", "partition")

    def __init__(self, partition: Partition, follower: Follower) -> None:
        self.partition = partition
        self.follower = follower
        self.key: Key = (partition.topic, partition.topic_id, partition.index)
        self.asked = -1


def epochs_request(broker_id: int, rows: Iterable[Followed]) -> OffsetForLeaderEpochRequest:
    """Where the epoch of each log's last record ends at the leader."""
    return OffsetForLeaderEpochRequest(
        replica_id=broker_id,
        topics=[
            OffsetForLeaderTopic(topic=row.partition.topic, partitions=[
                OffsetForLeaderPartition(
                    partition=row.partition.index,
                    current_leader_epoch=row.follower.leader_epoch,
                    leader_epoch=row.follower.last_fetched_epoch,
                )
            ])
            for row in rows
        ],
    )  # fmt: skip


def offsets_request(broker_id: int, rows: Iterable[Followed], timestamp: int) -> ListOffsetsRequest:
    """LATEST: where each log ends at the leader; EARLIEST: where it begins."""
    return ListOffsetsRequest(
        replica_id=broker_id,
        topics=[
            ListOffsetsTopic(name=row.partition.topic, partitions=[
                ListOffsetsPartition(
                    partition_index=row.partition.index,
                    current_leader_epoch=row.follower.leader_epoch,
                    timestamp=timestamp,
                )
            ])
            for row in rows
        ],
    )  # fmt: skip


def offsets_of(response: ListOffsetsResponse) -> dict[tuple[str, int], tuple[int, int]]:
    """(error code, offset) by topic and partition."""
    return {
        (topic.name, each.partition_index): (each.error_code, each.offset)
        for topic in response.topics
        for each in topic.partitions
    }
