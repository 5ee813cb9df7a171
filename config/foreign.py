"""Names that people set and Kafka never had: what they most nearly mean."""

from __future__ import annotations

from collections.abc import Callable


def _default_port(value: str) -> str:
    return f"PLAINTEXT://localhost:{value.strip()}"


def _election_strategy(value: str) -> str:
    return "true" if "unclean" in value.lower() else "false"


def _same(value: str) -> str:
    return value


# foreign name → (setting, its value from the foreign one)
FOREIGN: dict[str, tuple[str, Callable[[str], str]]] = {
    "replica.lag.max.ms": ("replica.lag.time.max.ms", _same),
    # An election follows when ZooKeeper has given up a broker.
    "replica.election.timeout.ms": ("zookeeper.session.timeout.ms", _same),
    # `unclean` in any form allows it; every other strategy elects from the in-sync replicas.
    "replica.election.strategy": ("unclean.leader.election.enable", _election_strategy),
    "log.shutdown.threads.sleep.ms": ("controlled.shutdown.retry.backoff.ms", _same),
    "socket.server.default.port": ("listeners", _default_port),
}

# Names in the environment that are meant for others: the JVM and Kafka's scripts, container images, service discovery.
SILENT_NAMES = frozenset(
    (
        "KAFKA_CLUSTER_ID",
        "KAFKA_DEBUG",
        "KAFKA_HOME",
        "KAFKA_MIRROR",
        "KAFKA_USER",
        "KAFKA_VERSION",
    )
)
SILENT_PREFIXES = ("KAFKA_JMX_", "KAFKA_PORT", "KAFKA_LOG4J_", "KAFKA_GC_", "KAFKA_JVM_", "KAFKA_HEAP_")
SILENT_SUFFIXES = ("_OPTS", "_SERVICE_HOST", "_SERVICE_PORT")
SILENT_PARTS = ("_SERVICE_PORT_", "_PORT_", "_OPTS_")
