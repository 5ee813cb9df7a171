"""Every advertised (API, version) answers a small request: no error -1 or 35, and filled where Kafka's answers are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support import data, schema
from tests.support.broker import BrokerProcess, wait_until
from tests.support.records import batch, message
from tests.support.wire import WireClient

TOPIC, SPARE = "every-version", "spare"
UNKNOWN_SERVER_ERROR, UNSUPPORTED_VERSION = -1, 35
# Not looked at: times, texts, and what is 0 for the first partition or outside a session.
NEVER_FILLED = {"ThrottleTimeMs", "ErrorMessage", "PartitionIndex", "SessionId"}


Values = dict[str, Any]
SUBSCRIPTION = schema.encode_data("ConsumerProtocolSubscription", 1, {"Topics": [TOPIC], "OwnedPartitions": []})
JOIN: Values = {
    "SessionTimeoutMs": 30000,
    "RebalanceTimeoutMs": 30000,
    "MemberId": "",
    "ProtocolType": "consumer",
    "Protocols": [{"Name": "range", "Metadata": SUBSCRIPTION}],
}


def commit(group: str, topic: Values | None = None) -> Values:
    """An OffsetCommit without a member."""
    partition = {"PartitionIndex": 0, "CommittedOffset": 1, "CommittedMetadata": "m"}
    topics = [(topic or {"Name": TOPIC}) | {"Partitions": [partition]}]
    who = {"GroupId": group, "GenerationIdOrMemberEpoch": -1, "MemberId": "", "RetentionTimeMs": -1}
    return who | {"Topics": topics}


class Setting:
    """What the requests of one run are about."""

    def __init__(self, client: WireClient) -> None:
        client.create_topic(TOPIC)
        client.create_topic(SPARE)
        topics = client.call("Metadata", 12, {"Topics": [{"Name": TOPIC}]})
        self.topic_id = topics["Topics"][0]["TopicId"]
        self.broker_id = topics["Brokers"][0]["NodeId"]
        client.call("InitProducerId", 1, REQUESTS["InitProducerId"](self, 1))  # the first id is 0
        self.made = 0
        self.log_dir = client.call("DescribeLogDirs", 1, {"Topics": None})["Results"][0]["LogDir"]
        self.client = client
        wanted = {"KeyType": 0, "CoordinatorKeys": ["g"]}
        wait_until(lambda: client.call("FindCoordinator", 4, wanted)["Coordinators"][0]["ErrorCode"] == 0)
        wait_until(lambda: client.call("OffsetCommit", 8, commit("g"))["Topics"][0]["Partitions"][0]["ErrorCode"] == 0)

    def member(self) -> Values:
        """Group, generation and id of the only member of a new group."""
        group = self.new_name()
        joined = self.client.call("JoinGroup", 3, JOIN | {"GroupId": group})
        return {"GroupId": group, "GenerationId": joined["GenerationId"], "MemberId": joined["MemberId"]}

    def stable_member(self) -> Values:
        """The same, with its assignment."""
        who = self.member()
        assignments = [{"MemberId": who["MemberId"], "Assignment": b"a"}]
        self.client.call("SyncGroup", 3, who | {"Assignments": assignments})
        return who

    def new_name(self) -> str:
        self.made += 1
        return f"made-{self.made}"

    def named(self, first_by_id: int, version: int, key: str = "Topic") -> dict[str, Any]:
        """The topic, by id from a version on."""
        return {"TopicId": self.topic_id} if version >= first_by_id else {key: TOPIC}


Maker = Callable[[Setting, int], Values]


def produce(setting: Setting, version: int) -> Values:
    records = batch([b"x"]) if version >= 3 else message(b"x", magic=0 if version < 2 else 1)
    partition = [{"Index": 0, "Records": records}]
    return {
        "Acks": 1,
        "TimeoutMs": 3000,
        "TopicData": [setting.named(13, version, "Name") | {"PartitionData": partition}],
    }


def fetch(setting: Setting, version: int) -> Values:
    partition = {"Partition": 0, "CurrentLeaderEpoch": -1, "FetchOffset": 0, "PartitionMaxBytes": 1 << 20}
    return {"MaxWaitMs": 100, "MinBytes": 1, "Topics": [setting.named(13, version) | {"Partitions": [partition]}]}


def list_offsets(setting: Setting, version: int) -> Values:
    partition = {"PartitionIndex": 0, "CurrentLeaderEpoch": -1, "Timestamp": -1, "MaxNumOffsets": 1}
    return {"ReplicaId": -1, "Topics": [{"Name": TOPIC, "Partitions": [partition]}], "TimeoutMs": 1000}


def create_topics(setting: Setting, version: int) -> Values:
    topic = {"Name": setting.new_name(), "NumPartitions": 1, "ReplicationFactor": 1}
    return {"Topics": [topic], "timeoutMs": 5000}


def delete_topics(setting: Setting, version: int) -> Values:
    name = setting.new_name()
    topics = {"Topics": [{"Name": name}]} if version >= 6 else {"TopicNames": [name]}
    return topics | {"TimeoutMs": 5000}


def create_partitions(setting: Setting, version: int) -> Values:
    setting.made += 1
    return {"Topics": [{"Name": SPARE, "Count": setting.made + 1, "Assignments": None}], "TimeoutMs": 5000}


def change(**config: Any) -> Maker:
    """Sets one of the topic's settings."""
    return always(Resources=[{"ResourceType": 2, "ResourceName": TOPIC, "Configs": [config]}])


