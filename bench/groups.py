"""Loads of consumer groups: joins, heartbeats, commits, a rebalance of 100 members, heartbeats of many groups, how soon
a new group has its first record, and how long a member's leaving takes.

Raw sockets as in bench/rawload.py, with versions that Apache Kafka 3.9 and pybroker both serve: JoinGroup 5,
SyncGroup 3, Heartbeat 3, OffsetCommit 7, FindCoordinator 1. The last two are with confluent-kafka.
"""

from __future__ import annotations

import selectors
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from confluent_kafka import Consumer

from bench import clients, wire
from bench.processes import Figures, cpu_seconds, measured
from bench.rawload import Result, Target
from bench.wire import Address

OFFSET_COMMIT, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, SYNC_GROUP = 8, 10, 11, 12, 14
CONSUMER_GROUP_HEARTBEAT = 68
UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, UNSUPPORTED_VERSION, MEMBER_ID_REQUIRED = 25, 27, 35, 79
SESSION_MS = 1_000_000  # nobody is thrown out while others are set up
METADATA = struct.pack(">hi", 3, 1) + wire.string("raw") + struct.pack(">iiih", -1, 0, -1, -1)
ASSIGNMENT = struct.pack(">hi", 0, 1) + wire.string("raw") + struct.pack(">iii", 1, 0, -1)
NO_INSTANCE = struct.pack(">h", -1)

LANES, IN_FLIGHT = 4, 25
JOINS = 4_000  # at one gigabyte, as all counts here
REQUESTS = 40_000
REBALANCING_MEMBERS, REBALANCES = 100, 10
MANY_GROUPS, MEMBERS_EACH, BEAT_SECONDS, BEATS = 10_000, 3, 3.0, 3
BEATING_LANES = 30
NEW_GROUPS = 7
LEAVING_HEARTBEAT_MS = 500
READY_SECONDS = 60
FIRST_RECORD_SECONDS = 30


