"""IncrementalAlterConfigs, DescribeConfigs, AlterConfigs."""

from __future__ import annotations

from typing import Any

from tests.support.probe import Case, ProbeClient, Step, calls

UNKNOWN, TOPIC, BROKER, LOGGER, CLIENT_METRICS = 0, 2, 4, 8, 16
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
Change = tuple[str, int, str | None]


def IA(name: str, kind: int, resource: str, *changes: Change, **fields: Any) -> Case:
    """Changes one resource incrementally."""

    def run(client: ProbeClient) -> Any:
        configs = [{"Name": key, "ConfigOperation": operation, "Value": value} for key, operation, value in changes]
        resources = [{"ResourceType": kind, "ResourceName": resource, "Configs": configs}]
        answer = client.call("IncrementalAlterConfigs", 1, {"Resources": resources} | fields)
        return [
            (each["ResourceType"], each["ResourceName"], each["ErrorCode"], each["ErrorMessage"])
            for each in answer["Responses"]
        ]

    return Case(name, "IncrementalAlterConfigs", run)


def DC(name: str, kind: int, resource: str, keys: list[str] | None) -> Case:
    """Describes one resource; at most four entries are written down."""

    def run(client: ProbeClient) -> Any:
        wanted = [{"ResourceType": kind, "ResourceName": resource, "ConfigurationKeys": keys}]
        return [
            (
                each["ErrorCode"],
                each["ErrorMessage"],
                [(it["Name"], it["Value"], it["ConfigSource"], it["ConfigType"]) for it in each["Configs"]][:4],
            )
            for each in client.call("DescribeConfigs", 4, {"Resources": wanted})["Results"]
        ]

    return Case(name, "DescribeConfigs", run)


def AC(name: str, kind: int, resource: str, *configs: tuple[str, str | None]) -> Case:
    """Replaces all settings of one resource."""

    def run(client: ProbeClient) -> Any:
        values = [{"Name": key, "Value": value} for key, value in configs]
        resources = [{"ResourceType": kind, "ResourceName": resource, "Configs": values}]
        answer = client.call("AlterConfigs", 2, {"Resources": resources})
        return [(each["ErrorCode"], each["ErrorMessage"]) for each in answer["Responses"]]

    return Case(name, "AlterConfigs", run)


Q_TWICE = [{"ResourceType": TOPIC, "ResourceName": "q", "Configs": []}] * 2

CASES: list[Case | Step] = [
    IA("good", TOPIC, "q", ("retention.ms", SET, "5000")),
    IA("bad number", TOPIC, "q", ("retention.ms", SET, "abc")),
    IA("unknown name", TOPIC, "q", ("nonesuch", SET, "1")),
    IA("set with null", TOPIC, "q", ("retention.ms", SET, None)),
    IA("operation 9", TOPIC, "q", ("retention.ms", 9, "1")),
    IA("append to a non-list", TOPIC, "q", ("retention.ms", APPEND, "1")),
    IA("append to cleanup.policy", TOPIC, "q", ("cleanup.policy", APPEND, "compact")),
    IA("subtract an absent value", TOPIC, "q", ("cleanup.policy", SUBTRACT, "zzz")),
    IA("delete one that is not set", TOPIC, "q", ("segment.bytes", DELETE, None)),
    IA("same name twice", TOPIC, "q", ("retention.ms", SET, "1"), ("retention.ms", SET, "2")),
    IA("unknown topic", TOPIC, "nope", ("retention.ms", SET, "1")),
    IA("empty topic name", TOPIC, "", ("retention.ms", SET, "1")),
    IA("read-only broker config", BROKER, "5", ("broker.id", SET, "9")),
    IA("unknown broker", BROKER, "99", ("log.cleaner.threads", SET, "1")),
    IA("broker name not a number", BROKER, "x", ("log.cleaner.threads", SET, "1")),
    IA("cluster-wide default", BROKER, "", ("log.retention.ms", SET, "600000000")),
    IA("resource type 99", 99, "x"),
    IA("broker logger", LOGGER, "5", ("kafka.server.KafkaApis", SET, "DEBUG")),
    IA("broker logger, unknown", LOGGER, "5", ("nonesuch.x", SET, "DEBUG")),
    IA("broker logger, bad level", LOGGER, "5", ("kafka.server.KafkaApis", SET, "LOUD")),
    IA("client metrics on a ZooKeeper broker", CLIENT_METRICS, "m", ("interval.ms", SET, "100")),
    IA("validate only", TOPIC, "q", ("retention.ms", SET, "7"), ValidateOnly=True),
    Case("same resource twice", "IncrementalAlterConfigs", calls("IncrementalAlterConfigs", 1, {"Resources": Q_TWICE})),
    DC("topic, two keys", TOPIC, "q", ["retention.ms", "cleanup.policy"]),
    DC("topic, unknown key", TOPIC, "q", ["zzz"]),
    DC("topic, empty key list", TOPIC, "q", []),
    DC("unknown topic", TOPIC, "nope", None),
    DC("empty topic name", TOPIC, "", None),
    DC("broker as text", BROKER, "abc", None),
    DC("another broker", BROKER, "99", None),
    DC("empty broker name", BROKER, "", None),
    DC("type 99", 99, "x", None),
    DC("type 0", UNKNOWN, "x", None),
    DC("broker logger", LOGGER, "5", ["root"]),
    AC("good (replaces all)", TOPIC, "q", ("retention.ms", "6000")),
    AC("null value", TOPIC, "q", ("retention.ms", None)),
    AC("unknown name", TOPIC, "q", ("zzz", "1")),
    AC("unknown topic", TOPIC, "nope"),
]
