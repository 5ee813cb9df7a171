"""Our broker as a member of a cluster whose controller is Apache Kafka, with each inter.broker.protocol.version."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import KAFKA, OURS, Cluster
from tests.support.java import need_java
from tests.support.records import batch
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(400)

PROTOCOLS = ("3.9", "2.8", "2.6")


@pytest.fixture(params=PROTOCOLS, scope="module")
def cluster(
    zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    """Two of each kind."""
    need_java("3.9.2")
    settings = {"inter.broker.protocol.version": request.param}
    kinds = {1: KAFKA, 2: KAFKA, 3: OURS, 4: OURS}
    with Cluster(tmp_path_factory.mktemp("mixed"), zookeeper, kinds, settings) as running:
        yield running


def test_topics_over_both_kinds(cluster: Cluster) -> None:
    assert cluster.registered() == [1, 2, 3, 4]
    cluster.create_topic("both", {0: [1, 3, 4], 1: [3, 1, 2]})
    for broker_id, index in ((1, 0), (3, 1)):
        with cluster.client(broker_id) as client:
            assert client.produce("both", batch([b"a", b"b"]), partition=index)["ErrorCode"] == 0
    cluster.wait_equal_logs("both")
    for broker_id in (3, 1):
        cluster.make_controller(broker_id)
        cluster.create_topic(f"by-{broker_id}", {0: [1, 3, 4], 1: [3, 1, 2]})
