"""Values at the paths, as Apache Kafka 3.9 brokers were recorded to write them: decoded and encoded again."""

from __future__ import annotations

import json

import pytest

from pybroker.controller import paths
from pybroker.controller.paths import BrokerNode, Endpoint, LeaderAndIsr, ProducerIdBlock, TopicNode
from pybroker.protocol.types import TopicPartition

BROKER = (
    b'{"features":{},"listener_security_protocol_map":{"INTERNAL":"PLAINTEXT","SASL":"SASL_PLAINTEXT"},'
    b'"endpoints":["INTERNAL://127.0.0.1:22111","SASL://127.0.0.1:22131"],"rack":"rack-1","jmx_port":-1,"port":22111,'
    b'"host":"127.0.0.1","version":5,"timestamp":"1796050865811"}'
)
TOPIC = (
    b'{"partitions":{"0":[1,2,3],"1":[2,3,1],"2":[3,1,2]},"topic_id":"B-ja9nFfQRW_DfJq7bwSPw","adding_replicas":{},'
    b'"removing_replicas":{},"version":3}'
)
MOVING = (
    b'{"partitions":{"0":[3,2,1]},"topic_id":"wnKV3Cz5SoOOLpPYjOrEbw","adding_replicas":{"0":[3]},'
    b'"removing_replicas":{"0":[1]},"version":3}'
)
OLD_TOPIC = b'{"partitions":{"0":[1]},"adding_replicas":{},"removing_replicas":{},"version":3}'
STATE = b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1,2,3]}'
UNCLEAN = b'{"controller_epoch":4,"leader":2,"version":1,"leader_recovery_state":1,"leader_epoch":6,"isr":[2]}'


def test_broker() -> None:
    node = paths.decode_broker(1, BROKER, czxid=26)
    assert node == BrokerNode(
        1,
        (
            Endpoint("INTERNAL", "127.0.0.1", 22111, "PLAINTEXT"),
            Endpoint("SASL", "127.0.0.1", 22131, "SASL_PLAINTEXT"),
        ),
        "rack-1",
        {},
        26,
    )
    assert paths.encode_broker(node, 1796050865811) == BROKER


def test_broker_of_a_protocol_without_features() -> None:
    data = BROKER.replace(b'"features":{},', b"").replace(b'"version":5', b'"version":4')
    node = paths.decode_broker(1, data, czxid=26)
    assert node.features is None
    assert paths.encode_broker(node, 1796050865811) == data


@pytest.mark.parametrize(
    ("version", "recorded"),
    [
        (0, b'{"features":{},"version":1,"status":0}'),
        (1, b'{"features":{},"version":1,"status":1}'),
        (2, b'{"features":{},"version":2,"status":1}'),
    ],
)
def test_no_features(version: int, recorded: bytes) -> None:
    assert paths.encode_no_features(version) == recorded
    assert paths.features_enabled(recorded) == (version > 0)


def test_our_broker_has_a_field_of_its_own_and_no_rack() -> None:
    node = BrokerNode(0, (Endpoint("PLAINTEXT", "::1", 9092, "PLAINTEXT"),), release="0.1.0")
    data = paths.encode_broker(node, 5)
    assert json.loads(data)["pybroker"] == "0.1.0"
    assert b"rack" not in data
    assert paths.decode_broker(0, data, -1) == node


def test_broker_without_a_plaintext_listener() -> None:
    data = json.loads(paths.encode_broker(BrokerNode(0, (Endpoint("SSL", "h", 1, "SSL"),)), 5))
    assert (data["host"], data["port"]) == (None, -1)


def test_oldest_broker() -> None:
    data = b'{"version":1,"host":"old","port":9092,"jmx_port":-1,"timestamp":"1"}'
    assert paths.decode_broker(7, data, 3).endpoints == (Endpoint("PLAINTEXT", "old", 9092, "PLAINTEXT"),)


@pytest.mark.parametrize("data", [TOPIC, MOVING, OLD_TOPIC])
def test_topic(data: bytes) -> None:
    assert paths.encode_topic(paths.decode_topic(data)) == data


