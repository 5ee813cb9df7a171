"""A client that goes on producing and consuming while something else happens to the broker."""

from __future__ import annotations

import threading
import time

from tests.support.broker import BrokerProcess
from tests.support.records import batch, headers, next_offset


class Witness:
    """Produces one record and reads it back, over and over, in a thread; check() fails when it was ever let down.

    Two connections: one produces, the other waits for the record with a long poll.
    """

    def __init__(self, broker: BrokerProcess, topic: str = "witness") -> None:
        self.broker, self.topic = broker, topic
        self.rounds, self.slowest = 0, 0.0
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Witness:
        with self.broker.client(timeout=30) as client:
            client.create_topic(self.topic)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        try:
            with self.broker.client(timeout=30) as producer, self.broker.client(timeout=30) as consumer:
                offset = 0
                while not self._stop.is_set():
                    began = time.monotonic()
                    consumer.send_fetch(self.topic, offset, wait_ms=20_000)
                    produced = producer.produce(self.topic, batch([b"value %d" % offset]))
                    assert (produced["ErrorCode"], produced["BaseOffset"]) == (0, offset), produced
                    data = consumer.answer("Fetch", 11)["Responses"][0]["Partitions"][0]["Records"]
                    (only,) = headers(data)
                    assert only is not None
                    offset = next_offset(data)
                    self.rounds += 1
                    self.slowest = max(self.slowest, time.monotonic() - began)
                    self._stop.wait(0.002)
        except BaseException as error:
            self._error = error

    def check(self, slowest: float | None = None) -> None:
        """AssertionError when a round failed, none was made since the last look, or one took longer than `slowest`."""
        if self._error is not None:
            raise AssertionError(f"the witness failed after {self.rounds} rounds") from self._error
        before = self.rounds
        deadline = time.monotonic() + 30
        while self.rounds == before and self._error is None:
            assert time.monotonic() < deadline, f"the witness hangs after {self.rounds} rounds"
            time.sleep(0.01)
        if slowest is not None:
            assert self.slowest < slowest, f"a round took {self.slowest:.2f} s"
