"""The records of __consumer_offsets and __transaction_state as texts, as DumpLogSegments gives them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

from pybroker.protocol.codec import DecodeError, decode
from pybroker.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from pybroker.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from pybroker.protocol.messages.transaction_log import TransactionLogKey, TransactionLogValue
from pybroker.protocol.schema import Message, Struct
from pybroker.protocol.uuids import uuid_to_text

#: (key, value) of a record → texts of both; None where there is none.
RecordDecoder = Callable[[bytes | None, bytes | None], tuple[str | None, str | None]]

_TOMBSTONE = "<DELETE>"
# Type of a key in __consumer_offsets → module of protocol/messages with <Name>Key and <Name>Value.
_GROUP_RECORDS = {
    0: "offset_commit",
    1: "offset_commit",
    2: "group_metadata",
    3: "consumer_group_metadata",
    4: "consumer_group_partition_metadata",
    5: "consumer_group_member_metadata",
    6: "consumer_group_target_assignment_metadata",
    7: "consumer_group_target_assignment_member",
    8: "consumer_group_current_member_assignment",
    10: "share_group_member_metadata",
    11: "share_group_metadata",
    12: "share_group_target_assignment_metadata",
    13: "share_group_target_assignment_member",
    14: "share_group_current_member_assignment",
    15: "share_group_state_partition_metadata",
    16: "consumer_group_regular_expression",
    17: "streams_group_metadata",
    19: "streams_group_member_metadata",
    20: "streams_group_target_assignment_metadata",
    21: "streams_group_target_assignment_member",
    22: "streams_group_current_member_assignment",
    23: "streams_group_topology",
}
_TRANSACTION_STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)


def decode_group_record(key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
    """A record of __consumer_offsets: JSON with the type of the key and the version of the value."""
    if key is None or len(key) < 2:
        return _unreadable(key), _unreadable(value)
    number = int.from_bytes(key[:2], "big", signed=True)
    module = _GROUP_RECORDS.get(number)
    if module is None:
        return _json({"type": str(number), "data": "unknown"}), _unreadable(value)
    messages = import_module(f"pybroker.protocol.messages.{module}")
    name = "".join(word.capitalize() for word in module.split("_"))
    try:
        wanted, _ = decode(getattr(messages, f"{name}Key"), 0, key, 2)
        shown = _json({"type": str(number), "data": as_plain(wanted, 0)})
    except DecodeError as error:
        shown = f"{_unreadable(key)} ({error})"
    return shown, _TOMBSTONE if value is None else _group_value(getattr(messages, f"{name}Value"), value)


def _group_value(cls: type[Message], value: bytes) -> str:
    version = int.from_bytes(value[:2], "big", signed=True)
    if len(value) < 2 or version not in cls.VERSIONS:
        return _json({"version": str(version), "data": "unknown"})
    try:
        message, _ = decode(cls, version, value, 2)
        data = as_plain(message, version)
        if data.get("protocolType") == "consumer":
            for member, plain in zip(message.members, data["members"], strict=True):  # type: ignore[attr-defined]
                plain["subscription"] = _embedded(ConsumerProtocolSubscription, member.subscription)
                plain["assignment"] = _embedded(ConsumerProtocolAssignment, member.assignment)
    except DecodeError as error:
        return f"{_unreadable(value)} ({error})"
    return _json({"version": str(version), "data": data})


def _embedded(cls: type[Message], data: bytes) -> Any:
    """What a member of a consumer group said in its own protocol's bytes, or the bytes."""
    if len(data) < 2:
        return _plain_bytes(data)
    lowest, highest = cls.VERSIONS
    version = min(max(int.from_bytes(data[:2], "big", signed=True), lowest), highest)
    try:
        message, _ = decode(cls, version, data, 2)
    except DecodeError:
        return _plain_bytes(data)
    return as_plain(message, version)


def decode_transaction_record(key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
    """A record of __transaction_state."""
    try:
        if key is None or key[:2] != b"\0\0":
            return _unreadable(key), _unreadable(value)
        name, _ = decode(TransactionLogKey, 0, key, 2)
        shown = f"transaction_metadata::transactionalId={name.transactional_id}"
        if value is None:
            return shown, _TOMBSTONE
        version = int.from_bytes(value[:2], "big", signed=True)
        if version not in TransactionLogValue.VERSIONS:
            return shown, _unreadable(value)
        state, _ = decode(TransactionLogValue, version, value, 2)
    except DecodeError as error:
        return f"{_unreadable(key)} ({error})", _unreadable(value)
    status = state.transaction_status
    named = _TRANSACTION_STATES[status] if 0 <= status < len(_TRANSACTION_STATES) else str(status)
    partitions = ",".join(
        f"{topic.topic}-{index}" for topic in state.transaction_partitions or () for index in topic.partition_ids
    )
    return shown, (
        f"producerId:{state.producer_id},producerEpoch:{state.producer_epoch},state={named},partitions=[{partitions}],"
        f"txnLastUpdateTimestamp={state.transaction_last_update_timestamp_ms},"
        f"txnTimeoutMs={state.transaction_timeout_ms}"
    )


def as_plain(struct: Struct, version: int) -> dict[str, Any]:
    """A message as JSON has it: names in camel case, bytes in base64, tagged fields only where they say something."""
    plain: dict[str, Any] = {}
    for declared in struct.FIELDS:
        if version not in declared.versions:
            continue
        value = getattr(struct, declared.name)
        if declared.tag is not None and (value == declared.default or value in ([], bytes(16), None)):
            continue
        plain[_camel(declared.name)] = _as_plain_value(value, declared.type_text, version)
    return plain


def _as_plain_value(value: Any, type_text: str, version: int) -> Any:
    if isinstance(value, Struct):
        return as_plain(value, version)
    if isinstance(value, list):
        return [_as_plain_value(each, type_text, version) for each in value]
    if isinstance(value, bytes):
        return uuid_to_text(value) if "Uuid" in type_text or "uuid" in type_text else _plain_bytes(value)
    return value


def _plain_bytes(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _unreadable(data: bytes | None) -> str | None:
    return None if data is None else f"0x{data.hex()}"
