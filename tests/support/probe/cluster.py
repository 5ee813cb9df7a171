"""Producer ids and transactions, reassignment, elections, ACLs, tokens, features, quotas, SCRAM."""

from __future__ import annotations

from typing import Any

from tests.support.broker import wait_until
from tests.support.probe import Case, ProbeClient, Step, calls
from tests.support.probe.fetch import fetch
from tests.support.probe.framing import framed, sends
from tests.support.probe.produce import request, two
from tests.support.records import headers
from tests.support.schema import encode_request

NEW_PRODUCER = {"TransactionalId": None, "TransactionTimeoutMs": 60000, "ProducerId": -1, "ProducerEpoch": -1}


def IP(name: str, **fields: Any) -> Case:
    return Case(name, "InitProducerId", calls("InitProducerId", 4, NEW_PRODUCER | fields))


def Q(name: str, api: str, version: int, fields: dict[str, Any] | None = None) -> Case:
    return Case(name, api, calls(api, version, fields))


def RAW(name: str, api: str, fields: dict[str, Any] | None = None) -> Case:
    """A request of version 0 whose answer is looked at by size only."""
    return Case(name, api, sends(framed(encode_request(api, 0, fields, 3))))


def wait_for_transactions(client: ProbeClient) -> None:
    """Until the transaction coordinator gives out a producer id; not where the broker has none."""
    if 24 not in client.api_versions():
        return
    coordinator = {"KeyType": 1, "CoordinatorKeys": ["ptx"]}

    def ready() -> bool:
        found = client.call("FindCoordinator", 4, coordinator)["Coordinators"][0]["ErrorCode"] == 0
        return found and client.call("InitProducerId", 4, NEW_PRODUCER | {"TransactionalId": "ptx"})["ErrorCode"] == 0

    wait_until(ready, 15, "the transaction coordinator")


