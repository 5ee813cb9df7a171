"""Scripts of heartbeats of the consumer protocol (tests/scripts/consumer_group/*.txt), and what runs them.

One step a line, its answer on the lines after it, indented. The answers were recorded from Apache Kafka 4.3.1, but for
scripts that say otherwise in their first line:

    python -m tests.support.consumer_scripts HOST:PORT tests/scripts/consumer_group/*.txt

runs the scripts against a broker and writes its answers into them. Steps (members and groups go by short names):

    topic NAME PARTITIONS       create a topic          partitions NAME N      give it more partitions
    delete NAME                 delete it               wait MS                let time pass
    join MEMBER key=value ..    a first heartbeat       beat MEMBER EPOCH key=value ..      any other
    leave MEMBER key=value ..   a heartbeat with -1     describe [GROUP]       ConsumerGroupDescribe
    commit MEMBER EPOCH TP      OffsetCommit            fetch MEMBER EPOCH TP  OffsetFetch
    list                        ListGroups              describe-classic       DescribeGroups

and of the classic protocol (a member's id is what its first JoinGroup was answered):

    classic-join MEMBER key=value ..                    classic-sync MEMBER GENERATION [MEMBER=partitions ..]
    classic-beat MEMBER GENERATION key=value ..         classic-leave MEMBER key=value ..

Keys: group, topics=a,b, regex, owned=t:0,1+u:0, timeout, instance, rack, assignor, v (the request's version). `-` is an
empty string or list.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pybroker.protocol import codec
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.consumer_protocol_assignment import (
    ConsumerProtocolAssignment,
)
from pybroker.protocol.messages.consumer_protocol_assignment import TopicPartition as AssignedPartitions
from pybroker.protocol.messages.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
)
from pybroker.protocol.messages.consumer_protocol_subscription import TopicPartition as SubscribedPartitions
from tests.support.wire import WireClient

FOLDER = Path(__file__).resolve().parents[1] / "scripts" / "consumer_group"
OURS = "# Not recorded"  # begins a script whose answers Kafka gives otherwise
Values = dict[str, Any]
STARTING = (Errors.COORDINATOR_NOT_AVAILABLE, Errors.COORDINATOR_LOAD_IN_PROGRESS, Errors.NOT_COORDINATOR)


class Step(NamedTuple):
    line: str
    answer: list[str]


class Side(Protocol):
    """What a script runs against. Requests and answers are dicts by the schemas' names."""

    prefix: str
    ids: dict[str, str]  # of members of the classic protocol

    def create_topic(self, name: str, partitions: int) -> None: ...

    def add_partitions(self, name: str, count: int) -> None: ...

    def delete_topic(self, name: str) -> None: ...

    def wait(self, ms: int) -> None: ...

    def call(self, api: str, version: int, values: Values) -> Values: ...

    def topic_ids(self) -> dict[str, bytes]: ...


def read(path: Path) -> tuple[list[str], list[Step]]:
    """The remarks at the top, and the steps."""
    head: list[str] = []
    steps: list[Step] = []
    for line in path.read_text().splitlines():
        if line.startswith("#") or not line.strip():
            if not steps:
                head.append(line)
            else:
                steps.append(Step(line, []))
        elif line.startswith(" "):
            steps[-1].answer.append(line.strip())
        else:
            steps.append(Step(line, []))
    return head, steps


def run(steps: list[Step], side: Side) -> Iterator[tuple[Step, list[str]]]:
    """Every step with the answer it got."""
    for step in steps:
        if step.line.startswith("#") or not step.line.strip():
            yield step, []
        else:
            yield step, _do(step.line, side)


def _do(line: str, side: Side) -> list[str]:
    word, *arguments = line.split()
    plain = [each for each in arguments if "=" not in each]
    keys = dict(each.split("=", 1) for each in arguments if "=" in each)
    match word:
        case "topic":
            side.create_topic(plain[0], int(plain[1]))
        case "partitions":
            side.add_partitions(plain[0], int(plain[1]))
        case "delete":
            side.delete_topic(plain[0])
        case "wait":
            side.wait(int(plain[0]))
        case "join":
            keys = {"timeout": "300000", "owned": "-"} | keys
            return _beat(side, plain[0], 0, keys)
        case "leave":
            return _beat(side, plain[0], -1, keys)
        case "beat":
            return _beat(side, plain[0], int(plain[1]), keys)
        case "describe":
            return _describe(side, plain[0] if plain else "g")
        case "commit" | "fetch":
            return _offsets(side, word, plain, keys)
        case "list":
            return _list(side)
        case "describe-classic":
            return _describe_classic(side, plain[0] if plain else "g")
        case "classic-join":
            return _classic_join(side, plain[0], keys)
        case "classic-sync":
            return _classic_sync(side, plain[0], int(plain[1]), keys)
        case "classic-beat":
            request = {"GroupId": "g", "GenerationId": int(plain[1]), "MemberId": side.ids.get(plain[0], plain[0])}
            answer = side.call("Heartbeat", 4, request | {"GroupInstanceId": keys.get("instance")})
            return [Errors(answer["ErrorCode"]).name]
        case "classic-leave":
            member_id = side.ids.get(plain[0], plain[0])
            who = {"MemberId": member_id, "GroupInstanceId": keys.get("instance"), "Reason": None}
            answer = side.call("LeaveGroup", 5, {"GroupId": "g", "Members": [who]})
            return [Errors(answer["ErrorCode"] or answer["Members"][0]["ErrorCode"]).name]
        case _:
            raise ValueError(f"no such step: {line}")
    return []


