"""JoinGroup of the classic protocol: who may come in, and whether that is a reason to rebalance."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from pybroker.coordinator.classic import PENDING, SESSION, ClassicGroup
from pybroker.coordinator.classic_members import NOT_ARMED, Member, Protocols
from pybroker.coordinator.classic_table import WRITE_FAILED, State
from pybroker.coordinator.effects import Effects, Reply, TimerKey
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from pybroker.protocol.messages.sync_group import SyncGroupResponse

logger = logging.getLogger(__name__)

KNOWN_MEMBER_ID_SINCE = 4  # versions of JoinGroup: KIP-394
SKIP_ASSIGNMENT_SINCE = 9  # KIP-814
# A new member can't send heartbeats before its first answer, and its connection says nothing while it waits.
NEW_MEMBER_JOIN_MS = 5 * 60 * 1000


class Join(NamedTuple):
    """A JoinGroup and where it came from."""

    request: JoinGroupRequest
    client_id: str | None
    client_host: str
    reply: Reply

    @property
    def protocols(self) -> Protocols:
        return [(each.name, each.metadata) for each in self.request.protocols]

    @property
    def rebalance_timeout_ms(self) -> int:
        """Version 0 had one timeout for both."""
        return self.request.rebalance_timeout_ms if self.reply.version >= 1 else self.request.session_timeout_ms


def refused(error: Errors, member_id: str = "") -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error, protocol_name=None, member_id=member_id)


def join(group: ClassicGroup, asked: Join, new_id: Callable[[], object], effects: Effects) -> None:
    """One member wants to be in the group's next generation. `new_id` gives what makes a member id unique."""
    request = asked.request
    member_id = request.member_id
    if not _has_room(group, member_id):
        member = group.members.get(member_id)
        if member is not None:
            group.take_out(member, "the group is full", effects)
        group.members.pending.discard(member_id)
        effects.answer(asked.reply, refused(Errors.GROUP_MAX_SIZE_REACHED))
        return
    error = _check(group, asked)
    if error:
        effects.answer(asked.reply, refused(error, member_id))
    elif member_id in group.members.pending:
        effects.cancel_timer(TimerKey(PENDING, group.group_id, member_id))
        _add(group, asked, member_id, effects)
    elif not member_id:
        _join_new(group, asked, f"{_prefix(asked)}-{new_id()}", effects)
    else:
        _rejoin(group, group.members[member_id], asked, effects)
    group.try_complete_join(effects)


def _has_room(group: ClassicGroup, member_id: str) -> bool:
    """group.max.size. In the join phase those who joined count, since the others may not come back."""
    member = group.members.get(member_id)
    match group.state:
        case State.EMPTY | State.DEAD:
            return True
        case State.PREPARING:
            return (member is not None and member.joining is not None) or (
                group.members.joined() < group.settings.max_size
            )
        case _:
            return member is not None or len(group.members) < group.settings.max_size


def _check(group: ClassicGroup, asked: Join) -> Errors:
    request = asked.request
    if group.state is State.DEAD:
        return Errors.COORDINATOR_NOT_AVAILABLE
    if not _supports(group, request):
        return Errors.INCONSISTENT_GROUP_PROTOCOL
    if request.member_id and request.member_id not in group.members.pending:
        if group.state is State.EMPTY:
            return Errors.UNKNOWN_MEMBER_ID
        return group.check_member(request.member_id, request.group_instance_id)
    return Errors.NONE


def _supports(group: ClassicGroup, request: JoinGroupRequest) -> bool:
    names = [each.name for each in request.protocols]
    if group.state is State.EMPTY:
        return bool(request.protocol_type and names)
    return group.protocol_type == request.protocol_type and group.members.know_one_of(names)


def _prefix(asked: Join) -> str:
    """How a new member's id begins (Java writes null out)."""
    instance_id = asked.request.group_instance_id
    return instance_id if instance_id is not None else "null" if asked.client_id is None else asked.client_id


def _join_new(group: ClassicGroup, asked: Join, member_id: str, effects: Effects) -> None:
    """Somebody without a member id: a static member that (re)started, or a new dynamic one."""
    request = asked.request
    instance_id = request.group_instance_id
    if instance_id is not None:
        current = group.members.static.get(instance_id)
        if current is not None:
            _replace_static(group, group.members[current], member_id, asked, effects)
        else:
            _add(group, asked, member_id, effects)
    elif asked.reply.version >= KNOWN_MEMBER_ID_SINCE:
        group.members.pending.add(member_id)
        due = group.clock.monotonic_ms() + request.session_timeout_ms
        effects.set_timer(TimerKey(PENDING, group.group_id, member_id), due)
        effects.answer(asked.reply, refused(Errors.MEMBER_ID_REQUIRED, member_id))
    else:
        _add(group, asked, member_id, effects)