class Transaction:
    """The producer of transactional id ptx, with a new epoch."""

    def __init__(self, client: ProbeClient) -> None:
        got = client.call("InitProducerId", 4, NEW_PRODUCER | {"TransactionalId": "ptx"})
        self.client, self.pid, self.epoch = client, got["ProducerId"], got["ProducerEpoch"]

    def end(self, epoch: int, commit: bool) -> int:
        fields = {"TransactionalId": "ptx", "ProducerId": self.pid, "ProducerEpoch": epoch, "Committed": commit}
        return int(self.client.call("EndTxn", 3, fields)["ErrorCode"])

    def add(self, epoch: int, pid: int | None = None, topic: str = "p") -> list[int]:
        producer = {"V3AndBelowProducerId": self.pid if pid is None else pid, "V3AndBelowProducerEpoch": epoch}
        topics = [{"Name": topic, "Partitions": [0]}]
        fields = {"V3AndBelowTransactionalId": "ptx", "V3AndBelowTopics": topics} | producer
        answer = self.client.call("AddPartitionsToTxn", 3, fields)["ResultsByTopicV3AndBelow"][0]
        return [each["PartitionErrorCode"] for each in answer["ResultsByPartition"]]

    def produce(self, seq: int, attributes: int = 16) -> int:
        records = two(pid=self.pid, epoch=self.epoch, seq=seq, attributes=attributes)
        answer = self.client.call("Produce", 9, request(records, txn="ptx"))
        return int(answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"])

    def latest(self, committed: bool) -> int:
        topics = [{"Name": "p", "Partitions": [{"PartitionIndex": 0, "Timestamp": -1}]}]
        asked = {"ReplicaId": -1, "IsolationLevel": int(committed), "Topics": topics}
        return int(self.client.call("ListOffsets", 7, asked)["Topics"][0]["Partitions"][0]["Offset"])

    def read(self, offset: int, committed: bool) -> dict[str, Any]:
        answer = self.client.call("Fetch", 11, fetch(offset, IsolationLevel=int(committed)))
        return answer["Responses"][0]["Partitions"][0]  # type: ignore[no-any-return]


def transaction_states(client: ProbeClient) -> str:
    """One producer's way through add, produce, abort; the list of what it saw, as text."""
    txn = Transaction(client)
    epoch = txn.epoch
    seen: list[Any] = [
        ("EndTxn in Empty", txn.end(epoch, True)),
        ("produce before add", txn.produce(0)),
        ("add", txn.add(epoch)),
        ("add unknown topic", txn.add(epoch, topic="nope")),
        ("add with epoch+1", txn.add(epoch + 1)),
        ("add with epoch-1", txn.add(epoch - 1)),
        ("add with another producer id", txn.add(epoch, txn.pid + 77)),
        ("produce", txn.produce(0)),
        ("produce, not transactional flag", txn.produce(2, 0)),
    ]
    end, stable = txn.latest(False), txn.latest(True)
    seen += [
        ("open txn: latest uncommitted - committed", end - stable),
        ("EndTxn epoch+1", txn.end(epoch + 1, True)),
        ("abort", txn.end(epoch, False)),
        ("abort again", txn.end(epoch, False)),
        ("commit after abort", txn.end(epoch, True)),
    ]
    new_end = wait_until(lambda: txn.latest(True) > stable and txn.latest(False), 5, "the abort marker")
    seen.append(("after abort: end offset grew by (marker)", new_end - end))
    part = txn.read(stable, True)
    whole = [each for each in headers(part["Records"]) if each is not None]
    seen.append(
        (
            "read_committed fetch: aborted txns",
            [each["FirstOffset"] - stable for each in part["AbortedTransactions"] or []],
            "batches",
            [(each.attributes, each.count, each.producer_id == txn.pid) for each in whole],
        )
    )
    seen.append(("read_uncommitted: aborted txns", txn.read(stable, False)["AbortedTransactions"]))
    return str(seen)


def reassign(*partitions: tuple[int, list[int] | None]) -> dict[str, Any]:
    parts = [{"PartitionIndex": index, "Replicas": replicas} for index, replicas in partitions]
    return {"TimeoutMs": 1000, "Topics": [{"Name": "q", "Partitions": parts}]}


def elect(kind: int, *topics: str) -> dict[str, Any]:
    wanted = [{"Topic": name, "Partitions": [0]} for name in topics]
    return {"ElectionType": kind, "TopicPartitions": wanted, "TimeoutMs": 1000}


UNKNOWN_TXN = {"TransactionalId": "none", "ProducerId": 1, "ProducerEpoch": 0}
OFFSETS = [{"Name": "p", "Partitions": [{"PartitionIndex": 0, "CommittedOffset": 1}]}]
ACL = {
    "ResourceType": 2,
    "ResourceName": "p",
    "ResourcePatternType": 3,
    "Principal": "User:a",
    "Host": "*",
    "Operation": 3,
    "PermissionType": 3,
}
SCRAM = {"Name": "u", "Mechanism": 1, "Iterations": 100, "Salt": b"abcd", "SaltedPassword": bytes(32)}
QUOTA = {"Entity": [{"EntityType": "user", "EntityName": "b"}], "Ops": [{"Key": "zz", "Value": 1.0}]}

CASES: list[Case | Step] = [
    IP("idempotent"),
    IP("empty transactional id", TransactionalId=""),
    IP("producer id without epoch", ProducerId=5),
    IP("idempotent, producer id 5 epoch 0", ProducerId=5, ProducerEpoch=0),
    Step(wait_for_transactions),
    IP("transaction timeout 0", TransactionalId="ptx2", TransactionTimeoutMs=0),
    IP("transaction timeout 900001", TransactionalId="ptx2", TransactionTimeoutMs=900001),
    IP("transaction timeout -1", TransactionalId="ptx2", TransactionTimeoutMs=-1),
    IP("twice: epoch goes up", TransactionalId="ptx"),
    IP("with a wrong producer id", TransactionalId="ptx", ProducerId=99, ProducerEpoch=0),
    Case("transaction states", "AddPartitionsToTxn", transaction_states),
    Q("AddPartitionsToTxn, empty list of transactions", "AddPartitionsToTxn", 4, {"Transactions": []}),
    Q("AddOffsetsToTxn, unknown id", "AddOffsetsToTxn", 3, UNKNOWN_TXN | {"GroupId": "g"}),
    Q("EndTxn, unknown id", "EndTxn", 3, UNKNOWN_TXN | {"Committed": True}),
    Q(
        "TxnOffsetCommit, unknown producer",
        "TxnOffsetCommit",
        3,
        UNKNOWN_TXN | {"GroupId": "g", "GenerationId": -1, "MemberId": "", "Topics": OFFSETS},
    ),
    Q("DescribeTransactions, unknown id", "DescribeTransactions", 0, {"TransactionalIds": ["none"]}),
    Q(
        "DescribeProducers",
        "DescribeProducers",
        0,
        {"Topics": [{"Name": "p", "PartitionIndexes": [0, 8]}, {"Name": "nope", "PartitionIndexes": [0]}]},
    ),
    Q("reassign to an unknown broker", "AlterPartitionReassignments", 0, reassign((0, [99]), (1, []), (9, [5]))),
    Q("reassign, duplicate or negative replicas", "AlterPartitionReassignments", 0, reassign((0, [5, 5]), (1, [-1]))),
    Q("cancel when none is under way", "AlterPartitionReassignments", 0, reassign((0, None))),
    Q("elect preferred, already leader", "ElectLeaders", 2, elect(0, "q", "nope")),
    Q("elect unclean", "ElectLeaders", 2, elect(1, "q")),
    Q("election type 9", "ElectLeaders", 2, elect(9, "q")),
    Q(
        "ACLs without an authorizer",
        "DescribeAcls",
        3,
        {"ResourceTypeFilter": 1, "PatternTypeFilter": 1, "Operation": 1, "PermissionType": 1},
    ),
    Q("ACL create without an authorizer", "CreateAcls", 3, {"Creations": [ACL]}),
    Q("delegation token on PLAINTEXT", "CreateDelegationToken", 3, {"Renewers": [], "MaxLifetimeMs": -1}),
    Q("describe delegation tokens", "DescribeDelegationToken", 3, {"Owners": None}),
    Q(
        "AlterReplicaLogDirs, unknown dir",
        "AlterReplicaLogDirs",
        2,
        {"Dirs": [{"Path": "/nonexistent", "Topics": [{"Name": "q", "Partitions": [0]}]}]},
    ),
    Q(
        "UpdateFeatures, unknown",
        "UpdateFeatures",
        1,
        {"timeoutMs": 1000, "FeatureUpdates": [{"Feature": "nonesuch", "MaxVersionLevel": 1, "UpgradeType": 1}]},
    ),
    RAW("UnregisterBroker on a ZooKeeper broker", "UnregisterBroker", {"BrokerId": 9}),
    RAW("DescribeQuorum on a ZooKeeper broker", "DescribeQuorum", {"Topics": []}),
    RAW("GetTelemetrySubscriptions on a ZooKeeper broker", "GetTelemetrySubscriptions"),
    RAW("DescribeTopicPartitions on a ZooKeeper broker", "DescribeTopicPartitions"),
    Q("DescribeClientQuotas, empty filter", "DescribeClientQuotas", 1),
    Q("AlterClientQuotas, unknown key", "AlterClientQuotas", 1, {"Entries": [QUOTA]}),
    Q(
        "SCRAM upsert, 100 iterations",
        "AlterUserScramCredentials",
        0,
        {"Deletions": [], "Upsertions": [SCRAM]},
    ),
    Q("SCRAM describe, none", "DescribeUserScramCredentials", 0, {"Users": None}),
]
