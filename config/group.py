"""Settings that a consumer group may have of its own (KIP-848, KIP-1263), each within bounds that the broker sets.

Kafka 4.x has them as resources of type GROUP. Those of share and streams groups are not known here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pybroker.config import describing, values
from pybroker.config.broker import BrokerConfig
from pybroker.config.describing import Described, Synonym
from pybroker.config.errors import ConfigError

_KIND = "INT"


class GroupSetting(NamedTuple):
    """A setting in ms; the broker's of the same name with "group." before it is its default."""

    name: str
    valid: str
    help: str

    @property
    def broker_name(self) -> str:
        return f"group.{self.name}"

    def bound(self, which: str) -> str:
        """The broker's setting that is the "min" or "max" of this one."""
        return f"group.consumer.{which}.{self.name.removeprefix('consumer.')}"

    def parse(self, text: str) -> int:
        """Raises ConfigError."""
        value: int = values.parse(self.name, _KIND, text)
        values.check(self.name, _KIND, self.valid, value)
        return value


GROUP_SETTINGS = {
    setting.name: setting
    for setting in (
        GroupSetting(
            "consumer.session.timeout.ms", "[1,...]", "A member that is silent for that long is taken out of the group."
        ),
        GroupSetting("consumer.assignment.interval.ms", "[0,...]", "Least time between two assignments of the group."),
        GroupSetting("consumer.heartbeat.interval.ms", "[1,...]", "How often members of the group report."),
    )
}


def validate_group_config(settings: Mapping[str, str], broker: BrokerConfig) -> None:
    """Check all settings that a group would then have. Raises ConfigError with Kafka's words."""
    for name in settings:
        if name not in GROUP_SETTINGS:
            raise ConfigError(f"Unknown group config name: {name}")
    for name, text in settings.items():
        setting = GROUP_SETTINGS[name]
        value = setting.parse(text)
        if value < broker.int(setting.bound("min")):
            raise ConfigError(f"{name} must be greater than or equal to {setting.bound('min')}")
        if value > broker.int(setting.bound("max")):
            raise ConfigError(f"{name} must be less than or equal to {setting.bound('max')}")


def describe_group(
    broker: BrokerConfig, own: Mapping[str, str], keys: Collection[str] | None = None
) -> list[Described]:
    """All settings of a group that sets `own`, or those of `keys` (None and empty mean all)."""
    return [_described(broker, own, setting) for name, setting in GROUP_SETTINGS.items() if not keys or name in keys]


def _described(broker: BrokerConfig, own: Mapping[str, str], setting: GroupSetting) -> Described:
    synonyms: tuple[Synonym, ...] = broker.synonyms(setting.broker_name)
    value = values.render(_KIND, broker.int(setting.broker_name))
    source = synonyms[0].source if synonyms else describing.DEFAULT
    if (text := own.get(setting.name)) is not None:
        value, source = text, describing.GROUP
        synonyms = (Synonym(setting.name, text, describing.GROUP), *synonyms)
    return Described(setting.name, value, source, False, False, synonyms, describing.TYPE_CODES[_KIND], setting.help)
