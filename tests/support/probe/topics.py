"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords."""

from __future__ import annotations

import itertools
from typing import Any

from tests.support.probe import Case, ProbeClient, Step, calls
from tests.support.probe.fetch import F
from tests.support.probe.offsets import L

_number = itertools.count(1)
Topic = dict[str, Any]


def CT(name: str, *topics: Topic, **fields: Any) -> Case:
    """Creates topics of one partition and one replica, named n1, n2 .. where no name is given."""
    usual = {"Name": f"n{next(_number)}", "NumPartitions": 1, "ReplicationFactor": 1}

    def run(client: ProbeClient) -> Any:
        request = {"Topics": [usual | topic for topic in topics], "timeoutMs": 5000} | fields
        answer = client.call("CreateTopics", 7, request)
        return [(each["Name"][:20], each["ErrorCode"], each["ErrorMessage"]) for each in answer["Topics"]]

    return Case(name, "CreateTopics", run)


def configured(*configs: tuple[str, str | None], **fields: Any) -> Topic:
    return {"Configs": [{"Name": key, "Value": value} for key, value in configs]} | fields


def assigned(*partitions: tuple[int, list[int]]) -> Topic:
    """A topic whose replicas are named, with no counts."""
    assignments = [{"PartitionIndex": index, "BrokerIds": brokers} for index, brokers in partitions]
    return {"NumPartitions": -1, "ReplicationFactor": -1, "Assignments": assignments}


def T(name: str, config: str, value: str | None) -> Case:
    """Creates a topic with one setting."""
    return CT(name, configured((config, value)))


def DT(name: str, version: int, **fields: Any) -> Case:
    return Case(name, "DeleteTopics", calls("DeleteTopics", version, {"TimeoutMs": 3000} | fields))


def CP(name: str, topic: str, count: int, brokers: list[list[int]] | None = None, **fields: Any) -> Case:
    """Raises a topic's number of partitions."""
    assignments = None if brokers is None else [{"BrokerIds": each} for each in brokers]

    def run(client: ProbeClient) -> Any:
        request = {"Topics": [{"Name": topic, "Count": count, "Assignments": assignments}], "TimeoutMs": 3000}
        return client.call_json("CreatePartitions", 3, request | fields)["Results"]

    return Case(name, "CreatePartitions", run)


def DR(name: str, offset: int, topic: str = "p", index: int = 0) -> Case:
    """Deletes records up to an offset."""

    def run(client: ProbeClient) -> Any:
        topics = [{"Name": topic, "Partitions": [{"PartitionIndex": index, "Offset": offset}]}]
        return client.call_json("DeleteRecords", 2, {"Topics": topics, "TimeoutMs": 3000})["Topics"]

    return Case(name, "DeleteRecords", run)


def after_validate_only(client: ProbeClient) -> Any:
    request = {"Topics": [{"Name": "vo"}, {"Name": "to0"}], "AllowAutoTopicCreation": False}
    return [(each["Name"], each["ErrorCode"]) for each in client.call("Metadata", 4, request)["Topics"]]


