"""ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from typing import Any

from tests.support.probe import Case, ProbeClient, Step


def partition(timestamp: int, index: int = 0, epoch: int = -1) -> dict[str, Any]:
    return {"PartitionIndex": index, "CurrentLeaderEpoch": epoch, "Timestamp": timestamp, "MaxNumOffsets": 3}


def L(name: str, timestamp: int, version: int = 7, topic: str = "p", index: int = 0, epoch: int = -1) -> Case:
    """A case that asks for one partition's offset."""

    def run(client: ProbeClient) -> Any:
        topics = [{"Name": topic, "Partitions": [partition(timestamp, index, epoch)]}]
        return client.call_json("ListOffsets", version, {"ReplicaId": -1, "Topics": topics})["Topics"]

    return Case(name, "ListOffsets", run)


def twice(client: ProbeClient) -> Any:
    topics = [{"Name": "p", "Partitions": [partition(-1), partition(-2)]}]
    return client.call_json("ListOffsets", 7, {"ReplicaId": -1, "Topics": topics})["Topics"]


def E(name: str, epoch: int, current: int = -1, topic: str = "p") -> Case:
    """A case that asks for an epoch's end offset."""

    def run(client: ProbeClient) -> Any:
        wanted = {"Partition": 0, "CurrentLeaderEpoch": current, "LeaderEpoch": epoch}
        request = {"ReplicaId": -1, "Topics": [{"Topic": topic, "Partitions": [wanted]}]}
        return client.call_json("OffsetForLeaderEpoch", 4, request)["Topics"]

    return Case(name, "OffsetForLeaderEpoch", run)


CASES: list[Case | Step] = [
    L("latest", -1),
    L("earliest", -2),
    L("max timestamp, v7", -3),
    L("max timestamp, v6", -3, 6),
    L("earliest local, v8", -4, 8),
    L("earliest local, v7", -4),
    L("timestamp 0", 0),
    L("timestamp far ahead", 10**15),
    L("timestamp -9", -9),
    L("v0 latest, max 3", -1, 0),
    L("unknown topic", -1, topic="nope"),
    L("unknown partition", -1, index=4),
    L("leader epoch 5", -1, epoch=5),
    L("v0 unknown topic", -1, 0, "nope"),
    Case("duplicate partition", "ListOffsets", twice),
    E("epoch 0", 0),
    E("epoch 3 (not yet)", 3),
    E("current epoch 9", 0, 9),
    E("unknown topic", 0, topic="nope"),
]
