"""Groups: join, sync, heartbeat, leave, commit and fetch of offsets, coordinators."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.support.probe import Case, ProbeClient, Step, calls
from tests.support.schema import encode_data

SUBSCRIPTION = encode_data(
    "ConsumerProtocolSubscription", 1, {"Topics": ["p"], "UserData": None, "OwnedPartitions": []}
)
JOIN: dict[str, Any] = {
    "GroupId": "pg",
    "SessionTimeoutMs": 10000,
    "RebalanceTimeoutMs": 10000,
    "MemberId": "",
    "GroupInstanceId": None,
    "ProtocolType": "consumer",
    "Protocols": [{"Name": "range", "Metadata": SUBSCRIPTION}],
}
P0 = [{"Name": "p", "Partitions": [{"PartitionIndex": 0, "CommittedOffset": 1}]}]
Member = Callable[[ProbeClient, str, int], Any]  # client, member id, generation


def J(name: str, version: int = 9, **fields: Any) -> Case:
    """Joins and writes down the whole answer."""

    def run(client: ProbeClient) -> Any:
        answer = client.call_json("JoinGroup", version, JOIN | fields)
        return {key: value for key, value in answer.items() if key != "ThrottleTimeMs"}

    return Case(name, "JoinGroup", run)


def stable(group: str, act: Member) -> Callable[[ProbeClient], Any]:
    """Brings a group of one member to Stable, then lets `act` send what the case is about."""

    def run(client: ProbeClient) -> Any:
        joined = client.call("JoinGroup", 3, JOIN | {"GroupId": group})
        member, generation = joined["MemberId"], joined["GenerationId"]
        assignments = [{"MemberId": member, "Assignment": b"a"}]
        sync = {"GroupId": group, "GenerationId": generation, "MemberId": member, "Assignments": assignments}
        client.call("SyncGroup", 3, sync)
        return act(client, member, generation)

    return run


def S(name: str, group: str, api: str, version: int, fields: Callable[[str, int], dict[str, Any]]) -> Case:
    """On a stable group: one request, made from member id and generation; its whole answer."""

    def act(client: ProbeClient, member: str, generation: int) -> Any:
        return client.call_json(api, version, {"GroupId": group} | fields(member, generation))

    return Case(name, api, stable(group, act))


def rejoin_as_leader(client: ProbeClient, member: str, generation: int) -> Any:
    answer = client.call_json("JoinGroup", 9, JOIN | {"GroupId": "px10", "MemberId": member})
    return {key: value for key, value in answer.items() if key in ("ErrorCode", "GenerationId", "SkipAssignment")}


def commit(client: ProbeClient, version: int, group: str, generation: int, member: str, **fields: Any) -> int:
    """Commits offset 1 of p-0; the partition's error."""
    request = {"GroupId": group, "GenerationIdOrMemberEpoch": generation, "MemberId": member, "Topics": P0} | fields
    answer = client.call("OffsetCommit", version, request)
    return int(answer["Topics"][0]["Partitions"][0]["ErrorCode"])


def second_member(client: ProbeClient, member: str, generation: int) -> str:
    """A second member makes the first rejoin; what each sees meanwhile and after."""
    group = {"GroupId": "px12"}

    def beat(of: int) -> int:
        return int(client.call("Heartbeat", 3, group | {"GenerationId": of, "MemberId": member})["ErrorCode"])

    def described() -> dict[str, Any]:
        return client.call_json("DescribeGroups", 4, {"Groups": ["px12"]})["Groups"][0]  # type: ignore[no-any-return]

    with client.probe.client(15) as other:
        sent = other.send("JoinGroup", 3, JOIN | group | {"RebalanceTimeoutMs": 3000})
        time.sleep(0.3)  # the join has to reach the broker before the heartbeat does, on another connection
        while_joining = beat(generation), commit(client, 7, "px12", generation, member)
        synced = client.call("SyncGroup", 3, group | {"GenerationId": generation, "MemberId": member})["ErrorCode"]
        during = described()
        first = client.call("JoinGroup", 3, JOIN | group | {"MemberId": member})
        second = other.answer("JoinGroup", 3, sent)
    after = beat(first["GenerationId"]), commit(client, 7, "px12", generation + 1, member)
    return (
        f"second member joins -> first: heartbeat {while_joining[0]}, "
        f"commit with the old generation {while_joining[1]}, sync {synced}, "
        f"state {during['GroupState']} with protocol data {during['ProtocolData']!r} "
        f"members {len(during['Members'])}; after the rejoin: generation {first['GenerationId']}, "
        f"leader sees {len(first['Members'])} members, follower {len(second['Members'])}, "
        f"before sync heartbeat {after[0]}, commit {after[1]}, state {described()['GroupState']}"
    )


