"""`pybroker metadata ...`: with an imported tree, a directory of Apache Kafka's is opened with its topics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pybroker.broker.cli import main
from tests.support import disk
from tests.support.broker import BrokerProcess


def unpacked(tmp_path: Path) -> tuple[Path, Path]:
    """(log directory, file with its tree)."""
    facts, directory = disk.unpack("whole-dir-clean", tmp_path)
    tree = tmp_path / "tree.json"
    tree.write_text(json.dumps({"nodes": facts["zookeeper"]}))
    return directory, tree


def test_import_and_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory, tree = unpacked(tmp_path)
    where = ["--data-dir", str(directory)]
    assert main(["metadata", "import", str(tree), *where]) == 0
    assert capsys.readouterr().out.startswith("20 topics with 22 partitions are in ")
    assert main(["metadata", "import", str(tree), *where]) == 1
    assert "exists; --replace puts it aside" in capsys.readouterr().err
    exported = tmp_path / "exported.json"
    assert main(["metadata", "export", str(exported), *where]) == 0
    assert main(["metadata", "export", str(exported), *where]) == 1
    assert main(["metadata", "import", str(exported), "--replace", *where]) == 0
    assert (
        len([each for each in directory.glob("pybroker-metadata.db.*") if each.name[-4:] not in ("-wal", "-shm")]) == 1
    )
    capsys.readouterr()
    assert main(["metadata", "export", "-", *where]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(exported.read_text())


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory, tree = unpacked(tmp_path)
    other = json.loads(tree.read_text())
    for node in other["nodes"]:
        if node["path"] == "/cluster/id":
            node["text"] = '{"version":"1","id":"AAAAAAAAAAAAAAAAAAAAAA"}'
    tree.write_text(json.dumps(other))
    assert main(["metadata", "import", str(tree), "--data-dir", str(directory)]) == 1
    assert "is that of cluster AAAAAAAAAAAAAAAAAAAAAA, but" in capsys.readouterr().err
    tree.write_text("nothing")
    assert main(["metadata", "import", str(tree), "--data-dir", str(directory)]) == 1
    assert "is no tree of metadata" in capsys.readouterr().err
    assert main(["metadata", "export", "-", "--data-dir", str(tmp_path / "empty")]) == 1
    assert not list(directory.glob("pybroker*"))


@pytest.mark.parametrize("clean", [True, False])
def test_a_directory_of_kafkas_is_served(clean: bool, tmp_path: Path) -> None:
    directory, tree = unpacked(tmp_path)
    if not clean:
        (directory / ".kafka_cleanshutdown").unlink()
    assert main(["metadata", "import", str(tree), "--data-dir", str(directory)]) == 0
    with BrokerProcess(directory) as broker, broker.client() as client:
        metadata = client.call("Metadata", 9, {"Topics": None})
        assert [each["NodeId"] for each in metadata["Brokers"]] == [7]
        topics = {topic["Name"]: topic for topic in metadata["Topics"]}
        assert set(topics) >= {"codec-gzip", "segs", "idem", "dr", "txn", "cmp", "__consumer_offsets"}
        assert client.end_offset("segs") == 40
        configs = client.call("DescribeConfigs", 1, {"Resources": [{"ResourceType": 2, "ResourceName": "segs"}]})
        values = {each["Name"]: each["Value"] for each in configs["Results"][0]["Configs"]}
        assert values["segment.bytes"] == "1100"
