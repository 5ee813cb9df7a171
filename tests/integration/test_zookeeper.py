"""A broker on ZooKeeper: one process and a real ZooKeeper."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pybroker.broker.cluster.process import StartFailed
from pybroker.coordinator.service import OFFSETS_TOPIC
from pybroker.protocol.errors import Errors
from tests.support.broker import BrokerProcess, broker_environment, wait_until
from tests.support.clients import ConfluentKafka, Sent
from tests.support.wire import WireClient
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def chroot(tmp_path: Path) -> str:
    return f"/integration{tmp_path}"


Make = Callable[..., BrokerProcess]


@pytest.fixture
def make(zookeeper: ZooKeeperServer, chroot: str, tmp_path: Path) -> Make:
    """A broker of this chroot: its name is its directory's, further settings as overrides."""

    def made(name: str = "data", **overrides: Any) -> BrokerProcess:
        settings = {
            "zookeeper.connect": f"{zookeeper.address}{chroot}",
            "zookeeper.session.timeout.ms": 3000,
            "broker.id": 1,
            "offsets.topic.replication.factor": 1,
            "group.initial.rebalance.delay.ms": 0,
        }
        return BrokerProcess(tmp_path / name, settings | {key.replace("_", "."): overrides[key] for key in overrides})

    return made


def controller(zookeeper: ZooKeeperServer, chroot: str) -> tuple[int, int]:
    """Id and epoch; -1 for no controller."""
    nodes = zookeeper.tree(chroot)
    found = nodes.get("/controller")
    broker_id = -1 if found is None else json.loads(found[0] or b"")["brokerid"]
    return broker_id, int(nodes["/controller_epoch"][0] or b"0")


def test_topics_records_and_groups_outlive_a_restart(make: Make, zookeeper: ZooKeeperServer, chroot: str) -> None:
    client = ConfluentKafka()
    first = [Sent(b"k", b"one"), Sent(b"k", b"two")]
    with make() as broker:
        client.create(broker.address, "smoke")
        client.produce(broker.address, "smoke", "lz4", first)
        assert client.consume(broker.address, "smoke", 2) == first
        assert controller(zookeeper, chroot) == (1, 1)
        assert "is the controller, epoch 1" in broker.log_text()
        broker.restart()
        assert controller(zookeeper, chroot) == (1, 2)
        client.produce(broker.address, "smoke", "none", [Sent(b"k", b"three")])
        assert client.consume(broker.address, "smoke", 3) == [*first, Sent(b"k", b"three")]
    assert "/brokers/ids/1" not in zookeeper.tree(chroot), "an orderly stop ends the session"


def test_defaults_are_those_of_a_cluster(make: Make) -> None:
    with make() as broker, broker.client() as client:
        asked = {"ResourceType": 4, "ResourceName": "1", "ConfigurationKeys": ["transaction.state.log.min.isr"]}
        (described,) = client.call("DescribeConfigs", 1, {"Resources": [asked]})["Results"]
        assert described["Configs"][0]["Value"] == "2"


def test_killed_and_started_again_it_waits_for_its_old_session(make: Make) -> None:
    with make() as broker:
        with broker.client() as client:
            client.create_topic("kept")
        broker.restart(kill=True)
        assert "waiting up to 45 s for its end" in broker.log_text()
        with broker.client() as client:
            topics = wait_until(lambda: client.call("Metadata", 12, {"Topics": None})["Topics"], what="the topic")
        assert [topic["Name"] for topic in topics] == ["kept"]


def test_an_id_in_use_makes_the_second_wait_until_it_is_stopped(make: Make) -> None:
    with make() as broker, broker.client() as client:
        second = make("second")
        second.start_timeout = 2
        with pytest.raises(StartFailed) as failed:
            second.start()
        assert f"Broker id 1 is registered by another session (PLAINTEXT://{broker.address})" in str(failed.value)
        assert client.call("Metadata", 12, {"Topics": None})["Brokers"][0]["Port"] == broker.port


