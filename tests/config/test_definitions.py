"""The tables against both Kafkas' own lists: 3.9 decides, 4.x adds."""

from __future__ import annotations

from typing import Any

import pytest

from pybroker.config import definitions
from pybroker.config.topic import TOPIC_SETTINGS
from tests.config.recorded import facts

OURS = {
    "metadata.dir",
    "validate.records",
    "zookeeper.health.check.interval.ms",
    "zookeeper.sasl.jaas.config",
}
# Where ours differs on purpose, (default, bounds): no data in /tmp, no listening to the world unasked.
DEFAULTS = {"listeners": "PLAINTEXT://localhost:9092", "log.dir": None}
BOUNDS = {
    # Kafka prints a sentence about the default there; these are the values that it accepts.
    "remote.log.manager.copier.thread.pool.size": "-1 or greater than 0",
    "remote.log.manager.expiration.thread.pool.size": "-1 or greater than 0",
}
# Nothing to check: an empty text is as good as none.
NO_BOUNDS = {"", "non-null string", "non-empty list"}


def both() -> dict[str, dict[str, Any]]:
    return {**facts("broker-4.3.1"), **facts("broker-3.9.2")}


def as_text(row: dict[str, Any]) -> str | None:
    default: str | None = row["default"]
    if default is not None and row["type"] == "LIST":
        return default[1:-1].replace(", ", ",")
    return default


def test_every_setting_once() -> None:
    assert set(definitions.names()) == set(both()) | OURS
    assert sum(len(table) for table in definitions._TABLES) == len(set(definitions.names()))


@pytest.mark.parametrize("name", sorted(both()))
def test_a_row_is_kafkas(name: str) -> None:
    row = both()[name]
    setting = definitions.setting(name)
    bounds = None if row["valid"] in NO_BOUNDS else row["valid"]
    assert setting.kind == row["type"]
    assert setting.default == (DEFAULTS[name] if name in DEFAULTS else as_text(row))
    assert setting.valid == BOUNDS.get(name, bounds)
    assert setting.importance == row["importance"]
    assert setting.update == row["update"]
    assert setting.help.endswith(".")
    assert setting.use in ("served", "otherwise", "later", "nothing")


def test_internal_settings() -> None:
    internal = {
        name for which in ("broker-3.9.2", "broker-4.3.1") for name, row in facts(which).items() if row["internal"]
    }
    assert internal == definitions.INTERNAL


def test_every_default_passes_its_own_bounds() -> None:
    for name in definitions.names():
        setting = definitions.setting(name)
        if setting.default is not None:
            setting.parse(setting.default)


def test_topic_settings() -> None:
    kafka = {**facts("topic-4.3.1"), **facts("topic-3.9.2")}
    # Only there so that Kafka's tests may have small segments, which segment.bytes allows here.
    del kafka["internal.segment.bytes"]
    assert set(TOPIC_SETTINGS) == set(kafka) | {"validate.records"}
    for name, row in kafka.items():
        setting = TOPIC_SETTINGS[name]
        assert (setting.kind, setting.default, setting.valid) == (row["type"], as_text(row), row["valid"]), name
        assert setting.broker_name is None or definitions.setting(setting.broker_name).kind == row["type"]


def test_an_unknown_name_is_a_mistake() -> None:
    assert definitions.find("nonesuch") is None
    with pytest.raises(KeyError):
        definitions.setting("nonesuch")
