"""inter.broker.protocol.version raised from 2.6 to 3.9, one broker after the other, in a cluster of both kinds: topics
that had no ids get them from our controller, nothing is lost, and replicas stay in sync. With --long."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mixed.duties import Mixed
from tests.support.broker import BrokerProcess, wait_until
from tests.support.java import need_java
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(500)

SETTING = "inter.broker.protocol.version"
OURS, KAFKA, OTHER = 1, 2, 3


@pytest.mark.parametrize("order", [(KAFKA, OTHER, OURS), (OURS, KAFKA, OTHER)])
def test_topics_get_ids(zookeeper: ZooKeeperServer, tmp_path: Path, long_run: bool, order: tuple[int, ...]) -> None:
    if not long_run:
        pytest.skip("with --long")
    need_java("3.9.2")
    with Mixed(tmp_path, zookeeper, [OURS], [KAFKA, OTHER], {SETTING: "2.6"}) as mixed:
        mixed.create("older", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        for partition in range(3):
            assert mixed.produce("older", partition, b"0") == 0
        assert "topic_id" not in mixed.topic_node("older")
        for turn, broker_id in enumerate(order):
            mixed.stop(broker_id)
            broker = mixed.brokers[broker_id]
            settings = broker.overrides if isinstance(broker, BrokerProcess) else broker.settings
            settings[SETTING] = "3.9"
            mixed.bring_back(broker_id)
            mixed.restore_leaders("older")
            for partition in range(3):
                assert mixed.produce("older", partition, b"x") == turn + 1
        mixed.move_controller(OURS)
        wait_until(lambda: "topic_id" in mixed.topic_node("older"), 20, "the topic's id")
        for broker_id in mixed.brokers:  # every partition gets a leader epoch under the new protocol
            mixed.stop(broker_id)
            mixed.bring_back(broker_id)
            mixed.restore_leaders("older")
        ids = {broker_id: mixed.metadata(broker_id, "older")["Topics"][0]["TopicId"] for broker_id in mixed.brokers}
        assert len(set(ids.values())) == 1 and bytes(16) not in ids.values()
        for broker_id in mixed.brokers:
            for folder in mixed.folders(broker_id, "older-[0-9]"):
                assert mixed.topic_node("older")["topic_id"] in (folder / "partition.metadata").read_text()
        for partition in range(3):
            assert mixed.produce("older", partition, b"last") == 4
        mixed.wait_in_sync("older")
