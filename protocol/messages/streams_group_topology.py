"""StreamsGroupTopologyKey and StreamsGroupTopologyValue."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32


class StreamsGroupTopologyKey(Message, kind="data", api_key=23, versions="0"):
    group_id: str = field("0+")


class TopicConfig(Struct):
    key: str = field("0+")
    value: str = field("0+")


class TopicInfo(Struct):
    name: str = field("0+")
    partitions: int32 = field("0+")
    replication_factor: int16 = field("0+")
    topic_configs: list[TopicConfig] = field("0+")


class CopartitionGroup(Struct):
    source_topics: list[int16] = field("0+")
    source_topic_regex: list[int16] = field("0+")
    repartition_source_topics: list[int16] = field("0+")


class Subtopology(Struct):
    subtopology_id: str = field("0+")
    source_topics: list[str] = field("0+")
    source_topic_regex: list[str] = field("0+")
    state_changelog_topics: list[TopicInfo] = field("0+")
    repartition_sink_topics: list[str] = field("0+")
    repartition_source_topics: list[TopicInfo] = field("0+")
    copartition_groups: list[CopartitionGroup] = field("0+")


class StreamsGroupTopologyValue(Message, kind="data", api_key=23, versions="0", flexible="0+"):
    epoch: int32 = field("0+")
    subtopologies: list[Subtopology] = field("0+")
