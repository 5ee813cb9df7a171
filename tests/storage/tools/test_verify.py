"""What verification finds in recorded directories, whole and damaged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pybroker.storage.meta_properties import WrongDirectory
from pybroker.storage.tools import verify
from pybroker.storage.tools.verify import Verification, lock
from tests.support import disk
from tests.support.broker import broker_environment

WHOLE = [
    case for case in disk.cases() if not case.startswith(("start-", "cluster-")) and case != "crash-crc-old-segment"
]
ERRORS = {
    "crash-crc-old-segment": "12.log: position 155: a batch's checksum does not match",
    "start-clean-then-bitflip": "28.log: position 0: a batch's checksum does not match",
    "start-clean-then-cut": "28.log: position 0: a batch of 130 bytes is cut off after 119",
    "start-clean-then-garbage": "28.log: position 130: a batch of 1616928876 bytes is cut off after 333",
    "start-clean-then-odd-index": "00.index: 51 bytes are no multiple of 8",
    "start-clean-then-zeros": "28.log: position 130: a batch's size field says 0",
    "start-epoch-corrupt": "leader-epoch-checkpoint: .*cannot be read",
    "start-hw-corrupt": "replication-offset-checkpoint: .*cannot be read",
    "start-log-start-corrupt": "log-start-offset-checkpoint: .*cannot be read",
    "start-meta-version-1": "meta.properties: .*KRaft",
    "start-not-a-partition-dir": "notapartition: .*is not of the form",
    "start-partition-metadata-corrupt": "partition.metadata: .*cannot be read",
    "start-recovery-point-corrupt": "recovery-point-offset-checkpoint: .*cannot be read",
}


def errors(*directories: Path, workers: int = 1) -> list[str]:
    found = Verification(directories, deep=True, workers=workers).run()
    return [f"{path}: {text}" for path, severity, text in found if severity == "error"]


@pytest.mark.parametrize("case", WHOLE)
def test_nothing_is_wrong_with_what_kafka_left(case: str, tmp_path: Path) -> None:
    _, directory = disk.unpack(case, tmp_path)
    assert errors(directory) == []


@pytest.mark.parametrize("case", sorted(ERRORS))
def test_damage_is_found(case: str, tmp_path: Path) -> None:
    facts, directory = disk.unpack(case, tmp_path)
    for name in facts.get("directoriesAfter") or ():
        (directory / name).mkdir(exist_ok=True)
    found = errors(directory)
    assert len(found) == 1, found
    assert re.search(ERRORS[case], found[0])


def test_two_directories_of_one_broker(tmp_path: Path) -> None:
    _, directory = disk.unpack("cluster-broker-3", tmp_path)
    a, b = directory / "a", directory / "b"
    assert errors(a, b) == []
    partition = next(path for path in a.iterdir() if path.is_dir())
    (b / partition.name).mkdir()
    assert any("holds the same partition" in each for each in errors(a, b))


def test_in_worker_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, directory = disk.unpack("whole-dir-clean", tmp_path)
    monkeypatch.setattr(verify, "WORTH_PROCESSES", 1)
    log = directory / "segs-0" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    assert len(errors(directory, workers=2)) == 1


def test_other_damage(tmp_path: Path) -> None:
    _, directory = disk.unpack("whole-dir-clean", tmp_path)
    segs = directory / "segs-0"
    snapshot = sorted((directory / "txn-0").glob("*.snapshot"))[0]
    snapshot.write_bytes(snapshot.read_bytes()[:-1])
    (segs / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 5\n")
    (directory / "idem-0" / f"{0:020d}.txnindex").write_bytes(b"\0" * 33)
    (directory / "log-start-offset-checkpoint").write_text("0\n1\ndr 0 99\n")
    times = directory / "codec-none-0" / f"{0:020d}.timeindex"
    times.write_bytes(b"\1" + times.read_bytes()[1:])
    found = "\n".join(errors(directory))
    for text in (
        "snapshot: the checksum does not match",
        "is of leader epoch 0, leader-epoch-checkpoint says 1",
        "txnindex: .*33 bytes are no multiple of 34",
        "dr-0 ends at offset 30, the checkpoint says 99",
        "timeindex: the entry of offset 11 says",
    ):
        assert re.search(text, found), (text, found)


def test_a_marker_that_is_none(tmp_path: Path) -> None:
    _, directory = disk.unpack("topic-txn", tmp_path)
    index = directory / "txn-0" / f"{0:020d}.txnindex"
    data = bytearray(index.read_bytes())
    data[9] ^= 1  # the producer
    index.write_bytes(data)
    found = errors(directory)
    assert len(found) == 1
    assert "offset 10 is no ABORT marker of producer 5" in found[0]


def test_not_beside_a_broker(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=broker_environment(),
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        holder.stdout.readline()
        with pytest.raises(WrongDirectory, match="already running"):
            lock([tmp_path])
        holder.stdin.close()
    with pytest.raises(WrongDirectory, match="no directory"):
        lock([tmp_path / "nothing"])
