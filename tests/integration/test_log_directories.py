"""A broker with two log directories: AlterReplicaLogDirs, DescribeLogDirs, DescribeProducers over the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.broker import BrokerProcess, TwoDirectories, wait_until
from tests.support.records import batch
from tests.support.wire import WireClient


def move(client: WireClient, path: Path | str, topic: str = "t", partition: int = 0, version: int = 2) -> int:
    topics = [{"Name": topic, "Partitions": [partition]}]
    answer = client.call("AlterReplicaLogDirs", version, {"Dirs": [{"Path": str(path), "Topics": topics}]})
    (result,) = answer["Results"]
    assert result["TopicName"] == topic
    (outcome,) = result["Partitions"]
    assert outcome["PartitionIndex"] == partition
    return int(outcome["ErrorCode"])


def where(client: WireClient) -> dict[str, list[tuple[str, bool, int]]]:
    """(partition, whether it is on its way, lag) by directory."""
    answer = client.call("DescribeLogDirs", 4, {"Topics": None})
    return {
        Path(each["LogDir"]).name: [
            (f"{topic['Name']}-{one['PartitionIndex']}", one["IsFutureKey"], one["OffsetLag"])
            for topic in each["Topics"]
            for one in topic["Partitions"]
        ]
        for each in answer["Results"]
    }


def records_of(client: WireClient, topic: str) -> bytes:
    data, offset = b"", 0
    while offset < client.end_offset(topic):
        answer = client.fetch(topic, offset, max_bytes=1 << 26)
        data += answer["Records"]
        offset += answer["Records"].count(b"value-")
    return data


def test_a_replica_moves_while_it_is_served(tmp_path: Path) -> None:
    with TwoDirectories(tmp_path / "data") as broker, broker.client() as client:
        client.create_topic("t", segment_bytes="100000")
        for number in range(300):
            sent = batch([b"value-%d" % number + bytes(1000)])
            assert client.produce("t", sent)["ErrorCode"] == 0
        before = records_of(client, "t")
        places = where(client)
        source, target = ("x", "y") if places["x"] else ("y", "x")
        assert places[source] == [("t-0", False, 0)]

        assert move(client, "/nonexistent") == 57
        assert move(client, broker.data_dir / target, "nothing") == 3
        assert move(client, broker.data_dir / target, partition=5) == 3
        for version in range(3):
            assert move(client, broker.data_dir / target, version=version) == 0
        wait_until(lambda: where(client)[target] == [("t-0", False, 0)], what="the move")
        assert where(client)[source] == []
        assert records_of(client, "t") == before
        assert client.produce("t", batch([b"value-300"]))["BaseOffset"] == 300
        before = records_of(client, "t")
        broker.kill()
        broker.start()
        with broker.client() as again:
            assert where(again)[target] == [("t-0", False, 0)]
            assert records_of(again, "t") == before


def test_describe_producers(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, broker.client() as client:
        client.create_topic("t")
        for sequence in (0, 2):
            sent = batch([b"a", b"b"], pid=9, epoch=3, seq=sequence)
            assert client.produce("t", sent)["ErrorCode"] == 0
        wanted = [{"Name": "t", "PartitionIndexes": [0, 7]}, {"Name": "nope", "PartitionIndexes": [0]}]
        answer: dict[str, Any] = client.call("DescribeProducers", 0, {"Topics": wanted})
        known, unknown = answer["Topics"]
        producer = known["Partitions"][0]["ActiveProducers"][0]
        assert producer.pop("LastTimestamp") > 0
        assert producer == {
            "ProducerId": 9,
            "ProducerEpoch": 3,
            "LastSequence": 3,
            "CoordinatorEpoch": -1,
            "CurrentTxnStartOffset": -1,
        }
        assert [each["ErrorCode"] for each in known["Partitions"]] == [0, 3]
        assert known["Partitions"][1]["ErrorMessage"] is None
        assert unknown["Partitions"][0]["ErrorMessage"] == "This server does not host this topic-partition."
