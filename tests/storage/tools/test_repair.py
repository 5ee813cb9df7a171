"""For each directory that a broker refuses there is a remedy, after which it starts and has its records."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.config import BrokerConfig
from pybroker.protocol.clock import ManualClock
from pybroker.protocol.types import TopicPartition
from pybroker.storage.checkpoints import read_offsets
from pybroker.storage.leader_epochs import LeaderEpochCache
from pybroker.storage.log_manager import LogManager
from pybroker.storage.meta_properties import MetaProperties, WrongDirectory, read_meta_properties
from pybroker.storage.tools.repair import Backup, Identity, Remedy, find_remedies
from tests.support import disk

CLUSTER = "nWsHp_3ARcGuG51oFKnLew"
REFUSED = {
    "start-clean-then-zeros": Identity(),
    "start-epoch-corrupt": Identity(),
    "start-hw-corrupt": Identity(),
    "start-log-start-corrupt": Identity(),
    "start-meta-other-broker": Identity(broker_id=7),
    "start-meta-other-cluster": Identity(cluster_id=CLUSTER),
    "start-meta-version-1": Identity(broker_id=7),
    "start-not-a-partition-dir": Identity(),
    "start-partition-metadata-corrupt": Identity(),
    "start-recovery-point-corrupt": Identity(),
}
SETTINGS = {"crash-plain": {"segment.bytes": "1200", "index.interval.bytes": "100", "segment.index.bytes": "4096"}}


def start(directory: Path, cluster_id: str | None) -> LogManager:
    manager = LogManager(BrokerConfig.of({}), [directory], ManualClock(1_796_051_600_000))
    found = manager.open()
    manager.check_identity(7, cluster_id or found or CLUSTER)
    manager.load(SETTINGS)
    return manager


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_a_refused_directory_is_put_right(case: str, tmp_path: Path) -> None:
    facts, directory = disk.unpack(case, tmp_path)
    for name in facts["directoriesAfter"] or ():
        (directory / name).mkdir(exist_ok=True)
    identity = REFUSED[case]
    before = content(directory)
    remedies = list(find_remedies([directory], identity))
    assert len(remedies) == 1, remedies
    assert content(directory) == before

    backup = Backup(directory)
    remedies[0].apply(backup)
    assert list(find_remedies([directory], identity)) == []
    kept = content(backup.root)
    after = content(directory)
    assert {name: data for name, data in before.items() if after.get(name) != data} == kept
    assert backup.root.parent == directory.parent

    manager = start(directory, identity.cluster_id)
    log = manager.logs[TopicPartition("crash-plain", 0)]
    assert log.log_end_offset == 29
    assert log.leader_epochs.entries[0] == (0, 0)
    manager.shutdown()


@pytest.mark.parametrize("case", ["topic-txn", "whole-dir-clean", "crash-trunc", "start-suffix-dirs"])
def test_where_nothing_is_refused_nothing_is_offered(case: str, tmp_path: Path) -> None:
    _, directory = disk.unpack(case, tmp_path)
    assert list(find_remedies([directory], Identity(7, None))) == []


def apply(remedies: list[Remedy], directory: Path) -> Backup:
    backup = Backup(directory)
    for remedy in remedies:
        remedy.apply(backup)
    return backup


def test_leader_epochs_are_read_from_the_batches(tmp_path: Path) -> None:
    _, directory = disk.unpack("cluster-broker-3", tmp_path)
    for home in (directory / "a", directory / "b"):
        for path in home.glob("*/leader-epoch-checkpoint"):
            before = LeaderEpochCache.load(path.parent).entries
            path.write_text("0\n7\n")
            apply(list(find_remedies([home], Identity())), home)
            after = LeaderEpochCache.load(path.parent).entries
            assert set(after) <= set(before)  # an epoch without records is not in the log


def test_log_starts_that_can_be_read_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "d" / "log-start-offset-checkpoint"
    path.parent.mkdir()
    path.write_text("0\n3\na 0 5\nb 1\nc 2 x\nd 3 7\n")
    apply(list(find_remedies([path.parent], Identity())), path.parent)
    assert read_offsets(path) == {TopicPartition("a", 0): 5, TopicPartition("d", 3): 7}


def test_of_two_replicas_the_longer_one_stays(tmp_path: Path) -> None:
    _, a = disk.unpack("crash-plain", tmp_path)
    _, other = disk.unpack("crash-trunc", tmp_path)
    b = tmp_path / "b"
    (b).mkdir()
    (other / "crash-trunc-0").rename(b / "crash-plain-0")
    remedies = list(find_remedies([a, b], Identity()))
    assert [(each.directory, each.path) for each in remedies] == [(b, b / "crash-plain-0")]
    backup = apply(remedies, b)
    assert (backup.root / "crash-plain-0").is_dir()
    assert not (b / "crash-plain-0").exists()


def test_meta_properties_of_kraft_keep_their_ids(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    path = directory / "meta.properties"
    path.write_text(f"version=1\nnode.id=3\ncluster.id={CLUSTER}\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAQ\n")
    apply(list(find_remedies([directory], Identity())), directory)
    assert read_meta_properties(directory) == MetaProperties(3, CLUSTER)
    path.write_text("version=0\nbroker.id=x\n")
    apply(list(find_remedies([directory], Identity())), directory)
    assert not path.exists()


def test_the_refusals_name_the_command(tmp_path: Path) -> None:
    for case in REFUSED:
        facts, directory = disk.unpack(case, tmp_path)
        for name in facts["directoriesAfter"] or ():
            (directory / name).mkdir(exist_ok=True)
        with pytest.raises(WrongDirectory, match=f"pybroker log repair {directory}"):
            start(directory, REFUSED[case].cluster_id)
