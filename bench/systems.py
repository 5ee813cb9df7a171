"""The three that are measured: how each is started on an empty folder, when it has answered, and how it ends."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from bench import kafka, wire
from bench.rawload import Target

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 60


def free_port() -> int:
    """A port that nobody listens on, out of those that no outgoing connection is given: not even one to itself."""
    while True:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def environment() -> dict[str, str]:
    """No settings by the environment, and byte code cached as an installed package has it."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("KAFKA_", "PYBROKER_"))}
    clean.pop("PYTHONDONTWRITEBYTECODE", None)
    return clean | {"PYTHONPATH": str(ROOT / ".src")}


class System:
    """A broker of its own port and folder; `start` begins with an empty one and waits for the first answer."""

    name = ""

    def __init__(self, work: Path) -> None:
        self.folder = work / self.name
        self.address = ("127.0.0.1", free_port())
        self.process: subprocess.Popen[bytes] | None = None
        self.start_seconds = 0.0

    def command(self) -> list[str]:
        raise NotImplementedError

    def prepare(self) -> None:
        """Whatever has to run before; not part of the time of a start."""

    def log(self, topic: str, partition: int) -> list[Path]:
        return sorted((self.folder / "data" / f"{topic}-{partition}").glob("*.log"))

    def first_answer(self) -> bool:
        """Whether something answers ApiVersions."""
        with socket.create_connection(self.address, timeout=10) as connection:
            connection.sendall(wire.api_versions())
            return len(connection.recv(4)) > 0

    def start(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "data").mkdir(parents=True)
        self.prepare()
        command = self.command()
        began = time.perf_counter()
        with (self.folder / "out").open("wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.folder, env=environment()
            )
        while True:
            with suppress(OSError):
                if self.first_answer():
                    break
            if self.process.poll() is not None or time.perf_counter() - began > START_SECONDS:
                raise RuntimeError(f"{self.name} did not start: {(self.folder / 'out').read_text()[-2000:]}")
            time.sleep(0.001)
        self.start_seconds = time.perf_counter() - began

    def stop(self) -> None:
        """End it at once: its data is thrown away."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def target(self, gigabytes: float) -> Target:
        assert self.process is not None
        return Target(self.address, [self.process.pid], gigabytes=gigabytes, log=lambda index: self.log("raw", index))


class PyBroker(System):
    name = "pybroker"

    def command(self) -> list[str]:
        port, data = str(self.address[1]), str(self.folder / "data")
        return [sys.executable, "-m", "pybroker", "start", "--port", port, "--data-dir", data]


class Floor(System):
    name = "floor"

    def command(self) -> list[str]:
        return [sys.executable, str(ROOT / "bench" / "floor.py"), str(self.address[1]), str(self.folder / "data")]

    def log(self, topic: str, partition: int) -> list[Path]:
        return [self.folder / "data" / f"floor-{partition}"]

    def first_answer(self) -> bool:
        with socket.create_connection(self.address, timeout=10) as connection:
            connection.sendall(wire.fetch("raw", 0, 0, 1))
            return len(connection.recv(4)) > 0


class ZooKeeper:
    """A ZooKeeper with its data below `folder`; it is in no figure."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it serves: it accepts connections before, and may then never answer on them."""
        command = kafka.zookeeper(self._folder, self.port)
        output_file = self._folder / "zookeeper.out"
        with output_file.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self._folder
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no ZooKeeper: {output_file.read_text()[-2000:]}")
            time.sleep(0.05)

    def _serves(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"srvr")
            return connection.recv(4096).startswith(b"Zookeeper version")
        return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Kafka(System):
    """ZooKeeper runs beside it."""

    name = "kafka"

    def __init__(self, work: Path) -> None:
        super().__init__(work)
        self._zookeeper = ZooKeeper(self.folder)

    def prepare(self) -> None:
        self._zookeeper.start()

    def command(self) -> list[str]:
        return kafka.broker(self.folder, self.address[1], self._zookeeper.port)

    def stop(self) -> None:
        self._zookeeper.stop()
        super().stop()


SYSTEMS: dict[str, type[System]] = {each.name: each for each in (PyBroker, Kafka, Floor)}