def _add(group: ClassicGroup, asked: Join, member_id: str, effects: Effects) -> None:
    request = asked.request
    member = Member(
        member_id, request.group_instance_id, asked.client_id or "", asked.client_host, request.session_timeout_ms,
        asked.rebalance_timeout_ms, asked.protocols,
    )  # fmt: skip
    member.is_new = True
    member.joining = asked.reply
    if group.state is State.PREPARING and group.generation == 0:
        group.member_added = True
    if not len(group.members):
        group.protocol_type = request.protocol_type
    group.members.add(member)
    group.touch(member, effects, NEW_MEMBER_JOIN_MS)
    group.rebalance(f"member {member_id} joins ({request.reason or 'no reason given'})", effects)


def _rejoin(group: ClassicGroup, member: Member, asked: Join, effects: Effects) -> None:
    """A member joins again: to follow a rebalance, to cause one, or since it has not heard of the last answer."""
    changed = not member.matches(asked.protocols)
    leads = member.member_id == group.members.leader_id
    if (group.state is State.COMPLETING and not changed) or (group.state is State.STABLE and not changed and not leads):
        effects.answer(asked.reply, group.joined(member))
    else:
        _update(group, member, asked, effects)
        group.rebalance(f"member {member.member_id} joins again ({asked.request.reason or 'no reason given'})", effects)


def _update(group: ClassicGroup, member: Member, asked: Join, effects: Effects) -> None:
    """Take over what the member says now, and let it wait for the others."""
    group.members.set_protocols(member, asked.protocols)
    member.session_timeout_ms = asked.request.session_timeout_ms
    member.rebalance_timeout_ms = asked.rebalance_timeout_ms
    if member.joining is not None:  # an older request of the same member, whose connection is gone
        effects.answer(member.joining, refused(Errors.REBALANCE_IN_PROGRESS, member.member_id))
    member.joining = asked.reply


def _replace_static(
    group: ClassicGroup, member: Member, member_id: str, asked: Join, effects: Effects
) -> None:
    """A static member has restarted. It gets its old place under a new id, if nothing else changes without a rebalance;
    whoever still uses the old id is fenced."""
    old_id, old_leader = member.member_id, group.members.leader_id
    before = member.protocols, member.session_timeout_ms, member.rebalance_timeout_ms
    if member.joining is not None:
        effects.answer(member.joining, refused(Errors.FENCED_INSTANCE_ID, old_id))
        member.joining = None
    if member.syncing is not None:
        effects.answer(member.syncing, SyncGroupResponse(error_code=Errors.FENCED_INSTANCE_ID))
        member.syncing = None
    _rename(group, member, member_id, effects)
    _update(group, member, asked, effects)
    if group.state is not State.STABLE:
        group.rebalance(f"static member {member.instance_id} joins again", effects)
        return
    if group.members.select_protocol() != group.protocol:
        group.rebalance(f"static member {member.instance_id} joins again with other protocols", effects)
        return

    def written(error: Errors, effects: Effects) -> None:
        if group.members.get(member_id) is not member:
            return  # replaced again, or gone, meanwhile
        reply, member.joining = member.joining, None
        if error:
            logger.warning("Group %s: a static member's new id could not be written: %s", group.group_id, error.name)
            _rename(group, member, old_id, effects)
            group.members.set_protocols(member, before[0])
            member.session_timeout_ms, member.rebalance_timeout_ms = before[1:]
            answer = refused(WRITE_FAILED.get(error, error))
        else:
            group.touch(member, effects)
            answer = _take_place(group, member, asked, old_leader)
        if reply is not None:
            effects.answer(reply, answer)

    assignment = {each.member_id: each.assignment for each in group.members}
    effects.write([group.record(assignment)], written)


def _rename(group: ClassicGroup, member: Member, member_id: str, effects: Effects) -> None:
    """The session goes on under the new id."""
    effects.cancel_timer(TimerKey(SESSION, group.group_id, member.member_id))
    group.not_synced.discard(member.member_id)
    group.members.rename(member, member_id)
    member.armed_at = NOT_ARMED
    group.touch(member, effects)


def _take_place(group: ClassicGroup, member: Member, asked: Join, old_leader: str | None) -> JoinGroupResponse:
    """The answer to a static member that goes on in a stable group.

    From version 9 on a leader is told that it leads and that there is nothing to assign. Before, it is told of its own
    old id as the leader's: so it takes itself for a follower, and assigns nothing.
    """
    if asked.reply.version >= SKIP_ASSIGNMENT_SINCE:
        return group.joined(member, skip_assignment=True)
    answer = group.joined(member)
    answer.leader = old_leader or ""
    answer.members = []
    return answer