def data(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


class Member:
    """A member of a group, and the requests that it sends."""

    __slots__ = ("generation", "group", "leads", "member_id")

    def __init__(self, group: str) -> None:
        self.group, self.member_id, self.generation, self.leads = group, "", -1, False

    def join(self) -> bytes:
        body = wire.string(self.group) + struct.pack(">ii", SESSION_MS, SESSION_MS) + wire.string(self.member_id)
        body += NO_INSTANCE + wire.string("consumer") + struct.pack(">i", 1) + wire.string("range") + data(METADATA)
        return wire.request(JOIN_GROUP, 5, body)

    def joined(self, answer: bytes) -> int:
        """Takes what JoinGroup answered; returns its error code."""
        error, self.generation = struct.unpack_from(">hi", answer, 8)
        at, texts = 14, []
        for _ in range(3):  # protocol, leader, member id
            (size,) = struct.unpack_from(">h", answer, at)
            texts.append(answer[at + 2 : at + 2 + size].decode())
            at += 2 + size
        self.member_id, self.leads = texts[2], texts[1] == texts[2]
        return int(error)

    def _known(self) -> bytes:
        return wire.string(self.group) + struct.pack(">i", self.generation) + wire.string(self.member_id) + NO_INSTANCE

    def sync(self, members: Iterable[Member]) -> bytes:
        """SyncGroup; a leader assigns to these members."""
        assigned = [wire.string(each.member_id) + data(ASSIGNMENT) for each in members] if self.leads else []
        return wire.request(SYNC_GROUP, 3, self._known() + struct.pack(">i", len(assigned)) + b"".join(assigned))

    def heartbeat(self) -> bytes:
        return wire.request(HEARTBEAT, 3, self._known())

    def commit(self, topic: str, offset: int) -> bytes:
        partition = struct.pack(">iiqih", 1, 0, offset, -1, 0)
        return wire.request(OFFSET_COMMIT, 7, self._known() + struct.pack(">i", 1) + wire.string(topic) + partition)


def error_of(answer: bytes) -> int:
    """The error of a SyncGroup, Heartbeat or FindCoordinator answer."""
    return int(struct.unpack_from(">h", answer, 8)[0])


def commit_error_of(answer: bytes) -> int:
    """The error of an OffsetCommit answer for one partition, which is its end."""
    return int(struct.unpack_from(">h", answer, len(answer) - 2)[0])


def check(errors: Iterable[int], expected: int = 0) -> None:
    """RuntimeError where one of the errors is another than expected."""
    if wrong := [each for each in errors if each != expected]:
        raise RuntimeError(f"{len(wrong)} requests answered error {wrong[0]} instead of {expected}")


class Lane:
    """A connection with many requests in flight."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection(address, timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.socket.makefile("rb", 1 << 16)

    def send(self, frames: Iterable[bytes]) -> None:
        self.socket.sendall(b"".join(frames))

    def answer(self) -> bytes:
        """EOFError when the broker has closed the connection."""
        if len(size := self._file.read(4)) < 4:
            raise EOFError("the broker closed the connection")
        answer: bytes = self._file.read(struct.unpack(">i", size)[0])
        return answer

    def answers(self, count: int) -> list[bytes]:
        return [self.answer() for _ in range(count)]

    def close(self) -> None:
        self._file.close()
        self.socket.close()


class Lanes:
    """A few of them, used at the same time; closed with the context."""

    def __init__(self, address: Address, count: int) -> None:
        self.all = [Lane(address) for _ in range(count)]

    def __enter__(self) -> Lanes:
        return self

    def __exit__(self, *_: object) -> None:
        for lane in self.all:
            lane.close()

    def ask(self, requests: list[list[bytes]]) -> list[list[bytes]]:
        """Sends each lane its frames, then reads all answers."""
        for lane, frames in zip(self.all, requests, strict=True):
            lane.send(frames)
        return [lane.answers(len(frames)) for lane, frames in zip(self.all, requests, strict=True)]

    def join(self, members: list[list[Member]], expected: int = 0) -> None:
        """Each lane's members join, and have the answer."""
        answers = self.ask([[member.join() for member in each] for each in members])
        for some, theirs in zip(members, answers, strict=True):
            check([member.joined(answer) for member, answer in zip(some, theirs, strict=True)], expected)

    def sync(self, members: list[list[Member]], groups: Callable[[Member], list[Member]]) -> None:
        for answers in self.ask([[member.sync(groups(member)) for member in each] for each in members]):
            check(map(error_of, answers))


def alone(member: Member) -> list[Member]:
    return [member]


def ready(target: Target) -> None:
    """Wait until there is a coordinator for every group."""
    probes = [Member(f"probe-{number}").heartbeat() for number in range(500)]
    deadline = time.monotonic() + READY_SECONDS
    with Lanes(target.address, 1) as lanes:
        while True:
            found = lanes.ask([[wire.request(FIND_COORDINATOR, 1, wire.string("probe") + b"\0")]])[0]
            if error_of(found[0]) == 0:
                errors = {error_of(answer) for answer in lanes.ask([probes])[0]}
                if errors == {UNKNOWN_MEMBER_ID}:
                    return
            if time.monotonic() > deadline:
                raise RuntimeError(f"no coordinator after {READY_SECONDS} s")
            time.sleep(0.1)


def join_alone(lanes: Lanes, prefix: str, count: int) -> list[list[Member]]:
    """`count` new groups of one member on each lane: JoinGroup for an id, JoinGroup, SyncGroup."""
    made: list[list[Member]] = [[] for _ in lanes.all]
    for begin in range(0, count, IN_FLIGHT):
        some = range(begin, min(begin + IN_FLIGHT, count))
        members = [[Member(f"{prefix}-{lane}-{number}") for number in some] for lane in range(len(lanes.all))]
        lanes.join(members, MEMBER_ID_REQUIRED)
        lanes.join(members)
        lanes.sync(members, alone)
        for known, more in zip(made, members, strict=True):
            known += more
    return made


def joins(target: Target) -> Iterator[Result]:
    """Members that make groups of their own, until each has its assignment."""
    ready(target)
    each = max(IN_FLIGHT, int(JOINS * target.gigabytes) // LANES)
    with Lanes(target.address, LANES) as lanes:
        join_alone(lanes, "warm", IN_FLIGHT * 4)
        with measured(target.pids) as figures:
            join_alone(lanes, "joins", each)
            figures["n"] = each * LANES
    yield "group-joins", figures


def requests(
    target: Target, prefix: str, frame: Callable[[Member, int], bytes], error: Callable[[bytes], int]
) -> Figures:
    """Requests of members that are in groups, on a few connections with many in flight."""
    ready(target)
    rounds = max(4, int(REQUESTS * target.gigabytes) // (LANES * IN_FLIGHT))
    with Lanes(target.address, LANES) as lanes:
        members = join_alone(lanes, prefix, IN_FLIGHT)

        def some(numbers: range) -> None:
            for number in numbers:
                for answers in lanes.ask([[frame(member, number) for member in each] for each in members]):
                    check(map(error, answers))

        some(range(max(1, rounds // 8)))
        with measured(target.pids) as figures:
            some(range(rounds))
            figures["n"] = rounds * LANES * IN_FLIGHT
    return figures


def heartbeats(target: Target) -> Iterator[Result]:
    yield "group-heartbeats", requests(target, "beats", lambda member, _: member.heartbeat(), error_of)


def commits(target: Target) -> Iterator[Result]:
    """Each of one partition's offset."""
    figures = requests(
        target, "commits", lambda member, number: member.commit(target.topic, number), commit_error_of
    )  # fmt: skip
    yield "group-commits", figures


def rebalance_once(lanes: Lanes, members: list[Member]) -> None:
    """The leader joins again; the others hear of it, join, and all have an assignment of the next generation."""
    leader = next(at for at, member in enumerate(members) if member.leads)
    lanes.all[leader].send([members[leader].join()])
    other = 0 if leader else 1
    while True:
        lanes.all[other].send([members[other].heartbeat()])
        if error_of(lanes.all[other].answer()) == REBALANCE_IN_PROGRESS:
            break
    for at, member in enumerate(members):
        if at != leader:
            lanes.all[at].send([member.join()])
    check(member.joined(lanes.all[at].answer()) for at, member in enumerate(members))
    lanes.sync([[member] for member in members], lambda _: members)


def make_group(lanes: Lanes, members: list[list[Member]]) -> None:
    """Members of the same groups, one of each group on each lane, all in one generation and assigned.

    The first has its group to itself. The others are known to the group before they join, so that it waits for all.
    """

    def rest(of_first: bool) -> list[list[Member]]:
        return [each if (at == 0) == of_first else [] for at, each in enumerate(members)]

    lanes.join(rest(True), MEMBER_ID_REQUIRED)
    lanes.join(rest(True))
    lanes.sync(rest(True), alone)
    lanes.join(rest(False), MEMBER_ID_REQUIRED)
    lanes.join(members)
    groups = {each[0].group: list(each) for each in zip(*members, strict=True)}
    lanes.sync(members, lambda member: groups[member.group])


def rebalance(target: Target) -> Iterator[Result]:
    """The median of some; CPU is that of one."""
    ready(target)
    members = [Member("rebalance") for _ in range(REBALANCING_MEMBERS)]
    with Lanes(target.address, REBALANCING_MEMBERS) as lanes:
        make_group(lanes, [[member] for member in members])
        rebalance_once(lanes, members)
        cpu, times = cpu_seconds(target.pids), []
        for _ in range(REBALANCES):
            began = time.perf_counter()
            rebalance_once(lanes, members)
            times.append(time.perf_counter() - began)
    figures = {"ms": statistics.median(times) * 1e3, "cpu_s": (cpu_seconds(target.pids) - cpu) / REBALANCES}
    yield "group-rebalance", figures


def make_many(target: Target, groups: int) -> list[Member]:
    """So many groups of MEMBERS_EACH."""
    made: list[Member] = []
    with Lanes(target.address, MEMBERS_EACH) as lanes:
        for begin in range(0, groups, IN_FLIGHT):
            names = [f"many-{number}" for number in range(begin, min(begin + IN_FLIGHT, groups))]
            members = [[Member(name) for name in names] for _ in lanes.all]
            make_group(lanes, members)
            made += [member for each in members for member in each]
    return made


def beat_all(lanes: Lanes, members: list[Member]) -> None:
    """Each member beats BEATS times, once every BEAT_SECONDS, evenly spread over time and connections."""
    frames = [member.heartbeat() for member in members]
    every, wanted = BEAT_SECONDS / len(frames), BEATS * len(frames)
    size = 4 + 4 + 4 + 2  # of an answer: size, correlation id, throttle time, error
    selector = selectors.DefaultSelector()
    unread = {}
    for lane in lanes.all:
        lane.socket.setblocking(False)
        selector.register(lane.socket, selectors.EVENT_READ)
        unread[lane.socket] = bytearray()
    sent, got, began = 0, 0, time.perf_counter()
    while got < wanted:
        due = min(wanted, int((time.perf_counter() - began) / every) + 1)
        while sent < due:
            lanes.all[sent % len(lanes.all)].socket.send(frames[sent % len(frames)])
            sent += 1
        for key, _ in selector.select(every if sent < wanted else 5):
            sock: Any = key.fileobj
            unread[sock] += sock.recv(1 << 16)
            whole = len(unread[sock]) // size
            check(struct.unpack_from(">h", unread[sock], at * size + 12)[0] for at in range(whole))
            del unread[sock][: whole * size]
            got += whole
    selector.close()


def many_groups(target: Target) -> Iterator[Result]:
    """Heartbeats every three seconds from all members of 10,000 groups (fewer with fewer gigabytes)."""
    ready(target)
    groups = max(100, int(MANY_GROUPS * min(1.0, target.gigabytes)))
    with measured(target.pids) as figures:
        members = make_many(target, groups)
        figures["n"] = len(members)
    yield "group-many-joins", figures
    with Lanes(target.address, BEATING_LANES) as lanes, measured(target.pids) as figures:
        beat_all(lanes, members)
        figures["n"] = BEATS * len(members)
    figures["cpu_share"] = 100 * figures["cpu_s"] / figures["s"]
    yield "group-many-beats", figures


def serves_consumer_protocol(address: Address) -> bool:
    """Whether ConsumerGroupHeartbeat of a member that nobody knows has another answer than UNSUPPORTED_VERSION.

    Kafka 3.9 with ZooKeeper lists the API and does not serve it.
    """
    header = struct.pack(">hhi", CONSUMER_GROUP_HEARTBEAT, 0, 1) + wire.string("bench") + b"\0"
    texts = b"\x06probe" + b"\x07nobody"
    body = texts + struct.pack(">i", 1) + b"\0\0" + struct.pack(">i", -1) + b"\0\0\0\0"
    connection = wire.Connection(address)
    answer = connection.ask(data(header + body))
    connection.close()
    return int(struct.unpack_from(">h", answer, 9)[0]) != UNSUPPORTED_VERSION


def first_record(target: Target, topic: str, group: str, protocol: str) -> float:
    """Seconds from subscribe to the first record. RuntimeError when none comes."""
    settings = {
        "bootstrap.servers": clients.address_of(target), "group.id": group, "group.protocol": protocol,
        "auto.offset.reset": "earliest",
    }  # fmt: skip
    consumer = Consumer(settings)
    try:
        began = time.perf_counter()
        consumer.subscribe([topic])
        message = consumer.poll(FIRST_RECORD_SECONDS)
        if message is None:
            raise RuntimeError(f"no record after {FIRST_RECORD_SECONDS} s")
        if message.error() is not None:
            raise RuntimeError(f"consuming: {message.error()}")
        return time.perf_counter() - began
    finally:
        consumer.close()


def first_records(target: Target) -> Iterator[Result]:
    """The median of some new groups, in the classic and, where it is served, the consumer protocol."""
    ready(target)
    topic = "first-record"
    clients.create_topic(target, topic, 1)
    clients.produce(target, topic, b"value", 10, acks=-1)
    protocols = ["classic", "consumer"] if serves_consumer_protocol(target.address) else ["classic"]
    for protocol in protocols:
        cpu = cpu_seconds(target.pids)
        times = [first_record(target, topic, f"first-{protocol}-{number}", protocol) for number in range(NEW_GROUPS)]
        yield (
            f"group-first-record-{protocol}",
            {"ms": statistics.median(times) * 1e3, "cpu_s": (cpu_seconds(target.pids) - cpu) / NEW_GROUPS},
        )


def in_group(target: Target, topic: str, group: str, heartbeat_ms: int) -> Consumer:
    settings = {
        "bootstrap.servers": clients.address_of(target), "group.id": group, "heartbeat.interval.ms": heartbeat_ms,
    }  # fmt: skip
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    return consumer


def assigned(consumers: list[Consumer], partitions: int) -> float:
    """Poll until each has as many partitions; seconds taken. RuntimeError when that does not come."""
    began = time.perf_counter()
    while any(len(consumer.assignment()) != partitions for consumer in consumers):
        for consumer in consumers:
            consumer.poll(0.01)
        if time.perf_counter() - began > FIRST_RECORD_SECONDS:
            raise RuntimeError(f"no assignment after {FIRST_RECORD_SECONDS} s")
    return time.perf_counter() - began


def leaves(target: Target) -> Iterator[Result]:
    """One of two members leaves, until the other has all partitions; heartbeats every 0.5 s. The median of some."""
    ready(target)
    clients.create_topic(target, "leave", 2)
    cpu, times = cpu_seconds(target.pids), []
    for number in range(NEW_GROUPS):
        stays = in_group(target, "leave", f"leave-{number}", LEAVING_HEARTBEAT_MS)
        goes = in_group(target, "leave", f"leave-{number}", LEAVING_HEARTBEAT_MS)
        assigned([stays, goes], 1)
        goes.close()
        times.append(assigned([stays], 2))
        stays.close()
    yield "group-leave", {"ms": statistics.median(times) * 1e3, "cpu_s": (cpu_seconds(target.pids) - cpu) / NEW_GROUPS}


MEASURES: dict[str, Callable[[Target], Iterator[Result]]] = {
    "group-joins": joins,
    "group-heartbeats": heartbeats,
    "group-commits": commits,
    "group-rebalance": rebalance,
    "group-many": many_groups,
    "group-first-record": first_records,
    "group-leave": leaves,
}
