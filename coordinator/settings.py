"""The settings that deciders go by, read once."""

from __future__ import annotations

from dataclasses import dataclass

from pybroker.config import BrokerConfig

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Times in ms, sizes in characters or members. The defaults are Kafka's."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    initial_rebalance_delay_ms: int = 3_000
    offset_metadata_max: int = 4096
    offsets_retention_ms: int = 7 * 24 * 60 * _MINUTE_MS

    @classmethod
    def of(cls, config: BrokerConfig) -> GroupSettings:
        return cls(
            min_session_timeout_ms=config.int("group.min.session.timeout.ms"),
            max_session_timeout_ms=config.int("group.max.session.timeout.ms"),
            max_size=config.int("group.max.size"),
            initial_rebalance_delay_ms=config.int("group.initial.rebalance.delay.ms"),
            offset_metadata_max=config.int("offset.metadata.max.bytes"),
            offsets_retention_ms=config.int("offsets.retention.minutes") * _MINUTE_MS,
        )