def describe_configs(setting: Setting, version: int) -> Values:
    """Of the topic and of the broker."""
    named = ((2, TOPIC), (4, str(setting.broker_id)))
    resources = [{"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": None} for kind, name in named]
    return {"Resources": resources, "IncludeSynonyms": True, "IncludeDocumentation": True}


def offset_fetch(setting: Setting, version: int) -> Values:
    topics = [setting.named(10, version, "Name") | {"PartitionIndexes": [0]}]
    return {"Groups": [{"GroupId": "g", "Topics": topics}]} if version >= 8 else {"GroupId": "g", "Topics": topics}


def sync_group(setting: Setting, version: int) -> Values:
    who = setting.member()
    assignments = [{"MemberId": who["MemberId"], "Assignment": b"a"}]
    return who | {"ProtocolType": "consumer", "ProtocolName": "range", "Assignments": assignments}


def leave_group(setting: Setting, version: int) -> Values:
    who = setting.stable_member()
    return who if version < 3 else {"GroupId": who["GroupId"], "Members": [{"MemberId": who["MemberId"]}]}


def delete_groups(setting: Setting, version: int) -> Values:
    group = setting.new_name()
    setting.client.call("OffsetCommit", 8, commit(group))
    return {"GroupsNames": [group]}


def consumer_heartbeat(setting: Setting, version: int) -> Values:
    """The first heartbeat of a member; from version 1 on it names itself."""
    who = {"GroupId": setting.new_name(), "MemberId": "" if version == 0 else "member", "MemberEpoch": 0}
    who["InstanceId"] = "i"
    return who | {"RebalanceTimeoutMs": 30000, "SubscribedTopicNames": [TOPIC], "TopicPartitions": []}


def consumer_describe(setting: Setting, version: int) -> Values:
    request = consumer_heartbeat(setting, 0)
    setting.client.call("ConsumerGroupHeartbeat", 0, request)
    return {"GroupIds": [request["GroupId"]]}


def alter_replica_log_dirs(setting: Setting, version: int) -> Values:
    return {"Dirs": [{"Path": setting.log_dir, "Topics": [{"Name": TOPIC, "Partitions": [0]}]}]}


def describe_producers(setting: Setting, version: int) -> Values:
    setting.client.produce(TOPIC, batch([b"x"] * 2, pid=77, epoch=1, seq=0))
    return {"Topics": [{"Name": TOPIC, "PartitionIndexes": [0]}]}


def always(**values: Any) -> Maker:
    return lambda setting, version: values


ACL_FILTER = always(ResourceTypeFilter=2, PatternTypeFilter=3, Operation=1, PermissionType=1)
DELETE_ACLS = always(Filters=[{"ResourceTypeFilter": 2, "PatternTypeFilter": 3, "Operation": 1, "PermissionType": 1}])
ACL = {
    "ResourceType": 2,
    "ResourceName": "t",
    "ResourcePatternType": 3,
    "Principal": "User:a",
    "Host": "*",
    "Operation": 3,
    "PermissionType": 3,
}

