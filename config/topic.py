"""The settings of a topic: their table, checks with Kafka's messages, and the configuration of one log.

The rows stand in the order in which Kafka 3.9 lists them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pybroker.config import describing, values
from pybroker.config.describing import DEFAULT, TOPIC, Described, Synonym
from pybroker.config.errors import ConfigError
from pybroker.config.modes import BOOLEAN, DOUBLE, INT, LIST, LONG, LONG_MAX, MESSAGE_FORMATS, STRING

if TYPE_CHECKING:
    from pybroker.config.broker import BrokerConfig


class TopicSetting(NamedTuple):
    """One row of the table. `broker_name` is the broker setting that gives the default, None for none."""

    name: str
    kind: str
    default: str
    valid: str | None
    broker_name: str | None
    help: str

    def parse(self, text: str) -> Any:
        """Read and check a value. Raises ConfigError with Kafka's text."""
        value = values.parse(self.name, self.kind, text)
        values.check(self.name, self.kind, self.valid, value)
        return value


_CODECS = "[uncompressed, zstd, lz4, snappy, gzip, producer]"

# fmt: off
_ROWS: tuple[tuple[str, str, str, str | None, str | None, str], ...] = (
    ("compression.type", STRING, "producer", _CODECS, "compression.type",
     "Codec of the stored batches; producer keeps what the producer chose."),
    ("remote.log.delete.on.disable", BOOLEAN, "false", None, None,
     "Delete tiered data when tiered storage is switched off for the topic. There is no tiered storage yet."),
    ("leader.replication.throttled.replicas", LIST, "", values.THROTTLED_REPLICAS, None,
     "Replicas whose traffic is throttled on the leader's side: partition:broker pairs, or * for all."),
    ("remote.storage.enable", BOOLEAN, "false", None, None,
     "Tiered storage for this topic. There is none yet, so true is refused."),
    ("message.downconversion.enable", BOOLEAN, "true", None, "log.message.downconversion.enable",
     "Convert batches for consumers that only know older formats; false answers them with an error."),
    ("min.insync.replicas", INT, "1", "[1,...]", "min.insync.replicas",
     "In-sync replicas below which writes with acks=all are refused."),
    ("segment.jitter.ms", LONG, "0", "[0,...]", "log.roll.jitter.ms",
     "Upper bound of a random time by which a segment is rolled earlier, so that not all roll at once."),
    ("remote.log.copy.disable", BOOLEAN, "false", None, None,
     "Stop copying to tiered storage. There is no tiered storage yet."),
    ("local.retention.ms", LONG, "-2", "[-2,...]", "log.local.retention.ms",
     "Age up to which tiered segments stay local too; -2 means retention.ms."),
    ("cleanup.policy", LIST, "delete", "[compact, delete]", "log.cleanup.policy",
     "delete drops old segments, compact keeps the last record of each key; both may be given."),
    ("flush.ms", LONG, LONG_MAX, "[0,...]", "log.flush.interval.ms",
     "Time after which written data is forced to the disk."),
    ("follower.replication.throttled.replicas", LIST, "", values.THROTTLED_REPLICAS, None,
     "Replicas whose traffic is throttled on the follower's side: partition:broker pairs, or * for all."),
    ("compression.lz4.level", INT, "9", "[1,...,17]", "compression.lz4.level",
     "Level used when the broker compresses with lz4."),
    ("segment.bytes", INT, "1073741824", "[14,...]", "log.segment.bytes",
     "Size at which a segment is closed and the next begun."),
    ("retention.ms", LONG, "604800000", "[-1,...]", "log.retention.ms",
     "Age after which old segments are deleted; -1 keeps them for ever."),
    ("compression.gzip.level", INT, "-1", values.GZIP_LEVEL, "compression.gzip.level",
     "Level used when the broker compresses with gzip; -1 is the library's default."),
    ("flush.messages", LONG, LONG_MAX, "[1,...]", "log.flush.interval.messages",
     "Records after which written data is forced to the disk; 1 answers only what is on the disk."),
    ("compression.zstd.level", INT, "3", "[-131072,...,22]", "compression.zstd.level",
     "Level used when the broker compresses with zstd."),
    ("message.format.version", STRING, "3.0-IV1", MESSAGE_FORMATS, "log.message.format.version",
     "Accepted for old tools; batches are always stored in format 2."),
    ("max.compaction.lag.ms", LONG, LONG_MAX, "[1,...]", "log.cleaner.max.compaction.lag.ms",
     "Longest time that a record may stay out of compaction."),
    ("file.delete.delay.ms", LONG, "60000", "[0,...]", "log.segment.delete.delay.ms",
     "Time between renaming a deleted segment's files and removing them."),
    ("max.message.bytes", INT, "1048588", "[0,...]", "message.max.bytes",
     "Largest record batch that is accepted, as sent (compressed, if it is)."),
    ("min.compaction.lag.ms", LONG, "0", "[0,...]", "log.cleaner.min.compaction.lag.ms",
     "Shortest time that a record stays as it is in a compacted topic."),
    ("message.timestamp.type", STRING, "CreateTime", "[CreateTime, LogAppendTime]", "log.message.timestamp.type",
     "Whose clock stamps the records: the producer's or the broker's at the time of the append."),
    ("local.retention.bytes", LONG, "-2", "[-2,...]", "log.local.retention.bytes",
     "Size up to which tiered segments stay local too; -2 means retention.bytes."),
    ("preallocate", BOOLEAN, "false", None, "log.preallocate",
     "Give a new segment its full size on the disk at once."),
    ("min.cleanable.dirty.ratio", DOUBLE, "0.5", "[0,...,1]", "log.cleaner.min.cleanable.ratio",
     "Share of a compacted log that must be new before it is compacted again."),
    ("index.interval.bytes", INT, "4096", "[0,...]", "log.index.interval.bytes",
     "Bytes between two entries of the offset index."),
    ("unclean.leader.election.enable", BOOLEAN, "false", None, "unclean.leader.election.enable",
     "Let a replica that isn't in sync lead when no other is left, at the price of lost records."),
    ("retention.bytes", LONG, "-1", None, "log.retention.bytes",
     "Size of a partition above which its oldest segments are deleted; -1 for no bound."),
    ("delete.retention.ms", LONG, "86400000", "[0,...]", "log.cleaner.delete.retention.ms",
     "Time that tombstones stay in a compacted topic, for readers who are still on their way."),
    ("message.timestamp.after.max.ms", LONG, LONG_MAX, "[0,...]", "log.message.timestamp.after.max.ms",
     "How far a producer's timestamp may lie after the broker's clock."),
    ("message.timestamp.before.max.ms", LONG, LONG_MAX, "[0,...]", "log.message.timestamp.before.max.ms",
     "How far a producer's timestamp may lie before the broker's clock."),
    ("segment.ms", LONG, "604800000", "[1,...]", "log.roll.ms",
     "Age at which a segment is closed even when it isn't full."),
    ("message.timestamp.difference.max.ms", LONG, LONG_MAX, "[0,...]", "log.message.timestamp.difference.max.ms",
     "Old name for both bounds on timestamps; counts for the one that is at its default."),
    ("segment.index.bytes", INT, "10485760", "[4,...]", "log.index.size.max.bytes",
     "Size of the offset index at which its segment is closed."),
    # Ours. Not listed unless a topic sets it, so that tools see the settings that they know.
    ("validate.records", BOOLEAN, "false", None, "validate.records",
     "Look inside every produced batch, as Kafka does, instead of at its header and checksum only."),
)
# fmt: on

