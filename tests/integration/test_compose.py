"""docker-compose.yml and the Dockerfile, without a container engine: read, built from, and run as processes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from pybroker.broker.cluster.plan import HOST, Plan, consecutive_ports
from pybroker.config.loader import load
from tests.architecture.rooms import ROOMS
from tests.support.broker import ROOT, broker_environment, free_port, wait_until
from tests.support.clients import ConfluentKafka, Sent
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(180)

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
BROKERS: dict[str, dict[str, Any]] = {
    name: service for name, service in COMPOSE["services"].items() if name.startswith("broker-")
}
VOLUME = "/var/lib/pybroker"
# What a container has otherwise than a process of this machine.
OF_CONTAINERS = {
    "listeners", "advertised.listeners", "listener.security.protocol.map", "inter.broker.listener.name", "log.dirs",
    "zookeeper.connect",
}  # fmt: skip


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions and what they say, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, said.strip()) for word, _, said in (line.partition(" ") for line in text.splitlines() if line)]


def of_image(word: str) -> list[str]:
    """What an instruction says in the last stage: the image."""
    last = max(number for number, (each, _) in enumerate(instructions()) if each == "FROM")
    return [said for each, said in instructions()[last:] if each == word]


def image_environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for said in of_image("ENV") for pair in said.split())


def settings(environment: dict[str, str]) -> dict[str, str]:
    """What a broker with that environment is set to."""
    config = load(environ=environment)
    assert not config.warnings
    return {name: each.value for name, each in config.static.items()}


# Reading


@pytest.mark.parametrize("number", [1, 2, 3])
def test_settings_are_those_of_cluster_up(number: int, tmp_path: Path) -> None:
    plan = Plan(tmp_path, consecutive_ports(len(BROKERS), 9092), "zookeeper:2181")
    plan.write()
    wanted = {name: each.value for name, each in load(str(plan.server_file(number)), environ={}).static.items()}
    found = settings(image_environment() | BROKERS[f"broker-{number}"]["environment"])
    assert found["zookeeper.connect"] == wanted["zookeeper.connect"]
    assert found["log.dirs"] == VOLUME
    for each in (found, wanted):
        for name in OF_CONTAINERS:
            each.pop(name, None)
    assert found == wanted


def test_brokers_are_reached_where_they_say() -> None:
    assert len(BROKERS) == 3
    for name, service in BROKERS.items():
        config = load(environ=service["environment"])
        inside, outside = config.advertised_listeners
        assert config.inter_broker_listener == inside.name == "INTERNAL"
        assert (inside.host, outside.host) == (name, "localhost")
        assert [each.port for each in config.listeners] == [inside.port, outside.port]
        assert service["ports"] == [f"127.0.0.1:{outside.port}:{outside.port}"]
        assert service["healthcheck"]["test"][-1] == f"127.0.0.1:{outside.port}"


def test_data_is_kept_and_nobody_starts_before_zookeeper() -> None:
    mounts = {name: service["volumes"] for name, service in COMPOSE["services"].items()}
    named = [mount.partition(":")[0] for each in mounts.values() for mount in each]
    assert sorted(named) == sorted(COMPOSE["volumes"])
    for name, service in BROKERS.items():
        assert mounts[name] == [f"{name}:{VOLUME}"]
        assert service["depends_on"] == {"zookeeper": {"condition": "service_healthy"}}
        assert service["build"] == "."
        assert not service.keys() & {"command", "entrypoint"}  # the image's
    assert "healthcheck" in COMPOSE["services"]["zookeeper"]


def test_an_image_alone_serves_its_host() -> None:
    """`docker run` without compose: everything is bound, and clients are told localhost."""
    config = load(environ=image_environment())
    assert [str(each) for each in config.listeners] == ["PLAINTEXT://:9092"]
    assert [str(each) for each in config.advertised_listeners] == ["PLAINTEXT://localhost:9092"]
    assert of_image("USER") == ["pybroker"]
    assert of_image("VOLUME") == [VOLUME]


# Building


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the engine would get of this directory: .dockerignore shuts all out and lets these in."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*" and lines[-1] == "**/__pycache__"
    found = tmp_path_factory.mktemp("context")
    for line in lines[1:-1]:
        source = ROOT / line.removeprefix("!")
        assert line.startswith("!") and source.exists(), line
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, found / source.name, symlinks=True, ignore=ignore)
        else:
            shutil.copy2(source, found)
    return found


def test_a_build_finds_all_it_needs(context: Path) -> None:
    """The wheel as `pip wheel` has it made, with this interpreter's setuptools: nothing is fetched."""
    assert ("COPY", ". .") in instructions()
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "wheels", "."]
    done = subprocess.run(command, cwd=context, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (wheel,) = (context / "wheels").glob("*.whl")
    wanted = {f"pybroker/{path.relative_to(ROOT)}" for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    with zipfile.ZipFile(wheel) as file:
        assert wanted <= set(file.namelist())


def test_what_is_copied_into_the_image_was_made() -> None:
    """Nothing else goes in than the environment that the first stage has installed."""
    assert of_image("COPY") == ["--from=build /opt/pybroker /opt/pybroker"]
    built = " ".join(said for word, said in instructions() if word == "RUN")
    assert "python -m venv /opt/pybroker" in built
    assert image_environment()["PATH"].startswith("/opt/pybroker/bin:")


# Running


class Containers:
    """The brokers of docker-compose.yml as processes: hosts are this machine, ports free ones, volumes folders."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self.directory, self.zookeeper = directory, zookeeper
        ports = sorted(set(re.findall(r"\b(?:909|1909)\d\b", json.dumps(BROKERS))))
        self.ports = {port: str(free_port()) for port in ports}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def here(self, text: str) -> str:
        """The same on this machine."""
        for old, new in self.ports.items():
            text = re.sub(rf"\b{old}\b", new, text)
        return re.sub(r"\bbroker-\d\b|\blocalhost\b", HOST, text).replace("zookeeper:2181", self.zookeeper)

    def environment(self, name: str) -> dict[str, str]:
        told = {**image_environment(), **BROKERS[name]["environment"]}
        told.pop("PATH")
        return broker_environment() | {key: self.here(value) for key, value in told.items()} | {
            "KAFKA_LOG_DIRS": str(self.directory / name)
        }  # fmt: skip

    def command(self, words: list[str]) -> list[str]:
        assert words[0] == "pybroker"
        return [sys.executable, "-m", "pybroker", *map(self.here, words[1:])]

    @contextmanager
    def run(self, name: str) -> Iterator[None]:
        words = [word for instruction in ("ENTRYPOINT", "CMD") for word in json.loads(of_image(instruction)[0])]
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(self.command(words), env=self.environment(name), stdout=log, stderr=log)
        try:
            self.running[name] = process
            yield
        finally:
            process.terminate()
            try:
                assert process.wait(60) == 0
            finally:
                process.kill()
                process.wait()

    def healthy(self, name: str) -> bool:
        assert self.running[name].poll() is None, (self.directory / f"{name}.log").read_text()
        kind, *words = BROKERS[name]["healthcheck"]["test"]
        assert kind == "CMD"
        return subprocess.run(self.command(words), env=self.environment(name), timeout=30).returncode == 0


def test_brokers_of_the_compose_file_are_a_cluster(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    containers = Containers(tmp_path, f"{zookeeper.address}/compose{tmp_path}")
    client = ConfluentKafka()
    with ExitStack() as stack:
        for name in BROKERS:
            stack.enter_context(containers.run(name))
        for name in BROKERS:
            wait_until(lambda name=name: containers.healthy(name), 60, f"the health of {name}")
        outside = [containers.here(service["healthcheck"]["test"][-1]) for service in BROKERS.values()]
        client.create(outside[0], "composed")
        sent = [Sent(b"k", b"v")]
        client.produce(outside[1], "composed", "none", sent)
        assert client.consume(outside[2], "composed", 1) == sent
