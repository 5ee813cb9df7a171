"""An unmodified Apache Kafka 3.9.2 broker beside ours, under a ZooKeeper. The jars come with tests.support.java.

The first broker that stops in good order leaves an archive of its loaded classes beside the jars, with which those
after it start in a second instead of two.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
import uuid
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.support.broker import free_port
from tests.support.java import jars, kafka_home
from tests.support.wire import Closed, WireClient

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
    "log.cleaner.dedupe.buffer.size": "4194304",  # the heap is small
}


def class_archive() -> Path:
    """Where this machine's Java keeps Kafka's classes ready to use; Java ignores one that does not fit."""
    virtual_machine = Path(shutil.which("java") or "java").resolve()
    made = f"{virtual_machine} {virtual_machine.stat().st_mtime}"
    return kafka_home() / f"classes-{RELEASE}-{zlib.crc32(made.encode()):08x}.jsa"


class KafkaBroker:
    """One broker with its log directory `data` (or the setting log.dirs); start() on entering, stop() on leaving the
    context. Its output goes to .output, over restarts."""

    def __init__(
        self, work: Path, data: Path, zookeeper: str, broker_id: int, settings: Mapping[str, str] | None = None
    ) -> None:
        self.work, self.data_dir, self.zookeeper, self.broker_id = work, data, zookeeper, broker_id
        self.settings = DEFAULTS | dict(settings or {})
        self.port = free_port()
        self.output = work / f"kafka-{broker_id}.out"
        self._new_archive: Path | None = None
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, timeout: float = 120) -> KafkaBroker:
        """Returns when it answers and knows a controller: until then librdkafka waits long to create topics."""
        self.launch()
        self.wait_ready(timeout)
        return self

    def launch(self) -> None:
        """Starts the process; wait_ready() waits for the broker."""
        assert self.process is None, "already running"
        self.work.mkdir(parents=True, exist_ok=True)
        listener = f"PLAINTEXT://{self.address}"
        settings = {
            "broker.id": str(self.broker_id),
            "listeners": listener,
            "advertised.listeners": listener,
            "zookeeper.connect": self.zookeeper,
            "log.dirs": str(self.data_dir),
        } | self.settings
        properties = self.work / f"kafka-{self.broker_id}.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        log4j = self.work / "log4j.properties"
        log4j.write_text(LOG4J)
        class_path, archive = f"{jars(RELEASE)}/*", class_archive()
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        if archive.exists():
            command.append(f"-XX:SharedArchiveFile={archive}")
        else:
            self._new_archive = archive.with_suffix(f".{uuid.uuid4()}")  # others may be making it too
            command.append(f"-XX:ArchiveClassesAtExit={self._new_archive}")
        command += [f"-Dlog4j.configuration=file:{log4j}", "-cp", class_path, "kafka.Kafka", str(properties)]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.work
            )

    def wait_ready(self, timeout: float = 120) -> None:
        assert self.process is not None
        deadline = time.monotonic() + timeout
        while not self._accepts():
            assert self.process.poll() is None, f"Kafka ended: {self.log_text()[-5000:]}"
            assert time.monotonic() < deadline, f"Kafka is not up: {self.log_text()[-5000:]}"
            time.sleep(0.1)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

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
            if self._new_archive is not None:
                self._new_archive.rename(class_archive())
                self._new_archive = None

    def kill(self) -> None:
        """Start it again only when its node below /brokers/ids is gone: Kafka exits otherwise."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = self._new_archive = None

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