TOPIC_SETTINGS: dict[str, TopicSetting] = {row[0]: TopicSetting(*row) for row in _ROWS}
_OURS = frozenset(("validate.records",))
LOG_BROKER_SETTINGS = frozenset(
    (
        *(setting.broker_name for setting in TOPIC_SETTINGS.values() if setting.broker_name),
        "log.retention.minutes",
        "log.retention.hours",
        "log.roll.hours",
        "log.roll.jitter.hours",
        "log.flush.scheduler.interval.ms",
    )
)
"""The broker settings that a LogConfig depends on: when one changes (BrokerConfig.on_change), logs need new ones."""


def broker_value(broker: BrokerConfig, setting: TopicSetting) -> Any:
    """What the broker's settings give to a topic that doesn't set this itself (KafkaConfig.extractLogConfigMap)."""
    if (derived := _DERIVED.get(setting.name)) is not None:
        return derived(broker)
    if setting.broker_name is None:
        return setting.parse(setting.default)
    return broker.get(setting.broker_name)


def _retention_ms(broker: BrokerConfig) -> int:
    milliseconds = broker.opt_int("log.retention.ms")
    if milliseconds is None:
        minutes = broker.opt_int("log.retention.minutes")
        milliseconds = broker.int("log.retention.hours") * 3_600_000 if minutes is None else minutes * 60_000
    return -1 if milliseconds < 0 else milliseconds


