"""Which transactional batches were aborted, and which markers nobody needs any more, while a log is walked through.

Kafka's CleanedTransactionMetadata. A marker may go once no batch of its transaction was seen before it; an aborted
transaction stays in the transaction index for as long as.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from pybroker.protocol.errors import KafkaError
from pybroker.protocol.records.header import BatchHeader, Buffer
from pybroker.protocol.records.record import EndTxnMarker, iter_records, read_end_txn_marker
from pybroker.storage.txn_index import AbortedTransaction


class SeenTransactions:
    """What is known of the transactions at one point of the log; told of every batch, in order."""

    __slots__ = ("_aborted", "_committed", "_waiting", "still_needed")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted`: from the transaction indexes, all whose marker is not below the first batch."""
        self._waiting = [(entry.first_offset, entry.producer_id, entry) for entry in aborted]
        heapq.heapify(self._waiting)
        self._aborted: dict[int, tuple[AbortedTransaction, bool]] = {}  # by producer: and whether a batch was seen
        self._committed: set[int] = set()  # producers with a batch of a transaction that is not among the aborted
        self.still_needed: list[AbortedTransaction] = []  # whose markers stay; to be taken by who writes the index

    def is_aborted(self, header: BatchHeader) -> bool:
        """A data batch: whether its records must go."""
        if not header.is_transactional:
            return False
        self._reach(header.last_offset)
        producer_id = header.producer_id
        known = self._aborted.get(producer_id)
        if known is None:
            self._committed.add(producer_id)
            return False
        self._aborted[producer_id] = known[0], True
        return True

    def is_obsolete(self, header: BatchHeader, batch: Buffer) -> bool:
        """A control batch: whether nothing of what it decided is left. An empty one, or one cut, decides nothing."""
        self._reach(header.last_offset)
        marker = _marker(header, batch)
        if marker is None:
            return header.count == 0
        if marker.commit:
            seen = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not seen
        entry, seen = self._aborted.pop(header.producer_id, (None, False))
        if entry is not None and seen:
            self.still_needed.append(entry)
        return not seen

    def _reach(self, offset: int) -> None:
        while self._waiting and self._waiting[0][0] <= offset:
            _, producer_id, entry = heapq.heappop(self._waiting)
            self._aborted.setdefault(producer_id, (entry, False))


def _marker(header: BatchHeader, batch: Buffer) -> EndTxnMarker | None:
    try:
        for record in iter_records(batch, header):
            return read_end_txn_marker(record)
    except KafkaError:
        pass  # kept as it is, as any control batch that is no marker
    return None
