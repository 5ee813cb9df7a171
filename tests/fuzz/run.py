"""Throws frames at a broker over many connections, and looks at how it fares.

An episode is one connection's life: its frames come from Random(f"{seed}:{number}") and from nothing else, so that
`python -m tests.fuzz --seed S --first N --episodes 1` sends the same bytes again.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass, field
from random import Random

from tests.fuzz.mutation import Mutator, recorded_topics
from tests.support.broker import CRASH, BrokerProcess
from tests.support.records import batch, next_offset
from tests.support.wire import Closed, WireClient

LANES = 24
WITNESS_EVERY = 100  # frames
LOOK_EVERY = 2000
WITNESS = "witness-of-the-fuzz-test"
PATIENCE = 20.0  # seconds that the witness waits for an answer
MEMORY_MB = 400  # a broker with all the topics, groups and sessions that the frames make
GROWTH_MB = 150  # from a third of the run to its end
OVERRIDES = {
    "auto.create.topics.enable": "true",
    "queued.max.request.bytes": 128 << 20,
    "log.cleaner.dedupe.buffer.size": 4 << 20,
    "connections.max.idle.ms": 60000,
}


class Failed(AssertionError):
    """The broker did not stand it; says what, and how to send the same again."""


@dataclass
class Report:
    """What has been done so far."""

    frames: int = 0
    episodes: int = 0
    answered: int = 0  # bytes
    closed: int = 0
    slowest_witness: float = 0.0
    memory: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        memory = ", ".join(f"{each:.0f}" for each in self.memory[:: max(1, len(self.memory) // 8)])
        return (
            f"{self.frames} frames in {self.episodes} connections, {self.seconds:.0f} s; {self.answered} bytes back, "
            f"{self.closed} connections closed by the broker; witness at most {self.slowest_witness * 1000:.0f} ms; "
            f"memory {memory} MB"
        )


class Lane:
    """One connection and the frames of its episode."""

    def __init__(self, address: tuple[str, int], seed: int, number: int, mutator: Mutator) -> None:
        self.number, self.mutator, self.over = number, mutator, False
        self.random = Random(f"{seed}:{number}")
        self.frames_left = self.random.choice((1, 2, 5, 20, 60))
        self.sock = socket.create_connection(address, 10)
        # No TIME_WAIT: a run opens more connections than there are ports.
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.setblocking(False)

    def step(self, report: Report) -> bool:
        """Send one frame and read what came; False when the connection is over."""
        data = self.mutator.frame(self.random)
        report.frames += 1
        self.frames_left -= 1
        try:
            sent = self.sock.send(data)
            if sent < len(data):
                return False  # the broker does not read on: it waits for something, and will see the end
            return self.read(report) and self.frames_left > 0
        except BlockingIOError:
            return False
        except ConnectionError:
            self.over = True
            report.closed += 1
            return False

    def read(self, report: Report) -> bool:
        """Takes what the broker has sent; False when it has closed the connection."""
        try:
            while received := self.sock.recv(1 << 16):
                report.answered += len(received)
        except BlockingIOError:
            return True
        except ConnectionError:
            pass
        self.over = True
        report.closed += 1
        return False

    def finish(self, report: Report) -> bool:
        """No more frames; False if the broker has ended the connection already."""
        try:
            if self.random.random() < 0.5:
                self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        return self.read(report)


class Witness:
    """An ordinary client, whose records come through whatever else happens."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.client = WireClient(broker.host, broker.port, timeout=PATIENCE, client_id="witness")
        self.client.create_topic(WITNESS, cleanup_policy="delete")
        self.offset = 0

    def look(self) -> float:
        """Produces and consumes one record; seconds it took."""
        began = time.monotonic()
        value = b"%d" % self.offset
        answer = self.client.produce(WITNESS, batch([(b"key", value)]))
        assert (answer["ErrorCode"], answer["BaseOffset"]) == (0, self.offset), answer
        fetched = self.client.fetch(WITNESS, self.offset, wait_ms=int(PATIENCE * 1000))
        assert fetched["ErrorCode"] == 0, fetched
        assert value in fetched["Records"], fetched
        self.offset = next_offset(fetched["Records"])
        return time.monotonic() - began


