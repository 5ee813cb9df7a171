"""StreamsGroupMetadataKey and StreamsGroupMetadataValue."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int32, int64


class StreamsGroupMetadataKey(Message, kind="data", api_key=17, versions="0"):
    group_id: str = field("0+")


class LastAssignmentConfig(Struct):
    key: str = field("0+")
    value: str = field("0+")


class StreamsGroupMetadataValue(Message, kind="data", api_key=17, versions="0", flexible="0+"):
    epoch: int32 = field("0+")
    metadata_hash: int64 = field("0+")
    validated_topology_epoch: int32 = field("0+", tag=0, tagged="0+", default=-1)
    last_assignment_configs: list[LastAssignmentConfig] | None = field(
        "0+", nullable="0+", tag=1, tagged="0+"
    )
