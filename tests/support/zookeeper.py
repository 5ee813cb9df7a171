"""A real ZooKeeper for tests: a Java process of its own, on a free port.

The jars are those of $PYBROKER_ZOOKEEPER_JARS, of a ZooKeeper installed on this machine as `pybroker cluster up` finds
it, else those of Apache Kafka (tests.support.java). Where none is there, need_zookeeper() skips the test and says so;
with CI set in the environment it fails.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from pybroker.broker.cluster import zookeeper
from pybroker.broker.cluster.process import ChildProcess
from tests.support import java

START_SECONDS = 60


@cache
def class_path() -> str:
    """For `java -cp`. RuntimeError says what stands in the way."""
    folder = os.environ.get("PYBROKER_ZOOKEEPER_JARS")
    if folder and list(Path(folder).glob(zookeeper.JARS)):
        return f"{folder}/*"
    try:
        return zookeeper.class_path()
    except zookeeper.NoZooKeeper:
        return f"{java.jars('3.9.2')}/*"


def need_zookeeper() -> None:
    """Skips (fails in CI) where no ZooKeeper can run."""
    try:
        class_path()
    except RuntimeError as error:
        pytest.fail(str(error)) if os.environ.get("CI") else pytest.skip(str(error))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ZooKeeperServer(ChildProcess):
    """One standalone server; start() on entering, stop() on leaving the context. `settings` go into its zoo.cfg,
    `properties` are the JVM's."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory / "zookeeper.out")
        self.directory = directory
        self.settings = dict(settings or {})
        self.properties = dict(properties or {})
        self.port = free_port()
        self.secure_port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> ZooKeeperServer:
        self.begin()
        self.wait_ready(START_SECONDS)
        return self

    def begin(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = {
            "dataDir": str(self.directory / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1",
            "tickTime": "500",  # sessions of 1 to 60 s
            "minSessionTimeout": "1000",
            "maxSessionTimeout": "60000",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "forceSync": "no",  # tests pull no plugs
            "4lw.commands.whitelist": "*",
        } | self.settings
        file = self.directory / "zoo.cfg"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self.spawn(zookeeper.command(class_path(), file, self.properties), cwd=self.directory)

    @property
    def serving(self) -> bool:
        return self.command("srvr") is not None

    def command(self, word: str) -> str | None:
        """The answer to a four-letter command, None while the server does not serve."""
        return zookeeper.ask("127.0.0.1", self.port, word)

    def client(self) -> Any:
        """A started kazoo client of the test's own; stop() and close() it."""
        from kazoo.client import KazooClient

        client = KazooClient(self.address, timeout=30)
        client.start(timeout=30)
        return client

    def tree(self, chroot: str) -> dict[str, tuple[bytes | None, Any]]:
        """Every node below the chroot: data and kazoo's ZnodeStat by path ("/" for the chroot itself). Nodes that go
        meanwhile are left out."""
        from kazoo.exceptions import NoNodeError

        client = self.client()
        try:
            found: dict[str, tuple[bytes | None, Any]] = {}
            waiting = [""]
            while waiting:
                path = waiting.pop()
                try:
                    found[path or "/"] = client.get(chroot + path or "/")
                    waiting += [f"{path}/{name}" for name in client.get_children(chroot + path or "/")]
                except NoNodeError:
                    found.pop(path or "/", None)
            return found
        finally:
            client.stop()
            client.close()

    def stop(self, timeout: float = 0) -> int:
        """At once: what ZooKeeper has answered is on its disk."""
        self.kill()
        return 0

    def __enter__(self) -> ZooKeeperServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
