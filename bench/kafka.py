"""Apache Kafka 3.9.2 with its ZooKeeper, fetched once through Maven, run beside the product. Needs Java and Maven.

The jars are looked for, and put, in $KAFKA_HOME/jars-3.9.2 (default: $XDG_CACHE_HOME/pybroker-tests, which the tests
of the Java tools fill too).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

RELEASE = "3.9.2"
POM = """<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>kafka</artifactId>
<version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{0}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{0}</version></dependency>
</dependencies></project>
"""
LOG4J = """log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
log4j.logger.kafka.log.LogCleaner=INFO
"""
# What a start script of Kafka passes, except for the heap.
JVM = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Djava.awt.headless=true")
HEAP = "1G"
SETTINGS = {
    "broker.id": 0,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
}


def home() -> Path:
    """The folder of the jars."""
    for variable in ("KAFKA_HOME", "PYBROKER_KAFKA_HOME"):
        if os.environ.get(variable):
            return Path(os.environ[variable])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pybroker-tests"


def jars() -> Path:
    """The folder with the jars of RELEASE, fetched where missing. RuntimeError says what stands in the way."""
    if shutil.which("java") is None:
        raise RuntimeError("Java is missing")
    folder = home() / f"jars-{RELEASE}"
    if (folder / f"kafka_2.13-{RELEASE}.jar").exists():
        return folder
    if shutil.which("mvn") is None:
        raise RuntimeError("Maven is missing")
    folder.parent.mkdir(parents=True, exist_ok=True)
    pom = folder.parent / f"pom-bench-{RELEASE}.xml"
    pom.write_text(POM.format(RELEASE))
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise RuntimeError(f"Maven could not fetch Apache Kafka {RELEASE}: {done.stdout[-500:]}")
    return folder


def version() -> str:
    """The JVM's own words."""
    done = subprocess.run(["java", "-version"], capture_output=True, text=True)
    return done.stderr.splitlines()[0] if done.stderr else "unknown"


def java(main: str, configuration: Path, *, heap: str) -> list[str]:
    """The command that runs a main class with a configuration file."""
    log4j = configuration.with_name("log4j.properties")
    log4j.write_text(LOG4J)
    options = [f"-Xmx{heap}", f"-Xms{heap}", *JVM, f"-Dlog4j.configuration=file:{log4j}"]
    return ["java", *options, "-cp", f"{jars()}/*", main, str(configuration)]


def zookeeper(folder: Path, port: int) -> list[str]:
    configuration = folder / "zookeeper.properties"
    configuration.write_text(
        f"tickTime=500\ndataDir={folder / 'zookeeper'}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
        "maxClientCnxns=0\nadmin.enableServer=false\n"
    )
    return java("org.apache.zookeeper.server.quorum.QuorumPeerMain", configuration, heap="256m")


def broker(folder: Path, port: int, zookeeper_port: int) -> list[str]:
    address = f"PLAINTEXT://127.0.0.1:{port}"
    settings = SETTINGS | {
        "listeners": address,
        "advertised.listeners": address,
        "zookeeper.connect": f"127.0.0.1:{zookeeper_port}",
        "log.dirs": folder / "data",
    }
    return java("kafka.Kafka", properties(folder, settings), heap=HEAP)


def properties(folder: Path, settings: Mapping[str, object]) -> Path:
    """A server.properties in `folder`."""
    configuration = folder / "server.properties"
    configuration.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return configuration