# One maker of request values for each API; an advertised API that is not here fails the test.
REQUESTS: dict[str, Maker] = {
    "Produce": produce,
    "Fetch": fetch,
    "ListOffsets": list_offsets,
    "Metadata": always(Topics=[{"Name": TOPIC}]),
    "FindCoordinator": lambda setting, version: {"CoordinatorKeys": ["g"]} if version >= 4 else {"Key": "g"},
    "ApiVersions": always(ClientSoftwareName="test", ClientSoftwareVersion="1"),
    "SaslHandshake": always(Mechanism="PLAIN"),
    "SaslAuthenticate": always(AuthBytes=b"x"),
    "CreateTopics": create_topics,
    "DeleteTopics": delete_topics,
    "DeleteRecords": always(
        Topics=[{"Name": TOPIC, "Partitions": [{"PartitionIndex": 0, "Offset": 1}]}], TimeoutMs=5000
    ),
    "InitProducerId": always(TransactionalId=None, TransactionTimeoutMs=60000, ProducerId=-1, ProducerEpoch=-1),
    "OffsetForLeaderEpoch": always(
        ReplicaId=-2,
        Topics=[{"Topic": TOPIC, "Partitions": [{"Partition": 0, "CurrentLeaderEpoch": -1, "LeaderEpoch": 0}]}],
    ),
    "OffsetCommit": lambda setting, version: commit("g", setting.named(10, version, "Name")),
    "OffsetFetch": offset_fetch,
    # A static member is let in at once.
    "JoinGroup": lambda setting, version: JOIN | {"GroupId": setting.new_name(), "GroupInstanceId": "i"},
    "SyncGroup": sync_group,
    "Heartbeat": lambda setting, version: setting.stable_member(),
    "LeaveGroup": leave_group,
    "DescribeGroups": lambda setting, version: {"Groups": [setting.stable_member()["GroupId"]]},
    "ListGroups": always(),
    "DeleteGroups": delete_groups,
    "OffsetDelete": always(GroupId="g", Topics=[{"Name": TOPIC, "Partitions": [{"PartitionIndex": 0}]}]),
    "ConsumerGroupHeartbeat": consumer_heartbeat,
    "ConsumerGroupDescribe": consumer_describe,
    "AlterReplicaLogDirs": alter_replica_log_dirs,
    "DescribeProducers": describe_producers,
    "DescribeAcls": ACL_FILTER,
    "CreateAcls": always(Creations=[ACL]),
    "DeleteAcls": DELETE_ACLS,
    "DescribeConfigs": describe_configs,
    "AlterConfigs": change(Name="retention.ms", Value="600000"),
    "IncrementalAlterConfigs": change(Name="retention.ms", ConfigOperation=0, Value="600001"),
    "DescribeLogDirs": always(Topics=None),
    "CreatePartitions": create_partitions,
    "ElectLeaders": always(ElectionType=0, TopicPartitions=[{"Topic": TOPIC, "Partitions": [0]}], TimeoutMs=3000),
    "AlterPartitionReassignments": always(
        TimeoutMs=3000, Topics=[{"Name": TOPIC, "Partitions": [{"PartitionIndex": 0, "Replicas": None}]}]
    ),
    "ListPartitionReassignments": always(Topics=None, TimeoutMs=3000),
    "DescribeCluster": always(),
    "ListConfigResources": always(),
    "ListClientMetricsResources": always(),
    # Orders of a controller that was deposed long ago, and of brokers that are not registered: refused.
    "LeaderAndIsr": always(ControllerId=9, ControllerEpoch=0),
    "StopReplica": always(ControllerId=9, ControllerEpoch=0),
    "UpdateMetadata": always(ControllerId=9, ControllerEpoch=0),
    "ControlledShutdown": always(BrokerId=9, BrokerEpoch=0),
    "AlterPartition": always(BrokerId=9, BrokerEpoch=0),
    "AllocateProducerIds": always(BrokerId=9, BrokerEpoch=0),
    "DescribeTopicPartitions": always(Topics=[{"Name": TOPIC}], ResponsePartitionLimit=10, Cursor=None),
}

