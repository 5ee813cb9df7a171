"""Clients of Java in the rounds of tests/faults/cluster_rounds.py: a Sender and a Member that are processes.

tests/clients/java/RoundClient.java takes settings as JSON and commands in lines, and tells in lines what happens:
`acked TOPIC PARTITION OFFSET NUMBER`, `failed TEXT`, `held` when all is acknowledged; `saw TOPIC PARTITION OFFSET
VALUE`, `committed TOPIC PARTITION OFFSET`.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from tests.faults.cluster_rounds import Cluster
from tests.faults.cluster_traffic import PROGRESS_S, At, Seen, value_of
from tests.support.broker import wait_until

FILLING = value_of("", 0, 0).count(b".")
QUICK = {"request.timeout.ms": 5000, "reconnect.backoff.max.ms": 500, "metadata.max.age.ms": 1000}


class _Process:
    """`lines` gets what it tells, in a thread of its own, from the first start on until close()."""

    def __init__(self, program: Sequence[str], settings: dict[str, Any], lines: Callable[[list[str]], None]) -> None:
        self.process = subprocess.Popen(
            [*program, json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        self._input: IO[str] = self.process.stdin
        self._output: IO[str] = self.process.stdout
        self._lines = lines
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._output:
            self._lines(line.rstrip("\n").split(" "))

    def say(self, command: str) -> None:
        self._input.write(f"{command}\n")
        self._input.flush()

    def close(self) -> None:
        """Ends it, in good order where it is able to."""
        self._input.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(10)


class JavaSender:
    """Kafka's producer, idempotent, acks=all, to all partitions of some topics."""

    def __init__(self, name: str, cluster: Cluster, program: Sequence[str], counts: dict[str, int]) -> None:
        self.name, self.counts = name, counts
        self.acknowledged: dict[At, dict[int, bytes]] = defaultdict(dict)
        self.next: dict[At, int] = defaultdict(int)
        self.total = 0
        self.failures: list[str] = []
        self._held = threading.Event()
        options = QUICK | {
            "bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": "true", "linger.ms": 5,
            "delivery.timeout.ms": 2147483647, "max.block.ms": 120000,
        }  # fmt: skip
        settings = {"mode": "produce", "name": name, "topics": counts, "filling": FILLING, "options": options}
        self._process = _Process(program, settings, self._told)

    def run(self, stop: Callable[[], bool]) -> None:
        self._held.clear()
        self._process.say("go")
        while not stop():
            assert self._process.process.poll() is None, f"{self.name} ended"
            time.sleep(0.05)
        self._process.say("hold")
        assert self._held.wait(PROGRESS_S), f"{self.name}: not everything is acknowledged"

    def close(self) -> None:
        self._process.close()

    def acknowledged_at(self, at: At) -> Mapping[int, bytes]:
        return self.acknowledged.get(at, {})

    def forget_below(self, at: At, start: int) -> None:
        found = self.acknowledged[at]
        for offset in [offset for offset in list(found) if offset < start]:
            del found[offset]

    def _told(self, words: list[str]) -> None:
        if words[0] == "acked":
            topic, partition, offset, number = words[1], *map(int, words[2:5])
            self.acknowledged[topic, partition][offset] = value_of(self.name, partition, number)
            self.next[topic, partition] = max(self.next[topic, partition], number + 1)
            self.total += 1
        elif words[0] == "held":
            self._held.set()
        else:
            self.failures.append(f"{self.name}: {' '.join(words)}")


class JavaMember:
    """Kafka's consumer in the group of a Traffic."""

    def __init__(
        self, name: str, cluster: Cluster, program: Sequence[str], group: str, topics: Sequence[str], seen: Seen
    ) -> None:
        self.name, self.failures, self._seen = name, list[str](), seen
        options = QUICK | {
            "bootstrap.servers": cluster.bootstrap, "group.id": group, "auto.offset.reset": "earliest",
            "session.timeout.ms": 10000, "heartbeat.interval.ms": 1000, "enable.auto.commit": "false",
            "partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor",
            "fetch.max.wait.ms": 200, "default.api.timeout.ms": 8000,
        }  # fmt: skip
        self._program = program
        self._settings = {"mode": "consume", "topics": list(topics), "options": options}

    def run(self, stop: Callable[[], bool]) -> None:
        process = _Process(self._program, self._settings, self._told)
        try:
            wait_until(lambda: stop() or process.process.poll() is not None, float("inf"), "the end")
            assert process.process.poll() is None, f"{self.name} ended"
        finally:
            process.close()

    def _told(self, words: list[str]) -> None:
        if words[0] not in ("saw", "committed"):
            self.failures.append(f"{self.name}: {' '.join(words)}")
            return
        at, offset = (words[1], int(words[2])), int(words[3])
        if words[0] == "saw":
            self.failures += self._seen.take(at, offset, words[4].encode())
        else:
            self._seen.committed[at] = offset
