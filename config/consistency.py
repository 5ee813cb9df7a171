"""Settings that contradict each other: what Kafka's KafkaConfig.validateValues refuses, in its words."""

from __future__ import annotations

from pybroker.config.broker import BrokerConfig
from pybroker.config.errors import ConfigError
from pybroker.config.topic import TOPIC_SETTINGS, broker_value

_NOT_MORE = (
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.session.timeout.ms"),
    ("group.consumer.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.share.min.heartbeat.interval.ms", "group.share.heartbeat.interval.ms"),
    ("group.share.heartbeat.interval.ms", "group.share.max.heartbeat.interval.ms"),
    ("group.share.min.session.timeout.ms", "group.share.session.timeout.ms"),
    ("group.share.session.timeout.ms", "group.share.max.session.timeout.ms"),
    ("group.share.min.record.lock.duration.ms", "group.share.record.lock.duration.ms"),
    ("group.share.record.lock.duration.ms", "group.share.max.record.lock.duration.ms"),
)

_THREADS = "Dynamic thread count update validation failed for {name}={new}, value should "
_CLEANERS = "Log cleaner threads "
# What is said of a new size that is below 1, less than half, more than double the size now.
_SIZES = {
    name: tuple(_THREADS + end for end in (
        "be at least 1", "be at least half the current value {old}",
        "not be greater than double the current value {old}",
    ))
    for name in (
        "background.threads", "num.io.threads", "num.network.threads", "num.recovery.threads.per.data.dir",
        "num.replica.fetchers",
    )
} | {
    "log.cleaner.threads": tuple(_CLEANERS + end for end in (
        "should be at least 1", "cannot be reduced to less than half the current value {old}",
        "cannot be increased to more than double the current value {old}",
    )),
}  # fmt: skip


def refused_sizes(now: BrokerConfig, wanted: BrokerConfig) -> list[str]:
    """Numbers of threads that change too far at once (DynamicThreadPool, LogCleaner)."""
    problems = []
    for name, (none, too_few, too_many) in _SIZES.items():
        old, new = now.int(name), wanted.int(name)
        problem = none if new < 1 else too_few if new < old // 2 else too_many if new > old * 2 else None
        if problem is not None and new != old:
            text = problem.format(name=name, old=old, new=new)
            problems.append(
                f"Invalid value org.apache.kafka.common.config.ConfigException: {text} for configuration "
                "Invalid dynamic configuration"
            )
    return problems


def contradictions(config: BrokerConfig) -> list[str]:
    """Every contradiction, as a text each. Each single value must have been found good before."""
    problems: list[str] = []
    for part in (_identity, _times, _listeners, _network, _cleaner, _order, _zookeeper):
        try:
            problems.extend(part(config))
        except ConfigError as error:
            problems.append(error.message)
    return problems


def _identity(config: BrokerConfig) -> list[str]:
    problems = []
    broker_id, most = config.int("broker.id"), config.int("reserved.broker.max.id")
    if config.bool("broker.id.generation.enable"):
        if not -1 <= broker_id <= most and not config.is_set("process.roles"):
            problems.append(
                "broker.id must be greater than or equal to -1 and not greater than reserved.broker.max.id"
                f" (broker.id is {broker_id}, reserved.broker.max.id is {most})"
            )
    elif broker_id < 0:
        problems.append("broker.id must be greater than or equal to 0")
    if config.is_set("node.id") and config.is_set("broker.id") and config.int("node.id") != broker_id:
        problems.append("You must set `node.id` to the same value as `broker.id`.")
    if not config.log_dirs:
        problems.append("At least one log directory must be defined via log.dirs or log.dir.")
    return problems


def _times(config: BrokerConfig) -> list[str]:
    problems = []
    for topic_setting, least, text in (
        ("segment.ms", 1, "log.roll.ms must be greater than or equal to 1"),
        ("segment.jitter.ms", 0, "log.roll.jitter.ms must be greater than or equal to 0"),
    ):
        if broker_value(config, TOPIC_SETTINGS[topic_setting]) < least:
            problems.append(text)
    retention = broker_value(config, TOPIC_SETTINGS["retention.ms"])
    if retention == 0:
        problems.append("log.retention.ms must be unlimited (-1) or, greater than or equal to 1")
    wait = config.int("replica.fetch.wait.max.ms")
    if wait > config.int("replica.socket.timeout.ms"):
        problems.append(
            "replica.socket.timeout.ms should always be at least replica.fetch.wait.max.ms"
            " to prevent unnecessary socket timeouts"
        )
    if wait > config.int("replica.lag.time.max.ms"):
        problems.append(
            "replica.fetch.wait.max.ms should always be less than or equal to replica.lag.time.max.ms"
            " to prevent frequent changes in ISR"
        )
    return problems


