"""Verdicts on lost writes, from what a node looks like afterwards."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pybroker.controller.store import Check, Create, Delete, NodeStat, Op, SetData
from pybroker.controller.zookeeper_settle import LostWrite, Node, Scene, judge

SESSION = 77
SEEN = 100  # the last zxid seen when the writes were sent


def node(data: bytes = b"", *, created: int = 50, changed: int | None = None, version: int = 0, owner: int = 0) -> Node:
    return data, NodeStat(created, changed or created, version, 0, owner, 0)


def outcomes(
    writes: list[list[Op]], nodes: Mapping[str, Node | None], numbered: Mapping[str, Mapping[str, Node]] | None = None
) -> list[str]:
    lost = [LostWrite(tuple(ops), SEEN) for ops in writes]
    return [verdict.outcome for verdict in judge(lost, Scene(nodes, numbered or {}, SESSION))]


CASES: list[tuple[str, list[Op], Node | None, str]] = [
    ("create that didn't happen", [Create("/a", b"x")], None, "again"),
    ("create that did", [Create("/a", b"x")], node(b"x", created=101), "done"),
    ("create of a node that was there before", [Create("/a", b"x")], node(b"x"), "again"),
    ("create that another did, otherwise", [Create("/a", b"x")], node(b"y", created=101), "again"),
    ("ephemeral of ours", [Create("/a", b"x", ephemeral=True)], node(b"x", created=101, owner=SESSION), "done"),
    ("ephemeral of another", [Create("/a", b"x", ephemeral=True)], node(b"x", created=101, owner=5), "again"),
    ("set that didn't happen", [SetData("/a", b"x", 3)], node(b"w", version=3), "again"),
    ("set that did", [SetData("/a", b"x", 3)], node(b"x", changed=101, version=4), "done"),
    ("set that another did, otherwise", [SetData("/a", b"x", 3)], node(b"y", changed=101, version=4), "again"),
    ("set, and more sets by others", [SetData("/a", b"x", 3)], node(b"z", changed=105, version=6), "unclear"),
    ("set of a node that is gone", [SetData("/a", b"x", 3)], None, "again"),
    ("set of any version that did", [SetData("/a", b"x")], node(b"x", changed=101, version=4), "done"),
    ("set of any version that didn't", [SetData("/a", b"x")], node(b"x", changed=99, version=4), "again"),
    ("delete that did", [Delete("/a")], None, "done"),
    ("delete that didn't", [Delete("/a")], node(), "again"),
    ("delete, and a new node", [Delete("/a")], node(created=101), "done"),
    ("only a check", [Check("/a", 1)], node(version=1), "again"),
    ("checked set", [Check("/e", 1), SetData("/a", b"x", 3)], node(b"x", changed=101, version=4), "done"),
    (
        "registration",
        [Create("/a", None, ephemeral=True), SetData("/a", b"x")],
        node(b"x", created=101, version=1, owner=SESSION),
        "done",
    ),
    ("registration that didn't", [Create("/a", None, ephemeral=True), SetData("/a", b"x")], None, "again"),
    ("made and deleted", [Create("/a"), Delete("/a")], None, "done"),
]


@pytest.mark.parametrize(("ops", "found", "outcome"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_one_write(ops: list[Op], found: Node | None, outcome: str) -> None:
    assert outcomes([ops], {"/a": found}) == [outcome]


def test_a_multi_is_as_its_first_operation_that_shows() -> None:
    election: list[Op] = [Create("/controller", b"me", ephemeral=True), SetData("/epoch", b"5", 4)]
    ours = node(b"me", created=101, owner=SESSION)
    assert outcomes([election], {"/controller": ours, "/epoch": node(b"5", changed=101, version=5)}) == ["done"]
    theirs = node(b"you", created=101, owner=9)
    assert outcomes([election], {"/controller": theirs, "/epoch": node(b"5", changed=101, version=5)}) == ["again"]
    assert outcomes([election], {"/controller": None, "/epoch": node(b"4", version=4)}) == ["again"]


def test_later_writes_explain_earlier_ones() -> None:
    chain: list[list[Op]] = [[SetData("/a", b"%d" % version, version)] for version in range(4)]
    assert outcomes(chain, {"/a": node(b"1", changed=103, version=2)}) == ["done", "done", "again", "again"]
    anyhow: list[list[Op]] = [[SetData("/a", b"%d" % n)] for n in range(3)]
    assert outcomes(anyhow, {"/a": node(b"1", changed=103, version=9)}) == ["done", "done", "again"]
    life: list[list[Op]] = [[Create("/a", b"0")], [SetData("/a", b"1", 0)], [Delete("/a")]]
    # The set is sent again and refused: its node is gone.
    assert outcomes(life, {"/a": None}) == ["done", "again", "done"]
    assert outcomes(life, {"/a": node(b"1", created=101, changed=102, version=1)}) == ["done", "done", "again"]


def test_results_are_those_of_the_write() -> None:
    lost = [LostWrite((Check("/e", 0), SetData("/a", b"0", 0)), SEEN), LostWrite((SetData("/a", b"1", 1),), SEEN)]
    found = node(b"1", changed=105, version=2)
    first, second = judge(lost, Scene({"/a": found}, {}, SESSION))
    assert first.results == [None, found[1]._replace(version=1)]
    assert second.results == [found[1]]


def test_sequential_nodes_are_found_once_each() -> None:
    notice: list[Op] = [Create("/c/n_", b"x", sequential=True)]
    there = {"/c/n_0000000004": node(b"x"), "/c/n_0000000005": node(b"x", created=101)}
    assert outcomes([notice], {}, {"/c/n_": there}) == ["done"]
    assert sorted(outcomes([notice, notice], {}, {"/c/n_": there})) == ["again", "done"]
    assert outcomes([[Create("/c/n_", b"y", sequential=True)]], {}, {"/c/n_": there}) == ["again"]