def _roll_ms(broker: BrokerConfig) -> int:
    milliseconds = broker.opt_int("log.roll.ms")
    return broker.int("log.roll.hours") * 3_600_000 if milliseconds is None else milliseconds


def _roll_jitter_ms(broker: BrokerConfig) -> int:
    milliseconds = broker.opt_int("log.roll.jitter.ms")
    return broker.int("log.roll.jitter.hours") * 3_600_000 if milliseconds is None else milliseconds


def _flush_ms(broker: BrokerConfig) -> int:
    milliseconds = broker.opt_int("log.flush.interval.ms")
    return broker.int("log.flush.scheduler.interval.ms") if milliseconds is None else milliseconds


_DERIVED = {
    "retention.ms": _retention_ms,
    "segment.ms": _roll_ms,
    "segment.jitter.ms": _roll_jitter_ms,
    "flush.ms": _flush_ms,
}


class LogConfig:
    """What one log needs to know: every topic setting under its name with `_` for `.`, in Python's types.

    Never changed after it is made; a changed topic gets a new one. Three attributes differ from the settings:
    cleanup_policy is a set, and message_timestamp_before_max_ms and ..._after_max_ms already count the old
    message.timestamp.difference.max.ms in.
    """

    __slots__ = (
        *(name.replace(".", "_") for name in TOPIC_SETTINGS),
        "compact",
        "delete",
        "ignored",
        "overrides",
    )

    cleanup_policy: frozenset[str]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    """uncompressed, zstd, lz4, snappy, gzip or producer."""
    compression_zstd_level: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    follower_replication_throttled_replicas: list[str]
    index_interval_bytes: int
    leader_replication_throttled_replicas: list[str]
    local_retention_bytes: int
    local_retention_ms: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_downconversion_enable: bool
    message_format_version: str
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_difference_max_ms: int
    message_timestamp_type: str
    """CreateTime or LogAppendTime."""
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    preallocate: bool
    remote_log_copy_disable: bool
    remote_log_delete_on_disable: bool
    remote_storage_enable: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool
    validate_records: bool

    compact: bool
    delete: bool
    overrides: dict[str, str]
    """What the topic sets itself, as text."""
    ignored: tuple[str, ...]
    """Why some of the topic's own settings don't count: stored by another version, or by hand."""

    def __init__(
        self, settings: Mapping[str, Any], overrides: Mapping[str, str], ignored: tuple[str, ...] = ()
    ) -> None:
        for name in TOPIC_SETTINGS:
            setattr(self, name.replace(".", "_"), settings[name])
        self.cleanup_policy = frozenset(settings["cleanup.policy"])
        self.compact = "compact" in self.cleanup_policy
        self.delete = "delete" in self.cleanup_policy
        difference = self.message_timestamp_difference_max_ms
        if self.message_timestamp_before_max_ms == int(LONG_MAX):
            self.message_timestamp_before_max_ms = difference
        if self.message_timestamp_after_max_ms == int(LONG_MAX):
            self.message_timestamp_after_max_ms = difference
        self.overrides = dict(overrides)
        self.ignored = ignored

    @classmethod
    def from_broker(cls, broker: BrokerConfig, overrides: Mapping[str, str]) -> LogConfig:
        """The configuration of a topic that sets `overrides`.

        Bad overrides are left out and told in `ignored`: they come from the metadata store, where anyone may have
        written, and one bad entry mustn't keep a partition from its leader. What a client sends is checked before.
        """
        settings = {name: broker_value(broker, setting) for name, setting in TOPIC_SETTINGS.items()}
        ignored = []
        for name, text in overrides.items():
            setting = TOPIC_SETTINGS.get(name)
            if setting is None:
                ignored.append(f"Unknown topic config name: {name}")
                continue
            try:
                settings[name] = setting.parse(text)
            except ConfigError as error:
                ignored.append(error.message)
        return cls(settings, overrides, tuple(ignored))

    def __repr__(self) -> str:
        return f"LogConfig({', '.join(f'{name}={text}' for name, text in self.overrides.items())})"


