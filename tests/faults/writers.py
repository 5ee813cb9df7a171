"""Producers that remember what the broker acknowledged, and a reader that holds the log against it."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from pybroker.protocol.records.record import iter_records
from tests.support.broker import BrokerProcess
from tests.support.records import batch, headers
from tests.support.wire import Closed, WireClient

COORDINATOR_LOAD_IN_PROGRESS = 14
PRODUCER_ID_S = 30.0
IN_FLIGHT = 5  # what an idempotent producer may have outstanding
RECORDS = 10
PACE = 0.005  # seconds between batches: rounds are for the moments of a crash, not for volume


class Sent(NamedTuple):
    """One batch of a writer: its records are numbered from `first` in the writer's own count."""

    first: int
    data: bytes
    values: tuple[bytes, ...]


class Refused(Exception):
    """The broker answered a produce with this error code."""


class Writer:
    """Writes numbered records into one partition until its connection ends; run() again goes on behind that.

    An idempotent writer sends what was not acknowledged once more, with the same sequence numbers; another one does
    not: its unacknowledged records may or may not be in the log.
    """

    def __init__(self, name: str, topic: str, partition: int, *, acks: int, idempotent: bool, size: int = 100) -> None:
        self.name, self.topic, self.partition = name, topic, partition
        self.acks, self.idempotent, self.size = acks, idempotent, size
        self.producer_id = self.epoch = -1
        self.next = 0
        self.in_flight: deque[tuple[int, Sent]] = deque()  # correlation id, batch
        self.again: list[Sent] = []  # was refused, and is sent once more by the next run
        self.acknowledged: dict[int, Sent] = {}  # by base offset
        self.refused: list[int] = []
        self.failure: BaseException | None = None

    def run(self, broker: BrokerProcess, stop: Callable[[], bool] = lambda: False, batches: int | None = None) -> None:
        """Writes until stop(), until `batches` are written, the first refusal, or until the broker is gone."""
        try:
            with broker.client(timeout=30) as client:
                self._write(client, stop, batches)
        except (Closed, ConnectionError):
            pass  # the broker was killed: the test's doing
        if not self.idempotent:
            self.in_flight.clear()

    def thread(self, broker: BrokerProcess, **options: object) -> threading.Thread:
        """A started thread that runs it; what goes wrong is kept in .failure."""

        def guarded() -> None:
            try:
                self.run(broker, **options)  # type: ignore[arg-type]
            except BaseException as error:
                self.failure = error

        thread = threading.Thread(target=guarded, name=self.name, daemon=True)
        thread.start()
        return thread

    def _write(self, client: WireClient, stop: Callable[[], bool], batches: int | None) -> None:
        if self.idempotent and self.producer_id < 0:
            self.producer_id, self.epoch = new_producer_id(client), 0
        self.again = sorted(self.again + [sent for _, sent in self.in_flight])
        self.in_flight.clear()
        while self.again:
            self._send(client, self.again.pop(0))
        written = 0
        while not stop() and not self.refused and (batches is None or written < batches):
            while len(self.in_flight) < IN_FLIGHT:
                self._send(client, self._new_batch())
                written += 1
            self._take_answer(client)
            time.sleep(PACE)
        while self.in_flight:
            self._take_answer(client)

    def _new_batch(self) -> Sent:
        first, self.next = self.next, self.next + RECORDS
        values = tuple(b"%s:%d:".ljust(self.size, b".") % (self.name.encode(), first + each) for each in range(RECORDS))
        sequence = first if self.idempotent else -1
        return Sent(first, batch(values, pid=self.producer_id, epoch=self.epoch, seq=sequence), values)

    def _send(self, client: WireClient, sent: Sent) -> None:
        # Remembered first: what is written to a socket may arrive although writing it failed.
        self.in_flight.append((client.correlation_id + 1, sent))
        client.send_produce(self.topic, sent.data, partition=self.partition, acks=self.acks)

    def _take_answer(self, client: WireClient) -> None:
        number, sent = self.in_flight[0]
        answer = client.answer("Produce", 9, number)["Responses"][0]["PartitionResponses"][0]
        self.in_flight.popleft()
        if answer["ErrorCode"]:
            self.refused.append(answer["ErrorCode"])
            if self.idempotent:
                self.again.append(sent)
        else:
            self.acknowledged[answer["BaseOffset"]] = sent


