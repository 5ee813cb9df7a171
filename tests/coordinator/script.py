"""Scripts of what members of a classic group do: what comes in, who is answered, what is written. A script is text:

    settings delay 3000 size 2      group.initial.rebalance.delay.ms and so on (GroupSettings); the delay is 0 otherwise

    * a join                        events begin with a star; every line below one is what the coordinator does
    * a join as a-1                 with a member id; `static i`, `v3`, `protocols range,sticky`, `session 10000`,
                                    `rebalance 60000`, `type connect`, `topics t,u` (a real subscription), `reason w`;
                                    - is nothing
    * a-1 sync generation 1 a-1=x b-2=y        `static i`, `type`, `protocol`
    * a-1 beat generation 1         a heartbeat; `static i`
    * a-1 leave                     `- leave static i` for somebody from outside
    * a-1 commit generation 1 t-0=5            `- commit` without a member; `in 7` in producer 7's transaction,
                                    `keep 1000` ms, `metadata 5000` that many characters
    * fetch t-0 t-1                 `fetch` for all; `stable` requires stable offsets
    * delete-offsets t-0, * delete, * describe, * expire, * commit-transaction 7, * abort-transaction 7
    * wait 3000                     ms pass, timers fire
    * hold, * release               writes wait from now on; are committed
    * fail NOT_ENOUGH_REPLICAS      the next write fails
    * fail-over                     another broker replays the log

Answers of members begin with their name and a colon. Member ids are the client's name and a running number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pybroker.coordinator.offsets import Place
from pybroker.coordinator.records import Record
from pybroker.coordinator.settings import GroupSettings
from pybroker.coordinator.shard import Committer
from pybroker.protocol.codec import encode_bytes
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from pybroker.protocol.messages.group_metadata import GroupMetadataKey
from pybroker.protocol.messages.join_group import JoinGroupRequestProtocol
from pybroker.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from pybroker.protocol.messages.sync_group import SyncGroupRequestAssignment
from tests.coordinator.harness import Harness

SETTINGS = {
    "delay": "initial_rebalance_delay_ms",
    "size": "max_size",
    "metadata": "offset_metadata_max",
    "retention": "offsets_retention_ms",
}
FLAGS = {"stable"}


class Script:
    """Runs one script; `run` returns it with what the coordinator really did below each event."""

    def __init__(self) -> None:
        self.settings = GroupSettings(initial_rebalance_delay_ms=0)
        self.harness: Harness | None = None
        self.done: list[str] = []

    def run(self, text: str) -> str:
        lines: list[str] = []
        for line in text.splitlines():
            words = line.split()
            if line.startswith("*"):
                lines.append(line)
                self.done.clear()
                self._event(words[1:])
                lines += ["    " + each for each in self.done]
            elif not line.startswith("    "):
                lines.append(line)
                if words and words[0] == "settings":
                    for name, value in zip(words[1::2], words[2::2], strict=True):
                        self.settings = replace(self.settings, **{SETTINGS[name]: int(value)})
        return "\n".join(lines) + "\n"

    def _event(self, words: list[str]) -> None:
        if self.harness is None:
            self.harness = Harness(self.settings)
            self.harness.on_write = lambda record: self.done.append("write " + _shown(record))
        acts: dict[str, Callable[[str, list[str]], None]] = {
            "join": self._join, "sync": self._sync, "beat": self._beat, "leave": self._leave, "commit": self._commit,
        }  # fmt: skip
        if len(words) > 1 and words[1] in acts:
            acts[words[1]](words[0], words[2:])
        else:
            self._group_event(self.harness, words[0], words[1:])

    def _group_event(self, harness: Harness, what: str, rest: list[str]) -> None:
        shard = harness.shard
        match what:
            case "wait":
                harness.advance(int(rest[0]))
            case "hold":
                harness.held = True
            case "release":
                harness.release()
            case "fail":
                harness.failing = Errors[rest[0]]
            case "fail-over":
                harness.fail_over()
            case "fetch":
                self._fetch(rest)
            case "describe":
                self.done.append(_described(shard.describe("g", 6)))
            case "delete":
                self.done.append(harness.decide(lambda effects: shard.delete_group("g", effects)).name)
            case "delete-offsets":
                places = [_place(word) for word in rest]
                error, errors = harness.decide(lambda effects: shard.delete_offsets("g", places, effects))
                self.done.append(" ".join([error.name, *(each.name for each in errors)]))
            case "expire":
                harness.decide(lambda effects: shard.expire("g", effects))
                self.done += [] if "g" in shard.groups else ["the group is gone"]
            case "commit-transaction" | "abort-transaction":
                shard.end_transaction(int(rest[0]), what.startswith("commit"))
            case _:
                raise ValueError(f"what is {what!r}?")

    def _told(self, name: str, show: Callable[[Any], str]) -> Callable[[Any], None]:
        return lambda answer: self.done.append(f"{name}: {show(answer)}")

    def _join(self, client: str, words: list[str]) -> None:
        assert self.harness is not None
        options = _options(words)
        metadata = b""
        if "topics" in options:
            subscription = ConsumerProtocolSubscription(topics=options["topics"].split(","))
            metadata = b"\0\0" + encode_bytes(subscription, 0)
        self.harness.join(
            self._told(client, _joined),
            client,
            int(options.get("version", 9)),
            member_id=options.get("as", ""),
            group_instance_id=options.get("static"),
            protocol_type=options.get("type", "consumer").removeprefix("-"),
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name in options.get("protocols", "range").split(",")
                if name != "-"
            ],
            session_timeout_ms=int(options.get("session", 10_000)),
            rebalance_timeout_ms=int(options.get("rebalance", 60_000)),
            reason=options.get("reason"),
        )

    def _sync(self, member: str, words: list[str]) -> None:
        assert self.harness is not None
        options = _options(words)
        self.harness.sync(
            self._told(member, _synced),
            member_id=member,
            group_instance_id=options.get("static"),
            generation_id=int(options["generation"]),
            protocol_type=options.get("type"),
            protocol_name=options.get("protocol"),
            assignments=[
                SyncGroupRequestAssignment(member_id=name, assignment=given.encode())
                for name, given in _assignments(words)
            ],
        )

    def _beat(self, member: str, words: list[str]) -> None:
        harness, options = self.harness, _options(words)
        assert harness is not None
        error = harness.decide(
            lambda effects: harness.shard.heartbeat(
                "g", member, options.get("static"), int(options["generation"]), effects
            )
        )
        self.done.append(error.name)

    def _leave(self, member: str, words: list[str]) -> None:
        harness, options = self.harness, _options(words)
        assert harness is not None
        leaving = MemberIdentity(member_id="" if member == "-" else member, group_instance_id=options.get("static"))
        request = LeaveGroupRequest(group_id="g", members=[leaving])
        response = harness.decide(lambda effects: harness.shard.leave(request, [leaving], effects))
        errors = [response.error_code, *(each.error_code for each in response.members)]
        self.done.append(Errors(max(errors, key=abs)).name)

    def _commit(self, member: str, words: list[str]) -> None:
        harness, options = self.harness, _options(words)
        assert harness is not None
        member_id = "" if member == "-" else member
        keep = options.get("keep")
        harness.commit(
            self._told(member, lambda errors: " ".join(error.name for error in errors)),
            {_place(name): int(offset) for name, offset in _assignments(words)},
            Committer("g", member_id, options.get("static"), int(options.get("generation", -1))),
            (int(options["in"]), 0) if "in" in options else None,
            "m" * int(options.get("metadata", 0)),
            -1 if keep is None else harness.clock.now_ms() + int(keep),
        )

    def _fetch(self, words: list[str]) -> None:
        assert self.harness is not None
        places = [_place(word) for word in words if word not in FLAGS] or None
        for (topic, index), state in self.harness.shard.fetch("g", places, "stable" in words):
            found = "none" if state.offset is None else str(state.offset.offset)
            self.done.append(f"{topic}-{index} {found}" + (f" {state.error.name}" if state.error else ""))


def _options(words: list[str]) -> dict[str, str]:
    """Words in pairs, except assignments (with =) and versions (v3)."""
    options: dict[str, str] = {}
    rest = iter(word for word in words if "=" not in word)
    for word in rest:
        if word[0] == "v" and word[1:].isdigit():
            options["version"] = word[1:]
        else:
            options[word] = next(rest)
    return options


def _assignments(words: list[str]) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (word.partition("=") for word in words if "=" in word)]


def _place(word: str) -> Place:
    topic, _, partition = word.rpartition("-")
    return topic, int(partition)


def _joined(answer: Any) -> str:
    if answer.error_code:
        return f"{Errors(answer.error_code).name} {answer.member_id}".rstrip()
    members = ",".join(each.member_id for each in answer.members) or "-"
    skip = " skip-assignment" if answer.skip_assignment else ""
    return (
        f"joined as {answer.member_id} generation {answer.generation_id} {answer.protocol_name} "
        f"leader {answer.leader} members {members}{skip}"
    )


def _synced(answer: Any) -> str:
    if answer.error_code:
        return Errors(answer.error_code).name
    return f"assigned {answer.assignment.decode() or 'nothing'}"


def _described(group: Any) -> str:
    members = ", ".join(
        f"{each.member_id}={each.member_assignment.decode() or '-'}"
        + (f" ({each.group_instance_id})" if each.group_instance_id else "")
        for each in group.members
    )
    error = f"{Errors(group.error_code).name} " if group.error_code else ""
    return f"{error}{group.group_state} type {group.protocol_type or '-'} protocol {group.protocol_data or '-'}: " + (
        members or "nobody"
    )


def _shown(record: Record) -> str:
    key, value = record
    if isinstance(key, GroupMetadataKey):
        if value is None:
            return "group gone"
        members = " ".join(f"{each.member_id}={each.assignment.decode() or '-'}" for each in value.members) or "nobody"
        return f"group generation {value.generation} {value.protocol or '-'} leader {value.leader or '-'}: {members}"
    place = f"{key.topic}-{key.partition}"
    return f"offset {place} gone" if value is None else f"offset {place} {value.offset}"
