"""Deleted records are gone when all live replicas have moved their start."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.protocol.clock import SystemClock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.timer import Timer
from pybroker.replication.delete_records import DeletionWait
from tests.replication.test_isr import Bench


def waiting(bench: Bench, timeout_ms: int) -> asyncio.Future[int]:
    timer = Timer(SystemClock(), asyncio.get_running_loop())
    wait = DeletionWait(bench.partitions[0], 1, bench.alive.__contains__, timer, timeout_ms)
    return asyncio.ensure_future(wait.low_watermark())


def started(bench: Bench) -> None:
    bench.append()
    bench.fetch(2, 1)
    bench.fetch(3, 1)
    bench.partitions[0].log.maybe_increment_log_start_offset(1)


async def test_it_waits_for_the_followers_that_live() -> None:
    bench = Bench()
    started(bench)
    low = waiting(bench, 60_000)
    await asyncio.sleep(0)
    bench.alive.remove(3)
    assert not low.done()
    bench.partitions[0].record_follower_fetch(2, 1, 1, 0)
    assert await asyncio.wait_for(low, 5) == 1
    assert not bench.partitions[0].watchers


@pytest.mark.parametrize("resigns", [True, False])
async def test_it_ends_with_the_time_or_the_leadership(resigns: bool) -> None:
    bench = Bench()
    started(bench)
    low = waiting(bench, 60_000 if resigns else 5)
    await asyncio.sleep(0)
    if resigns:
        bench.partitions[0].resign()
    with pytest.raises(KafkaError) as error:
        await asyncio.wait_for(low, 5)
    assert error.value.code == (Errors.NOT_LEADER_OR_FOLLOWER if resigns else Errors.REQUEST_TIMED_OUT)
