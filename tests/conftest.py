"""Options of the whole test run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.zookeeper import ZooKeeperServer, need_zookeeper


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="fault and fuzz tests at full length (minutes)")
    parser.addoption("--kills", type=int, help="how often a broker is killed under load (8; 200 with --long)")
    parser.addoption("--rounds", type=int, help="rounds of faults in a cluster (3; 10 with --long)")
    parser.addoption("--seed", type=int, default=7, help="of the choices in those rounds; give others by hand")


@pytest.fixture(scope="session")
def long_run(request: pytest.FixtureRequest) -> bool:
    """Whether --long was given."""
    return bool(request.config.getoption("--long"))


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """One ZooKeeper for all tests of this process: each takes a chroot of its own."""
    need_zookeeper()
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server
