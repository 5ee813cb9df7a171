"""Versions between brokers, as recorded of clusters with each setting."""

from __future__ import annotations

import pytest

from pybroker.broker.inter_broker import inter_broker_versions

RECORDED = {
    "3.9-IV0": (7, 8, 4, 17, 1),
    "3.9": (7, 8, 4, 17, 1),
    "2.8": (5, 7, 3, 12, 1),
    "2.8-IV1": (5, 7, 3, 12, 1),
    "2.6": (4, 6, 3, 11, 0),
    "2.6-IV0": (4, 6, 3, 11, 0),
}


@pytest.mark.parametrize("setting", RECORDED)
def test_versions_are_the_recorded_ones(setting: str) -> None:
    found = inter_broker_versions(setting)
    recorded = (found.leader_and_isr, found.update_metadata, found.stop_replica, found.fetch, found.write_txn_markers)
    assert recorded == RECORDED[setting]


def test_who_changes_the_isr_and_gives_out_producer_ids() -> None:
    newest, middle, oldest = (inter_broker_versions(text) for text in ("3.9", "2.8", "2.6"))
    assert newest.alter_partition and newest.allocate_producer_ids and newest.divergence_by_fetch
    assert middle.alter_partition and not middle.allocate_producer_ids
    assert not oldest.alter_partition and not oldest.divergence_by_fetch


def test_what_topics_and_their_leaders_have() -> None:
    found = [inter_broker_versions(text) for text in ("3.9", "3.2", "3.1", "2.8", "2.7", "2.6")]
    assert [each.topic_ids for each in found] == [True, True, True, True, False, False]
    assert [each.leader_recovery for each in found] == [True, True, False, False, False, False]


def test_what_is_older_is_taken_for_the_oldest() -> None:
    assert inter_broker_versions("0.10.0-IV1").stop_replica == 3
    with pytest.raises(ValueError):
        inter_broker_versions("new")
