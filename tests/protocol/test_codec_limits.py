"""What a message may announce: no more than its bytes hold, and no more than memory and event loop stand."""

from __future__ import annotations

import struct

import pytest

from pybroker.protocol import codec
from pybroker.protocol.codec_decoder import MOST_ELEMENTS
from pybroker.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from pybroker.protocol.messages.metadata import MetadataRequest

TOO_MANY = "more elements than a message may have"


def test_empty_elements_by_the_million() -> None:
    """Two bytes each on the wire, a hundred in memory."""
    count = MOST_ELEMENTS + 1
    with pytest.raises(codec.DecodeError, match=TOO_MANY):
        codec.decode(MetadataRequest, 1, struct.pack(">i", count) + bytes(2 * count))
    with pytest.raises(codec.DecodeError, match="topics is longer than the message"):
        codec.decode(MetadataRequest, 1, struct.pack(">i", 1000) + bytes(999))


def test_all_arrays_together() -> None:
    def request(rows: int) -> bytes:
        ids = [1] * (MOST_ELEMENTS // 4)
        assignments = [CreatableReplicaAssignment(partition_index=row, broker_ids=ids) for row in range(rows)]
        topic = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=assignments, configs=[])
        return codec.encode_bytes(CreateTopicsRequest(topics=[topic], timeout_ms=1), 0)

    assert len(codec.decode(CreateTopicsRequest, 0, request(3))[0].topics[0].assignments) == 3
    with pytest.raises(codec.DecodeError, match=TOO_MANY):
        codec.decode(CreateTopicsRequest, 0, request(4))


def test_tagged_fields_by_the_million() -> None:
    header_and_topics = b"\x01\x00\x00\x00"  # no topics, three booleans
    body = header_and_topics + b"\xff\xff\xff\x7f" + bytes(100)
    with pytest.raises(codec.DecodeError, match=TOO_MANY):
        codec.decode(MetadataRequest, 9, body)