def _listeners(config: BrokerConfig) -> list[str]:
    problems = []
    listeners = {endpoint.name for endpoint in config.listeners}
    told = config.advertised_listeners
    names = {endpoint.name for endpoint in told}
    if not listeners:
        return ["There must be at least one listener: listeners names none that is open to clients."]
    if config.is_set("inter.broker.listener.name") and config.is_set("security.inter.broker.protocol"):
        problems.append("Only one of inter.broker.listener.name and security.inter.broker.protocol should be set.")
    if config.inter_broker_listener not in names:
        problems.append(
            "inter.broker.listener.name must be a listener name defined in advertised.listeners. "
            f"The valid options based on currently configured listeners are {','.join(sorted(names))}"
        )
    if not names <= listeners:
        problems.append(
            "advertised.listeners listener names must be equal to or a subset of the ones defined in listeners. "
            f"Found {','.join(sorted(names))}. The valid options based on the current configuration "
            f"are {','.join(sorted(listeners))}"
        )
    if any(endpoint.host in ("0.0.0.0", "::") for endpoint in told):
        problems.append(
            "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP address."
        )
    return problems


def _network(config: BrokerConfig) -> list[str]:
    problems = []
    queued = config.int("queued.max.request.bytes")
    if 0 < queued < config.int("socket.request.max.bytes") and config.is_set("queued.max.request.bytes"):
        problems.append("queued.max.request.bytes must be larger or equal to socket.request.max.bytes")
    overrides = config.str("max.connections.per.ip.overrides")
    if config.int("max.connections.per.ip") == 0 and not overrides:
        problems.append(
            "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set."
        )
    for entry in filter(None, (item.strip() for item in overrides.split(","))):
        host, colon, count = entry.rpartition(":")
        if not colon or not host or not count.strip().isdecimal():
            problems.append(f"max.connections.per.ip.overrides: {entry} is not of the form HOST:COUNT")
    idle, delay = config.int("connections.max.idle.ms"), config.int("connection.failed.authentication.delay.ms")
    if 0 <= idle <= delay:
        problems.append(
            f"connection.failed.authentication.delay.ms={delay} should always be less than"
            f" connections.max.idle.ms={idle} to prevent failed authentication responses from timing out"
        )
    return problems


def _cleaner(config: BrokerConfig) -> list[str]:
    threads = config.int("log.cleaner.threads")
    if threads and config.int("log.cleaner.dedupe.buffer.size") // threads <= 1024 * 1024:
        return ["log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread."]
    return []


def _order(config: BrokerConfig) -> list[str]:
    return [
        f"{high} must be greater than or equal to {low}"
        for low, high in _NOT_MORE
        if config.int(low) > config.int(high)
    ]


def _zookeeper(config: BrokerConfig) -> list[str]:
    if not config.zookeeper:
        return []
    problems = []
    for entry in config.zookeeper.partition("/")[0].split(","):
        host, colon, port = entry.strip().rpartition(":")
        if not entry.strip() or (colon and (not host or not port.isdecimal())):
            problems.append(f"zookeeper.connect: {entry!r} is not of the form HOST:PORT")
    for store in ("keystore", "truststore"):
        location = config.opt_str(f"zookeeper.ssl.{store}.location")
        kind = config.opt_str(f"zookeeper.ssl.{store}.type") or ("PEM" if location is None else _store_type(location))
        if kind.upper() != "PEM":
            problems.append(
                f"zookeeper.ssl.{store}.type: {kind} stores can't be read, only PEM. `openssl pkcs12 -in STORE -nodes`"
                " turns a PKCS12 file into PEM, `keytool -importkeystore` a JKS file into PKCS12."
            )
    if config.bool("zookeeper.ssl.ocsp.enable"):
        problems.append("zookeeper.ssl.ocsp.enable: OCSP can't be used here; use zookeeper.ssl.crl.enable")
    return problems


def _store_type(location: str) -> str:
    """What a store's file name says of its format, as ZooKeeper takes it."""
    suffix = location.rpartition(".")[2].lower()
    return {"jks": "JKS", "p12": "PKCS12", "pkcs12": "PKCS12", "bcfks": "BCFKS"}.get(suffix, "PEM")
