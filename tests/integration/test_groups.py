"""Consumer groups of real clients, each member a process of its own: they share the partitions, one leaves, one is
killed, a static one restarts; every record is consumed, and none below what was committed is consumed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess
from tests.support.groups import Group, come_and_go, lasting_port, making_groups, restart_static

RUNS = [
    ("confluent-kafka", "range"),
    ("confluent-kafka", "roundrobin"),
    ("confluent-kafka", "cooperative-sticky"),
    ("kafka-python", "range"),
    ("kafka-python", "roundrobin"),
    ("kafka-python", "sticky"),
    ("aiokafka", "range"),
    ("aiokafka", "roundrobin"),
    ("aiokafka", "sticky"),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"group.min.session.timeout.ms": 1000, "offsets.topic.num.partitions": 5}
    with BrokerProcess(Path(tmp_path_factory.mktemp("groups")) / "data", settings) as running:
        yield running


@pytest.fixture
def groups(broker: BrokerProcess) -> Iterator[Callable[..., Group]]:
    with making_groups(broker) as make:
        yield make


@pytest.mark.parametrize(("client", "assignor"), RUNS)
def test_members_come_and_go(groups: Callable[..., Group], client: str, assignor: str) -> None:
    come_and_go(groups(client, assignor))


@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python", "aiokafka"])
def test_a_static_member_restarts_without_a_rebalance(groups: Callable[..., Group], client: str) -> None:
    restart_static(groups(client, "range", session_ms=10_000))


def test_groups_survive_a_crash_of_the_broker(tmp_path: Path) -> None:
    settings = {"group.min.session.timeout.ms": 1000, "offsets.topic.num.partitions": 5}
    with BrokerProcess(tmp_path / "data", settings, port=lasting_port()) as broker, making_groups(broker) as make:
        group = make("confluent-kafka", "range", session_ms=10_000)
        group.produce()
        group.start()
        group.start()
        group.wait_settled()
        group.wait_consumed()
        broker.restart(kill=True)
        group.produce()
        group.wait_consumed()
        group.check_commits()
        with broker.client() as wire:
            described = wire.call("DescribeGroups", 5, {"Groups": [group.topic]})["Groups"][0]
            assert (described["GroupState"], len(described["Members"])) == ("Stable", 2)