# Fields that Kafka fills and a single node, with what works so far, truthfully cannot: API -> paths.
NOT_FILLED: dict[str, set[str]] = {}


def filled(value: Any, path: str = "") -> Iterator[str]:
    """Paths of an answer's fields that hold more than nothing; elements of an array share a path."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from filled(each, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for each in value:
            yield from filled(each, path)
        if value:
            yield path
    elif value not in (None, 0, -1, "", b"", False, bytes(16)):
        yield path


def errors(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for name, each in value.items():
            if name.endswith("ErrorCode"):
                yield each
            else:
                yield from errors(each)
    elif isinstance(value, list):
        for each in value:
            yield from errors(each)


@cache
def usually_filled(key: int, version: int) -> set[str]:
    """Paths filled in more than half of the recorded answers of an (API, version) that report no error."""
    counts: Counter[str] = Counter()
    answers = 0
    for release in data.RELEASES:
        for row in data.frames(release):
            if (row["api"], row["version"]) != (key, version) or row["response"] is None:
                continue
            try:
                body = schema.decode_response(key, version, row["response"], release)[1]
            except schema.SchemaError:
                continue
            if not any(errors(body)):
                answers += 1
                counts.update(set(filled(body)))
    return {path for path, count in counts.items() if count * 2 > answers and not NEVER_FILLED & set(path.split("."))}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("versions")) / "data") as running:
        yield running


def test_every_advertised_version(broker: BrokerProcess) -> None:
    with broker.client() as client:
        setting = Setting(client)
        client.produce(TOPIC, batch([b"x"] * 100))
        problems = []
        advertised = client.api_versions()
        for key, (low, high) in sorted(advertised.items()):
            for version in range(low, high + 1):
                problems += [
                    f"{schema.api_name(key)} v{version}: {each}" for each in check(client, setting, key, version)
                ]
    assert not problems, "\n".join(problems)
    assert 18 in advertised
    assert len(advertised) > 20


def check(client: WireClient, setting: Setting, key: int, version: int) -> Iterator[str]:
    """What is wrong with one version's answer."""
    name = schema.api_name(key)
    if name not in REQUESTS:
        yield "no request in REQUESTS"
        return
    body = client.call(key, version, REQUESTS[name](setting, version))
    if bad := {UNKNOWN_SERVER_ERROR, UNSUPPORTED_VERSION} & set(errors(body)):
        yield f"error {bad}: {body}"
    if any(errors(body)):
        return  # an answer that says why, such as 84 or 54, has nothing to fill
    missing = usually_filled(key, version) - set(filled(body)) - NOT_FILLED.get(name, set())
    if missing:
        yield f"not filled: {sorted(missing)}; the answer: {str(body)[:500]}"


def test_the_advertised_versions_are_those_of_both_releases(broker: BrokerProcess) -> None:
    """Each served API has every version that 3.9.2 or 4.3.1 serves to clients (their schemas' valid versions)."""
    with broker.client() as client:
        advertised = client.api_versions()
    for key, (low, high) in advertised.items():
        known = {version for each in _schemas(key) for version in _stable_versions(each)}
        assert (low, high) == (min(known), max(known)), schema.api_name(key)


def _stable_versions(message: schema.Message) -> list[int]:
    versions = [version for version in range(64) if version in message.versions]
    return versions[:-1] if message.unstable else versions


def _schemas(key: int) -> list[schema.Message]:
    return [
        each
        for release in data.RELEASES
        for each in schema.messages(release).values()
        if each.kind == "request" and each.api_key == key
    ]


def test_an_unknown_version_of_api_versions_is_answered(broker: BrokerProcess) -> None:
    """KIP-511: in version 0, with error 35 and the versions of ApiVersions itself."""
    with broker.client() as client:
        client.write_frame(schema.request_header("ApiVersions", 4, 9)[:2] + b"\0\x63" + b"\0\0\0\x09\xff\xff\0")
        correlation_id, body = schema.decode_response(18, 0, client.receive())
    assert correlation_id == 9
    assert body["ErrorCode"] == UNSUPPORTED_VERSION
    assert [each["ApiKey"] for each in body["ApiKeys"]] == [18]
