"""ListOffsets to a leader whose high watermark has not reached its epoch's start yet."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pybroker.broker.apis import list_offsets
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tests.replication.test_partition import append, partition, state

CONSUMER, FOLLOWER = -1, 2


@pytest.mark.parametrize(
    ("asker", "version", "wanted"),
    [
        (CONSUMER, 7, (Errors.OFFSET_NOT_AVAILABLE, -1)),
        (CONSUMER, 4, (Errors.LEADER_NOT_AVAILABLE, -1)),
        (FOLLOWER, 7, (Errors.NONE, 5)),
    ],
)
def test_only_clients_wait_for_a_new_leaders_watermark(
    asker: int, version: int, wanted: tuple[int, int], tmp_path: Path
) -> None:
    """It may be this follower that holds the watermark back: it asks where the log ends before it fetches."""
    led = partition(tmp_path)
    led.make_leader(state(replicas=(1, 2)), 0)
    append(led, 5)
    led.make_leader(state(replicas=(1, 2), epoch=1), 0)
    manager = SimpleNamespace(partition=lambda topic, index: led)
    context = SimpleNamespace(api_version=version, services=SimpleNamespace(replica_manager=manager))
    topic = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
    response = list_offsets.handle(cast(Any, context), ListOffsetsRequest(replica_id=asker, topics=[topic]))
    assert isinstance(response, ListOffsetsResponse)
    (row,) = response.topics[0].partitions
    assert (row.error_code, row.offset) == wanted
