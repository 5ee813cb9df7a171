"""Any history of a log against a plain list of its batches."""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pybroker.protocol.records.header import iter_headers
from pybroker.protocol.records.record import iter_records
from pybroker.storage.leader_epochs import LeaderEpochCache
from pybroker.storage.log import Log
from pybroker.storage.producer_state import ProducerStates
from pybroker.storage.segment import Segment
from tests.storage.logs import NOW, append, batch, content, make_log

Batches = list[tuple[int, int, int]]  # first and last offset, timestamp of the first record

_STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 5), st.integers(0, 3000)),
    st.tuples(st.just("append"), st.integers(1, 5), st.integers(0, 3000)),
    st.tuples(st.just("follow"), st.integers(1, 5), st.integers(0, 3000)),
    st.tuples(st.just("truncate"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("roll"), st.just(0), st.just(0)),
    st.tuples(st.just("reopen"), st.just(0), st.just(0)),
    st.tuples(st.just("start"), st.integers(0, 10), st.just(0)),
)


def step(log: Log, model: Batches, what: str, number: int, moment: int) -> Log:
    end = log.log_end_offset
    if what == "append":
        append(log, batch(number, timestamp=NOW + moment, size=moment // 30))
        model.append((end, end + number - 1, NOW + moment))
    elif what == "follow":
        first = end + moment % 3  # a compacted leader's batches have holes between them
        log.append_as_follower(batch(number, timestamp=NOW + moment, base_offset=first, size=moment // 30))
        model.append((first, first + number - 1, NOW + moment))
    elif what == "truncate":
        log.truncate_to(max(0, end - number))
        model[:] = [row for row in model if row[1] < end - number]
    elif what == "roll":
        log.roll()
    elif what == "start":
        log.update_high_watermark(end)
        log.maybe_increment_log_start_offset(min(end, log.log_start_offset + number))
        log.delete_old_segments()
    elif what == "reopen":
        return reopened(log)
    return log


def reopened(log: Log) -> Log:
    log.close()
    return Log(
        log.topic_partition, log.directory, log.config, log.host,
        segments=[Segment(log.directory, base, log.config, log.host.cache) for base in log.bases],
        producers=ProducerStates(log.directory, expiration_ms=1), leader_epochs=LeaderEpochCache.load(log.directory),
        log_start_offset=log.log_start_offset, log_end_offset=log.log_end_offset,
    )  # fmt: skip


def check(log: Log, model: Batches) -> None:
    """Reads from everywhere, and searches by time, find what the model says."""
    end, start = log.log_end_offset, log.log_start_offset
    lasts = [last for _, last, _ in model]
    for offset in range(start, end + 1):
        for max_offset in (end, (start + end) // 2):
            data = content(log.read(offset, 400, max_offset=max_offset, blocking=True))
            found = [(header.base_offset, header.last_offset) for _, header in iter_headers(data)]
            below = [(first, last) for first, last, _ in model[bisect_right(lasts, offset - 1) :] if last < max_offset]
            assert found == below[: len(found)]
            if below and offset < max_offset:
                assert found
    for moment in range(0, 3000, 500):
        answer = log.offset_for_timestamp(NOW + moment)
        if answer is not None:
            assert answer[0] >= NOW + moment
            assert answer[1] >= start


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(_STEP, max_size=25), st.sampled_from([0, 100, 1000]), st.sampled_from([700, 2000]))
def test_any_history(steps: list[tuple[str, int, int]], interval: int, segment_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as path:
        log = make_log(Path(path), index_interval_bytes=interval, segment_bytes=segment_bytes, segment_ms=2500)
        model: Batches = []
        for what in steps:
            log = step(log, model, *what)
        check(log, model)
        for segment in log.segments:
            segment.release()


def test_first_record_in_time_is_found(tmp_path: Path) -> None:
    """Without holes and with rising times the answer is exact."""
    log = make_log(tmp_path, index_interval_bytes=200, segment_bytes=900)
    for number in range(60):
        append(log, batch(3, timestamp=NOW + number * 10))
    times = [
        (record.timestamp, record.offset)
        for segment in log.segments
        for data in [segment.path(".log").read_bytes()]
        for at, header in iter_headers(data)
        for record in iter_records(data[at : at + header.size])
    ]
    for wanted in range(NOW - 5, NOW + 605, 5):
        expected = next(((time, offset, 0) for time, offset in times if time >= wanted), None)
        assert log.offset_for_timestamp(wanted) == expected
