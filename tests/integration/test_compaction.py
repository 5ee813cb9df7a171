"""A compacted topic in a running broker: it shrinks while clients write and read."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pybroker.protocol.records.header import iter_headers
from pybroker.protocol.records.record import Record, build_batch, iter_records
from tests.support.broker import BrokerProcess, wait_until
from tests.support.wire import WireClient

OVERRIDES = {"log.cleaner.backoff.ms": "100"}
TOPIC: dict[str, Any] = {"cleanup_policy": "compact", "segment_bytes": "20000", "min_cleanable_dirty_ratio": "0.1"}


def consume(client: WireClient, topic: str) -> dict[bytes, tuple[int, bytes | None]]:
    """The last offset and value of each key, by a consumer that reads everything; offsets must ascend."""
    found: dict[bytes, tuple[int, bytes | None]] = {}
    end = client.end_offset(topic)
    offset, last = 0, -1
    while offset < end:
        data = client.fetch(topic, offset, max_bytes=5000, wait_ms=0)["Records"] or b""
        whole = 0
        for at, header in iter_headers(data):
            for record in iter_records(data[at : at + header.size], header):
                if record.offset >= offset:
                    assert record.offset > last
                    last = record.offset
                    assert record.key is not None
                    found[record.key] = record.offset, record.value
            offset, whole = header.last_offset + 1, whole + 1
        assert whole, f"nothing whole at offset {offset} of {end}"
    return found


def size_of(log: Path) -> int:
    """Bytes of all segments; files may go while they are looked at."""
    total = 0
    for path in log.glob("*.log"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def test_it_shrinks_while_clients_write_and_read(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", OVERRIDES) as broker, broker.client() as client:
        client.create_topic("c", 1, **TOPIC)
        log = broker.data_dir / "c-0"
        written: dict[bytes, tuple[int, bytes]] = {}
        deadline = time.monotonic() + 60
        rounds = 0
        while not (rounds >= 40 and "is compacted up to" in broker.log_text()):
            assert time.monotonic() < deadline, "never compacted"
            held = [
                Record(number, 1_700_000_000_000, b"k%d" % (number % 50), b"%d-%d" % (rounds, number) + b"x" * 50)
                for number in range(100)
            ]
            answer = client.produce("c", bytes(build_batch(held)))
            assert answer["ErrorCode"] == 0
            for record in held:
                written[record.key or b""] = answer["BaseOffset"] + record.offset, record.value or b""
            rounds += 1
            assert consume(client, "c") == written

        wait_until(lambda: size_of(log) < 60_000, 60)
        assert consume(client, "c") == written
        checkpoint = broker.data_dir / "cleaner-offset-checkpoint"
        wait_until(checkpoint.exists, 30)
        assert checkpoint.read_text().splitlines()[2].startswith("c 0 ")
        broker.kill()
        broker.start()
        with broker.client() as again:
            assert consume(again, "c") == written