def parse_topic_config(name: str, text: str | None) -> Any:
    """Read and check one setting of a topic. Raises ConfigError with Kafka's message, which is error 40."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        raise ConfigError(f"Unknown topic config name: {name}")
    if text is None:
        raise ConfigError(f"Null value not supported for topic configs: {name}")
    return setting.parse(text)


def validate_topic_config(overrides: Mapping[str, str | None], broker: BrokerConfig) -> None:
    """Check all settings that a topic would then have, in Kafka's order (LogConfig.validate). Raises ConfigError."""
    nulls = [name for name, text in overrides.items() if text is None]
    if nulls:
        raise ConfigError(f"Null value not supported for topic configs: {','.join(nulls)}")
    for name in overrides:
        if name not in TOPIC_SETTINGS:
            raise ConfigError(f"Unknown topic config name: {name}")
    given = {name: parse_topic_config(name, text) for name, text in overrides.items()}

    def effective(name: str) -> Any:
        return given[name] if name in given else broker_value(broker, TOPIC_SETTINGS[name])

    shortest, longest = effective("min.compaction.lag.ms"), effective("max.compaction.lag.ms")
    if shortest > longest:
        raise ConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({shortest}) > max.compaction.lag.ms ({longest})"
        )
    if given.get("remote.log.delete.on.disable") or given.get("remote.log.copy.disable"):
        raise ConfigError(
            "It is invalid to set `remote.log.delete.on.disable` or `remote.log.copy.disable` under Zookeeper's mode."
        )
    if given.get("remote.storage.enable"):
        raise ConfigError(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )


def describe_topic(
    broker: BrokerConfig, overrides: Mapping[str, str], keys: Collection[str] | None = None
) -> list[Described]:
    """All settings of a topic that sets `overrides`, or those of `keys` (None and empty mean all)."""
    return [
        _described(broker, overrides, setting)
        for name, setting in TOPIC_SETTINGS.items()
        if (not keys or name in keys) and (name not in _OURS or name in overrides)
    ]


def _described(broker: BrokerConfig, overrides: Mapping[str, str], setting: TopicSetting) -> Described:
    synonyms: tuple[Synonym, ...] = broker.synonyms(setting.broker_name) if setting.broker_name else ()
    value = broker_value(broker, setting)
    if (text := overrides.get(setting.name)) is not None:
        try:
            value = setting.parse(text)
            synonyms = (Synonym(setting.name, values.render(setting.kind, value), TOPIC), *synonyms)
        except ConfigError:
            pass  # it doesn't count (LogConfig.ignored), so it isn't told
    return Described(
        setting.name,
        values.render(setting.kind, value),
        synonyms[0].source if synonyms else DEFAULT,
        False,
        False,
        synonyms,
        describing.TYPE_CODES[setting.kind],
        setting.help,
    )
