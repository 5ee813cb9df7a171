"""A real ZooKeeper for tests: a Java process of its own, on a free port.

The jars are those of a ZooKeeper installed on this machine ($PYBROKER_ZOOKEEPER_JARS, /usr/share/java, or
$ZOOKEEPER_HOME/lib), else those of Apache Kafka (tests.support.java). Where neither is there, need_zookeeper() skips
the test and says so; with CI set in the environment it fails.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.support import java

MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
START_SECONDS = 60


@cache
def class_path() -> str:
    """For `java -cp`. RuntimeError says what stands in the way."""
    if shutil.which("java") is None:
        raise RuntimeError("Java is missing")
    home = os.environ.get("ZOOKEEPER_HOME")
    for folder in (os.environ.get("PYBROKER_ZOOKEEPER_JARS"), home and f"{home}/lib"):
        if folder and list(Path(folder).glob("zookeeper-[0-9]*.jar")):
            return f"{folder}/*"
    debian = Path("/usr/share/java")
    if (debian / "zookeeper.jar").exists():
        # Its manifest names the other jars, but not all that TLS and the log need.
        more = ("netty-codec.jar", "netty-resolver.jar", "netty-transport-native-unix-common.jar", "slf4j-simple.jar")
        return os.pathsep.join(str(debian / name) for name in ("zookeeper.jar", *more))
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


class ZooKeeperServer:
    """One standalone server; start() on entering, stop() on leaving the context. `settings` go into its zoo.cfg,
    `properties` are the JVM's."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.settings = dict(settings or {})
        self.properties = dict(properties or {})
        self.port = free_port()
        self.secure_port = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> ZooKeeperServer:
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
        command = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        command += [f"-D{name}={value}" for name, value in self.properties.items()]
        with (self.directory / "zookeeper.out").open("ab") as output:
            self.process = subprocess.Popen(
                [*command, "-cp", class_path(), MAIN, str(file)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.directory,
            )
        try:
            self._wait_until_up(self.process)
        except BaseException:
            self.stop()
            raise
        return self

    def _wait_until_up(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self.command("srvr") is None:
            assert process.poll() is None, f"ZooKeeper ended: {self.log_text()[-3000:]}"
            assert time.monotonic() < deadline, f"ZooKeeper is not up: {self.log_text()[-3000:]}"
            time.sleep(0.02)

    def command(self, word: str) -> str | None:
        """The answer to a four-letter command, None while the server does not serve."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
                connection.sendall(word.encode())
                answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        except OSError:
            return None
        return answer if answer and "not currently serving" not in answer else None

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

    def stop(self) -> None:
        """At once: what ZooKeeper has answered is on its disk."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def log_text(self) -> str:
        return (self.directory / "zookeeper.out").read_text(errors="replace")

    def __enter__(self) -> ZooKeeperServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