CREATE: list[Case | Step] = [
    CT("exists", {"Name": "p"}),
    CT("empty name", {"Name": ""}),
    CT('"."', {"Name": "."}),
    CT('".."', {"Name": ".."}),
    CT("249 characters", {"Name": "a" * 249}),
    CT("250 characters", {"Name": "a" * 250}),
    CT("space in the name", {"Name": "a b"}),
    CT("slash", {"Name": "a/b"}),
    CT("non-ASCII", {"Name": "tést"}),
    CT("dot and underscore collision", {"Name": "col.x"}),
    CT("collides with col.x", {"Name": "col_x"}),
    CT("internal name", {"Name": "__consumer_offsets"}),
    CT("__cluster_metadata", {"Name": "__cluster_metadata"}),
    CT("0 partitions", {"NumPartitions": 0}),
    CT("-2 partitions", {"NumPartitions": -2}),
    CT("-1 partitions (broker default)", {"Name": "def1", "NumPartitions": -1}),
    CT("replication factor 0", {"ReplicationFactor": 0}),
    CT("replication factor -2", {"ReplicationFactor": -2}),
    CT("replication factor -1 (default)", {"Name": "def2", "ReplicationFactor": -1}),
    CT("replication factor 3 on one broker", {"ReplicationFactor": 3}),
    T("unknown config", "nonesuch", "1"),
    T("retention.ms=abc", "retention.ms", "abc"),
    T("retention.ms=-2", "retention.ms", "-2"),
    T("cleanup.policy=foo", "cleanup.policy", "foo"),
    T("segment.bytes=1", "segment.bytes", "1"),
    T("compression.type=foo", "compression.type", "foo"),
    T("min.insync.replicas=0", "min.insync.replicas", "0"),
    T("config value null", "retention.ms", None),
    T("max.message.bytes=-1", "max.message.bytes", "-1"),
    T("unclean.leader.election.enable=maybe", "unclean.leader.election.enable", "maybe"),
    T("message.timestamp.type=x", "message.timestamp.type", "x"),
    CT("same config twice", configured(("retention.ms", "1000"), ("retention.ms", "2000"), Name="twice")),
    CT(
        "max.compaction.lag.ms below min", configured(("min.compaction.lag.ms", "100"), ("max.compaction.lag.ms", "50"))
    ),
    T("remote.storage.enable=true, no remote storage", "remote.storage.enable", "true"),
    CT("the same topic twice", {"Name": "dup"}, {"Name": "dup"}),
    CT("one good, one bad", {"Name": "good1"}, {"Name": "bad name"}),
    CT("assignment with counts too", {"Assignments": [{"PartitionIndex": 0, "BrokerIds": [5]}]}),
    CT("assignment, unknown broker", assigned((0, [77]))),
    CT("assignment, partition 1 without 0", assigned((1, [5]))),
    CT("assignment, same partition twice", assigned((0, [5]), (0, [5]))),
    CT("assignment, duplicate replica", assigned((0, [5, 5]))),
    CT("assignment, empty replicas", assigned((0, []))),
    CT("assignment, different replica counts", assigned((0, [5]), (1, [5, 6]))),
    CT("validate only", {"Name": "vo"}, validateOnly=True),
    CT("timeout 0", {"Name": "to0"}, timeoutMs=0),
    CT("timeout -1", {"Name": "to1"}, timeoutMs=-1),
    CT("created with timeout 0, asked again", {"Name": "to0"}),
    Case("no topics", "CreateTopics", calls("CreateTopics", 7, {"Topics": [], "timeoutMs": 1000})),
    Case("validate only with v0 does not exist: unknown topic after it", "Metadata", after_validate_only),
]

SEVENS = b"\7" * 16
Q_TWICE = {"Topics": [{"Name": "q", "Count": 3}, {"Name": "q", "Count": 4}], "TimeoutMs": 1000}

CHANGE: list[Case | Step] = [
    DT("unknown", 5, TopicNames=["nope"]),
    DT("unknown, v1", 1, TopicNames=["nope"]),
    DT("unknown id", 6, Topics=[{"Name": None, "TopicId": SEVENS}]),
    DT("name and id both", 6, Topics=[{"Name": "good1", "TopicId": SEVENS}]),
    DT("neither name nor id", 6, Topics=[{"Name": None}]),
    DT("duplicate", 6, Topics=[{"Name": "good1"}, {"Name": "good1"}]),
    DT("good", 6, Topics=[{"Name": "good1"}]),
    DT("timeout 0", 5, TopicNames=["def1"], TimeoutMs=0),
    DT("internal topic", 5, TopicNames=["__consumer_offsets_x", ""]),
    CP("same count", "q", 1),
    CP("fewer", "def2", 0),
    CP("negative", "q", -1),
    CP("unknown topic", "nope", 3),
    CP("assignment count wrong", "q", 3, [[5]]),
    CP("assignment unknown broker", "q", 2, [[88]]),
    CP("assignment wrong replication", "q", 2, [[5, 6]]),
    CP("validate only", "q", 2, ValidateOnly=True),
    CP("good", "q", 2),
    Case("the same topic twice", "CreatePartitions", calls("CreatePartitions", 3, Q_TWICE)),
    DR("past the high watermark", 10**6),
    DR("offset -5", -5),
    DR("unknown topic", 1, "nope"),
    DR("unknown partition", 1, index=9),
    DR("offset 1", 1),
    DR("offset 0 after 1", 0),
    DR("compacted topic", 0, "compacted"),
    DR("-1 (high watermark)", -1),
    F("fetch below the log start after that", {"offset": 0}),
    L("earliest after that", -2),
]

CASES = CREATE + CHANGE
