"""What a partition knows of the producers that wrote to it: sequences, epochs, open transactions.

Kafka's ProducerStateManager and ProducerAppendInfo (KIP-98, KIP-360). An append of a batch with a producer id (>= 0)

1. asks `check` (data) or `check_control` (markers) before the batch gets its offset,
2. then tells `update` or `end_transaction` that it was written.

A replica that copies batches of its leader, and recovery, skip the first step: `replay` does the second. Every call is
O(1) in the number of producers and transactions; batches without a producer id call nothing.

Three orders of transactions matter: open ones by first offset (the first undecided offset, hence the last stable
offset written into a transaction index), those a read_committed reader must not pass (open, or decided by a marker that
is not below the high watermark yet; their first is the first unstable offset), and decided ones by marker, in which
they leave the second.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records.header import BatchHeader, Buffer
from pybroker.protocol.records.record import EndTxnMarker, iter_records, read_end_txn_marker
from pybroker.storage.producer_snapshot import CorruptSnapshot, SnapshotEntry, decode_snapshot, encode_snapshot

logger = logging.getLogger(__name__)

NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_OFFSET = -1
MAX_SEQUENCE = 2**31 - 1
BATCHES_KEPT = 5
SNAPSHOT_SUFFIX = ".snapshot"


def next_sequence(sequence: int, count: int = 1) -> int:
    """The sequence `count` behind; 0 follows 2^31 - 1."""
    return (sequence + count) & MAX_SEQUENCE


def last_sequence_of(base_sequence: int, last_offset_delta: int) -> int:
    """The sequence of a batch's last record; -1 for a batch without sequences."""
    return NO_SEQUENCE if base_sequence < 0 else (base_sequence + last_offset_delta) & MAX_SEQUENCE


