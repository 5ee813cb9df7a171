"""The sequence of a controller's orders as each broker heard it, in a form in which two controllers can be compared.

What is left out is what depends on when things happened to be sent, and never what they say:
- a partition that is told to a broker again as the broker knows it already, or in LeaderAndIsr with a leader epoch
  that it knows, which it refuses (11); and a message that says nothing else;
- where UpdateMetadata follows UpdateMetadata, that they were two;
- the order of partitions in a message, and of the members of an ISR;
- epochs are counted from those at the scenario's start; topic ids and broker epochs are left out;
- where leaders write ISRs themselves (before 2.7): partition epochs, and when and how often UpdateMetadata tells that
  an ISR has changed.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tests.support.data import DATA
from tests.support.recorder import Recorded

ORDERS = ("LeaderAndIsr", "UpdateMetadata", "StopReplica")
DELETED = -2

Fields = dict[str, Any]


class Order(NamedTuple):
    """One request of a controller; `partitions` by "topic-index"."""

    scenario: str
    to: int
    api: str
    version: int
    controller: int
    controller_epoch: int
    broker_epoch: int
    live: frozenset[int]  # live brokers, or leaders
    partitions: dict[str, Fields]


# Reading


def recorded_by_kafka(protocol: str) -> Iterator[tuple[str, str, str, int, str, str]]:
    """(scenario, from, to, api, version, client id, contents) of every message of Kafka's brokers; "" for contents that
    were left out."""
    scenario = ""
    with lzma.open(DATA / "interbroker" / f"ibp-{protocol}.txt.xz", "rt", encoding="utf-8") as file:
        for line in file:
            if line.startswith("== "):
                scenario = line[3:].strip()
                continue
            way, api, version, client, contents = [*line.rstrip("\n").split(" ", 4), ""][:5]
            yield scenario, way, api, int(version[1:]), client, contents


def orders_of_kafka(protocol: str) -> list[Order]:
    return [
        _parse(scenario, int(way[2:]), api, version, contents)
        for scenario, way, api, version, _, contents in recorded_by_kafka(protocol)
        if api in ORDERS
    ]


_PARTITION = re.compile(r"(\S+-\d+)\[((?:[^][]|\[[^]]*\])*)\]")
_HEAD = re.compile(r"ctrl=(\d+)@(\d+) bep=(\d+)")
_FIELD = re.compile(r"(new|del|rec|ce|L|le|pe|zv|isr|rep|add|rem|off)(\[[^]]*\]|True|False|None|-?\d+)")
_NAMES = {
    "L": "leader", "le": "epoch", "pe": "version", "zv": "version", "isr": "isr", "rep": "replicas", "add": "adding",
    "rem": "removing", "off": "offline", "del": "delete", "rec": "recovering", "new": "new", "ce": "decided",
}  # fmt: skip


def _parse(scenario: str, to: int, api: str, version: int, text: str) -> Order:
    head = _HEAD.match(text)
    assert head is not None, text
    controller, epoch, broker_epoch = (int(each) for each in head.groups())
    found = re.search(r"live=(\[[^]]*\])", text)
    ids = [] if found is None else re.findall(r"\((\d+)," if "(" in found[1] else r"(\d+)", found[1])
    partitions = {name: _parse_fields(fields) for name, fields in _PARTITION.findall(text)}
    for fields in partitions.values():
        if "decided" in fields:
            fields["decided"] = _elections_ago(epoch, fields["decided"])
    return Order(scenario, to, api, version, controller, epoch, broker_epoch, frozenset(map(int, ids)), partitions)


def _elections_ago(controller_epoch: int, decided_in: int) -> int:
    """How many controllers ago a partition's state was decided."""
    return controller_epoch - decided_in


def _parse_fields(text: str) -> Fields:
    fields: Fields = {}
    for word, value in _FIELD.findall(text):
        name = _NAMES.get(word)
        if name is None or value == "None":
            continue
        if value.startswith("["):
            ids = [int(each) for each in re.findall(r"\d+", value)]
            fields[name] = frozenset(ids) if word in ("isr", "off") else tuple(ids)
        else:
            fields[name] = value == "True" if value in ("True", "False") else int(value)
    return fields


def order_of(message: Recorded) -> Order:
    request = message.request
    assert request is not None
    live = request.get("LiveBrokers", request.get("LiveLeaders", []))
    partitions: dict[str, Fields] = {}
    for topic in request.get("TopicStates", request.get("Topics", [])):
        name = topic.get("TopicName", topic.get("Name"))
        for state in topic.get("PartitionStates", []):
            partitions[f"{name}-{state['PartitionIndex']}"] = _fields(message, state)
        for index in topic.get("PartitionIndexes", []):
            partitions[f"{name}-{index}"] = {"delete": request["DeletePartitions"]}
    return Order(
        message.scenario, message.to, message.api, message.version, request["ControllerId"], request["ControllerEpoch"],
        request["BrokerEpoch"], frozenset(each.get("Id", each.get("BrokerId")) for each in live), partitions,
    )  # fmt: skip


