"""Trees as files."""

from __future__ import annotations

import io

import pytest

from pybroker.controller.tree_dump import TreeError, TreeNode, read_tree, write_tree

NODES = [
    TreeNode("/", None, 0, 0, 0, 2),
    TreeNode("/a", b"", 3, 5, 9, 0),
    TreeNode("/b", '{"ü":1}'.encode(), 1, 6, 6, 7),
    TreeNode("/b/c", b"\xff\x00", 0, 7, 7, 0, True),
]


def test_a_file_gives_back_what_was_written() -> None:
    file = io.StringIO()
    assert write_tree(NODES, file) == 4
    assert len(file.getvalue().splitlines()) == 6
    assert read_tree(io.StringIO(file.getvalue()), "x") == NODES
    empty = io.StringIO()
    write_tree([], empty)
    assert read_tree(io.StringIO(empty.getvalue()), "x") == []


def test_the_children_made_come_from_zookeepers_cversion() -> None:
    rows = '[{"path": "/a", "text": "x", "cversion": 5}, {"path": "/a/b", "data": null}]'
    first, second = read_tree(io.StringIO(rows), "x")
    assert first == TreeNode("/a", b"x", children_made=3)  # three made, two of them gone
    assert second == TreeNode("/a/b", None)


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"nodes": 1}', "{}", '[{"text": "no path"}]', '[{"path":"/","base64":"?"}]']
)
def test_what_is_no_tree_is_refused(text: str) -> None:
    with pytest.raises(TreeError, match=r"f\.json is no tree of metadata"):
        read_tree(io.StringIO(text), "f.json")
