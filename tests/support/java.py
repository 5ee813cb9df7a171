"""Runs tools and consumers of Apache Kafka 3.9.2 and 4.3.1, fetched once from Maven's repository.

The jars go to $PYBROKER_KAFKA_HOME/jars-<release> (default: $XDG_CACHE_HOME/pybroker-tests). Where Java or Maven is
missing, or nothing can be fetched, need_java() skips the test and says so; with CI set in the environment it fails.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.support.broker import ROOT

SOURCES = ROOT / "tests" / "clients" / "java"
RELEASES = ("3.9.2", "4.3.1")
CLASSES = {
    "TopicCommand": "org.apache.kafka.tools.TopicCommand",
    "ConfigCommand": "kafka.admin.ConfigCommand",
    "GetOffsetShell": "org.apache.kafka.tools.GetOffsetShell",
    "LogDirsCommand": "org.apache.kafka.tools.LogDirsCommand",
    "DeleteRecordsCommand": "org.apache.kafka.tools.DeleteRecordsCommand",
    "BrokerApiVersionsCommand": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "ProducerPerformance": "org.apache.kafka.tools.ProducerPerformance",
    "ConsoleConsumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "ReplicaVerificationTool": "org.apache.kafka.tools.ReplicaVerificationTool",
    "ConsumerGroupCommand": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "ReassignPartitionsCommand": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "LeaderElectionCommand": "org.apache.kafka.tools.LeaderElectionCommand",
}
MOVED = {("3.9.2", "BrokerApiVersionsCommand"): "kafka.admin.BrokerApiVersionsCommand"}
POM = """<project><modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>tools</artifactId>
<version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{0}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{0}</version></dependency>
</dependencies></project>
"""


def kafka_home() -> Path:
    cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PYBROKER_KAFKA_HOME") or Path(cache_home) / "pybroker-tests")


@cache
def jars(release: str) -> Path:
    """The folder with a release's jars, fetched where missing. RuntimeError says what stands in the way."""
    folder = kafka_home() / f"jars-{release}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:  # one of many test processes fetches
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not any(folder.glob(f"kafka_2.13-{release}.jar")):
            _fetch(release, folder)
    return folder


def _fetch(release: str, folder: Path) -> None:
    if shutil.which("mvn") is None:
        raise RuntimeError("Maven is missing")
    pom = folder.parent / f"pom-{release}.xml"
    pom.write_text(POM.format(release))
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise RuntimeError(f"Maven could not fetch Apache Kafka {release}: {done.stdout[-500:]}")


def need_java(release: str, *, compiler: bool = False) -> None:
    """Skips (fails in CI) where the release's tools cannot run."""
    try:
        if compiler and shutil.which("javac") is None:
            raise RuntimeError("Java's compiler is missing")
        if shutil.which("java") is None:
            raise RuntimeError("Java is missing")
        jars(release)
    except RuntimeError as error:
        pytest.fail(str(error)) if os.environ.get("CI") else pytest.skip(str(error))


def java(class_path: str, main: str) -> list[str]:
    """The command that runs a main class which soon ends."""
    return ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", class_path, main]


def member(release: str, folder: Path) -> list[str]:
    """Kafka's consumer as a program, compiled into this folder: the command without the member's settings."""
    return program(release, folder, "Member")


def program(release: str, folder: Path, name: str) -> list[str]:
    """A program of tests/clients/java/, compiled into this folder: the command without its arguments."""
    class_path = f"{folder}:{jars(release)}/*"
    command = ["javac", "-J-Xmx256m", "-cp", class_path, "-d", str(folder), str(SOURCES / f"{name}.java")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return java(class_path, name)


def tool_command(release: str, tool: str, *arguments: str) -> list[str]:
    """The command that runs a tool."""
    return [*java(f"{jars(release)}/*", MOVED.get((release, tool), CLASSES[tool])), *arguments]


def run_tool(release: str, tool: str, *arguments: str, timeout: float = 90) -> subprocess.CompletedProcess[str]:
    """Runs a tool to its end; its output is in .stdout (with stderr). AssertionError on an exit code other than 0."""
    done = subprocess.run(
        tool_command(release, tool, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{tool} {' '.join(arguments)} of {release}: {done.stdout[-3000:]}"
    return done
