"""The last batches of each producer, looked up in the log: a snapshot holds one of them, a producer may resend five.

Kafka forgets the others with every load of a snapshot, and answers a resent one with OUT_OF_ORDER_SEQUENCE_NUMBER; its
producers then start a new epoch and write the batch a second time. Only the tail of the log is looked at, and only for
producers that wrote a short while ago: nobody else has anything to resend.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from pybroker.protocol.errors import KafkaError
from pybroker.protocol.records.header import BatchHeader
from pybroker.storage.producer_state import BATCHES_KEPT, BatchEntry, ProducerStates, last_sequence_of, next_sequence
from pybroker.storage.segment import Segment

logger = logging.getLogger(__name__)

RECENT_MS = 600_000  # five times delivery.timeout.ms of the clients
TAIL_ENTRIES = 32  # of the offset index: with 4 KiB between them the last 128 KiB, or the last 32 batches above that


def recall_batches(segments: Sequence[Segment], producers: ProducerStates, now_ms: int) -> None:
    """Put in front of each recent producer's last batch those before it, up to five. OSError when the disk fails."""
    oldest = now_ms - RECENT_MS
    recent = {
        entry.producer_id: entry
        for entry in producers.entries.values()
        if entry.last_timestamp > oldest
        and 0 < len(entry.batches) < BATCHES_KEPT
        and entry.batches[0].base_sequence > 0
    }
    if not recent:
        return
    found: dict[int, deque[BatchEntry]] = defaultdict(lambda: deque(maxlen=BATCHES_KEPT))
    for header in _tail(segments):
        entry = recent.get(header.producer_id)
        if entry is None or header.is_control or header.producer_epoch != entry.epoch or header.base_sequence < 0:
            continue
        if header.last_offset < entry.batches[0].first_offset:
            last_sequence = last_sequence_of(header.base_sequence, header.last_offset_delta)
            found[header.producer_id].append(
                BatchEntry(
                    header.base_sequence, last_sequence, header.base_offset, header.last_offset, header.max_timestamp
                )
            )
    for producer_id, earlier in found.items():
        batches = recent[producer_id].batches
        while earlier and len(batches) < BATCHES_KEPT:
            batch = earlier.pop()
            if next_sequence(batch.last_sequence) != batches[0].base_sequence:
                break
            batches.appendleft(batch)


def _tail(segments: Sequence[Segment]) -> Iterator[BatchHeader]:
    """The headers behind the last TAIL_ENTRIES index entries, in the order of the log."""
    wanted, pieces = TAIL_ENTRIES, list[tuple[Segment, int]]()
    for segment in reversed(segments):
        entries = segment.offset_index.entries
        whole = entries < wanted
        pieces.append((segment, 0 if whole else segment.offset_index.entry(entries - wanted)[1]))
        wanted -= entries
        if not whole or len(pieces) > BATCHES_KEPT:
            break
    for segment, position in reversed(pieces):
        try:
            for _, header in segment.walk(position):
                yield header
        except KafkaError as error:  # whoever reads these records will be told
            logger.warning("%s; producers' earlier batches are not recalled", error.message)
            return
