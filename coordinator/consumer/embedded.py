"""Subscriptions and assignments as consumers of the classic protocol write them (the embedded consumer protocol): an
int16 version, then the message. A version that is not known yet reads as the newest that is."""

from __future__ import annotations

from pybroker.coordinator.consumer.catalog import TopicCatalog
from pybroker.coordinator.consumer.member import Owned
from pybroker.protocol import codec
from pybroker.protocol.codec import DecodeError
from pybroker.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment, TopicPartition
from pybroker.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription

CONSUMER_PROTOCOL = "consumer"  # the protocol type
_NEWEST = 3


def version_of(data: bytes) -> int:
    """Raises DecodeError."""
    if len(data) < 2 or data[0] & 0x80:
        raise DecodeError("no version of the consumer protocol")
    return min(int.from_bytes(data[:2], "big"), _NEWEST)


def read_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """Raises DecodeError."""
    return codec.decode(ConsumerProtocolSubscription, version_of(data), data, 2)[0]


def read_assignment(data: bytes, catalog: TopicCatalog) -> dict[bytes, frozenset[int]]:
    """By topic id, without topics that are gone; nothing where a member has not been assigned anything yet. Raises
    DecodeError."""
    if not data:
        return {}
    assignment = codec.decode(ConsumerProtocolAssignment, version_of(data), data, 2)[0]
    return by_topic_id({each.topic: each.partitions for each in assignment.assigned_partitions}, catalog)


def by_topic_id(partitions: dict[str, list[int]], catalog: TopicCatalog) -> dict[bytes, frozenset[int]]:
    found = ((catalog.topic(name), numbers) for name, numbers in partitions.items())
    return {topic.topic_id: frozenset(numbers) for topic, numbers in found if topic is not None and numbers}


def write_assignment(owned: Owned, catalog: TopicCatalog, subscription: bytes) -> bytes:
    """What a member owns, in the version of its subscription."""
    version = version_of(subscription)
    names = ((catalog.name_of(topic_id), epochs) for topic_id, epochs in owned.items())
    partitions = [TopicPartition(topic=name, partitions=list(epochs)) for name, epochs in names if name is not None]
    message = ConsumerProtocolAssignment(assigned_partitions=partitions)
    return version.to_bytes(2, "big") + codec.encode_bytes(message, version)
