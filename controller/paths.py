"""Every path that Kafka keeps in ZooKeeper, and the JSON at each: the one place that knows them (Kafka: zk/ZkData).

Encoders write the keys in Kafka's order. Decoders ignore unknown keys and raise ValueError on what is not such a value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pybroker.protocol.types import TopicPartition
from pybroker.protocol.uuids import uuid_from_text, uuid_to_text

CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
FEATURE = "/feature"
CLUSTER_ID = "/cluster/id"
BROKER_IDS = "/brokers/ids"
BROKER_SEQUENCE = "/brokers/seqid"
TOPICS = "/brokers/topics"
CONFIG = "/config"
CONFIG_CHANGES = "/config/changes"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_ELECTION = "/admin/preferred_replica_election"
ISR_CHANGES = "/isr_change_notification"
LOG_DIR_EVENTS = "/log_dir_event_notification"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"

#: Prefixes of the sequential nodes below the notification paths.
CONFIG_CHANGE_PREFIX = "config_change_"
ISR_CHANGE_PREFIX = "isr_change_"
LOG_DIR_EVENT_PREFIX = "log_dir_event_"

#: Containers that every broker makes at its start when they are missing, in Kafka's order.
PERSISTENT = (
    "/consumers",
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    BROKER_SEQUENCE,
    ISR_CHANGES,
    PRODUCER_ID_BLOCK,
    LOG_DIR_EVENTS,
    "/config/topics",
    "/config/clients",
    "/config/users",
    "/config/brokers",
    "/config/ips",
)

#: The entity whose configuration applies where there is no other.
DEFAULT_ENTITY = "<default>"


# Paths


def broker(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def partitions(name: str) -> str:
    return f"{TOPICS}/{name}/partitions"


def partition(name: str, index: int) -> str:
    return f"{TOPICS}/{name}/partitions/{index}"


def partition_state(name: str, index: int) -> str:
    return f"{TOPICS}/{name}/partitions/{index}/state"


def config_root(entity_type: str) -> str:
    """`entity_type` is topics, brokers, clients, users or ips."""
    return f"{CONFIG}/{entity_type}"


def config(entity_type: str, entity: str) -> str:
    """The entity's name goes in as it is: names of users, clients and ips are sanitized by the caller."""
    return f"{CONFIG}/{entity_type}/{entity}"


def config_by_entity_path(entity_path: str) -> str:
    """`entity_path` as a change notification names it, e.g. topics/t or users/alice/clients/c."""
    return f"{CONFIG}/{entity_path}"


def delete_topic(name: str) -> str:
    return f"{DELETE_TOPICS}/{name}"


def config_change() -> str:
    """Path to create a sequential node at."""
    return f"{CONFIG_CHANGES}/{CONFIG_CHANGE_PREFIX}"


def isr_change() -> str:
    return f"{ISR_CHANGES}/{ISR_CHANGE_PREFIX}"


def log_dir_event() -> str:
    return f"{LOG_DIR_EVENTS}/{LOG_DIR_EVENT_PREFIX}"


def sequence_number(name: str) -> int:
    """Number of a sequential node. Raises ValueError when the name does not end in ten digits."""
    return int(name[-10:])


def sanitize(name: str) -> str:
    """A user's or client's name as a path element: User:alice -> User%3Aalice."""
    from urllib.parse import quote  # rarely needed, and slow to load

    return quote(name, safe="").replace("~", "%7E")


def desanitize(name: str) -> str:
    from urllib.parse import unquote

    return unquote(name)


# Small values


def encode_controller(broker_id: int, timestamp_ms: int) -> bytes:
    return _dump({"version": 2, "brokerid": broker_id, "timestamp": str(timestamp_ms), "kraftControllerEpoch": -1})


def decode_controller(data: bytes) -> int:
    """Broker id of the controller, -1 when it is a KRaft controller (in a migration)."""
    value = _load(data)
    if value.get("kraftControllerEpoch", -1) != -1:
        return -1
    return _integer(value, "brokerid")


def encode_epoch(epoch: int) -> bytes:
    return b"%d" % epoch


def decode_epoch(data: bytes) -> int:
    return int(data)


def encode_no_features(version: int) -> bytes:
    """/feature of a cluster without finalized features (KIP-584). Version 0: its brokers know of no features."""
    return _dump({"features": {}, "version": version or 1, "status": int(version > 0)})


def features_enabled(data: bytes) -> bool:
    """Whether brokers may have features, by /feature."""
    return _load(data).get("status") == 1


