"""What of one batch survives a pass (Kafka's Cleaner.cleanInto and MemoryRecords.filterTo).

- A record stays if no later one of its key is known, a tombstone only until the delete horizon of its batch. Records
  behind what the map has seen all stay; records without a key have no place in a compacted log.
- The first pass that sees a tombstone gives its batch a delete horizon (KIP-534), `delete.retention.ms` from then; so
  it does with a marker of which no transactional batch is left.
- Records of an aborted transaction go.
- A batch of which nothing is left stays, empty, where it holds the last sequence of a producer that is still known or
  the last offset of what was cleaned, so that neither is forgotten.
- A batch whose inside can't be read stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable

from pybroker.protocol.compression import Codec, compress
from pybroker.protocol.errors import KafkaError
from pybroker.protocol.records import legacy
from pybroker.protocol.records.header import (
    CODEC_MASK,
    DELETE_HORIZON_FLAG,
    LOG_APPEND_TIME,
    MAGIC_V2,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    check_crc,
)
from pybroker.protocol.records.record import Record, assemble
from pybroker.storage.cleaner.job import Job
from pybroker.storage.cleaner.offset_map import GONE, TOMBSTONE, OffsetMap
from pybroker.storage.cleaner.record_scan import Damaged, Scanned, rebase, scan, scan_known
from pybroker.storage.cleaner.transactions import SeenTransactions

_MAX_TIMESTAMP = 2**63 - 1


class Survivors:
    """Decides batch by batch, in the order of the log, for one pass. Counts records."""

    __slots__ = (
        "_damaged",
        "_job",
        "_map",
        "_transactions",
        "records_kept",
        "records_read",
        "retain_legacy_tombstones",
    )

    def __init__(
        self, job: Job, offsets: OffsetMap, transactions: SeenTransactions, damaged: Callable[[BatchHeader, str], None]
    ) -> None:
        """`damaged(header, why)` is told of batches that can't be read."""
        self._job = job
        self._map = offsets
        self._transactions = transactions
        self._damaged = damaged
        self.retain_legacy_tombstones = True  # of the segment at hand, for formats without delete horizons
        self.records_read = self.records_kept = 0

    def of(self, header: BatchHeader, batch: memoryview) -> Buffer | None:
        """What stays of a batch: itself, another one, or nothing."""
        self.records_read += max(header.count, 1)
        try:
            if header.magic < MAGIC_V2:
                return self._legacy(header, batch)
            if header.is_control:
                return self._control(header, batch)
            if self._transactions.is_aborted(header):
                return self._emptied(header)
            return self._data(header, batch)
        except (Damaged, KafkaError) as error:
            self._damaged(header, str(error))
            self.records_kept += max(header.count, 1)
            return batch

    def _data(self, header: BatchHeader, batch: memoryview) -> Buffer | None:
        if not header.count:
            return self._emptied(header)
        if header.count == header.last_offset_delta + 1 and not header.has_delete_horizon:
            marks = self._map.marks(header.base_offset, header.last_offset)
            if marks is not None:
                return self._marked(header, batch, marks)
        scanned = scan(batch, header)
        latest = self._map.latest_offset
        keys, offsets, tombstones = scanned.keys, scanned.offsets, scanned.tombstones
        if offsets[0] > latest:
            gone: list[int] = []
        else:
            gone = self._map.superseded(keys, offsets)
            if offsets[-1] > latest:
                gone = [number for number in gone if offsets[number] <= latest]
            if tombstones and header.has_delete_horizon and header.base_timestamp <= self._job.now_ms:
                gone = sorted({*gone, *(number for number in tombstones if offsets[number] <= latest)})
        count = len(keys) - len(gone)
        if not count:
            return self._emptied(header)
        self.records_kept += count
        if header.has_delete_horizon:
            horizon: int | None = header.base_timestamp
        else:
            horizon = None if set(tombstones).issubset(gone) else self._new_horizon()
        if not gone and (horizon is None or header.has_delete_horizon):
            return batch
        lost = set(gone)
        kept = [number for number in range(len(keys)) if number not in lost]
        return _rebuilt(header, scanned, kept, horizon)

    def _marked(self, header: BatchHeader, batch: memoryview, marks: bytearray) -> Buffer | None:
        """A data batch whose records have all been noted, one mark each."""
        gone = marks.count(GONE)
        count = len(marks) - gone
        if not count:
            return self._emptied(header)
        self.records_kept += count
        horizon = self._new_horizon() if TOMBSTONE in marks else None
        if not gone and horizon is None:
            return batch
        kept = [number for number, mark in enumerate(marks) if mark != GONE]
        return _rebuilt(header, scan_known(batch, header), kept, horizon)

    def _new_horizon(self) -> int:
        return min(self._job.now_ms + self._job.config.delete_retention_ms, _MAX_TIMESTAMP)

    def _control(self, header: BatchHeader, batch: memoryview) -> Buffer | None:
        """A marker stays as it is, gets a delete horizon when it has become obsolete, and goes when that has passed."""
        obsolete = self._transactions.is_obsolete(header, batch)
        if not header.count:
            return self._emptied(header)
        if not obsolete:
            self.records_kept += 1
            return batch
        if header.has_delete_horizon:
            if header.base_timestamp <= self._job.now_ms:
                return self._emptied(header)
            self.records_kept += 1
            return batch
        self.records_kept += 1
        return _rebuilt(header, scan(batch, header), list(range(header.count)), self._new_horizon())

    def _emptied(self, header: BatchHeader) -> Buffer | None:
        """A batch without records, where it says something even so."""
        if self._holds_last_sequence(header) or header.last_offset + 1 == self._job.first_uncleanable:
            attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON_FLAG)
            return assemble(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, count=0), b"")
        return None

    def _holds_last_sequence(self, header: BatchHeader) -> bool:
        last = self._job.last_records.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.offset >= 0:
            return header.last_offset == last.offset
        return header.is_control and header.producer_epoch == last.epoch

    def _legacy(self, header: BatchHeader, entry: memoryview) -> Buffer | None:
        """A message, or a compressed set of them, of magic 0 and 1."""
        if not check_crc(entry, 0, header.size):
            raise Damaged("its checksum does not match")
        records = list(legacy.iter_records(entry, header))
        latest = self._map.latest_offset
        gone = set(self._map.superseded([record.key for record in records], [record.offset for record in records]))
        kept = [
            record
            for number, record in enumerate(records)
            if record.offset > latest
            or (number not in gone and (record.value is not None or self.retain_legacy_tombstones))
        ]
        self.records_read += len(records) - 1
        self.records_kept += len(kept)
        if len(kept) == len(records):
            return entry
        return _legacy_set(header, kept) if kept else None


