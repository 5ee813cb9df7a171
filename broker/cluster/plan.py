"""What a local cluster is made of, and its files: a server file for each broker, which `pybroker start FILE` takes.

    DIR/server-1.properties   written anew by each `up`       DIR/broker-1/      its data, kept
    DIR/zoo.cfg               likewise, but for its port      DIR/zookeeper/     likewise
    DIR/broker-1.log          what it says                    DIR/zookeeper.log  likewise
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pybroker.config.properties import parse_properties

HOST = "127.0.0.1"
ZOOKEEPER_PORT = 2181
NO_ZOOKEEPER = 0

# Topics that the brokers make for themselves have three replicas by default, but never more than there are brokers.
FULL_FACTOR = 3
INTERNAL_FACTORS = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor")
INTERNAL_MIN_ISR = "transaction.state.log.min.isr"

ZOO_CFG = {
    "clientPortAddress": HOST,
    "tickTime": "2000",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "autopurge.snapRetainCount": "3",
    "autopurge.purgeInterval": "24",
    "4lw.commands.whitelist": "srvr",
}
HEADER = "# Written by `pybroker cluster up`, anew at each start: give settings of your own by --override.\n"


@dataclass(frozen=True)
class Plan:
    """`ports` by broker id. `zookeeper_port` is that of a ZooKeeper to start, NO_ZOOKEEPER where `zookeeper` runs
    already (host:port, a chroot may follow)."""

    directory: Path
    ports: Mapping[int, int]
    zookeeper: str
    zookeeper_port: int = NO_ZOOKEEPER
    overrides: Mapping[str, str] = field(default_factory=dict)
    own_overrides: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Of single brokers, by id."""

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self.ports.values())

    def data_dir(self, broker_id: int) -> Path:
        return self.directory / f"broker-{broker_id}"

    def log(self, broker_id: int) -> Path:
        return self.directory / f"broker-{broker_id}.log"

    def ready_file(self, broker_id: int) -> Path:
        return self.directory / f"broker-{broker_id}.ready"

    def server_file(self, broker_id: int) -> Path:
        return self.directory / f"server-{broker_id}.properties"

    @property
    def zoo_cfg(self) -> Path:
        return zoo_cfg_in(self.directory)

    def settings(self, broker_id: int) -> dict[str, str]:
        """A broker's settings by name; `overrides` win."""
        few: dict[str, str] = {}
        if len(self.ports) < FULL_FACTOR:
            few = dict.fromkeys((*INTERNAL_FACTORS, INTERNAL_MIN_ISR), str(len(self.ports)))
        return {
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://{HOST}:{self.ports[broker_id]}",
            "log.dirs": str(self.data_dir(broker_id)),
            "zookeeper.connect": self.zookeeper,
            # On one machine no network is between: a death is noticed earlier than by default (18 s).
            "zookeeper.session.timeout.ms": "6000",
            **few,
            **self.overrides,
            **self.own_overrides.get(broker_id, {}),
        }

    def write(self) -> None:
        """Writes all files. Raises OSError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for broker_id in self.ports:
            self.server_file(broker_id).write_text(HEADER + properties(self.settings(broker_id)), encoding="utf-8")
        if self.zookeeper_port:
            own = {"dataDir": str(self.directory / "zookeeper"), "clientPort": str(self.zookeeper_port)}
            self.zoo_cfg.write_text(HEADER + properties(own | ZOO_CFG), encoding="utf-8")


def zoo_cfg_in(directory: Path) -> Path:
    return directory / "zoo.cfg"


def known_zookeeper_port(directory: Path) -> int | None:
    """That of the ZooKeeper which ran here before. None where none did."""
    try:
        entries = parse_properties(zoo_cfg_in(directory).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    ports = [each.value for each in entries if each.name == "clientPort" and each.value.isdecimal()]
    return int(ports[-1]) if ports else None


def consecutive_ports(count: int, first: int) -> dict[int, int]:
    """Brokers 1 to `count`, on the ports from `first` on."""
    return {number + 1: first + number for number in range(count)}


def properties(settings: Mapping[str, str]) -> str:
    """The text of a Java properties file."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in settings.items())


def _escaped(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f"\\{escaped}" if escaped.startswith((" ", "\f")) else escaped


def parse_overrides(words: Sequence[str]) -> dict[str, str]:
    """`key=value` each. Raises ValueError, which names the wrong one."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"--override {word}: must be of the form key=value")
        found[name.strip()] = value
    return found
