"""What became of writes whose answer was lost with a connection: told from the nodes as they are now. No I/O.

ZooKeeper carries out a session's requests in order, and the same session has come back, so nothing of them is still on
its way. A write left a trace or it didn't: the owner of an ephemeral node, the data and the creation of a persistent
one, the version and data of a set, the absence of what was deleted. A multi is as its first operation that shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from pybroker.controller.store import ANY_VERSION, Check, Create, Delete, NodeStat, Op, Result, SetData

Node = tuple[bytes, NodeStat]
Trace = Literal["done", "not", "unclear", "none"]


class LostWrite(NamedTuple):
    """Operations of one write, and the last zxid that the session had seen when it was sent."""

    ops: tuple[Op, ...]
    zxid: int


class Verdict(NamedTuple):
    """What to do: "again" is for a write that didn't happen, "unclear" where others have written since."""

    outcome: Literal["done", "again", "unclear"]
    results: list[Result] = []


class Scene(NamedTuple):
    """What is there now. `numbered` holds the nodes that a sequential create may have made, by the path it named."""

    nodes: Mapping[str, Node | None]
    numbered: Mapping[str, Mapping[str, Node]]
    session_id: int


def judge(writes: Sequence[LostWrite], scene: Scene) -> list[Verdict]:
    """A verdict for each write, in order. Looks from the last to the first: what came later explains what covers the
    trace of an earlier one."""
    judging = _Judging(scene, {op.path for write in writes for op in write.ops if isinstance(op, Create)})
    return [judging.write(write) for write in reversed(writes)][::-1]


class _Judging:
    def __init__(self, scene: Scene, created: set[str]) -> None:
        self.scene = scene
        self.created = created
        """Paths that one of these writes creates, so that a new node need not be another's."""
        self.written: set[str] = set()
        """Paths that a later one of these writes has written."""
        self.expected: dict[str, int] = {}
        """Of those, the version that the write before must have left."""
        self.taken: set[str] = set()

    def write(self, write: LostWrite) -> Verdict:
        final = {op.path: op for op in write.ops if not isinstance(op, Check)}
        traces: list[Trace] = []
        results: list[Result] = []
        created: set[str] = set()
        for op in write.ops:
            if isinstance(op, Create):
                trace, result = self._create(op, write.zxid, final[op.path])
                created.add(op.path)
            elif isinstance(op, SetData):
                trace, result = self._set(op, write.zxid, final[op.path], op.path in created)
            elif isinstance(op, Delete):
                trace, result = self._delete(op, write.zxid), None
            else:
                trace, result = "none", None
            traces.append(trace)
            results.append(result)
        if "not" in traces:
            return Verdict("again")
        if "unclear" in traces:
            return Verdict("unclear")
        if "done" not in traces:
            return Verdict("again")
        self._remember(write.ops)
        return Verdict("done", results)

    def _create(self, op: Create, zxid: int, last: Op) -> tuple[Trace, Result]:
        if op.sequential:
            for path, (data, stat) in self.scene.numbered.get(op.path, {}).items():
                if path not in self.taken and stat.czxid > zxid and data == (op.data or b""):
                    self.taken.add(path)
                    return "done", path
            return "not", None
        if isinstance(last, Delete):
            return "none", op.path
        node = self.scene.nodes.get(op.path)
        if node is None:
            return ("done" if op.path in self.written else "not"), op.path
        data, stat = node
        if op.ephemeral:
            return ("done" if stat.ephemeral_owner == self.scene.session_id else "not"), op.path
        wanted = last.data if isinstance(last, SetData) else op.data
        ours = stat.czxid > zxid and (op.path in self.written or data == (wanted or b""))
        return ("done" if ours else "not"), op.path

    def _set(self, op: SetData, zxid: int, last: Op, own: bool) -> tuple[Trace, Result]:
        node = self.scene.nodes.get(op.path)
        if node is None:
            return ("none" if op.path in self.written or isinstance(last, Delete) else "not"), None
        data, stat = node
        if own or last is not op:  # another operation of the same multi shows
            return "none", stat
        same = data == (op.data or b"")
        if op.version == ANY_VERSION:
            return ("done" if op.path in self.written or (same and stat.mzxid > zxid) else "not"), stat
        after = op.version + 1
        if self.expected.get(op.path) == after:
            return "done", stat._replace(version=after)
        if stat.version == after and same and stat.mzxid > zxid:
            return "done", stat
        return ("not" if stat.version <= after else "unclear"), stat

    def _delete(self, op: Delete, zxid: int) -> Trace:
        node = self.scene.nodes.get(op.path)
        if node is None or op.path in self.written:
            return "done"
        anew = node[1].czxid > zxid and op.path not in self.created
        return "done" if op.version == ANY_VERSION and anew else "not"

    def _remember(self, ops: Sequence[Op]) -> None:
        for op in ops:
            if isinstance(op, Check):
                continue
            self.written.add(op.path)
            if isinstance(op, SetData) and op.version != ANY_VERSION:
                self.expected[op.path] = op.version
