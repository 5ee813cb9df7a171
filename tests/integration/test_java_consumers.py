"""Consumers of Apache Kafka 3.9.2 and 4.3.1 as members of groups, with every assignor, and 4.3.1 with the consumer
protocol; the program is tests/clients/java/Member.java."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.integration.test_consumer_protocol import QUICK
from tests.support import java
from tests.support.broker import BrokerProcess
from tests.support.groups import Group, Member, come_and_go, making_groups, restart_static

pytestmark = pytest.mark.timeout(300)
CLASSIC = ["range", "roundrobin", "sticky", "cooperative-sticky"]
RUNS = [(release, "classic", assignor) for release in java.RELEASES for assignor in CLASSIC]
RUNS += [("4.3.1", "consumer", "uniform"), ("4.3.1", "consumer", "range")]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("java-consumers") / "data", QUICK) as running:
        yield running


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    made: dict[str, list[str]] = {}

    def program(release: str) -> list[str]:
        java.need_java(release, compiler=True)
        if release not in made:
            made[release] = java.member(release, tmp_path_factory.mktemp("java-member"))
        return made[release]

    return program


@pytest.fixture
def groups(programs: Callable[[str], list[str]], broker: BrokerProcess) -> Iterator[Callable[..., Group]]:
    with making_groups(broker) as make:
        yield lambda release, protocol, assignor, **settings: make(
            f"java-{release}-{protocol}", assignor, programs(release), protocol=protocol, **settings
        )


@pytest.mark.parametrize(("release", "protocol", "assignor"), RUNS)
def test_members_come_and_go(groups: Callable[..., Group], release: str, protocol: str, assignor: str) -> None:
    come_and_go(groups(release, protocol, assignor))


@pytest.mark.parametrize("release", java.RELEASES)
def test_a_static_member_restarts_without_a_rebalance(groups: Callable[..., Group], release: str) -> None:
    restart_static(groups(release, "classic", "range", session_ms=10_000))


def test_a_static_member_of_the_consumer_protocol_restarts(groups: Callable[..., Group]) -> None:
    group = groups("4.3.1", "consumer", "uniform")
    change = {"Name": "consumer.session.timeout.ms", "ConfigOperation": 0, "Value": "30000"}  # a JVM may start slowly
    resource = {"ResourceType": 32, "ResourceName": group.topic, "Configs": [change]}
    with group.broker.client() as wire:
        answer = wire.call("IncrementalAlterConfigs", 1, {"Resources": [resource], "ValidateOnly": False})
    assert answer["Responses"][0]["ErrorCode"] == 0
    restart_static(group, Member.leave)
