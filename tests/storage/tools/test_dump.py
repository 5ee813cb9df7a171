"""Dumps of recorded files say what Kafka's DumpLogSegments said of them; broken files are told where they break."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pybroker.storage.tools.decoders import decode_group_record, decode_transaction_record
from pybroker.storage.tools.dump import UnknownFile, dump, files_of
from pybroker.storage.tools.items import Item, Options
from tests.support import disk

WITH_DATA = Options(deep=True, data=True)
DECODERS = {"__consumer_offsets": decode_group_record, "__transaction_state": decode_transaction_record}
CASES = [
    case
    for case in disk.cases()
    if case.startswith(("topic-", "format-", "compact-", "group-", "transaction-", "produced-", "after-"))
]
# Kafka also prints these of each record of magic 0 and 1.
INNER_CHECKSUM = ("isValid", "crc")


def line(item: Item) -> str:
    return " ".join(f"{name}: {str(v).lower() if isinstance(v, bool) else v}" for name, v in item.fields.items())


def problems(path: Path, options: Options = WITH_DATA) -> list[dict[str, Any]]:
    return [item.fields for item in dump(path, options) if item.kind == "problem"]


def as_recorded(item: Item) -> dict[str, Any]:
    return {k: v if isinstance(v, int | str) and not hasattr(v, "name") else str(v) for k, v in item.fields.items()}


@pytest.mark.parametrize("case", CASES)
def test_as_kafka_decodes_it(case: str, tmp_path: Path) -> None:
    facts, directory = disk.unpack(case, tmp_path)
    decoded = facts.get("decoded by DumpLogSegments")
    if not decoded:
        pytest.skip("nothing decoded was recorded")
    seen = 0
    for partition, files in decoded.items():
        decoder = DECODERS.get(partition.rpartition("-")[0])
        for name, expected in files.items():
            path = directory / partition / name
            if name.endswith(".log"):
                compare_log(path, expected, Options(True, True, decoder))
            elif name.endswith(("index", ".snapshot")):
                found = list(dump(path, Options()))
                assert [item for item in found if item.kind == "problem"] == []
                lines = [line(item) for item in found if item.kind == "entry"]
                assert lines == [each for each in expected if not each.endswith("is empty.")]
            else:
                assert not problems(path)
            seen += 1
    assert seen


def compare_log(path: Path, expected: dict[str, Any], options: Options) -> None:
    batches: list[dict[str, Any]] = []
    for item in dump(path, options):
        if item.kind == "batch":
            batches.append(as_recorded(item) | {"records": []})
        elif item.kind == "record":
            batches[-1]["records"].append(as_recorded(item))
        elif item.kind == "note":
            assert item.fields["text"] in expected["notes"]
        else:
            pytest.fail(str(item))
    if "numberOfBatches" in expected:
        assert len(batches) == expected["numberOfBatches"]
    for batch, recorded in zip(batches, expected["batches"], strict=False):
        for record in recorded.get("records", ()):
            for name in INNER_CHECKSUM:
                record.pop(name, None)
        for record in [*recorded.get("records", ()), *batch["records"]]:
            if "txnTimeoutMs" in record.get("payload", ""):
                record["payload"] = sorted(re.split(r"[\[\],]", record["payload"]))  # partitions come as of a set
        assert {name: batch[name] for name in recorded} == recorded


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("crash-trunc", "is cut off after"),
        ("crash-trunc-header", "is cut off after"),
        ("crash-garbage", ""),
        ("crash-zeros", "nothing but zeros from here on"),
        ("crash-crc-last", "checksum does not match"),
    ],
)
def test_a_broken_log_is_told_where(case: str, text: str, tmp_path: Path) -> None:
    _, directory = disk.unpack(case, tmp_path)
    found = [(path, each) for path in sorted((directory / f"{case}-0").glob("*.log")) for each in problems(path)]
    assert len(found) == 1, found
    path, told = found[0]
    assert text in told["text"]
    assert 0 <= told["position"] < path.stat().st_size


def test_indexes_are_compared_with_the_log(tmp_path: Path) -> None:
    _, directory = disk.unpack("topic-segs", tmp_path)
    index = next(path for path in sorted((directory / "segs-0").glob("*.index")) if path.stat().st_size >= 16)
    assert not problems(index)
    data = bytearray(index.read_bytes())
    data[7] ^= 1
    index.write_bytes(data + b"\0\0\0")
    told = [each["text"] for each in problems(index, Options(only_problems=True))]
    assert told[0] == f"{len(data) + 3} bytes are no multiple of 8"
    assert "Index offset" in told[1]

    times = index.with_suffix(".timeindex")
    data = bytearray(times.read_bytes())
    data[7] ^= 1
    times.write_bytes(data)
    assert any("log timestamp" in each["text"] for each in problems(times))
    times.with_suffix(".log").unlink()
    assert next(iter(dump(times, Options()))).fields["text"] == "There is no log beside it to compare it with."


def test_zeros_behind_the_entries_of_an_active_index_are_no_entries(tmp_path: Path) -> None:
    _, directory = disk.unpack("crash-plain", tmp_path)
    for path in (directory / "crash-plain-0").glob("*index"):
        found = list(dump(path, Options()))
        assert all(item.fields["offset"] for item in found if item.kind == "entry")
        assert not problems(path)


def test_small_files(tmp_path: Path) -> None:
    _, directory = disk.unpack("start-hw-corrupt", tmp_path)
    found = list(dump(directory / "replication-offset-checkpoint", Options()))
    assert found[0].kind == "problem"
    entries = [item.fields for item in dump(directory / "recovery-point-offset-checkpoint", Options())]
    assert entries
    assert all(set(each) == {"topic", "partition", "offset"} for each in entries)
    properties = [item.fields for item in dump(directory / "meta.properties", Options())]
    assert {"broker.id": "7"} in properties


def test_a_damaged_snapshot_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    _, directory = disk.unpack("crash-snapshot-corrupt", tmp_path)
    outcomes = [list(dump(path, Options())) for path in (directory / "crash-snapshot-corrupt-0").glob("*.snapshot")]
    assert any(item.kind == "problem" for found in outcomes for item in found)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for name in ("x.txt", "server.log", "a.log"):
        (tmp_path / name).touch()
        with pytest.raises(UnknownFile):
            dump(tmp_path / name, Options())
    (tmp_path / f"{0:020d}.log.deleted").touch()
    assert files_of(tmp_path) == [tmp_path / f"{0:020d}.log.deleted"]
    assert [item.kind for item in dump(tmp_path / f"{0:020d}.log.deleted", Options())] == ["note"]
