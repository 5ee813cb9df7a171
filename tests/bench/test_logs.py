"""The loads on logs: batches with keys, appends to many partitions, and a whole measure of the cleaner."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bench import logs, report
from bench.rawload import Target
from bench.systems import PyBroker
from pybroker.protocol.records.header import check_crc, read_header
from pybroker.protocol.records.record import iter_records
from tests.support.broker import BrokerProcess

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads /proc of Linux")


def test_every_key_comes_twice_and_records_have_half_a_kilobyte() -> None:
    keys: Counter[bytes] = Counter()
    for batch in logs.keyed_batches(2000, 1000):
        header = read_header(batch)
        assert header.size == len(batch)
        assert check_crc(batch, 0, len(batch))
        assert len(batch) / header.count == pytest.approx(500, abs=2)
        keys.update(bytes(record.key or b"") for record in iter_records(batch, header))
    assert len(keys) == 1000
    assert set(keys.values()) == {2}


@pytest.mark.timeout(300)
def test_compaction_is_measured(tmp_path: Path) -> None:
    system = PyBroker(tmp_path)
    try:
        ((name, figures),) = logs.compaction(system, 0.01)
    finally:
        system.stop()
    assert name == "compaction"
    assert figures["passes"] >= 1
    assert {row.figure for row in report.ROWS if row.measure == name} <= set(figures)


@pytest.mark.timeout(300)
def test_appends_to_many_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PARTITIONS", 40)
    monkeypatch.setattr(logs, "REQUESTS", 4000)
    with BrokerProcess(tmp_path / "data") as broker:
        ((_, figures),) = logs.append_2000(Target((broker.host, broker.port), [broker.pid], gigabytes=0.1))
        with broker.client() as client:
            ends = [client.end_offset("append-2000", partition) for partition in range(40)]
    assert ends == [1 + 10] * 40
    assert figures["per_s"] > 1