def _fields(message: Recorded, state: Mapping[str, Any]) -> Fields:
    if message.api == "StopReplica":
        return {"epoch": state["LeaderEpoch"], "delete": state["DeletePartition"]}
    fields: Fields = {"leader": state["Leader"], "epoch": state["LeaderEpoch"], "isr": frozenset(state["Isr"])}
    if message.api == "UpdateMetadata":
        return fields | {"version": state["ZkVersion"], "offline": frozenset(state["OfflineReplicas"])}
    assert message.request is not None
    fields["decided"] = _elections_ago(message.request["ControllerEpoch"], state["ControllerEpoch"])
    fields |= {"version": state["PartitionEpoch"], "replicas": tuple(state["Replicas"]), "new": state["IsNew"]}
    fields |= {"adding": tuple(state["AddingReplicas"]), "removing": tuple(state["RemovingReplicas"])}
    return fields | ({"recovering": state["LeaderRecoveryState"]} if "LeaderRecoveryState" in state else {})


# Comparing


def heard(
    orders: Iterable[Order], topics: Iterable[str], *, leaders_write: bool
) -> dict[tuple[str, int], list[str]]:
    """By scenario and broker: what it heard, a line for each message. Only partitions of these topics."""
    sequences = _Sequences(frozenset(topics), leaders_write)
    for order in orders:
        sequences.take(order)
    sequences.end_scenario()
    return {key: [_line(each) for each in found] for key, found in sequences.heard.items()}


class _Sequences:
    def __init__(self, topics: frozenset[str], leaders_write: bool) -> None:
        self.topics = topics
        self.leaders_write = leaders_write
        self.heard: dict[tuple[str, int], list[Order]] = {}
        self._scenario = ""
        self._epochs: dict[str, tuple[int, int]] = {}  # the highest so far
        self._start: dict[str, tuple[int, int]] = {}  # and at the scenario's start
        self._known: dict[tuple[int, str], dict[str, Any]] = {}  # by broker and kind of message
        self._registrations: dict[int, tuple[int, int, int]] = {}

    def take(self, order: Order) -> None:
        if order.scenario != self._scenario:
            self.end_scenario()
            self._scenario = order.scenario
        term = order.controller, order.controller_epoch, order.broker_epoch
        if self._registrations.get(order.to) != term:  # it is told everything again
            self._registrations[order.to] = term
            for api in ORDERS:
                self._known[order.to, api] = {}
        known = self._known[order.to, order.api]
        fresh: dict[str, Fields] = {}
        for at, fields in order.partitions.items():
            if at.rpartition("-")[0] not in self.topics:
                continue
            self._note(at, fields)
            if self.leaders_write:
                unsure = ("version", "isr") if order.api == "UpdateMetadata" else ("version",)
                fields = {key: value for key, value in fields.items() if key not in unsure}
            if self._is_news(order.api, known.get(at), fields):
                fresh[at] = self._relative(at, fields)
                known[at] = fields
        brokers = order.live if order.api == "UpdateMetadata" else None
        if not fresh and known.get("live") == brokers:
            return
        if brokers is not None:
            known["live"] = brokers
        if order.api == "StopReplica":  # it is stopped, and told anew if it comes back
            for at in fresh:
                self._known[order.to, "LeaderAndIsr"].pop(at, None)
        elif order.api == "LeaderAndIsr":
            for at in fresh:
                self._known[order.to, "StopReplica"].pop(at, None)
        self._add(order._replace(partitions=fresh))

    @staticmethod
    def _is_news(api: str, known: Fields | None, fields: Fields) -> bool:
        if known is None or api != "LeaderAndIsr":
            return known != fields
        return bool(fields["epoch"] > known["epoch"])

    def _add(self, order: Order) -> None:
        before = self.heard.setdefault((order.scenario, order.to), [])
        if before and order.api == "UpdateMetadata" == before[-1].api:
            before[-1] = order._replace(partitions=before[-1].partitions | order.partitions)
        else:
            before.append(order)

    def _note(self, at: str, fields: Fields) -> None:
        if fields.get("leader", DELETED) == DELETED or "version" not in fields:
            return
        epoch, version = self._epochs.get(at, (0, 0))
        self._epochs[at] = max(epoch, fields["epoch"]), max(version, fields["version"])

    def _relative(self, at: str, fields: Fields) -> Fields:
        if fields.get("leader") == DELETED or fields.get("epoch", DELETED) == DELETED:
            return {key: value for key, value in fields.items() if key not in ("version", "isr")}
        epoch, version = self._start.get(at, (0, 0))
        told = fields | {"epoch": fields["epoch"] - epoch}
        return told | ({"version": fields["version"] - version} if "version" in fields else {})

    def end_scenario(self) -> None:
        self._start = dict(self._epochs)


def _line(order: Order) -> str:
    live = f" live={sorted(order.live)}" if order.api == "UpdateMetadata" else ""
    partitions = "".join(f" {at}{_text(fields)}" for at, fields in sorted(order.partitions.items()))
    return f"{order.api} v{order.version} {order.controller}{live}{partitions}"


def _text(fields: Fields) -> str:
    shown = {
        name: sorted(value) if isinstance(value, frozenset) else list(value) if isinstance(value, tuple) else value
        for name, value in sorted(fields.items())
    }
    return "[" + " ".join(f"{name}={value}" for name, value in shown.items()) + "]"