def _text(value: str | None) -> str | None:
    return "" if value == "-" else value


def _names(value: str | None) -> list[str] | None:
    return None if value is None else [] if value == "-" else value.split(",")


def _beat(side: Side, member: str, epoch: int, keys: dict[str, str]) -> list[str]:
    owned = keys.get("owned")
    version = int(keys.get("v", "1"))
    request: Values = {
        "GroupId": _text(keys.get("group", "g")),
        "MemberId": _text(member),
        "MemberEpoch": epoch,
        "InstanceId": _text(keys.get("instance")),
        "RackId": _text(keys.get("rack")),
        "RebalanceTimeoutMs": int(keys.get("timeout", "-1")),
        "SubscribedTopicNames": _names(keys.get("topics")),
        "ServerAssignor": _text(keys.get("assignor")),
        "TopicPartitions": None if owned is None else _partitions(owned, side.topic_ids()),
    }
    if version > 0:
        request["SubscribedTopicRegex"] = _text(keys.get("regex"))
    answer = side.call("ConsumerGroupHeartbeat", version, request)
    if answer["ErrorCode"]:
        return [_error(answer)]
    said = f"epoch {answer['MemberEpoch']}"
    if answer["HeartbeatIntervalMs"]:
        said += f" every {answer['HeartbeatIntervalMs']}"
    if answer["Assignment"] is not None:
        said += " has " + _assignment(answer["Assignment"]["TopicPartitions"], side.topic_ids())
    return [said]


def _partitions(text: str, ids: dict[str, bytes]) -> list[Values]:
    if text == "-":
        return []
    parts = (each.split(":") for each in text.split("+"))
    return [{"TopicId": ids[topic], "Partitions": [int(each) for each in some.split(",")]} for topic, some in parts]


def _assignment(topics: list[Values], ids: dict[str, bytes]) -> str:
    names = {topic_id: name for name, topic_id in ids.items()}
    parts = (
        f"{names.get(each['TopicId'], '?')}:{','.join(str(number) for number in sorted(each['Partitions']))}"
        for each in topics
    )
    return "+".join(sorted(parts)) or "-"


def _error(answer: Values) -> str:
    return f"{Errors(answer['ErrorCode']).name} {answer['ErrorMessage']}"


def _describe(side: Side, group: str) -> list[str]:
    answer = side.call("ConsumerGroupDescribe", 1, {"GroupIds": [group], "IncludeAuthorizedOperations": False})
    found = answer["Groups"][0]
    if found["ErrorCode"]:
        return [_error(found)]
    ids = side.topic_ids()
    lines = [f"{found['GroupState']} epoch {found['GroupEpoch']}/{found['AssignmentEpoch']} {found['AssignorName']}"]
    for each in sorted(found["Members"], key=lambda member: _name(side, member["MemberId"])):
        static = "" if each["InstanceId"] is None else f" static {each['InstanceId']}"
        regex = "" if not each["SubscribedTopicRegex"] else f" regex {each['SubscribedTopicRegex']}"
        lines.append(
            f"{_name(side, each['MemberId'])}{static} epoch {each['MemberEpoch']} type {each['MemberType']}"
            f" topics {','.join(sorted(each['SubscribedTopicNames'])) or '-'}{regex}"
            f" has {_assignment(each['Assignment']['TopicPartitions'], ids)}"
            f" wants {_assignment(each['TargetAssignment']['TopicPartitions'], ids)}"
        )
    return lines