def encode_cluster_id(cluster_id: str) -> bytes:
    return _dump({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    return _text(_load(data), "id")


def encode_config(settings: Mapping[str, str]) -> bytes:
    return _dump({"version": 1, "config": dict(settings)})


def decode_config(data: bytes) -> dict[str, str]:
    """Settings of one entity; empty data are no settings."""
    if not data:
        return {}
    settings = _load(data).get("config", {})
    if not isinstance(settings, dict) or not all(isinstance(value, str) for value in settings.values()):
        raise ValueError(f"not a configuration: {data!r}")
    return settings


def encode_config_change(entity_path: str) -> bytes:
    return _dump({"version": 2, "entity_path": entity_path})


def decode_config_change(data: bytes) -> str:
    """Entity path of a notification; version 1 named type and entity apart."""
    value = _load(data)
    if value.get("version") == 1:
        return f"{_text(value, 'entity_type')}/{_text(value, 'entity_name')}"
    return _text(value, "entity_path")


class ProducerIdBlock(NamedTuple):
    """Producer ids `first` to `last`, both included, given to one broker."""

    broker_id: int
    first: int
    last: int


def encode_producer_id_block(block: ProducerIdBlock) -> bytes:
    return _dump(
        {"version": 1, "broker": block.broker_id, "block_start": str(block.first), "block_end": str(block.last)}
    )


def decode_producer_id_block(data: bytes) -> ProducerIdBlock:
    value = _load(data)
    return ProducerIdBlock(_integer(value, "broker"), int(value["block_start"]), int(value["block_end"]))


def encode_partition_list(found: Sequence[TopicPartition]) -> bytes:
    """Value of an ISR change notification and of /admin/preferred_replica_election."""
    return _dump({"version": 1, "partitions": [{"topic": each.topic, "partition": each.partition} for each in found]})


def decode_partition_list(data: bytes) -> list[TopicPartition]:
    found = _load(data).get("partitions", [])
    if not isinstance(found, list):
        raise ValueError(f"not a list of partitions: {data!r}")
    return [TopicPartition(_text(each, "topic"), _integer(each, "partition")) for each in found]


def encode_reassignments(wanted: Mapping[TopicPartition, Sequence[int]]) -> bytes:
    """Value of /admin/reassign_partitions: partitions with the replicas that they are to have."""
    rows = [{"topic": at.topic, "partition": at.partition, "replicas": list(each)} for at, each in wanted.items()]
    return _dump({"version": 1, "partitions": rows})


def decode_reassignments(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    rows = _load(data).get("partitions", [])
    if not isinstance(rows, list):
        raise ValueError(f"not a list of partitions: {data!r}")
    wanted: dict[TopicPartition, tuple[int, ...]] = {}
    for row in rows:
        at = TopicPartition(_text(row, "topic"), _integer(row, "partition"))
        replicas = row.get("replicas")
        if not isinstance(replicas, list) or not all(type(each) is int for each in replicas):
            raise ValueError(f"no replicas for {at}: {data!r}")
        wanted[at] = tuple(replicas)
    return wanted


def encode_log_dir_event(broker_id: int) -> bytes:
    return _dump({"version": 1, "broker": broker_id, "event": 1})


def decode_log_dir_event(data: bytes) -> int:
    """Id of the broker whose log directory failed."""
    return _integer(_load(data), "broker")


# A topic's node


@dataclass(slots=True)
class TopicNode:
    """/brokers/topics/<t>. `topic_id` is None for a topic made by brokers older than 2.8; `adding` and `removing` name
    the replicas of partitions under reassignment (KIP-455)."""

    topic_id: bytes | None
    replicas: dict[int, list[int]]
    adding: dict[int, list[int]] = field(default_factory=dict)
    removing: dict[int, list[int]] = field(default_factory=dict)


def encode_topic(node: TopicNode) -> bytes:
    value: dict[str, Any] = {"partitions": {str(index): each for index, each in node.replicas.items()}}
    if node.topic_id is not None:
        value["topic_id"] = uuid_to_text(node.topic_id)
    value["adding_replicas"] = {str(index): each for index, each in node.adding.items()}
    value["removing_replicas"] = {str(index): each for index, each in node.removing.items()}
    value["version"] = 3
    return _dump(value)


def decode_topic(data: bytes) -> TopicNode:
    value = _load(data)
    topic_id = value.get("topic_id")
    return TopicNode(
        uuid_from_text(topic_id) if isinstance(topic_id, str) else None,
        _replica_lists(value.get("partitions", {})),
        _replica_lists(value.get("adding_replicas") or {}),
        _replica_lists(value.get("removing_replicas") or {}),
    )


def _replica_lists(value: Any) -> dict[int, list[int]]:
    if not isinstance(value, dict) or not all(isinstance(each, list) for each in value.values()):
        raise ValueError(f"not lists of replicas by partition: {value!r}")
    return {int(index): each for index, each in value.items()}


# A partition's state node


class LeaderAndIsr(NamedTuple):
    """/brokers/topics/<t>/partitions/<p>/state. `leader` is -1 when there is none; `recovering` is Kafka's leader
    recovery state 1 (elected uncleanly, not recovered yet); `partition_epoch` is the node's version, not its data."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    partition_epoch: int = 0
    recovering: bool = False


def encode_partition_state(state: LeaderAndIsr) -> bytes:
    isr = ",".join(map(str, state.isr))
    recovering = '"leader_recovery_state":1,' if state.recovering else ""
    text = (
        f'{{"controller_epoch":{state.controller_epoch},"leader":{state.leader},"version":1,{recovering}'
        f'"leader_epoch":{state.leader_epoch},"isr":[{isr}]}}'
    )
    return text.encode("ascii")


def decode_partition_state(data: bytes, version: int) -> LeaderAndIsr:
    value = _load(data)
    isr = value.get("isr")
    if not isinstance(isr, list):
        raise ValueError(f"not a partition state: {data!r}")
    return LeaderAndIsr(
        _integer(value, "leader"),
        _integer(value, "leader_epoch"),
        tuple(int(broker_id) for broker_id in isr),
        _integer(value, "controller_epoch"),
        version,
        value.get("leader_recovery_state", 0) == 1,
    )


# A broker's node


class Endpoint(NamedTuple):
    """One advertised listener; `protocol` is the security protocol's name, e.g. PLAINTEXT."""

    listener: str
    host: str
    port: int
    protocol: str


#: Kafka's numbers of the security protocols on the wire.
SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}

#: Our own field in a broker's node: the release of pybroker. Kafka ignores it; without it a broker is not ours.
OWN_FIELD = "pybroker"


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """/brokers/ids/<id>. `epoch` is the node's czxid, not in its data; `release` is None for Apache Kafka's brokers.
    `features` None: inter.broker.protocol.version is older than they are (2.7)."""

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    features: Mapping[str, tuple[int, int]] | None = field(default_factory=dict)
    epoch: int = -1
    release: str | None = None

    def endpoint(self, listener: str) -> Endpoint | None:
        for endpoint in self.endpoints:
            if endpoint.listener == listener:
                return endpoint
        return None


def encode_broker(node: BrokerNode, timestamp_ms: int, jmx_port: int = -1) -> bytes:
    """Version 5, or 4 without features. `jmx_port` and `timestamp` mean nothing here, but Kafka's controller needs
    them."""
    plaintext = next((each for each in node.endpoints if each.protocol == "PLAINTEXT"), None)
    value: dict[str, Any] = {}
    if node.features is not None:
        value["features"] = {
            name: {"min_version": lowest, "max_version": highest} for name, (lowest, highest) in node.features.items()
        }
    value |= {
        "listener_security_protocol_map": {each.listener: each.protocol for each in node.endpoints},
        "endpoints": [f"{each.listener}://{_bracketed(each.host)}:{each.port}" for each in node.endpoints],
    }
    if node.rack is not None:
        value["rack"] = node.rack
    value |= {
        "jmx_port": jmx_port,
        "port": plaintext.port if plaintext else -1,
        "host": plaintext.host if plaintext else None,
        "version": 4 if node.features is None else 5,
        "timestamp": str(timestamp_ms),
    }
    if node.release is not None:
        value[OWN_FIELD] = node.release
    return _dump(value)


def decode_broker(broker_id: int, data: bytes, czxid: int) -> BrokerNode:
    """Any version: 1 has only host and port, before 4 the listeners are named after their protocols."""
    value = _load(data)
    if value.get("version", 1) == 1:
        only = Endpoint("PLAINTEXT", _text(value, "host"), _integer(value, "port"), "PLAINTEXT")
        return BrokerNode(broker_id, (only,), epoch=czxid)
    protocols = value.get("listener_security_protocol_map") or {}
    endpoints = tuple(_endpoint(text, protocols) for text in value.get("endpoints", ()))
    features = None
    if value.get("version", 1) > 4:
        features = {
            name: (int(each.get("min_version", 1)), int(each["max_version"]))
            for name, each in (value.get("features") or {}).items()
        }
    release = value.get(OWN_FIELD)
    return BrokerNode(
        broker_id, endpoints, value.get("rack"), features, czxid, release if isinstance(release, str) else None
    )


def _endpoint(text: Any, protocols: Mapping[str, str]) -> Endpoint:
    listener, separator, address = str(text).partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon:
        raise ValueError(f"not an endpoint: {text!r}")
    return Endpoint(listener, host.strip("[]"), int(port), protocols.get(listener, listener))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# JSON


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _load(data: bytes) -> dict[str, Any]:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object: {data!r}")
    return value


def _integer(value: Any, key: str) -> int:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, int) or isinstance(found, bool):
        raise ValueError(f"{key} is not a number in {value!r}")
    return found


def _text(value: Any, key: str) -> str:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, str):
        raise ValueError(f"{key} is not a text in {value!r}")
    return found