def test_an_id_in_use_is_refused_in_the_end(make: Make, long_run: bool) -> None:
    """45 seconds: with --long only."""
    if not long_run:
        pytest.skip("runs with --long")
    with make() as broker:
        second = make("second")
        second.start_timeout = 60
        with pytest.raises(StartFailed) as failed:
            second.start()
        assert f"id 1 is registered already (PLAINTEXT://{broker.address})" in str(failed.value)
        assert "waiting up to 45 s for its end" in second.log_text()
        with broker.client() as client:
            assert client.call("Metadata", 12, {"Topics": None})["Brokers"][0]["Port"] == broker.port


def test_a_signal_ends_the_wait(make: Make) -> None:
    with make():
        second = make("second")
        with second.output.open("wb") as output:
            process = subprocess.Popen(second.command(), stdout=output, stderr=output, env=broker_environment())
        try:
            wait_until(lambda: "waiting up to" in second.log_text(), 30, "the second broker's wait")
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
            process.wait()
        second.check_log()


def test_the_wrong_cluster_is_refused(make: Make, zookeeper: ZooKeeperServer, chroot: str) -> None:
    with make():
        pass
    elsewhere = make(zookeeper_connect=f"{zookeeper.address}{chroot}-other")
    with make("other", zookeeper_connect=f"{zookeeper.address}{chroot}-other"):
        pass
    with pytest.raises(StartFailed, match=r"would join the wrong cluster: check zookeeper\.connect and log\.dirs"):
        elsewhere.start()


def test_broker_ids_are_given_out(make: Make, tmp_path: Path) -> None:
    for name, expected in (("a", 1001), ("b", 1002), ("a", 1001)):
        with make(name, broker_id=-1) as broker, broker.client() as client:
            (only,) = client.call("Metadata", 12, {"Topics": None})["Brokers"]
            assert only["NodeId"] == expected
            assert f"broker.id={expected}" in (tmp_path / name / "meta.properties").read_text()


def test_no_zookeeper_there(make: Make) -> None:
    broker = make(zookeeper_connect="127.0.0.1:1", zookeeper_connection_timeout_ms=500)
    with pytest.raises(StartFailed, match="did not answer within 500 ms"):
        broker.start()


def test_stopped_for_longer_than_its_session_it_registers_again(
    make: Make, zookeeper: ZooKeeperServer, chroot: str
) -> None:
    """As a broker whose machine froze: the session expires, it resigns, registers anew, is elected and serves on; a
    setting changed meanwhile is known."""
    overrides = {"zookeeper_session_timeout_ms": 1500, "zookeeper_health_check_interval_ms": 200}
    with make(**overrides) as broker, broker.client() as client:
        client.create_topic("t")
        before = zookeeper.tree(chroot)["/brokers/ids/1"][1]
        broker.process.send_signal(signal.SIGSTOP)  # type: ignore[union-attr]
        wait_until(lambda: "/brokers/ids/1" not in zookeeper.tree(chroot), 30, "the session's end")
        kazoo = zookeeper.client()
        kazoo.set(f"{chroot}/config/topics/t", b'{"version":1,"config":{"retention.ms":"77777"}}')
        kazoo.stop()
        kazoo.close()
        broker.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
        wait_until(lambda: "is registered again" in broker.log_text(), 30, "the new registration")
        wait_until(lambda: controller(zookeeper, chroot) == (1, 2), 30, "the election")
        after = zookeeper.tree(chroot)["/brokers/ids/1"][1]
        assert after.czxid > before.czxid
        assert after.ephemeralOwner != before.ephemeralOwner
        wait_until(lambda: retention(client, "t") == "77777", 20, "the changed setting")
        client.create_topic("after")
        wait_until(lambda: client.produce("after", None)["ErrorCode"] != 3, 20, "the new topic's leader")


def retention(client: WireClient, topic: str) -> str:
    asked = {"ResourceType": 2, "ResourceName": topic, "ConfigurationKeys": ["retention.ms"]}
    (described,) = client.call("DescribeConfigs", 1, {"Resources": [asked]})["Results"]
    return str(described["Configs"][0]["Value"])


