"""Logs and batches for the tests of storage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pybroker.config import BrokerConfig, LogConfig
from pybroker.protocol.clock import ManualClock
from pybroker.protocol.records.record import Record, build_batch
from pybroker.protocol.types import TopicPartition
from pybroker.storage.files import FileSlice, PageCache
from pybroker.storage.leader_epochs import LeaderEpochCache
from pybroker.storage.log import AppendInfo, Log
from pybroker.storage.log_host import InlineHost, LogHost
from pybroker.storage.log_read import LogRead
from pybroker.storage.producer_state import ProducerStates

NOW = 1_700_000_000_000


def log_config(**settings: Any) -> LogConfig:
    """Kafka's defaults but for these, by their names with `_` for `.`."""
    return config_of(
        {
            name.replace("_", "."): str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in settings.items()
        }
    )


def config_of(overrides: Mapping[str, str]) -> LogConfig:
    """Kafka's defaults but for these topic settings."""
    return LogConfig.from_broker(BrokerConfig({}), overrides)


def host(cache: PageCache | None = None) -> InlineHost:
    """A host whose clock stands at NOW."""
    return InlineHost(ManualClock(NOW), cache)


def make_log(directory: Path, *, at: LogHost | None = None, name: str = "t-0", start: int = 0, **settings: Any) -> Log:
    """An empty log in `directory`/`name`."""
    return open_log(directory, log_config(**settings), at=at, name=name, start=start)


def open_log(
    directory: Path, config: LogConfig, *, at: LogHost | None = None, name: str = "t-0", start: int = 0
) -> Log:
    """An empty log in `directory`/`name`."""
    path = directory / name
    path.mkdir(parents=True, exist_ok=True)
    topic, _, partition = name.rpartition("-")
    return Log(
        TopicPartition(topic, int(partition)),
        path,
        config,
        at or host(),
        segments=[],
        producers=ProducerStates(path, expiration_ms=86_400_000),
        leader_epochs=LeaderEpochCache.load(path),
        log_start_offset=start,
    )


def batch(
    count: int = 1, *, timestamp: int = NOW, size: int = 10, key: bytes | None = None, base_offset: int = 0, **how: Any
) -> memoryview:
    """A writable batch of `count` records, a millisecond apart."""
    records = [Record(base_offset + at, timestamp + at, key, b"x" * size) for at in range(count)]
    return memoryview(build_batch(records, base_offset=base_offset, **how))


def append(log: Log, records: memoryview | None = None, epoch: int = 0, **how: Any) -> AppendInfo:
    """Append, by default a batch of one record."""
    info = log.append_as_leader(batch() if records is None else records, epoch, **how)
    assert isinstance(info, AppendInfo)
    return info


def fill(log: Log, batches: int, count: int = 1, **how: Any) -> None:
    """Append so many batches of `count` records, and raise the high watermark to the end."""
    for _ in range(batches):
        append(log, batch(count, **how))
    log.update_high_watermark(log.log_end_offset)


def content(read: LogRead) -> bytes:
    """The bytes of a read, whose slice is released."""
    found = read.records
    if isinstance(found, FileSlice):
        data = found.read()
        found.release()
        return data
    return bytes(found)