def _offsets(side: Side, word: str, plain: list[str], keys: dict[str, str]) -> list[str]:
    member, epoch, where = plain
    topic, partition = where.split(":")
    group = keys.get("group", "g")
    if word == "commit":
        parts = [{"PartitionIndex": int(partition), "CommittedOffset": int(keys.get("offset", "1"))}]
        answer = side.call(
            "OffsetCommit", 9,
            {"GroupId": group, "GenerationIdOrMemberEpoch": int(epoch), "MemberId": _text(member),
             "GroupInstanceId": _text(keys.get("instance")), "Topics": [{"Name": topic, "Partitions": parts}]},
        )  # fmt: skip
        return [Errors(answer["Topics"][0]["Partitions"][0]["ErrorCode"]).name]
    answer = side.call(
        "OffsetFetch", 9,
        {"Groups": [{"GroupId": group, "MemberId": _text(member), "MemberEpoch": int(epoch),
                     "Topics": [{"Name": topic, "PartitionIndexes": [int(partition)]}]}], "RequireStable": False},
    )["Groups"][0]  # fmt: skip
    if answer["ErrorCode"]:
        return [Errors(answer["ErrorCode"]).name]
    return [f"offset {answer['Topics'][0]['Partitions'][0]['CommittedOffset']}"]


def _list(side: Side) -> list[str]:
    answer = side.call("ListGroups", 5, {"StatesFilter": [], "TypesFilter": []})
    return [
        f"{each['GroupId']} {each['GroupType']} {each['ProtocolType'] or '-'} {each['GroupState']}"
        for each in sorted(answer["Groups"], key=lambda group: group["GroupId"])
    ]


def _name(side: Side, member_id: str) -> str:
    return next((name for name, known in side.ids.items() if known == member_id), member_id)


def _describe_classic(side: Side, group: str) -> list[str]:
    found = side.call("DescribeGroups", 6, {"Groups": [group], "IncludeAuthorizedOperations": False})["Groups"][0]
    if found["ErrorCode"]:
        return [_error(found)]
    members = sorted(
        (_name(side, each["MemberId"]), _protocol_assignment(each["MemberAssignment"])) for each in found["Members"]
    )
    lines = [f"{found['GroupState']} {found['ProtocolType'] or '-'} {found['ProtocolData'] or '-'}"]
    return lines + [f"{name} has {assignment}" for name, assignment in members]


def _classic_join(side: Side, member: str, keys: dict[str, str]) -> list[str]:
    topics = _names(keys.get("topics")) or []
    owned = [] if "owned" not in keys else [each.split(":") for each in keys["owned"].split("+")]
    subscription = ConsumerProtocolSubscription(
        topics=[side.prefix + topic for topic in topics],
        owned_partitions=[
            SubscribedPartitions(topic=side.prefix + topic, partitions=[int(each) for each in numbers.split(",")])
            for topic, numbers in owned
        ],
    )
    metadata = b"\0\1" + codec.encode_bytes(subscription, 1)
    protocols = [{"Name": name, "Metadata": metadata} for name in keys.get("protocols", "range").split(",")]
    request = {
        "GroupId": "g", "SessionTimeoutMs": int(keys.get("session", "45000")),
        "RebalanceTimeoutMs": int(keys.get("timeout", "300000")), "MemberId": side.ids.get(member, ""),
        "GroupInstanceId": keys.get("instance"), "ProtocolType": "consumer", "Protocols": protocols, "Reason": None,
    }  # fmt: skip
    answer = side.call("JoinGroup", 9, request)
    side.ids[member] = answer["MemberId"]
    if answer["ErrorCode"]:
        return [Errors(answer["ErrorCode"]).name]
    leader = _name(side, answer["Leader"]) or "-"
    members = ",".join(sorted(_name(side, each["MemberId"]) for each in answer["Members"])) or "-"
    said = f"generation {answer['GenerationId']} {answer['ProtocolType']} {answer['ProtocolName']}"
    return [f"{said} leader {leader} members {members}"]


def _classic_sync(side: Side, member: str, generation: int, keys: dict[str, str]) -> list[str]:
    given = {name: value for name, value in keys.items() if name in side.ids}
    request = {
        "GroupId": "g", "GenerationId": generation, "MemberId": side.ids.get(member, member),
        "GroupInstanceId": keys.get("instance"), "ProtocolType": "consumer", "ProtocolName": "range",
        "Assignments": [
            {"MemberId": side.ids[name], "Assignment": _encoded_assignment(side, value)}
            for name, value in given.items()
        ],
    }  # fmt: skip
    answer = side.call("SyncGroup", 5, request)
    if answer["ErrorCode"]:
        return [Errors(answer["ErrorCode"]).name]
    return [f"{answer['ProtocolName']} has {_protocol_assignment(answer['Assignment']).replace(side.prefix, '')}"]


def _encoded_assignment(side: Side, text: str) -> bytes:
    parts = [] if text == "-" else [each.split(":") for each in text.split("+")]
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            AssignedPartitions(topic=side.prefix + topic, partitions=[int(each) for each in numbers.split(",")])
            for topic, numbers in parts
        ]
    )
    return b"\0\1" + codec.encode_bytes(assignment, 1)


