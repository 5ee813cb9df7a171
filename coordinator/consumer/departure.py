"""Members that leave a consumer group, of their own will or since they are silent or too slow. Pure: fills a Draft."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from pybroker.coordinator.consumer import checks
from pybroker.coordinator.consumer.catalog import TopicCatalog
from pybroker.coordinator.consumer.member import LEAVING_FOR_A_WHILE
from pybroker.coordinator.consumer.state import Draft, GroupState
from pybroker.coordinator.consumer.target import forget_regex
from pybroker.coordinator.consumer.topics import topics_hash
from pybroker.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

logger = logging.getLogger(__name__)


def leaving_member(state: GroupState, request: ConsumerGroupHeartbeatRequest) -> str:
    """The id of the member that sends a heartbeat to leave. Raises KafkaError."""
    if request.instance_id is None:
        return checks.known_member(state, request.member_id).member_id
    return checks.known_static_member(state, request.instance_id, request.member_id).member_id


def leave_for_a_while(draft: Draft, member_id: str) -> None:
    """A static member keeps its partitions and its session timeout, in which it may come back under another id."""
    member = draft.state.members[member_id]
    logger.info("Group %s: static member %s leaves for a while", draft.state.group_id, member_id)
    draft.assignment(replace(member, epoch=LEAVING_FOR_A_WHILE, revoking={}))


def remove(draft: Draft, member_ids: Iterable[str], catalog: TopicCatalog) -> None:
    """These members are gone. Who stays divides their partitions with the next heartbeat."""
    for member_id in member_ids:
        regex = draft.state.members[member_id].regex
        draft.remove_member(member_id)
        forget_regex(draft, regex)
    state = draft.state
    draft.epoch(state.epoch + 1, topics_hash(state.subscribed(), catalog))
