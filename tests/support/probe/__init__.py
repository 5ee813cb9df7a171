"""Odd and malformed requests, and what a broker makes of them.

Each section is a module with a list CASES of Case (a request and how its answer is written down) and Step (something
the cases behind it need). run_all sends them in order to a fresh one-node broker, each on its own connection. The
recorded answers of Apache Kafka are in tests/data/probe, in the same order and notation.

The broker under test has broker.id 5 and the settings SETTINGS; otherwise defaults.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.broker import wait_until
from tests.support.records import batch
from tests.support.schema import response_json
from tests.support.wire import Closed, WireClient

SETTINGS = {
    "broker.id": 5,
    "connections.max.idle.ms": 8000,
    "max.connections": 200,
    "offsets.topic.num.partitions": 3,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 3,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
}


class Probe:
    """One run against one broker, and what later cases need of earlier ones."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.end_of_p = 0  # log end offset of topic p when the fetch cases begin

    def client(self, timeout: float = 6) -> ProbeClient:
        return ProbeClient(self, timeout)


class ProbeClient(WireClient):
    """A connection of a run."""

    def __init__(self, probe: Probe, timeout: float = 6) -> None:
        super().__init__(probe.host, probe.port, timeout=timeout, client_id="probe")
        self.probe = probe

    def call_json(self, api: str, version: int, values: dict[str, Any] | None = None) -> Any:
        """The answer as JSON, long bytes cut."""
        return response_json(api, version, self.call(api, version, values))


@dataclass(frozen=True)
class Case:
    """A request, the API it concerns (None: framing) and how to send it and write down the answer."""

    name: str
    api: str | None
    run: Callable[[ProbeClient], Any]
    look_after: bool = True  # is the connection still usable afterwards?


@dataclass(frozen=True)
class Step:
    """Something between cases that is not looked at."""

    run: Callable[[ProbeClient], Any]


@dataclass(frozen=True)
class Result:
    """What came back: the answer in the recorded notation, and the connection afterwards."""

    name: str
    answer: Any
    connection: str


def calls(api: str, version: int, values: dict[str, Any] | None = None) -> Callable[[ProbeClient], Any]:
    """A run that writes down the whole answer."""
    return lambda client: client.call_json(api, version, values)


def run_case(probe: Probe, case: Case) -> Result:
    with probe.client() as client:
        try:
            answer = case.run(client)
        except Closed:
            answer = "no answer, connection closed"
        except TimeoutError:
            answer = "no answer within 6 s"
        except Exception as error:  # the case's own code met an answer it cannot read: that is the finding
            answer = f"unreadable answer: {error!r}"[:200]
        return Result(case.name, json.loads(json.dumps(answer)), _state(client) if case.look_after else "-")


def _state(client: ProbeClient) -> str:
    """Whether an ApiVersions sent next is answered."""
    try:
        client.sock.settimeout(3)
        client.call("ApiVersions", 0)
        return "open"
    except (Closed, OSError) as error:
        return "open, no answer" if isinstance(error, TimeoutError) else "closed"
    except Exception as error:
        return f"unreadable answer: {error!r}"[:80]


def sections() -> list[list[Case | Step]]:
    from tests.support.probe import cluster, configs, fetch, framing, groups, limits, metadata, offsets, produce, topics

    modules = (framing, produce, fetch, offsets, groups, topics, configs, cluster, metadata, limits)
    return [module.CASES for module in modules]


def all_cases() -> list[Case]:
    return [each for section in sections() for each in section if isinstance(each, Case)]


def run_all(
    probe: Probe, *, groups: bool = True, only: Callable[[Case], bool] = lambda case: True
) -> list[Result | None]:
    """Prepares the broker and sends every case; None for those that `only` leaves out.

    groups: wait until the broker coordinates groups, as the recorded runs did.
    """
    _prepare(probe, groups)
    results: list[Result | None] = []
    for section in sections():
        for each in section:
            if isinstance(each, Case):
                results.append(run_case(probe, each) if only(each) else None)
            else:
                with probe.client() as client:
                    each.run(client)
    return results


TOPICS: dict[str, dict[str, str]] = {
    "p": {},
    "q": {},
    "small": {"max.message.bytes": "1000"},
    "compacted": {"cleanup.policy": "compact"},
    "lat": {"message.timestamp.type": "LogAppendTime"},
    "gz": {"compression.type": "gzip"},
    "tsl": {"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "1000"},
    "isr2": {"min.insync.replicas": "2"},
    "clean": {},
}


def _prepare(probe: Probe, groups: bool) -> None:
    with probe.client(30) as client:
        for name, configs in TOPICS.items():
            client.create_topic(name, **configs)
        if groups:
            wanted = {"KeyType": 0, "CoordinatorKeys": ["pg"]}
            wait_until(lambda: client.call("FindCoordinator", 4, wanted)["Coordinators"][0]["ErrorCode"] == 0)
        assert client.produce("p", batch([b"a", b"b", b"c"]))["ErrorCode"] == 0


# ------------------------------------------------------------------ comparing
# Values that differ from run to run; -1 and null among them are looked at.
VOLATILE = frozenset(
    (
        "TopicId",
        "ProducerId",
        "MemberId",
        "Leader",
        "SessionId",
        "Timestamp",
        "LastTimestamp",
        "LogAppendTimeMs",
        "ThrottleTimeMs",
        "Port",
        "ClusterId",
        "Host",
        "TotalBytes",
        "UsableBytes",
        "PartitionSize",
        "LogDir",
        "ExpiryTimestampMs",
        "TransactionStartTimeMs",
    )
)
VOLATILE_TEXT = (
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<uuid>"),
    (r"(answer \d+ bytes): [0-9a-f]+", r"\1"),
    (r"-?\b\d{13,}\b", "<ms>"),
    (r"\b\d+(\.\d+)? ?(ms|s)\b", "<time>"),
    (r"127\.0\.0\.1:\d+|\bport \d+", "<peer>"),
    (r"(/[\w.-]+){2,}", "<dir>"),
)


def mask(value: Any) -> Any:
    """A value without what differs from run to run."""
    if isinstance(value, dict):
        return {
            key: "#" if key in VOLATILE and each not in (-1, None, "") else mask(each) for key, each in value.items()
        }
    if isinstance(value, list):
        return [mask(each) for each in value]
    if isinstance(value, str):
        for pattern, name in VOLATILE_TEXT:
            value = re.sub(pattern, name, value)
    return value
