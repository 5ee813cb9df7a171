"""Versions between brokers, as recorded of clusters with each setting."""

from __future__ import annotations

import pytest

from pybroker.broker import leaving
from pybroker.broker.controller_link import HIGHEST_ALLOCATE_PRODUCER_IDS, HIGHEST_ALTER_PARTITION
from pybroker.broker.inter_broker import inter_broker_versions
from pybroker.replication.fetcher import DIVERGENCE_BY_FETCH

#: What brokers of each setting were seen to send; None: that message never. ListOffsets was not seen.
RECORDED: dict[str, dict[str, int | None]] = {
    "2.6": {
        "leader_and_isr": 4, "update_metadata": 6, "stop_replica": 3, "fetch": 11, "offset_for_leader_epoch": 3,
        "controlled_shutdown": 3, "write_txn_markers": 0, "alter_partition": None, "allocate_producer_ids": None,
    },
    "2.8": {
        "leader_and_isr": 5, "update_metadata": 7, "stop_replica": 3, "fetch": 12, "offset_for_leader_epoch": None,
        "controlled_shutdown": 3, "write_txn_markers": 1, "alter_partition": 3, "allocate_producer_ids": None,
    },
    "3.9": {
        "leader_and_isr": 7, "update_metadata": 8, "stop_replica": 4, "fetch": 17, "offset_for_leader_epoch": None,
        "controlled_shutdown": 3, "write_txn_markers": 1, "alter_partition": 3, "allocate_producer_ids": 0,
    },
}  # fmt: skip


@pytest.mark.parametrize("steps", [("2.6", "2.6-IV0"), ("2.8", "2.8-IV1"), ("3.9", "3.9-IV0", "3.9.2")])
def test_versions_are_the_recorded_ones(steps: tuple[str, ...]) -> None:
    for setting in steps:
        found = inter_broker_versions(setting)
        sent = {
            "leader_and_isr": found.leader_and_isr,
            "update_metadata": found.update_metadata,
            "stop_replica": found.stop_replica,
            "fetch": found.fetch,
            "offset_for_leader_epoch": None if found.fetch >= DIVERGENCE_BY_FETCH else found.offset_for_leader_epoch,
            "controlled_shutdown": leaving.VERSION,
            "write_txn_markers": found.write_txn_markers,
            "alter_partition": HIGHEST_ALTER_PARTITION if found.alter_partition else None,
            "allocate_producer_ids": HIGHEST_ALLOCATE_PRODUCER_IDS if found.allocate_producer_ids else None,
        }
        assert sent == RECORDED[steps[0]]


@pytest.mark.parametrize(
    ("setting", "fetch", "list_offsets"),
    [("3.8", 16, 9), ("3.5", 15, 8), ("3.4", 13, 7), ("3.0", 12, 7), ("2.8", 12, 6), ("2.7", 12, 5), ("2.6", 11, 5)],
)
def test_versions_between_the_recorded_ones_are_those_of_kafkas_metadata_version(
    setting: str, fetch: int, list_offsets: int
) -> None:
    found = inter_broker_versions(setting)
    assert (found.fetch, found.list_offsets) == (fetch, list_offsets)


def test_what_topics_and_their_leaders_have() -> None:
    found = [inter_broker_versions(text) for text in ("3.9", "3.2", "3.1", "2.8", "2.7", "2.6")]
    assert [each.topic_ids for each in found] == [True, True, True, True, False, False]
    assert [each.leader_recovery for each in found] == [True, True, False, False, False, False]


def test_what_is_older_is_taken_for_the_oldest() -> None:
    assert inter_broker_versions("0.10.0-IV1").stop_replica == 3
    with pytest.raises(ValueError):
        inter_broker_versions("new")