def test_changes_by_others_are_followed(make: Make, zookeeper: ZooKeeperServer, chroot: str) -> None:
    """A setting changed by another broker; /controller removed by hand, which moves the controller."""
    with make() as broker, broker.client() as client:
        client.create_topic("t")
        kazoo = zookeeper.client()
        try:
            kazoo.set(f"{chroot}/config/topics/t", b'{"version":1,"config":{"retention.ms":"88888"}}')
            notice = b'{"version":2,"entity_path":"topics/t"}'
            kazoo.create(f"{chroot}/config/changes/config_change_", notice, sequence=True)
            wait_until(lambda: retention(client, "t") == "88888", 20, "the setting")
            kazoo.delete(f"{chroot}/controller")
            wait_until(lambda: controller(zookeeper, chroot) == (1, 2), 20, "the election")
        finally:
            kazoo.stop()
            kazoo.close()
        client.create_topic("after")
        assert "is the controller, epoch 2" in broker.log_text()


def test_who_asks_for_what_only_zookeeper_can_give_holds_nothing_up(make: Make, tmp_path: Path) -> None:
    """Requests behind such a question on the same connection are answered; what was asked for is made in the end."""
    server = ZooKeeperServer(tmp_path / "zookeeper")
    producer = {"TransactionalId": None, "TransactionTimeoutMs": 1}
    with server, make(zookeeper_connect=server.address, zookeeper_session_timeout_ms=60_000) as broker:
        server.stop()
        with broker.client() as client:
            for _ in range(2):
                found = client.call("FindCoordinator", 3, {"Key": "g", "KeyType": 0})
                assert found["ErrorCode"] == Errors.COORDINATOR_NOT_AVAILABLE
                asked = {"Topics": [{"Name": "wanted"}], "AllowAutoTopicCreation": True}
                (topic,) = client.call("Metadata", 4, asked)["Topics"]
                assert topic["ErrorCode"] == Errors.LEADER_NOT_AVAILABLE
                refused = client.call("InitProducerId", 1, producer)
                assert refused["ErrorCode"] == Errors.COORDINATOR_LOAD_IN_PROGRESS
            server.start()
            wait_until(lambda: _leads(client, "wanted") and _leads(client, OFFSETS_TOPIC), 30, "both topics")
            assert client.call("InitProducerId", 1, producer)["ErrorCode"] == Errors.NONE


def _leads(client: WireClient, topic: str) -> bool:
    (found,) = client.call("Metadata", 4, {"Topics": [{"Name": topic}], "AllowAutoTopicCreation": False})["Topics"]
    return found["ErrorCode"] == 0 and all(partition["LeaderId"] == 1 for partition in found["Partitions"])


def test_it_serves_on_without_zookeeper(make: Make, tmp_path: Path) -> None:
    """Records go in and out; when ZooKeeper is back the same session goes on. Each change of health is one line."""
    client = ConfluentKafka()
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        overrides = {"zookeeper_connect": server.address, "zookeeper_health_check_interval_ms": 200}
        with make(zookeeper_session_timeout_ms=15_000, **overrides) as broker:
            client.create(broker.address, "t")
            server.stop()
            wait_until(lambda: "ZooKeeper does not answer" in broker.log_text(), 20, "the health check")
            client.produce(broker.address, "t", "none", [Sent(b"k", b"v")])
            assert client.consume(broker.address, "t", 1) == [Sent(b"k", b"v")]
            server.start()
            wait_until(lambda: "healthy member of the cluster again" in broker.log_text(), 30, "the recovery")
            client.create(broker.address, "after")
            changes = re.findall("not fit to serve|healthy member of the cluster again", broker.log_text())
            assert all(one != other for one, other in pairwise(changes)), "a line is no change"
            assert "is registered again" not in broker.log_text()
            before = broker.log_text().count("not fit to serve")
            server.stop()
            wait_until(lambda: broker.log_text().count("not fit to serve") > before, 20, "the health check")
            assert broker.stop(timeout=15) == 0, "an orderly stop needs no ZooKeeper"
