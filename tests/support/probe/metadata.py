"""Metadata: auto-creation, names and ids, what an empty list means."""

from __future__ import annotations

import time
from typing import Any

from tests.support.probe import Case, ProbeClient, Step


def M(name: str, version: int, topics: list[dict[str, Any]] | None, **fields: Any) -> Case:
    """A case that writes down the topics of the answer."""

    def run(client: ProbeClient) -> Any:
        return client.call_json("Metadata", version, {"Topics": topics} | fields)["Topics"]

    return Case(name, "Metadata", run)


def N(name: str, version: int, topics: list[dict[str, Any]] | None) -> Case:
    """A case that counts the topics of the answer."""
    return Case(
        name,
        "Metadata",
        lambda client: f"topics {len(client.call('Metadata', version, {'Topics': topics})['Topics'])}",
    )


CASES: list[Case | Step] = [
    M("unknown topic, v1 (auto-creates), first answer", 1, [{"Name": "auto-a"}]),
    Step(lambda client: time.sleep(0.6)),  # part of the next case: "0.6 s later"
    M("same, 0.6 s later", 1, [{"Name": "auto-a"}]),
    M("unknown topic, AllowAutoTopicCreation=false", 4, [{"Name": "auto-b"}], AllowAutoTopicCreation=False),
    M("invalid name", 4, [{"Name": "a b"}], AllowAutoTopicCreation=True),
    M("name of 250 characters", 4, [{"Name": "a" * 250}], AllowAutoTopicCreation=True),
    M("same topic twice", 9, [{"Name": "p"}, {"Name": "p"}]),
    M("unknown topic id", 12, [{"TopicId": b"\1" * 16, "Name": None}]),
    M("name and id both", 12, [{"TopicId": b"\1" * 16, "Name": "p"}]),
    M("null name and zero id", 12, [{"Name": None}]),
    M("id in v10", 10, [{"TopicId": b"\1" * 16, "Name": "p"}]),
    N("empty list v0 = all topics", 0, []),
    N("empty list v1 = none", 1, []),
    N("null v1 = all", 1, None),
]