def static_restart(client: ProbeClient) -> str:
    """A static member joins again without its member id: the old id is fenced."""
    group = {"GroupId": "px13"}
    first = client.call("JoinGroup", 9, JOIN | group | {"GroupInstanceId": "s1"})
    old, generation = first["MemberId"], first["GenerationId"]
    me = {"MemberId": old, "GroupInstanceId": "s1"}
    sync = {"ProtocolType": "consumer", "ProtocolName": "range", "Assignments": [{"MemberId": old, "Assignment": b"a"}]}
    client.call("SyncGroup", 5, group | me | sync | {"GenerationId": generation})
    again = client.call("JoinGroup", 9, JOIN | group | {"GroupInstanceId": "s1"})
    beat = client.call("Heartbeat", 4, group | me | {"GenerationId": generation})["ErrorCode"]
    committed = commit(client, 8, "px13", generation, old, GroupInstanceId="s1")
    left = client.call_json("LeaveGroup", 5, group | {"Members": [me]})["Members"]
    unknown = group | {"GenerationId": generation, "MemberId": old, "GroupInstanceId": "s9"}
    unknown_beat = client.call("Heartbeat", 4, unknown)["ErrorCode"]
    return (
        f"rejoin: error {again['ErrorCode']} generation {again['GenerationId']} (was {generation}), "
        f"SkipAssignment {again['SkipAssignment']}, new member id {again['MemberId'] != old}, "
        f"members listed {len(again['Members'])}, leader==own id {again['Leader'] == again['MemberId']}; "
        f"old member id: heartbeat {beat}, commit {committed}, leave {left}; unknown instance heartbeat {unknown_beat}"
    )


def OC(
    name: str,
    version: int = 8,
    group: str = "oc",
    generation: int = -1,
    member: str = "",
    offset: int = 1,
    metadata: str | None = "m",
    topic: str = "p",
    partition: int = 0,
) -> Case:
    """Commits one offset; the topics of the answer."""

    def run(client: ProbeClient) -> Any:
        part = {"PartitionIndex": partition, "CommittedOffset": offset, "CommittedMetadata": metadata}
        request = {"GroupId": group, "GenerationIdOrMemberEpoch": generation, "MemberId": member, "RetentionTimeMs": -1}
        topics = [{"Name": topic, "Partitions": [part]}]
        return client.call_json("OffsetCommit", version, request | {"Topics": topics})["Topics"]

    return Case(name, "OffsetCommit", run)


def commit_topics(group: str, generation_of: Callable[[int], int], own_id: bool) -> Callable[[ProbeClient], Any]:
    def act(client: ProbeClient, member: str, generation: int) -> Any:
        who = {"GenerationIdOrMemberEpoch": generation_of(generation), "MemberId": member if own_id else ""}
        return client.call_json("OffsetCommit", 8, {"GroupId": group, "Topics": P0} | who)["Topics"]

    return stable(group, act)


def Q(name: str, api: str, version: int, fields: dict[str, Any]) -> Case:
    return Case(name, api, calls(api, version, fields))


def partitions(*topics: tuple[str, list[int]]) -> list[dict[str, Any]]:
    return [{"Name": name, "PartitionIndexes": indexes} for name, indexes in topics]


P_AND_Q = [{"Name": name, "Partitions": [{"PartitionIndex": 0}]} for name in ("p", "q")]

