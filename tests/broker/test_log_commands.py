"""`pybroker log ...`, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pybroker.broker.cli import main
from pybroker.controller.embedded_store import FILE_NAME, EmbeddedStore
from pybroker.controller.registration import prepare_store
from pybroker.storage.meta_properties import write_meta_properties
from tests.support import disk


def test_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, directory = disk.unpack("topic-txn", tmp_path)
    log = directory / "txn-0" / f"{0:020d}.log"
    assert main(["log", "dump", str(log), "--print-data-log"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"Dumping {log}", "Log starting offset: 0"]
    assert lines[2].startswith("baseOffset: 0 lastOffset: 2 count: 3 baseSequence: 0 lastSequence: 2 producerId: 3 ")
    assert lines[2].endswith("size: 161 magic: 2 compresscodec: none crc: 778085589 isvalid: true")
    assert lines[3] == (
        "| offset: 0 CreateTime: 1796051457023 keySize: 4 valueSize: 13 sequence: 0 headerKeys: [] "
        "key: a-k0 payload: a-txnA0-0-xxx"
    )
    assert any("endTxnMarker: ABORT coordinatorEpoch: 0" in line for line in lines)


def test_dump_as_json_of_several_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, directory = disk.unpack("topic-txn", tmp_path)
    assert main(["log", "dump", str(directory), "--files", str(directory / "txn-0"), "--deep", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    batches = [row for row in rows if row["kind"] == "batch"]
    assert batches[0]["deleteHorizonMs"] is None
    assert batches[0]["isTransactional"] is True
    assert {Path(row["file"]).suffix for row in rows} >= {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}


def test_dump_of_what_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, directory = disk.unpack("crash-garbage", tmp_path)
    assert main(["log", "dump", str(directory / "crash-garbage-0")]) == 1
    assert "BROKEN at position " in capsys.readouterr().out
    assert main(["log", "dump", str(tmp_path / "nothing.log")]) == 1
    assert "pybroker: " in capsys.readouterr().err
    assert main(["log", "dump"]) == 2


def test_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, directory = disk.unpack("start-clean-then-bitflip", tmp_path)
    assert main(["log", "verify", str(directory)]) == 1
    lines = capsys.readouterr().out.splitlines()
    log = directory / "crash-plain-0" / f"{28:020d}.log"
    assert lines == [
        f"error: {log}: position 0: a batch's checksum does not match",
        "1 partitions, 15 batches, 2454 bytes: 1 error",
    ]
    _, directory = disk.unpack("crash-trunc", tmp_path)
    assert main(["log", "verify", "--deep", "--quiet", str(directory)]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("no errors")
    assert main(["log", "verify", str(tmp_path / "nothing")]) == 1
    assert "is no directory" in capsys.readouterr().err


def test_repair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, directory = disk.unpack("start-meta-other-broker", tmp_path)
    command = ["log", "repair", str(directory), "--broker-id", "7"]
    assert main(command) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{directory / 'meta.properties'} says broker.id=8, not 7"
    assert lines[1].startswith("  remedy: write it with version=0, broker.id=7, cluster.id=")
    assert lines[2].startswith("Nothing was changed.")
    assert main([*command, "--apply", "--backup", str(tmp_path / "kept")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"Done. What was changed is kept in {tmp_path / 'kept/data'}"
    assert "broker.id=8" in (tmp_path / "kept/data/meta.properties").read_text()
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("Nothing keeps a broker from starting here")


async def test_repair_goes_by_the_cluster_id_of_the_metadata_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = await EmbeddedStore.open(tmp_path / FILE_NAME)
    cluster_id = await prepare_store(store, None, own_store=True)
    await store.close()
    write_meta_properties(tmp_path, 1, "AAAAAAAAAAAAAAAAAAAAAA")
    assert main(["log", "repair", str(tmp_path)]) == 1
    assert f"says cluster.id=AAAAAAAAAAAAAAAAAAAAAA, not {cluster_id}" in capsys.readouterr().out