def new_producer_id(client: WireClient) -> int:
    request = {"TransactionalId": None, "TransactionTimeoutMs": 60000}
    deadline = time.monotonic() + PRODUCER_ID_S
    while True:
        answer = client.call("InitProducerId", 4, request)
        if answer["ErrorCode"] != COORDINATOR_LOAD_IN_PROGRESS or time.monotonic() > deadline:
            break
        time.sleep(0.05)  # the first block of ids has not come yet
    assert (answer["ErrorCode"], answer["ProducerEpoch"]) == (0, 0), answer
    return int(answer["ProducerId"])


def wrote(writers: Sequence[Writer], goal: int) -> bool:
    """Whether each has `goal` batches acknowledged; raises what went wrong in one of their threads."""
    for writer in writers:
        if writer.failure is not None:
            raise writer.failure
        assert not writer.refused, f"{writer.name} was refused with {writer.refused}"
    return all(len(writer.acknowledged) >= goal for writer in writers)


class Log:
    """A partition as a consumer sees it: `values` by offset, `end` behind the last batch that was read."""

    def __init__(self) -> None:
        self.values: dict[int, bytes] = {}
        self.end = 0

    def read_on(self, client: WireClient, topic: str, partition: int = 0) -> Log:
        """Reads from .end to the log's end; AssertionError where offsets leave a gap or a batch's CRC is wrong."""
        end = client.end_offset(topic, partition)
        assert end >= self.end, f"{topic}-{partition} ends at {end}, and had {self.end}"
        while self.end < end:
            client.send_fetch(topic, self.end, partition=partition, max_bytes=4 << 20)
            answer = client.answer("Fetch", 11)["Responses"][0]["Partitions"][0]
            assert answer["ErrorCode"] == 0, answer
            assert answer["Records"], f"nothing at {self.end} below the end {end}"
            self._take(answer["Records"])
        return self

    def _take(self, data: bytes) -> None:
        at = 0
        for header in headers(data):
            if header is None:
                return
            if header.base_offset + header.last_offset_delta >= self.end:
                assert header.base_offset == self.end, f"a gap: {header.base_offset} after {self.end}"
                for record in iter_records(data[at : at + 12 + header.length]):
                    self.values[record.offset] = bytes(record.value or b"")
                self.end = header.base_offset + header.last_offset_delta + 1
            at += 12 + header.length


def read_log(client: WireClient, topic: str, partition: int = 0) -> Log:
    """All of a partition."""
    return Log().read_on(client, topic, partition)


class Checker:
    """Holds the partitions against their writers. Looks at what came since the last look; a new one looks at all."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int], Log] = defaultdict(Log)
        self.looked_at: Counter[str] = Counter()  # acknowledged batches by writer

    def check(self, client: WireClient, writers: Sequence[Writer]) -> int:
        """Acknowledged records are where they were said to be; an idempotent writer's are in order and none is there
        twice. Returns the number of records that were acknowledged."""
        for place in {(writer.topic, writer.partition) for writer in writers}:
            self.logs[place].read_on(client, *place)
        for writer in writers:
            values = self.logs[writer.topic, writer.partition].values
            for base, sent in islice(writer.acknowledged.items(), self.looked_at[writer.name], None):
                found = tuple(values.get(base + each) for each in range(len(sent.values)))
                assert found == sent.values, f"{writer.name}: {sent.first} was acknowledged at {base}, there is {found}"
            self.looked_at[writer.name] = len(writer.acknowledged)
            if writer.idempotent:
                mark = writer.name.encode() + b":"
                order = [int(value.split(b":")[1]) for _, value in sorted(values.items()) if value.startswith(mark)]
                assert order == list(range(len(order))), f"{writer.name}: duplicates, or out of order"
        return sum(self.looked_at.values()) * RECORDS


def check(client: WireClient, writers: Sequence[Writer]) -> int:
    """All that was acknowledged, see Checker."""
    return Checker().check(client, writers)