JOINS: list[Case | Step] = [
    J("empty group id", GroupId=""),
    J("session timeout 1 ms", SessionTimeoutMs=1),
    J("session timeout 5999", SessionTimeoutMs=5999),
    J("session timeout 1800001", SessionTimeoutMs=1800001),
    J("unknown member id, unknown group", GroupId="pg-new", MemberId="zzz"),
    J("empty member id, v9"),
    J("empty member id, v3", 3, GroupId="pg3"),
    J("no protocols", Protocols=[], GroupId="pg4"),
    J("empty protocol type", ProtocolType="", GroupId="pg5"),
    J("static member, empty member id, v9", GroupId="pg6", GroupInstanceId="i1"),
    J("rebalance timeout -1", GroupId="pg7", RebalanceTimeoutMs=-1),
    S(
        "join with another protocol type",
        "px1",
        "JoinGroup",
        9,
        lambda member, generation: JOIN | {"GroupId": "px1", "ProtocolType": "connect"},
    ),
    S(
        "join with no common protocol",
        "px2",
        "JoinGroup",
        9,
        lambda member, generation: JOIN | {"GroupId": "px2", "Protocols": [{"Name": "other", "Metadata": b""}]},
    ),
    S("heartbeat, right", "px3", "Heartbeat", 4, lambda member, gen: {"GenerationId": gen, "MemberId": member}),
    S(
        "heartbeat, generation + 1",
        "px4",
        "Heartbeat",
        4,
        lambda member, gen: {"GenerationId": gen + 1, "MemberId": member},
    ),
    S("heartbeat, unknown member", "px5", "Heartbeat", 4, lambda member, gen: {"GenerationId": gen, "MemberId": "q"}),
    Q("heartbeat, unknown group", "Heartbeat", 4, {"GroupId": "nogroup", "GenerationId": 1, "MemberId": "q"}),
    S(
        "sync, wrong protocol name",
        "px6",
        "SyncGroup",
        5,
        lambda member, gen: {
            "GenerationId": gen,
            "MemberId": member,
            "ProtocolType": "consumer",
            "ProtocolName": "zzz",
        },
    ),
    S(
        "sync again in Stable",
        "px7",
        "SyncGroup",
        5,
        lambda member, gen: {
            "GenerationId": gen,
            "MemberId": member,
            "ProtocolType": "consumer",
            "ProtocolName": "range",
        },
    ),
    S("leave, unknown member, v3", "px8", "LeaveGroup", 3, lambda member, gen: {"Members": [{"MemberId": "q"}]}),
    S("leave, good, v1", "px9", "LeaveGroup", 1, lambda member, gen: {"MemberId": member}),
    Case("rejoin with the same metadata as the leader", "JoinGroup", stable("px10", rejoin_as_leader)),
    S(
        "delete a group that has members",
        "px11",
        "DeleteGroups",
        2,
        lambda member, gen: {"GroupsNames": ["px11", "nogroup", ""]},
    ),
    Case("rebalance by a second member", "JoinGroup", stable("px12", second_member)),
    Case("static member restarts (same instance id, empty member id)", "JoinGroup", static_restart),
]

OFFSETS: list[Case | Step] = [
    OC("simple group (generation -1)"),
    OC("metadata 4096 bytes", metadata="x" * 4096),
    OC("metadata 4097 bytes", metadata="x" * 4097),
    OC("metadata null", metadata=None),
    OC("unknown topic", topic="nope"),
    OC("unknown partition", partition=9),
    OC("offset -1", offset=-1),
    OC("offset -5", offset=-5),
    OC('generation 3, member "q", unknown group', group="ocnew", generation=3, member="q"),
    OC("empty group id", group=""),
    OC("v0 (ZooKeeper storage)", 0),
    OC("v1", 1),
    Case("commit without a member id on a live group", "OffsetCommit", commit_topics("px14", lambda gen: -1, False)),
    Case("commit with generation + 1", "OffsetCommit", commit_topics("px15", lambda gen: gen + 1, True)),
    Q(
        "fetch of an unknown group",
        "OffsetFetch",
        8,
        {"Groups": [{"GroupId": "nogroup", "Topics": partitions(("p", [0]))}, {"GroupId": "oc", "Topics": None}]},
    ),
    Q("fetch, empty group id", "OffsetFetch", 8, {"Groups": [{"GroupId": "", "Topics": None}]}),
    Q(
        "fetch of an unknown topic",
        "OffsetFetch",
        5,
        {"GroupId": "oc", "Topics": partitions(("nope", [0]), ("p", [0, 44]))},
    ),
    Q("describe an unknown group", "DescribeGroups", 5, {"Groups": ["nogroup"]}),
    Q("FindCoordinator key type 9", "FindCoordinator", 4, {"KeyType": 9, "CoordinatorKeys": ["a"]}),
    Q("FindCoordinator key type 2 (share)", "FindCoordinator", 6, {"KeyType": 2, "CoordinatorKeys": ["a"]}),
    Q("FindCoordinator empty key", "FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": [""]}),
    Q("FindCoordinator v0", "FindCoordinator", 0, {"Key": "oc"}),
    S(
        "delete offsets of a topic that the live group subscribes to",
        "px16",
        "OffsetDelete",
        0,
        lambda member, gen: {"Topics": P_AND_Q},
    ),
    Q(
        "delete offsets of an unknown group",
        "OffsetDelete",
        0,
        {"GroupId": "nogroup", "Topics": P_AND_Q[:1]},
    ),
    Q("DeleteGroups of the simple group", "DeleteGroups", 2, {"GroupsNames": ["oc"]}),
    Q("ListGroups with an unknown state filter", "ListGroups", 4, {"StatesFilter": ["Bogus"]}),
    Q(
        "ConsumerGroupHeartbeat on a ZooKeeper broker",
        "ConsumerGroupHeartbeat",
        0,
        {"GroupId": "x", "MemberId": "m"},
    ),
]

CASES = JOINS + OFFSETS
