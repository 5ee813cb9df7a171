"""Which versions this broker sends to others: inter.broker.protocol.version decides, nobody is asked first.

Whatever a broker is sent it takes in all versions that it serves. Settings below 2.6 are taken for 2.6, the oldest
release that was tried. Sources: Kafka's MetadataVersion and ControllerChannelManager, and recorded clusters.
"""

from __future__ import annotations

import re
from typing import NamedTuple

Protocol = tuple[int, int, int]  # 2.8-IV1 is (2, 8, 1)

_TEXT = re.compile(r"(\d+)\.(\d+)(?:\.\d+)*(?:-IV(\d+))?")
_LAST = 99  # "2.8" means the last step on the way to it

# Message → (protocol, version it brings), the newest first. The last row holds for everything older.
_VERSIONS: dict[str, tuple[tuple[Protocol, int], ...]] = {
    "leader_and_isr": (((3, 4, 0), 7), ((3, 2, 0), 6), ((2, 8, 1), 5), ((2, 4, 1), 4)),
    "update_metadata": (((3, 4, 0), 8), ((2, 8, 1), 7), ((2, 4, 1), 6)),
    "stop_replica": (((3, 4, 0), 4), ((2, 6, 0), 3)),
    "fetch": (
        ((3, 9, 0), 17), ((3, 7, 4), 16), ((3, 5, 1), 15), ((3, 5, 0), 14), ((3, 1, 0), 13), ((2, 7, 1), 12),
        ((2, 3, 1), 11),
    ),
    "list_offsets": (((3, 8, 0), 9), ((3, 5, 0), 8), ((3, 0, 1), 7), ((2, 8, 0), 6), ((2, 2, 1), 5)),
    "offset_for_leader_epoch": (((2, 8, 0), 4), ((2, 3, 1), 3)),
    "write_txn_markers": (((2, 8, 0), 1), ((2, 6, 0), 0)),
    "features": (((3, 3, 0), 2), ((2, 7, 0), 1), ((2, 6, 0), 0)),
}  # fmt: skip
_TOPIC_IDS: Protocol = (2, 8, 0)
_LEADER_RECOVERY: Protocol = (3, 2, 0)
_ALTER_PARTITION: Protocol = (2, 7, 2)
_ALLOCATE_PRODUCER_IDS: Protocol = (3, 0, 0)


class InterBrokerVersions(NamedTuple):
    """A version for each message; and what else differs.

    features: version of the node of finalized features, 0 where there are none. topic_ids: topics have ids.
    leader_recovery: leaders that were not in sync are told to recover.
    fetch: 12 where a partition came without a topic id. offset_for_leader_epoch: only followers whose Fetch is below 12
    ask it. alter_partition: leaders ask the controller for another ISR, before that they write it themselves.
    allocate_producer_ids: the controller gives out blocks of producer ids, before that every broker takes its own. What
    these two ask is agreed on by ApiVersions; ControlledShutdown is 3 since release 2.4, whatever the setting says.
    """

    leader_and_isr: int
    update_metadata: int
    stop_replica: int
    fetch: int
    list_offsets: int
    offset_for_leader_epoch: int
    write_txn_markers: int
    features: int
    topic_ids: bool
    leader_recovery: bool
    alter_partition: bool
    allocate_producer_ids: bool


def inter_broker_versions(setting: str) -> InterBrokerVersions:
    """From the text of inter.broker.protocol.version: "3.9-IV0", "2.8"."""
    found = _TEXT.fullmatch(setting)
    if found is None:
        raise ValueError(f"{setting} is no version of the inter-broker protocol")
    major, minor, step = found.groups()
    protocol = (int(major), int(minor), _LAST if step is None else int(step))
    versions = {
        message: next((version for since, version in rows if protocol >= since), rows[-1][1])
        for message, rows in _VERSIONS.items()
    }
    return InterBrokerVersions(
        **versions,
        topic_ids=protocol >= _TOPIC_IDS,
        leader_recovery=protocol >= _LEADER_RECOVERY,
        alter_partition=protocol >= _ALTER_PARTITION,
        allocate_producer_ids=protocol >= _ALLOCATE_PRODUCER_IDS,
    )