def _protocol_assignment(data: bytes) -> str:
    if not data:
        return "nothing"
    assignment = codec.decode(ConsumerProtocolAssignment, 0, data, 2)[0]
    parts = (
        f"{each.topic.rsplit('.', 1)[-1]}:{','.join(str(number) for number in sorted(each.partitions))}"
        for each in assignment.assigned_partitions
    )
    return "+".join(sorted(parts)) or "-"


class Live:
    """A broker on the network. Every script gets names of its own: `prefix` goes before groups and topics."""

    def __init__(self, host: str, port: int, prefix: str) -> None:
        self.client = WireClient(host, port, timeout=30)
        self.prefix = prefix
        self.ids: dict[str, str] = {}
        self._ids: dict[str, bytes] = {}

    def create_topic(self, name: str, partitions: int) -> None:
        self.client.create_topic(self.prefix + name, partitions)
        self._learn(name)

    def _learn(self, name: str) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            topic = self.client.call("Metadata", 12, {"Topics": [{"Name": self.prefix + name}]})["Topics"][0]
            if topic["ErrorCode"] == 0:
                self._ids[name] = topic["TopicId"]
                time.sleep(0.3)  # Kafka's coordinator learns of it later than its Metadata does
                return
            time.sleep(0.02)
        raise AssertionError(f"topic {name} did not come")

    def add_partitions(self, name: str, count: int) -> None:
        topics = [{"Name": self.prefix + name, "Count": count, "Assignments": None}]
        answer = self.client.call("CreatePartitions", 3, {"Topics": topics, "TimeoutMs": 10000})
        assert answer["Results"][0]["ErrorCode"] == 0, answer
        time.sleep(0.2)

    def delete_topic(self, name: str) -> None:
        topics = [{"Name": self.prefix + name, "TopicId": bytes(16)}]
        answer = self.client.call("DeleteTopics", 6, {"Topics": topics, "TimeoutMs": 10000})
        assert answer["Responses"][0]["ErrorCode"] == 0, answer
        time.sleep(0.2)

    def wait(self, ms: int) -> None:
        time.sleep(ms / 1000)

    def call(self, api: str, version: int, values: Values) -> Values:
        """Retried while the coordinator is being found."""
        deadline = time.monotonic() + 20
        while True:
            answer = self.client.call(api, version, self._prefixed(values))
            if api == "ListGroups":
                answer["Groups"] = [each for each in answer["Groups"] if each["GroupId"].startswith(self.prefix)]
            first = (answer.get("Groups") or answer.get("Topics") or [answer])[0]
            code = first.get("ErrorCode", first.get("Partitions", [{}])[0].get("ErrorCode") if first else 0)
            if code not in STARTING:
                stripped: Values = self._stripped(answer)
                return stripped
            assert time.monotonic() < deadline, answer
            self.client.call("FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": [self.prefix + "g"]})
            time.sleep(0.05)

    def _prefixed(self, values: Values) -> Values:
        values = dict(values)
        if values.get("GroupId"):
            values["GroupId"] = self.prefix + values["GroupId"]
        if values.get("SubscribedTopicNames"):
            values["SubscribedTopicNames"] = [self.prefix + name for name in values["SubscribedTopicNames"]]
        if values.get("SubscribedTopicRegex") and not values["SubscribedTopicRegex"].startswith("_"):
            values["SubscribedTopicRegex"] = re.escape(self.prefix) + values["SubscribedTopicRegex"]
        if "GroupIds" in values:
            values["GroupIds"] = [self.prefix + group for group in values["GroupIds"]]
        if "Groups" in values:
            values["Groups"] = [
                self.prefix + group if isinstance(group, str) else self._prefixed(group) for group in values["Groups"]
            ]
        if "Topics" in values:
            values["Topics"] = [each | {"Name": self.prefix + each["Name"]} for each in values["Topics"]]
        return values

    def _stripped(self, value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(self.prefix, "").replace(re.escape(self.prefix), "")
        if isinstance(value, list):
            return [self._stripped(each) for each in value]
        if isinstance(value, dict):
            return {key: self._stripped(each) for key, each in value.items()}
        return value

    def topic_ids(self) -> dict[str, bytes]:
        return self._ids


def record(address: str, paths: list[Path]) -> None:
    """Run the scripts against a broker and write down what it answers."""
    host, port = address.split(":")
    stamp = f"r{int(time.time()) % 100000}."
    for number, path in enumerate(paths):
        head, steps = read(path)
        if head[0].startswith(OURS):
            continue
        lines = list(head)
        for step, answer in run(steps, Live(host, int(port), f"{stamp}{number}.")):
            lines += [step.line, *(f"    {each}" for each in answer)]
        path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    record(sys.argv[1], [Path(each) for each in sys.argv[2:]])
