"""The raw loads run against a broker and against the floor, and their figures make a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import rawload, report
from bench.processes import Figures, percentiles
from bench.rawload import Target
from bench.systems import Floor, System
from tests.support.broker import BrokerProcess

QUICK = ("produce-1k", "fetch", "ping", "requests")
GIGABYTES = 0.005

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads /proc of Linux")


@pytest.fixture
def floor(tmp_path: Path) -> Iterator[System]:
    system = Floor(tmp_path)
    try:
        system.start()
        yield system
    finally:
        system.stop()


def figures(target: Target, names: tuple[str, ...]) -> dict[str, Figures]:
    return {name: found for each in names for name, found in rawload.MEASURES[each](target)}


@pytest.mark.timeout(300)  # each measure first waits until all that others have written is on the disk
def test_a_broker_and_the_floor_bear_the_loads(tmp_path: Path, floor: System) -> None:
    with BrokerProcess(tmp_path / "data", {"num.partitions": 8}) as broker:
        with broker.client() as client:
            client.create_topic("raw", 8)
        logs = broker.data_dir
        target = Target((broker.host, broker.port), [broker.pid], gigabytes=GIGABYTES)
        target.log = lambda index: sorted((logs / f"raw-{index}").glob("*.log"))
        own = figures(target, (*QUICK, "ping-beside-cold-read"))
    floors = figures(floor.target(GIGABYTES), QUICK)
    assert own["produce-1k"]["MB/s"] > 1
    assert own["fetch-2nd"]["MB/s"] > 1
    assert {"fetch-1st", "ping", "requests"} <= set(floors)
    rows = report.table(own, {}, floors).splitlines()[2:]
    assert len(rows) > 8
    assert all(row.count("|") == 8 for row in rows)


def test_percentiles() -> None:
    found = percentiles([number / 1e6 for number in range(1000, 0, -1)])
    assert {key: round(value) for key, value in found.items()} == {
        "p50_us": 501, "p99_us": 991, "p999_us": 1000, "max_us": 1000
    }  # fmt: skip


@pytest.mark.parametrize(("own", "verdict"), [(70.0, "≥ 2 x Kafka, ≥ 0.6 x floor: yes"), (50.0, "**no**")])
def test_verdict(own: float, verdict: str) -> None:
    row = report.Row("produce-1k", "MB/s", "", True, 2, 0.6)
    assert report.verdict(row, own, 30.0, 100.0).endswith(verdict)


def test_rows_name_what_is_measured_once() -> None:
    named = [(row.measure, row.figure) for row in report.ROWS]
    assert len(named) == len(set(named))
