"""What is wrong with a request of the consumer protocol: a KafkaError with Kafka's words."""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.coordinator.consumer.member import JOINING, LEAVING, LEAVING_FOR_A_WHILE, Member
from pybroker.coordinator.consumer.reconcile import Reported
from pybroker.coordinator.consumer.state import GroupState
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

MEMBER_ID_BY_CLIENT_SINCE = 1  # versions of ConsumerGroupHeartbeat (KIP-1082)


def check_request(request: ConsumerGroupHeartbeatRequest, version: int, assignors: Iterable[str]) -> None:
    """Raises INVALID_REQUEST, UNSUPPORTED_ASSIGNOR."""
    _not_empty("GroupId", request.group_id)
    _not_empty("InstanceId", request.instance_id)
    _not_empty("RackId", request.rack_id)
    epoch = request.member_epoch
    if epoch != JOINING or version >= MEMBER_ID_BY_CLIENT_SINCE:
        if epoch < LEAVING_FOR_A_WHILE:
            raise KafkaError(Errors.INVALID_REQUEST, "MemberEpoch is invalid.")
        _not_empty("MemberId", request.member_id)
    if epoch == JOINING:
        _check_join(request)
    elif epoch == LEAVING_FOR_A_WHILE and request.instance_id is None:
        raise KafkaError(Errors.INVALID_REQUEST, "InstanceId can't be null.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            Errors.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _not_empty(name: str, value: str | None) -> None:
    if value is not None and not value.strip():
        raise KafkaError(Errors.INVALID_REQUEST, f"{name} can't be empty.")


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise KafkaError(Errors.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise KafkaError(Errors.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise KafkaError(
            Errors.INVALID_REQUEST,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )


def check_room(state: GroupState, member_id: str, max_size: int) -> None:
    if len(state.members) >= max_size and member_id not in state.members:
        raise KafkaError(
            Errors.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {max_size} members.",
        )


def known_member(state: GroupState, member_id: str) -> Member:
    member = state.members.get(member_id)
    if member is None:
        raise KafkaError(Errors.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {state.group_id}.")
    return member


def known_static_member(state: GroupState, instance_id: str, member_id: str) -> Member:
    """The holder of the instance id, which must be that member."""
    member = state.static_member(instance_id)
    if member is None:
        raise KafkaError(Errors.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    check_holder(member, instance_id, member_id)
    return member


def check_holder(member: Member, instance_id: str, member_id: str) -> None:
    if member.member_id != member_id:
        raise KafkaError(
            Errors.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}.",
        )


def check_released(holder: Member, instance_id: str, member_id: str) -> None:
    """Another member may take the instance id only when its holder has left for a while."""
    if holder.epoch != LEAVING_FOR_A_WHILE:
        raise KafkaError(
            Errors.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id "
            f"is owned by {holder.member_id} member.",
        )


def check_epoch(member: Member, epoch: int, reported: Reported) -> None:
    """One that is behind by one answer, which may have got lost, is let through if it owns nothing that it must not."""
    if epoch == member.epoch or (
        epoch == member.previous_epoch and epoch < member.epoch and _owns_only_its_own(member, reported)
    ):
        return
    than = "greater" if epoch > member.epoch else "smaller"
    raise KafkaError(
        Errors.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {than} member epoch ({epoch}) than the one known by the group coordinator "
        f"({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _owns_only_its_own(member: Member, reported: Reported) -> bool:
    return reported is not None and all(
        numbers <= member.assigned.get(topic_id, {}).keys() for topic_id, numbers in reported.items()
    )


def is_leaving(epoch: int) -> bool:
    return epoch in (LEAVING, LEAVING_FOR_A_WHILE)
