"""Scripts of controller events: what comes in, what is written, who is told what. A script is text:

    broker 1                       a registered broker; `broker 2 epoch 69 rack r2` says more, and `features none` that
                                   its protocol is older than 2.7
    topic t 0:1,2 1:2,1            a topic in the store before the election
    state t-0 leader 1 epoch 3 isr 1,2 version 4
    deletion t                     a name under /admin/delete_topics
    unclean t                      unclean.leader.election.enable=true
    older                          leaders write states themselves, topics have no ids, and leaders never recover

    * elect controller 1           events begin with a star; every line below one is what the controller does
    * brokers 1 2                  who is registered now
    * topics t u 0:1,2             all topics there are; assignments of those that are new
    * grow t 0:1,2 1:2,1           the topic's node was written
    * delete t                     a name appeared under /admin/delete_topics
    * deleted 1 t-0 t-1            broker 1 answers StopReplica; `failed` for those it could not delete
    * isr 1 t-0 epoch 0 version 0 isr 1        AlterPartition from broker 1
    * elect preferred t-0          ElectLeaders; `unclean`; `all` for all partitions
    * unbalanced 10                time to look for leaders that are not the preferred ones, with that percentage
    * shutdown 2                   ControlledShutdown; `epoch 69`
    * reassign t-0:3,2 t-1:cancel  AlterPartitionReassignments; `keep-factor` after the star's word
    * reassign-node t-0:3,2        what /admin/reassign_partitions says
    * log-dir 2                    a notification that broker 2 has lost a log directory
    * lost 2 t-0                   broker 2 answers LeaderAndIsr with KAFKA_STORAGE_ERROR; `serves` without
    * unclean-allowed t            the topic's settings have changed; without a name those of all topics
    * unassigned 2 t-0             what follows from a move, put off till now
    * isr-changed t-0              a notification of an older leader; the state is what was `found`

A line `refuse PATH` before an event makes the next write of that path fail with BadVersion; `found STATE...` (as
`state`) is what is read then. Where leaders write states themselves it is read before an event that depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pybroker.controller.apply import apply
from pybroker.controller.decide import decide, may_be_outdated
from pybroker.controller.outcome import Outcome
from pybroker.controller.paths import BrokerNode, Endpoint, LeaderAndIsr, TopicNode
from pybroker.controller.plan import Plan, Write
from pybroker.controller.requests import ControllerRequest, build
from pybroker.controller.state import (
    Abilities,
    BrokersChanged,
    ControllerState,
    DeletionsRequested,
    Elected,
    Election,
    ElectionRequested,
    Event,
    IsrProposal,
    IsrProposed,
    IsrsChanged,
    LeadersUnbalanced,
    LogDirsFailed,
    ReassignmentNodeRead,
    ReassignmentRequested,
    ReplicasAnswered,
    ReplicasDeleted,
    ReplicasUnassigned,
    ShutdownAnnounced,
    StatesRead,
    TopicChanged,
    TopicsChanged,
    UncleanAllowed,
)
from pybroker.controller.store import BadVersion, Create, Result, SetData, StoreError
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from pybroker.protocol.messages.update_metadata import UpdateMetadataRequest
from pybroker.protocol.pace import finish
from pybroker.protocol.types import TopicPartition

BROKER_EPOCHS = 100


class Script:
    """Runs one script; `run` returns it with what the controller really did below each event."""

    def __init__(self) -> None:
        self.unclean: set[str] = set()
        self.state = ControllerState(1, "INTERNAL", lambda topic: topic in self.unclean)
        self.brokers: dict[int, BrokerNode] = {}
        self.topics: dict[str, TopicNode] = {}
        self.states: dict[TopicPartition, LeaderAndIsr] = {}
        self.deletions: list[str] = []
        self.refused: set[str] = set()
        self.found: dict[TopicPartition, LeaderAndIsr] = {}

    def run(self, text: str) -> str:
        lines: list[str] = []
        for line in text.splitlines():
            words = line.split()
            if line.startswith("*"):
                lines.append(line)
                lines += ["    " + done for done in self._event(words[1:])]
            elif not line.startswith("    "):
                lines.append(line)
                if words and not line.startswith("#"):
                    self._given(words)
        return "\n".join(lines) + "\n"

    def _given(self, words: list[str]) -> None:
        what = words[0]
        if what == "broker":
            self._broker(words[1:])
        elif what == "topic":
            self.topics[words[1]] = _topic(words[1], words[2:])
        elif what == "state":
            self.states[_at(words[1])] = _leader_and_isr(words[2:])
        elif what == "found":
            self.found[_at(words[1])] = _leader_and_isr(words[2:])
        elif what == "deletion":
            self.deletions.append(words[1])
        elif what == "unclean":
            self.unclean.add(words[1])
        elif what == "older":
            self.state.leaders_write = True
            self.state.abilities = Abilities(topic_ids=False, alter_partition=False, leader_recovery=False)
        elif what == "refuse":
            self.refused.add(words[1])
        else:
            raise ValueError(f"what is {' '.join(words)!r}?")

    def _broker(self, words: list[str]) -> BrokerNode:
        broker_id = int(words[0])
        options = dict(zip(words[1::2], words[2::2], strict=True))
        endpoints = (
            Endpoint("INTERNAL", f"host{broker_id}", 9000 + broker_id, "PLAINTEXT"),
            Endpoint("EXTERNAL", f"host{broker_id}", 9100 + broker_id, "SASL_SSL"),
        )
        epoch = int(options.get("epoch", BROKER_EPOCHS + broker_id))
        if not self.brokers:
            self.state.broker_id = broker_id  # the first one is the controller
        features = None if options.get("features") == "none" else {}
        self.brokers[broker_id] = BrokerNode(broker_id, endpoints, options.get("rack"), features, epoch)
        return self.brokers[broker_id]

    def _event(self, words: list[str]) -> Iterator[str]:
        following: list[Event] = [self._read_event(words)]
        while following:
            event = following.pop(0)
            read = {at: self.found.pop(at) for at in may_be_outdated(self.state, event) if at in self.found}
            finish(apply(self.state, StatesRead(read), Plan([], {}), []))
            plan = finish(decide(self.state, event))
            results: list[Result | StoreError] = []
            for write in plan.writes:
                results.append(self._do(write))
                yield _describe_write(write, results[-1])
            outcome = finish(apply(self.state, event, plan, results))
            for notice in outcome.notices:
                for broker_id, request in finish(build(self.state, notice)):
                    yield f"to {broker_id} {_describe(request)}"
            yield from _describe_answers(outcome)
            if outcome.retry is not None:
                following.insert(0, outcome.retry)
            if outcome.reread:
                following.insert(0, StatesRead({at: self.found.pop(at) for at in outcome.reread}))
            following[:0] = outcome.events

    def _do(self, write: Write) -> Result | StoreError:
        if write.op.path in self.refused:
            self.refused.remove(write.op.path)
            return BadVersion(write.op.path, 1)
        return write.op.path if isinstance(write.op, Create) else None

    def _read_event(self, words: list[str]) -> Event:
        what, rest = words[0], words[1:]
        if words[:2] == ["elect", "controller"]:
            return Elected(int(words[2]), dict(self.brokers), self.topics, self.states, tuple(self.deletions))
        if what == "brokers":
            return BrokersChanged({int(word): self._registered(word) for word in rest})
        if what == "topics":
            return self._read_topics(rest)
        if what == "grow":
            old = self.state.topics[rest[0]]
            return TopicChanged(rest[0], replace(_topic(rest[0], rest[1:]), topic_id=old.topic_id))
        if what == "delete":
            return DeletionsRequested(tuple(rest))
        if what in ("deleted", "failed"):
            at = tuple(_at(word) for word in rest[1:])
            return ReplicasDeleted(int(rest[0]), at if what == "deleted" else (), at if what == "failed" else ())
        if what == "isr":
            return self._read_proposal(rest)
        if what == "elect":
            wanted = None if rest[1] == "all" else tuple(_at(word) for word in rest[1:])
            return ElectionRequested(Election[rest[0].upper()], wanted)
        return self._read_rarer(what, rest)

    def _read_rarer(self, what: str, rest: list[str]) -> Event:
        if what == "unbalanced":
            return LeadersUnbalanced(int(rest[0]))
        if what == "shutdown":
            return ShutdownAnnounced(int(rest[0]), int(rest[2]) if rest[1:] else self.brokers[int(rest[0])].epoch)
        if what == "reassign":
            asked = [word.split(":") for word in rest if ":" in word]
            wanted = {_at(at): None if to == "cancel" else _numbers(to) for at, to in asked}
            return ReassignmentRequested(wanted, keep_factor="keep-factor" in rest)
        if what == "reassign-node":
            return ReassignmentNodeRead({_at(at): _numbers(to) for at, to in (word.split(":") for word in rest)})
        if what == "log-dir":
            return LogDirsFailed(tuple(int(word) for word in rest))
        if what in ("lost", "serves"):
            at = tuple(_at(word) for word in rest[1:])
            return ReplicasAnswered(int(rest[0]), at if what == "serves" else (), at if what == "lost" else ())
        if what == "unclean-allowed":
            return UncleanAllowed(rest[0] if rest else None)
        if what == "unassigned":
            return ReplicasUnassigned(int(rest[0]), tuple(_at(word) for word in rest[1:]))
        if what == "isr-changed":
            return IsrsChanged({_at(word): self.found.pop(_at(word)) for word in rest})
        raise ValueError(f"what is {what!r}?")

    def _registered(self, word: str) -> BrokerNode:
        known = self.brokers.get(int(word))
        return known if known is not None else self._broker([word])

    def _read_topics(self, words: list[str]) -> TopicsChanged:
        new: dict[str, list[str]] = {}
        names: list[str] = []
        for word in words:
            if ":" in word:
                new.setdefault(names[-1], []).append(word)
            else:
                names.append(word)
        return TopicsChanged(frozenset(names), {name: _topic(name, assigned) for name, assigned in new.items()})

    def _read_proposal(self, words: list[str]) -> IsrProposed:
        broker_id = int(words[0])
        options = dict(zip(words[2::2], words[3::2], strict=True))
        proposal = IsrProposal(
            _at(words[1]),
            int(options["epoch"]),
            _numbers(options["isr"]),
            options.get("recovering") == "yes",
            int(options["version"]),
        )
        epoch = self.brokers[broker_id].epoch
        return IsrProposed(broker_id, int(options.get("broker-epoch", epoch)), (proposal,))


# Reading


def _at(word: str) -> TopicPartition:
    topic, _, index = word.rpartition("-")
    return TopicPartition(topic, int(index))


def _numbers(word: str) -> tuple[int, ...]:
    return tuple(int(each) for each in word.split(",") if each)


def _topic(name: str, assigned: list[str]) -> TopicNode:
    """A partition under reassignment: 0:3,2,1+3-1."""
    node = TopicNode(name.encode().ljust(16, b"."), {})
    for index, replicas in (word.split(":") for word in assigned):
        rest, _, removing = replicas.partition("-")
        rest, _, adding = rest.partition("+")
        node.replicas[int(index)] = list(_numbers(rest))
        if adding or removing:
            node.adding[int(index)] = list(_numbers(adding))
            node.removing[int(index)] = list(_numbers(removing))
    return node


def _leader_and_isr(words: list[str]) -> LeaderAndIsr:
    options = dict(zip(words[0::2], words[1::2], strict=True))
    return LeaderAndIsr(
        int(options["leader"]),
        int(options["epoch"]),
        _numbers(options["isr"]),
        int(options.get("controller-epoch", 1)),
        int(options["version"]),
        options.get("recovering") == "yes",
    )


# Telling


def _describe_write(write: Write, result: Result | StoreError) -> str:
    op = write.op
    refused = f" REFUSED {type(result).__name__}" if isinstance(result, StoreError) else ""
    if isinstance(op, Create):
        return f"create {op.path} {(op.data or b'').decode()}".rstrip() + refused
    if isinstance(op, SetData):
        return f"set {op.path} v{op.version} {(op.data or b'').decode()}" + refused
    return f"delete {op.path}" + refused


def _describe(request: ControllerRequest) -> str:
    head = f"ctrl={request.controller_id}@{request.controller_epoch} bep={request.broker_epoch}"
    if isinstance(request, LeaderAndIsrRequest):
        parts = [
            f"{topic.topic_name}-{each.partition_index}[L{each.leader} le{each.leader_epoch} isr{each.isr} "
            f"pe{each.partition_epoch} rep{each.replicas} ce{each.controller_epoch}"
            f"{f' add{each.adding_replicas}' if each.adding_replicas else ''}"
            f"{f' rem{each.removing_replicas}' if each.removing_replicas else ''}"
            f"{' new' if each.is_new else ''}{' recovering' if each.leader_recovery_state else ''}]"
            for topic in request.topic_states
            for each in topic.partition_states
        ]
        live = [f"{each.broker_id}@{each.host_name}:{each.port}" for each in request.live_leaders]
        return f"LeaderAndIsr {head} live={','.join(live)} {' '.join(parts)}"
    if isinstance(request, UpdateMetadataRequest):
        parts = [
            f"{topic.topic_name}-{each.partition_index}[L{each.leader} le{each.leader_epoch} isr{each.isr} "
            f"zv{each.zk_version} off{each.offline_replicas}]"
            for topic in request.topic_states
            for each in topic.partition_states
        ]
        return f"UpdateMetadata {head} live={[each.id for each in request.live_brokers]} {' '.join(parts)}".rstrip()
    parts = [
        f"{topic.topic_name}-{each.partition_index}[le{each.leader_epoch}{' delete' if each.delete_partition else ''}]"
        for topic in request.topic_states
        for each in topic.partition_states
    ]
    return f"StopReplica {head} {' '.join(parts)}"


def _describe_answers(outcome: Outcome) -> Iterator[str]:
    if outcome.error != Errors.NONE:
        yield f"answer {outcome.error.name}"
    for at, answer in outcome.answers.items():
        yield f"answer {at} {answer.error.name}{': ' + answer.message if answer.message else ''}"
