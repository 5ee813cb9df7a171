"""The .txnindex file against Kafka's."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.storage.txn_index import AbortedTransaction, CorruptTransactionIndex, TransactionIndex
from tests.support import disk

A = AbortedTransaction(4, 3, 10, 11)
B = AbortedTransaction(3, 11, 20, 14)
C = AbortedTransaction(4, 14, 21, 22)


def test_kafkas_file_is_read_and_written_byte_for_byte(tmp_path: Path) -> None:
    _, directory = disk.unpack("topic-txn", tmp_path)
    files = [path for path in directory.rglob("*.txnindex") if TransactionIndex(path).entries == [A, B, C]]
    assert files
    copy = TransactionIndex(tmp_path / "copy.txnindex")
    for entry in (A, B, C):
        copy.append(entry)
    assert copy.path.read_bytes() == files[0].read_bytes()


def test_collect_finds_overlaps_and_knows_when_to_stop(tmp_path: Path) -> None:
    index = TransactionIndex(tmp_path / "0.txnindex")
    for entry in (A, B, C):
        index.append(entry)
    assert index.collect(0, 3) == ([], True)
    assert index.collect(0, 4) == ([A], True)
    assert index.collect(11, 14) == ([B], True)
    assert index.collect(10, 15) == ([A, B, C], True)
    assert index.collect(21, 30) == ([C], False)


def test_truncation_reset_and_a_missing_file(tmp_path: Path) -> None:
    index = TransactionIndex(tmp_path / "0.txnindex")
    assert index.entries == []
    index.check()
    assert not index.path.exists()
    for entry in (A, B, C):
        index.append(entry)
    with pytest.raises(ValueError, match="not above"):
        index.append(B)
    index.truncate_to(20)
    assert TransactionIndex(index.path).entries == [A]
    index.reset()
    assert not index.path.exists()


def test_a_broken_file_is_told(tmp_path: Path) -> None:
    index = TransactionIndex(tmp_path / "0.txnindex")
    index.append(A)
    whole = index.path.read_bytes()
    for data in (whole[:-1], b"\0\1" + whole[2:], whole + whole):
        index.path.write_bytes(data)
        with pytest.raises(CorruptTransactionIndex):
            TransactionIndex(index.path).check()