def _rebuilt(header: BatchHeader, scanned: Scanned, kept: list[int], horizon: int | None) -> bytearray:
    """The batch with the records `kept` only; the first one's timestamp or the horizon becomes its base timestamp."""
    fixed = header.max_timestamp if header.is_log_append_time else None
    payload, base_timestamp, max_timestamp = rebase(scanned, kept, header.base_timestamp, horizon, fixed)
    attributes = header.attributes & ~DELETE_HORIZON_FLAG | (0 if horizon is None else DELETE_HORIZON_FLAG)
    new = header._replace(
        attributes=attributes, base_timestamp=base_timestamp, max_timestamp=max_timestamp, count=len(kept)
    )
    return assemble(new, compress(header.codec, payload) if header.codec else payload)


def _legacy_set(header: BatchHeader, records: list[Record]) -> bytearray:
    append_time = header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else -1
    return legacy.encode_set(
        records, magic=header.magic, codec=Codec(header.codec), timestamp_type=header.timestamp_type,
        log_append_time=append_time,
    )  # fmt: skip


def keys_of(header: BatchHeader, batch: memoryview) -> tuple[list[bytes | None], list[int], list[int]]:
    """The keys and offsets of a data batch's records, and the numbers of the tombstones, for the map.

    Raises Damaged and KafkaError.
    """
    if header.magic >= MAGIC_V2:
        if not header.count:
            return [], [], []
        scanned = scan(batch, header)
        return scanned.keys, scanned.offsets, scanned.tombstones
    if not check_crc(batch, 0, header.size):
        raise Damaged("its checksum does not match")
    records = list(legacy.iter_records(batch, header))
    return [record.key for record in records], [record.offset for record in records], []
