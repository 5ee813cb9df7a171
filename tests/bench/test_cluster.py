"""The loads on three brokers, once round, and the sections of the file that the tables go to."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import cluster, kafka, report
from bench.trio import Trio
from bench.wire import Cluster
from tests.support import java

SMALL = cluster.Size(gigabytes=0.01, pings=20, topics=6, failovers=1)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc of Linux")
@pytest.mark.timeout(300)
def test_three_brokers_bear_the_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java.need_java(kafka.RELEASE)
    monkeypatch.setenv("KAFKA_HOME", str(java.kafka_home()))
    found = dict(cluster.run("pybroker", tmp_path, list(cluster.MEASURES), SMALL))
    assert set(found) == set(cluster.MEASURES)
    for row in report.CLUSTER_ROWS:
        assert row.figure in found[row.measure], row
    assert found["produce"]["MB/s"] > 1
    assert found["follower"]["registered_s"] > 0
    assert found["failover"]["s"] > 0


def test_a_measure_that_fails_leaves_an_empty_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(trio: Trio, size: cluster.Size) -> None:
        raise RuntimeError("no leader")

    for name in ("start", "stop"):
        monkeypatch.setattr(Trio, name, lambda self: None)
    monkeypatch.setitem(cluster.MEASURES, "topics", refuse)
    assert list(cluster.run("pybroker", tmp_path, ["topics"], SMALL)) == []
    assert "pybroker topics failed: no leader" in capsys.readouterr().err


def test_what_metadata_says_is_read() -> None:
    broker = b"\0\0\0\2" + b"\0\1h" + b"\0\0\x23\x84" + b"\xff\xff"
    partition = b"\0\0" + b"\0\0\0\7" + b"\0\0\0\2" + b"\0\0\0\2\0\0\0\1\0\0\0\2" + b"\0\0\0\1\0\0\0\2" + b"\0\0\0\0"
    topic = b"\0\0" + b"\0\3abc" + b"\0" + b"\0\0\0\1" + partition
    answer = b"\0\0\0\1" + bytes(4) + b"\0\0\0\1" + broker + b"\0\1c" + b"\0\0\0\2" + b"\0\0\0\1" + topic
    assert Cluster.of(memoryview(answer)) == Cluster({2: ("h", 9092)}, 2, {("abc", 7): (2, (2,))})


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("# Results\n", "# Results\n\n## B\n\nnew\n"),
        ("# Results\n\n## A\n\nold\n\n## B\n\nold\n", "# Results\n\n## A\n\nold\n\n## B\n\nnew\n"),
        ("# Results\n\n## B\n\nold\n\n## C\n\nold\n", "# Results\n\n## B\n\nnew\n\n## C\n\nold\n"),
    ],
)
def test_a_section_takes_the_place_of_its_predecessor(document: str, expected: str) -> None:
    assert report.with_section(document, "B", "new\n") == expected
