"""Finds a ZooKeeper that is installed on this machine, says how it is started, and whether one answers."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
JARS = "zookeeper-[0-9]*.jar"
DEBIAN = Path("/usr/share/java")
# The manifest of Debian's zookeeper.jar names the other jars, but not all that TLS and the log need.
DEBIAN_JARS = (
    "zookeeper.jar",
    "netty-codec.jar",
    "netty-resolver.jar",
    "netty-transport-native-unix-common.jar",
    "slf4j-simple.jar",
)
ANSWER_SECONDS = 5.0


class NoZooKeeper(Exception):
    """None can be started here; the message says what to do."""


def class_path(environ: Mapping[str, str] | None = None) -> str:
    """For `java -cp`. Looks in $ZOOKEEPER_HOME, in Debian's package, beside the zkServer.sh on the PATH and in
    $KAFKA_HOME. Raises NoZooKeeper."""
    environ = os.environ if environ is None else environ
    if shutil.which("java", path=environ.get("PATH")) is None:
        raise NoZooKeeper("ZooKeeper needs Java, and there is no java on the PATH")
    for folder in _folders(environ):
        if next(folder.glob(JARS), None) is not None:
            debian = os.pathsep.join(str(DEBIAN / name) for name in DEBIAN_JARS)
            return debian if folder == DEBIAN else f"{folder}/*"
    raise NoZooKeeper(
        "no ZooKeeper was found: install one (apt-get install zookeeper), set ZOOKEEPER_HOME to where one is unpacked, "
        "or name one that runs"
    )


def _folders(environ: Mapping[str, str]) -> Iterator[Path]:
    """Where the jars may lie."""
    if home := environ.get("ZOOKEEPER_HOME"):
        yield Path(home, "lib")
    if (DEBIAN / "zookeeper.jar").exists():
        yield DEBIAN
    if script := shutil.which("zkServer.sh", path=environ.get("PATH")):
        yield Path(script).resolve().parent.parent / "lib"
    if home := environ.get("KAFKA_HOME"):
        yield Path(home, "libs")


def command(classes: str, config_file: Path, properties: Mapping[str, str] | None = None) -> list[str]:
    """Starts a server on that configuration; `properties` are the JVM's."""
    options = [f"-D{name}={value}" for name, value in (properties or {}).items()]
    return ["java", *JVM, *options, "-cp", classes, MAIN, str(config_file)]


def ask(host: str, port: int, word: str) -> str | None:
    """The answer to a four-letter command; None while no server serves there."""
    try:
        with socket.create_connection((host, port), ANSWER_SECONDS) as connection:
            connection.sendall(word.encode())
            answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    except OSError:
        return None
    return answer if answer and "not currently serving" not in answer else None
