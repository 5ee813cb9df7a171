"""Groups and admin calls of franz-go, the client in Go, by the program in tests/clients/go."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.test_consumer_protocol import QUICK
from tests.support.broker import BrokerProcess
from tests.support.go import BUILD_SECONDS, need_go
from tests.support.groups import Group, come_and_go, making_groups, restart_static

pytestmark = pytest.mark.timeout(BUILD_SECONDS + 120)
RUNS = [
    ("classic", "range"),
    ("classic", "roundrobin"),
    ("classic", "sticky"),
    ("classic", "cooperative-sticky"),
    ("consumer", "uniform"),
    ("consumer", "range"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return need_go(tmp_path_factory.mktemp("go"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("go-clients") / "data", QUICK) as running:
        yield running


@pytest.fixture
def groups(program: Path, broker: BrokerProcess) -> Iterator[Callable[..., Group]]:
    with making_groups(broker) as make:
        yield lambda protocol, assignor, **settings: make(
            f"franz-go-{protocol}", assignor, [str(program), "member"], protocol=protocol, **settings
        )


@pytest.mark.parametrize(("protocol", "assignor"), RUNS)
def test_members_come_and_go(groups: Callable[..., Group], protocol: str, assignor: str) -> None:
    come_and_go(groups(protocol, assignor))


def test_a_static_member_restarts_without_a_rebalance(groups: Callable[..., Group]) -> None:
    """Not in the consumer protocol: franz-go 1.22 leaves for a while without its instance id, which Kafka refuses."""
    restart_static(groups("classic", "range", session_ms=10_000))


def test_admin_calls(program: Path, broker: BrokerProcess) -> None:
    command = [str(program), "admin", broker.address, "go-admin", "go-admin-group"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("created again").startswith("TOPIC_ALREADY_EXISTS")
    assert found.pop("deleted again").startswith("GROUP_ID_NOT_FOUND")
    assert found == {
        "partitions": 2,
        "retention.ms": "70000",
        "end": 5,
        "listed": "Empty",
        "described": "Empty",
        "lag": 2,
        "committed": 3,
        "offset is there after its deletion": False,
    }
