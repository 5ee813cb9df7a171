"""The loads of groups run against a broker, and none of their requests is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import groups, report
from bench.rawload import Target
from tests.support.broker import BrokerProcess

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc of Linux"),
    pytest.mark.timeout(300),  # each measure first waits until all that others have written is on the disk
]
GIGABYTES = 0.002


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = Path(tmp_path_factory.mktemp("bench-groups"))
    with BrokerProcess(folder / "data", {"offsets.topic.num.partitions": 5}) as broker:
        with broker.client() as client:
            client.create_topic("raw", 8)
        yield Target((broker.host, broker.port), [broker.pid], gigabytes=GIGABYTES)


@pytest.mark.parametrize("name", [name for name in groups.MEASURES if name != "group-leave"])
def test_a_broker_bears_the_load(target: Target, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "REBALANCES", 2)
    monkeypatch.setattr(groups, "BEAT_SECONDS", 0.3)
    monkeypatch.setattr(groups, "NEW_GROUPS", 1)
    found = dict(groups.MEASURES[name](target))
    assert found
    shown = {row.measure for row in report.ROWS}
    for measure, figures in found.items():
        assert measure in shown
        assert any(figures.get(key, 0) > 0 for key in ("per_s", "ms")), figures
