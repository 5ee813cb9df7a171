"""A full disk: appends are refused, reads go on, nothing acknowledged is lost; with room again writing goes on."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.broker.cluster.process import StartFailed
from tests.faults.writers import Writer, check, wrote
from tests.support.broker import BrokerProcess

STORAGE_ERROR, OUT_OF_ORDER_SEQUENCE_NUMBER = 56, 45
MEGABYTES = 24


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True) if os.geteuid() == 0 else None
    if done is None or done.returncode:
        pytest.skip("a small file system needs root and mount: " + (done.stderr.strip() if done else "not root"))
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    fillers = [small_disk / "filler-1", small_disk / "filler-2"]
    for filler in fillers:
        filler.write_bytes(bytes(6 << 20))
    broker = BrokerProcess(small_disk, overrides={"log.dirs": small_disk / "data"})
    with broker:
        with broker.client() as client:
            client.create_topic("full", 2, segment_bytes="1048576", segment_index_bytes="65536")
        writers = [
            Writer("plain", "full", 0, acks=1, idempotent=False, size=5000),
            Writer("idempotent", "full", 1, acks=-1, idempotent=True, size=5000),
        ]
        _fill(broker, writers)
        with broker.client() as client:
            assert check(client, writers) > 500

        fillers[0].unlink()  # the same process goes on
        for writer in writers:
            before = len(writer.acknowledged)
            writer.run(broker, batches=20)
            assert wrote([writer], before + 20)
        _fill(broker, writers)

        broker.kill()  # a start on a full disk may be refused, and says why
        try:
            broker.start()
        except StartFailed as error:
            assert re.search("No space left on device|disk is full", str(error))
            fillers[1].unlink()
            broker.start()
        fillers[1].unlink(missing_ok=True)
        for writer in writers:
            writer.run(broker, batches=20)
        assert wrote(writers, 20)
        with broker.client() as client:
            assert check(client, writers) > 1000


def _fill(broker: BrokerProcess, writers: list[Writer]) -> None:
    """Write until both partitions refuse: with KAFKA_STORAGE_ERROR, then perhaps for the gap that this left."""
    threads = [writer.thread(broker) for writer in writers]
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    for writer in writers:
        assert writer.failure is None, writer.failure
        assert writer.refused, "the disk did not fill"
        assert set(writer.refused) <= {STORAGE_ERROR, OUT_OF_ORDER_SEQUENCE_NUMBER}
        writer.refused.clear()