class Fuzz:
    """One run against a started broker."""

    def __init__(self, broker: BrokerProcess, seed: int) -> None:
        self.broker, self.seed, self.report = broker, seed, Report()
        self.witness = Witness(broker)
        self.mutator = Mutator(self._topics())
        self.recent: deque[int] = deque(maxlen=LANES * 4)
        self.retired: deque[Lane] = deque()
        self.log_seen = 0

    def _topics(self) -> dict[bytes, bytes]:
        """Creates the topics that the recorded requests know; recorded id → id here."""
        names = recorded_topics()
        client = self.witness.client
        for name in sorted(set(names.values()) - {"__consumer_offsets", "__transaction_state"}):
            client.create_topic(name, 2)
        listed = client.call("Metadata", 12, {"Topics": None})["Topics"]
        own = {topic["Name"]: topic["TopicId"] for topic in listed}
        return {recorded: own[name] for recorded, name in names.items() if name in own}

    def run(
        self, *, frames: int | None = None, seconds: float | None = None, first: int = 0, episodes: int = 0
    ) -> Report:
        """Until so many frames, seconds or episodes are done. Raises Failed."""
        began = time.monotonic()
        end = first + episodes if episodes else None
        number, lanes, choice, next_look = first, list[Lane](), Random(self.seed), 0
        try:
            while True:
                self.report.seconds = time.monotonic() - began
                if frames is not None and self.report.frames >= frames:
                    break
                if seconds is not None and self.report.seconds >= seconds:
                    break
                while len(lanes) < LANES and number != end:
                    lanes.append(Lane((self.broker.host, self.broker.port), self.seed, number, self.mutator))
                    self.recent.append(number)
                    number += 1
                if not lanes:
                    break
                lane = choice.choice(lanes)
                if not lane.step(self.report):
                    lanes.remove(lane)
                    self.report.episodes += 1
                    self._retire(lane)
                if self.report.frames % WITNESS_EVERY == 0:
                    self.report.slowest_witness = max(self.report.slowest_witness, self.witness.look())
                if self.report.frames >= next_look:
                    next_look += LOOK_EVERY
                    self._look()
            self.witness.look()
            self._look()
            self._check_growth()
        except (AssertionError, Closed, OSError, TimeoutError) as error:
            raise Failed(self._failure(error)) from error
        finally:
            for lane in (*lanes, *self.retired):
                lane.sock.close()
        return self.report

    def _retire(self, lane: Lane) -> None:
        """Ends an episode: the broker gets some time to answer before the connection is reset."""
        if lane.over or not lane.finish(self.report):
            lane.sock.close()
            return
        self.retired.append(lane)
        if len(self.retired) > LANES:
            oldest = self.retired.popleft()
            oldest.read(self.report)
            oldest.sock.close()

    def _look(self) -> None:
        process = self.broker.process
        assert process is not None and process.poll() is None, "the broker has ended"
        with self.broker.output.open("rb") as log:
            log.seek(max(self.log_seen - 100, 0))
            text = log.read().decode(errors="replace")
            self.log_seen = log.tell()
        found = CRASH.search(text)
        assert not found, f"the log shows {text[max(0, found.start() - 300) : found.start() + 3000]}"
        memory = self.broker.memory_mb()
        self.report.memory.append(memory)
        assert memory < MEMORY_MB, f"the broker has grown to {memory:.0f} MB"
        assert self.broker.open_files() < 20_000, f"{self.broker.open_files()} open files"

    def _check_growth(self) -> None:
        memory = self.report.memory
        if len(memory) >= 6:
            grown = memory[-1] - max(memory[: len(memory) // 3])
            assert grown < GROWTH_MB, f"memory went on growing: {self.report}"

    def _failure(self, error: BaseException) -> str:
        first = min(self.recent, default=0)
        again = f"python -m tests.fuzz --seed {self.seed} --first {first} --episodes {len(self.recent)}"
        log = re.sub(r".*\bINFO\b.*\n", "", self.broker.log_text())[-3000:]
        return (
            f"{type(error).__name__}: {error}\nafter {self.report}\n"
            f"the last episodes again: {again}\n"
            f"the broker's log: {log}"
        )


def new_seed() -> int:
    return int.from_bytes(os.urandom(4), "big")
