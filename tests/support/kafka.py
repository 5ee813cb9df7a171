"""An unmodified Apache Kafka 3.9.2 broker beside ours, under a ZooKeeper. The jars come with tests.support.java."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.support.java import jars
from tests.support.wire import Closed, WireClient
from tests.support.zookeeper import free_port

RELEASE = "3.9.2"
LOG4J = """log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
"""
DEFAULTS = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "zookeeper.session.timeout.ms": "4000",
}


class KafkaBroker:
    """One broker with its log directory `data`; start() on entering, stop() on leaving the context."""

    def __init__(
        self, work: Path, data: Path, zookeeper: str, broker_id: int, settings: Mapping[str, str] | None = None
    ) -> None:
        self.work, self.data, self.zookeeper, self.broker_id = work, data, zookeeper, broker_id
        self.settings = DEFAULTS | dict(settings or {})
        self.port = free_port()
        self.output = work / f"kafka-{broker_id}.out"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, timeout: float = 120) -> KafkaBroker:
        """Returns when it answers and knows a controller: until then librdkafka waits long to create topics."""
        self.work.mkdir(parents=True, exist_ok=True)
        listener = f"PLAINTEXT://{self.address}"
        settings = {
            "broker.id": str(self.broker_id),
            "listeners": listener,
            "advertised.listeners": listener,
            "zookeeper.connect": self.zookeeper,
            "log.dirs": str(self.data),
        } | self.settings
        properties = self.work / f"kafka-{self.broker_id}.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        log4j = self.work / "log4j.properties"
        log4j.write_text(LOG4J)
        command = ["java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += [f"-Dlog4j.configuration=file:{log4j}", "-cp", f"{jars(RELEASE)}/*", "kafka.Kafka", str(properties)]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.work
            )
        deadline = time.monotonic() + timeout
        while not self._accepts():
            assert self.process.poll() is None, f"Kafka ended: {self.log_text()[-5000:]}"
            assert time.monotonic() < deadline, f"Kafka is not up: {self.log_text()[-5000:]}"
            time.sleep(0.1)
        return self

    def client(self) -> WireClient:
        return WireClient("127.0.0.1", self.port, timeout=60)

    def _accepts(self) -> bool:
        try:
            with WireClient("127.0.0.1", self.port, timeout=5) as client:
                return bool(client.call("Metadata", 1, {"Topics": []})["ControllerId"] >= 0)
        except (OSError, Closed):
            return False

    def stop(self, timeout: float = 60) -> None:
        """A controlled shutdown."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout)
            self.process = None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def log_text(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def __enter__(self) -> KafkaBroker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            self.kill()
