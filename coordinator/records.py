"""The records of __consumer_offsets: a key says of what kind a record is, a value what is so; no value: it is no more.

A key begins with an int16 that is both its version and the record's kind, a value with an int16 version of its own.
Every version is read; what is written is what Apache Kafka 3.9 writes (and 4.3 for the kinds that only it has):

kind | what                                      | value written
---- | ----------------------------------------- | -------------------------------------------------------------
0, 1 | offset of (group, topic, partition)       | 3; 1 where the commit carries an expiry time of its own
2    | a classic group                           | 3
3-8, 16 | a group of the consumer protocol (KIP-848) | 0
"""

from __future__ import annotations

from importlib import import_module
from struct import Struct as Packed
from typing import Any, NamedTuple

from pybroker.protocol import codec
from pybroker.protocol.codec import DecodeError
from pybroker.protocol.messages.group_metadata import GroupMetadataKey, GroupMetadataValue
from pybroker.protocol.messages.offset_commit import OffsetCommitKey, OffsetCommitValue

OFFSET_V0, OFFSET, GROUP = 0, 1, 2
OFFSET_WITH_EXPIRY, OFFSET_WITH_EPOCH = 1, 3  # versions of an offset's value
GROUP_VALUE = 3
_NO_TIME = -1

_VERSION = Packed(">h")
# Kind → module of protocol/messages with <Name>Key and <Name>Value.
_MODULES = {
    OFFSET_V0: "offset_commit",
    OFFSET: "offset_commit",
    GROUP: "group_metadata",
    3: "consumer_group_metadata",
    4: "consumer_group_partition_metadata",
    5: "consumer_group_member_metadata",
    6: "consumer_group_target_assignment_metadata",
    7: "consumer_group_target_assignment_member",
    8: "consumer_group_current_member_assignment",
    16: "consumer_group_regular_expression",
}


class Record(NamedTuple):
    """One record: messages of protocol/messages. Without a value it is a tombstone."""

    key: Any
    value: Any | None


class UnknownRecord(ValueError):
    """A kind of record, or a version of a value, that this broker does not know."""


class _Kind:
    __slots__ = ("key_class", "value_class")

    def __init__(self, module: str) -> None:
        name = "".join(word.capitalize() for word in module.split("_"))
        messages = import_module(f"pybroker.protocol.messages.{module}")
        self.key_class = getattr(messages, name + "Key")
        self.value_class = getattr(messages, name + "Value")


_kinds: dict[int, _Kind] = {}


def _kind(number: int) -> _Kind:
    found = _kinds.get(number)
    if found is None:
        module = _MODULES.get(number)
        if module is None:
            raise UnknownRecord(f"a key of kind {number}")
        found = _kinds[number] = _Kind(module)
    return found


def offset_key(group_id: str, topic: str, partition: int) -> OffsetCommitKey:
    return OffsetCommitKey(group=group_id, topic=topic, partition=partition)


def group_tombstone(group_id: str) -> Record:
    return Record(GroupMetadataKey(group=group_id), None)


def encode(record: Record) -> tuple[bytes, bytes | None]:
    """The record's key and value as they lie in the log."""
    key, value = record
    head = _VERSION.pack(key.API_KEY)
    encoded_key = head + codec.encode_bytes(key, 0)
    if value is None:
        return encoded_key, None
    version = _value_version(value)
    return encoded_key, _VERSION.pack(version) + codec.encode_bytes(value, version)


def _value_version(value: Any) -> int:
    if type(value) is OffsetCommitValue:
        return OFFSET_WITH_EPOCH if value.expire_timestamp == _NO_TIME else OFFSET_WITH_EXPIRY
    if type(value) is GroupMetadataValue:
        return GROUP_VALUE
    return 0


def decode(key: bytes, value: bytes | None) -> Record:
    """A record of the log. Raises UnknownRecord, and DecodeError where the bytes are not what they say."""
    number = _version_of(key)
    decoded_key = codec.decode(_kind(number).key_class, 0, key, 2)[0]
    if value is None:
        return Record(decoded_key, None)
    value_class = _kind(number).value_class
    version = _version_of(value)
    if version not in value_class.VERSIONS:
        raise UnknownRecord(f"{value_class.__name__} of version {version}")
    return Record(decoded_key, codec.decode(value_class, version, value, 2)[0])


def _version_of(data: bytes) -> int:
    if len(data) < 2:
        raise DecodeError("no room for a version")
    version: int = _VERSION.unpack_from(data)[0]
    return version
