"""What Fetch answers where it fails as a whole."""

from __future__ import annotations

import pytest

from pybroker.broker.apis.fetch import error_response
from pybroker.protocol import codec
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic


@pytest.mark.parametrize("version", [4, 12, 13, 16])
def test_a_failure_is_told_at_every_partition_before_13_and_only_at_the_top_since(version: int) -> None:
    request = FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=3)])])
    response = error_response(request, KafkaError(Errors.UNKNOWN_SERVER_ERROR), version)
    read, _ = codec.decode(FetchResponse, version, codec.encode_bytes(response, version))
    partitions = [each for topic in read.responses for each in topic.partitions]
    told = [(each.partition_index, each.error_code, each.records == b"") for each in partitions]
    assert told == ([(3, Errors.UNKNOWN_SERVER_ERROR, True)] if version < 13 else [])
    assert read.error_code == (Errors.UNKNOWN_SERVER_ERROR if version >= 7 else Errors.NONE)