def test_topic_under_reassignment() -> None:
    node = paths.decode_topic(MOVING)
    assert node == TopicNode(node.topic_id, {0: [3, 2, 1]}, {0: [3]}, {0: [1]})
    assert paths.decode_topic(OLD_TOPIC).topic_id is None


@pytest.mark.parametrize("data", [STATE, UNCLEAN])
def test_partition_state(data: bytes) -> None:
    assert paths.encode_partition_state(paths.decode_partition_state(data, 0)) == data


def test_partition_state_fields() -> None:
    assert paths.decode_partition_state(UNCLEAN, 9) == LeaderAndIsr(2, 6, (2,), 4, 9, True)


def test_controller() -> None:
    data = b'{"version":2,"brokerid":1,"timestamp":"1796050865957","kraftControllerEpoch":-1}'
    assert paths.decode_controller(data) == 1
    assert paths.encode_controller(1, 1796050865957) == data
    assert paths.decode_controller(data.replace(b":-1", b":5")) == -1
    assert paths.decode_epoch(paths.encode_epoch(12)) == 12


def test_producer_id_block() -> None:
    data = b'{"version":1,"broker":2,"block_start":"0","block_end":"999"}'
    assert paths.decode_producer_id_block(data) == ProducerIdBlock(2, 0, 999)
    assert paths.encode_producer_id_block(ProducerIdBlock(2, 0, 999)) == data


def test_configurations_and_their_notifications() -> None:
    data = b'{"version":1,"config":{"retention.ms":"86400000"}}'
    assert paths.decode_config(data) == {"retention.ms": "86400000"}
    assert paths.encode_config({"retention.ms": "86400000"}) == data
    assert paths.decode_config(b"") == {}
    assert paths.encode_config_change("topics/t-b") == b'{"version":2,"entity_path":"topics/t-b"}'
    assert paths.decode_config_change(b'{"version":1,"entity_type":"topics","entity_name":"x"}') == "topics/x"
    assert paths.config_by_entity_path("brokers/<default>") == "/config/brokers/<default>"


def test_notifications() -> None:
    data = b'{"version":1,"partitions":[{"topic":"t-a","partition":0}]}'
    assert paths.decode_partition_list(data) == [TopicPartition("t-a", 0)]
    assert paths.encode_partition_list([TopicPartition("t-a", 0)]) == data
    assert paths.encode_log_dir_event(2) == b'{"version":1,"broker":2,"event":1}'
    assert paths.decode_log_dir_event(paths.encode_log_dir_event(2)) == 2
    assert paths.sequence_number("config_change_0000000042") == 42


def test_reassignments_of_the_old_tools() -> None:
    data = b'{"version": 1, "partitions": [{"topic": "t-mv", "partition": 0, "replicas": [1, 3]}]}'
    wanted = {TopicPartition("t-mv", 0): (1, 3)}
    assert paths.decode_reassignments(data) == wanted
    assert paths.encode_reassignments(wanted) == data.replace(b" ", b"")
    damaged = (data.replace(b"[1, 3]", b"[true]"), data.replace(b'"replicas"', b'"r"'), b"[]", b'{"partitions":{}}')
    for damage in damaged:
        with pytest.raises(ValueError):
            paths.decode_reassignments(damage)


def test_names_are_percent_encoded() -> None:
    assert paths.sanitize("User:alice") == "User%3Aalice"
    assert paths.sanitize("a b*~+/") == "a%20b%2A%7E%2B%2F"
    assert paths.desanitize(paths.sanitize("ü/~*")) == "ü/~*"


def test_cluster_id() -> None:
    data = b'{"version":"1","id":"CnqmnODyT8KUjzELHCNf2g"}'
    assert paths.decode_cluster_id(data) == "CnqmnODyT8KUjzELHCNf2g"
    assert paths.encode_cluster_id("CnqmnODyT8KUjzELHCNf2g") == data


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b"\xff", b'{"isr":5}', b'{"endpoints":["x"],"version":5}'])
def test_damage_is_a_value_error(damage: bytes) -> None:
    with pytest.raises(ValueError):
        paths.decode_partition_state(damage, 0)
    with pytest.raises(ValueError):
        paths.decode_broker(1, damage, 0)