class BatchEntry(NamedTuple):
    """One of a producer's last batches; `timestamp` is the batch's largest, in ms.

    A duplicate is answered with first_offset, and with timestamp as its log append time, as Kafka does.
    """

    base_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class CompletedTransaction(NamedTuple):
    """A transaction decided by a marker at `last_offset`.

    `last_stable_offset` is what the log's becomes with it; it goes into the transaction index when `aborted`.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool
    last_stable_offset: int


class ProducerEntry:
    """One producer: epoch, its last batches (oldest first, at most five), its open transaction (-1: none)."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "producer_id", "txn_first_offset")

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.txn_first_offset = NO_OFFSET
        self.batches: deque[BatchEntry] = deque(maxlen=BATCHES_KEPT)

    @property
    def last_sequence(self) -> int:
        """-1 when no batch of this epoch is known."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def find_duplicate(self, epoch: int, base_sequence: int, last_sequence: int) -> BatchEntry | None:
        """The kept batch with exactly these sequences, if any."""
        if epoch == self.epoch:
            for batch in self.batches:
                if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
                    return batch
        return None


class ProducerStates:
    """The producers of one log, and their snapshots in its directory."""

    __slots__ = (
        "_decided",
        "_directory",
        "_last_snapshot",
        "_open",
        "_unstable",
        "entries",
        "expiration_ms",
        "snapshots",
    )

    def __init__(self, directory: Path, *, expiration_ms: int) -> None:
        """`expiration_ms` is producer.id.expiration.ms, after which an idle producer is forgotten."""
        self.entries: dict[int, ProducerEntry] = {}
        self.expiration_ms = expiration_ms
        self.snapshots: list[int] = []  # offsets of the files in the directory, ascending
        self._directory = directory
        self._last_snapshot = 0
        self._open: OrderedDict[int, int] = OrderedDict()  # first offset → producer id
        self._unstable: OrderedDict[int, None] = OrderedDict()  # first offsets of open and not yet replicated ones
        self._decided: deque[tuple[int, int]] = deque()  # (marker offset, first offset), in order of markers

    # --- appending -----------------------------------------------------------------------------------------------

    def check(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        last_sequence: int,
        is_transactional: bool,
        *,
        from_client: bool = True,
    ) -> BatchEntry | None:
        """May this data batch be appended? The earlier batch when it is a duplicate, else None for yes.

        Raises KafkaError OUT_OF_ORDER_SEQUENCE_NUMBER for a gap or an old sequence, INVALID_PRODUCER_EPOCH for a
        fenced producer, INVALID_TXN_STATE for plain records inside an open transaction. Without `from_client`
        (a coordinator's own records) sequences do not count.
        """
        entry = self.entries.get(producer_id)
        if entry is None:
            return None
        if from_client:
            batches = entry.batches
            in_sequence = epoch == entry.epoch and batches and base_sequence == next_sequence(batches[-1].last_sequence)
            if not in_sequence:
                duplicate = entry.find_duplicate(epoch, base_sequence, last_sequence)
                if duplicate is not None:
                    return duplicate
                _check_epoch(entry, epoch)
                _check_sequence(entry, epoch, base_sequence)
        else:
            _check_epoch(entry, epoch)
        if entry.txn_first_offset != NO_OFFSET and not is_transactional:
            raise _refusal(
                Errors.INVALID_TXN_STATE,
                f"producer {producer_id} wrote outside its transaction, open from offset {entry.txn_first_offset}",
            )
        return None

    def check_control(self, header: BatchHeader, batch: Buffer) -> None:
        """May this control batch be appended?

        Raises KafkaError INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED for an older coordinator's marker,
        INVALID_RECORD for one that holds no control record.
        """
        entry = self.entries.get(header.producer_id)
        marker = _read_marker(header, batch)
        if entry is None or marker is None:
            return
        _check_epoch(entry, header.producer_epoch)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise _refusal(
                Errors.TRANSACTION_COORDINATOR_FENCED,
                f"marker of coordinator epoch {marker.coordinator_epoch} for producer {header.producer_id}, "
                f"which has seen {entry.coordinator_epoch}",
            )

    def update(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        last_sequence: int,
        first_offset: int,
        last_offset: int,
        timestamp: int,
        is_transactional: bool,
    ) -> None:
        """A data batch has been written at [first_offset, last_offset]; `timestamp` is its largest, in ms."""
        entry = self._entry(producer_id, epoch)
        entry.batches.append(BatchEntry(base_sequence, last_sequence, first_offset, last_offset, timestamp))
        entry.last_timestamp = timestamp
        if is_transactional and entry.txn_first_offset == NO_OFFSET:
            entry.txn_first_offset = first_offset
            self._open[first_offset] = producer_id
            self._unstable[first_offset] = None

    def end_transaction(
        self, producer_id: int, epoch: int, coordinator_epoch: int, offset: int, timestamp: int, aborted: bool
    ) -> CompletedTransaction | None:
        """A marker has been written at `offset`; what it decided, None if nothing was open."""
        entry = self._entry(producer_id, epoch)
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = timestamp
        first_offset = entry.txn_first_offset
        if first_offset == NO_OFFSET:
            return None
        entry.txn_first_offset = NO_OFFSET
        self._open.pop(first_offset, None)
        self._decided.append((offset, first_offset))
        undecided = self.first_undecided_offset
        stable = offset + 1 if undecided is None else undecided
        return CompletedTransaction(producer_id, first_offset, offset, aborted, stable)

    def replay(self, header: BatchHeader, batch: Buffer) -> CompletedTransaction | None:
        """Take over a batch that a leader or an earlier run has accepted; what it decided if it is a marker.

        KafkaError(INVALID_RECORD) for a control batch that holds no control record.
        """
        if header.producer_id < 0:
            return None
        if not header.is_control:
            last_sequence = last_sequence_of(header.base_sequence, header.last_offset_delta)
            self.update(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                last_sequence,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
                header.is_transactional,
            )
            return None
        marker = _read_marker(header, batch)
        if marker is None:
            return None
        return self.end_transaction(
            header.producer_id,
            header.producer_epoch,
            marker.coordinator_epoch,
            header.base_offset,
            header.max_timestamp,
            not marker.commit,
        )

    def _entry(self, producer_id: int, epoch: int) -> ProducerEntry:
        """The producer's entry, in this epoch: a new one starts without batches."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id, epoch)
        elif entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches.clear()
        return entry

    # --- transactions --------------------------------------------------------------------------------------------

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of a transaction that is open or whose marker is not below the high watermark yet."""
        return next(iter(self._unstable), None)

    @property
    def first_undecided_offset(self) -> int | None:
        """The first offset of an open transaction."""
        return next(iter(self._open), None)

    def has_ongoing_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether this producer, in this epoch, has written in a transaction that no marker has ended."""
        entry = self.entries.get(producer_id)
        return entry is not None and entry.epoch == epoch and entry.txn_first_offset != NO_OFFSET

    def on_high_watermark(self, high_watermark: int) -> bool:
        """Forget what markers below `high_watermark` decided; True if first_unstable_offset may have moved."""
        decided = self._decided
        if not decided or decided[0][0] >= high_watermark:
            return False
        while decided and decided[0][0] < high_watermark:
            self._unstable.pop(decided.popleft()[1], None)
        return True

    # --- life of the log -----------------------------------------------------------------------------------------

    def remove_expired(self, now_ms: int) -> int:
        """Forget producers idle for producer.id.expiration.ms and outside a transaction; how many they were."""
        oldest = now_ms - self.expiration_ms
        expired = [
            entry.producer_id
            for entry in self.entries.values()
            if entry.txn_first_offset == NO_OFFSET and entry.last_timestamp <= oldest
        ]
        for producer_id in expired:
            del self.entries[producer_id]
        return len(expired)

    def clear(self) -> None:
        """Forget all producers and transactions; snapshots stay."""
        self.entries.clear()
        self._open.clear()
        self._unstable.clear()
        self._decided.clear()

    def on_log_start(self, log_start_offset: int) -> None:
        """The log begins at `log_start_offset` now: transactions decided below it are over."""
        self.on_high_watermark(log_start_offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """The log is emptied and goes on at `offset`: nothing is known, no snapshot stays."""
        self.clear()
        self._last_snapshot = offset
        for snapshot in list(self.snapshots):
            self.remove_snapshot(snapshot)

    # --- snapshots -----------------------------------------------------------------------------------------------

    def find_snapshots(self, names: Iterable[str] | None = None) -> None:
        """Learn which snapshot files there are, from the directory or from its names if they are at hand."""
        found = (path.name for path in self._directory.iterdir()) if names is None else names
        self.snapshots = sorted(snapshot_offsets(found))
        self._last_snapshot = self.snapshots[-1] if self.snapshots else 0

    def load_newest(self, log_start_offset: int, log_end_offset: int, now_ms: int) -> int:
        """Become the state of the newest readable snapshot in (log_start_offset, log_end_offset]; its offset.

        Snapshots outside that range and unreadable ones are deleted. Without any, the state is empty and the answer
        log_start_offset: what lies behind has to be replayed.
        """
        self.clear()
        for offset in [snapshot for snapshot in self.snapshots if not log_start_offset < snapshot <= log_end_offset]:
            self.remove_snapshot(offset)
        while self.snapshots:
            offset = self.snapshots[-1]
            try:
                self._load(decode_snapshot(self.snapshot_path(offset).read_bytes()), now_ms)
            except (CorruptSnapshot, FileNotFoundError) as error:
                logger.warning("%s: %s; it is removed and rebuilt from the log", self.snapshot_path(offset), error)
                self.remove_snapshot(offset)
                continue
            self._last_snapshot = offset
            return offset
        self._last_snapshot = log_start_offset
        return log_start_offset

    def _load(self, entries: Iterable[SnapshotEntry], now_ms: int) -> None:
        oldest = now_ms - self.expiration_ms
        for read in entries:
            if read.txn_first_offset == NO_OFFSET and read.timestamp <= oldest:
                continue
            entry = self.entries[read.producer_id] = ProducerEntry(read.producer_id, read.epoch)
            entry.coordinator_epoch = read.coordinator_epoch
            entry.last_timestamp = read.timestamp
            entry.txn_first_offset = read.txn_first_offset
            if read.last_offset >= 0:
                last_sequence, delta = read.last_sequence, read.offset_delta
                base_sequence = NO_SEQUENCE if last_sequence < 0 else (last_sequence - delta) & MAX_SEQUENCE
                first = read.last_offset - delta
                entry.batches.append(BatchEntry(base_sequence, last_sequence, first, read.last_offset, read.timestamp))
        opened = [entry for entry in self.entries.values() if entry.txn_first_offset != NO_OFFSET]
        for entry in sorted(opened, key=lambda entry: entry.txn_first_offset):
            self._open[entry.txn_first_offset] = entry.producer_id
            self._unstable[entry.txn_first_offset] = None

    def take_snapshot(self, offset: int) -> Path | None:
        """Write the state as that of `offset` (the log's end); its path, None if there is one at or above.

        Not synced: recovery checks the sum and rebuilds a torn one.
        """
        if offset <= self._last_snapshot:
            return None
        path = self.snapshot_path(offset)
        data = encode_snapshot([_to_snapshot(self.entries[producer_id]) for producer_id in sorted(self.entries)])
        with open(path, "wb", buffering=0) as file:
            file.write(data)
        if not self.snapshots or offset > self.snapshots[-1]:
            self.snapshots.append(offset)
        self._last_snapshot = offset
        return path

    def snapshot_path(self, offset: int) -> Path:
        """The file of the snapshot at `offset`."""
        return self._directory / f"{offset:020d}{SNAPSHOT_SUFFIX}"

    def remove_snapshot(self, offset: int) -> None:
        """Delete the snapshot at `offset`, if there is one (its segment is deleted)."""
        if offset in self.snapshots:
            self.snapshot_path(offset).unlink(missing_ok=True)
            self.snapshots.remove(offset)

    def remove_stray_snapshots(self, segment_offsets: Iterable[int]) -> None:
        """Keep snapshots at the base offsets of live segments and the newest one behind the last; delete the others."""
        bases = set(segment_offsets)
        newest_base = max(bases, default=-1)
        strays = [offset for offset in self.snapshots if offset not in bases]
        if strays and strays[-1] >= newest_base:
            strays.pop()
        for offset in strays:
            self.remove_snapshot(offset)

    def moved(self, directory: Path) -> None:
        """The partition directory has a new name."""
        self._directory = directory


def snapshot_offsets(names: Iterable[str]) -> Iterator[int]:
    """The offsets of the snapshot files among these names."""
    for name in names:
        stem = name.removesuffix(SNAPSHOT_SUFFIX)
        if len(stem) != len(name) and stem.isdecimal():
            yield int(stem)


def _to_snapshot(entry: ProducerEntry) -> SnapshotEntry:
    last_sequence, last_offset, delta = NO_SEQUENCE, NO_OFFSET, 0
    if entry.batches:
        batch = entry.batches[-1]
        last_sequence, last_offset = batch.last_sequence, batch.last_offset
        delta = last_offset - batch.first_offset
    return SnapshotEntry(
        entry.producer_id,
        entry.epoch,
        last_sequence,
        last_offset,
        delta,
        entry.last_timestamp,
        entry.coordinator_epoch,
        entry.txn_first_offset,
    )


def _read_marker(header: BatchHeader, batch: Buffer) -> EndTxnMarker | None:
    """The marker in a control batch; None where compaction has left none, or the record is of another type."""
    for record in iter_records(batch, header):
        return read_end_txn_marker(record)
    return None


def _check_epoch(entry: ProducerEntry, epoch: int) -> None:
    if epoch < entry.epoch:
        raise _refusal(
            Errors.INVALID_PRODUCER_EPOCH,
            f"producer {entry.producer_id} has epoch {entry.epoch} now, the batch came with {epoch}",
        )


def _check_sequence(entry: ProducerEntry, epoch: int, base_sequence: int) -> None:
    """A new epoch starts at 0; an epoch goes on where it was. Without an epoch any sequence will do."""
    if entry.epoch == NO_PRODUCER_EPOCH:
        return
    expected = 0 if epoch != entry.epoch or not entry.batches else next_sequence(entry.batches[-1].last_sequence)
    if base_sequence != expected:
        raise _refusal(
            Errors.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {entry.producer_id} (epoch {epoch}) sent sequence {base_sequence}, expected was {expected}",
        )


def _refusal(code: Errors, why: str) -> KafkaError:
    """An error whose reason is for the log only: Kafka sends none with these codes."""
    error = KafkaError(code)
    error.add_note(why)
    return error
