"""What Fetch 0-3 get of batches that are newer than they know (`RecordsUtil.downConvert`, `LazyDownConversionRecords`).

The answer's length is told before its bytes are known: it is that of the slice, or of the first converted batch where
that is larger. What is beyond is cut, what is missing is filled with a message that is never complete, which clients
drop. So only the first batch has to be converted before the answer begins, and the others as it is sent, a chunk at a
time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct

from pybroker.protocol.compression import DEFAULT_LIMIT
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records.header import (
    BATCH_OVERHEAD,
    HEADER_UP_TO_MAGIC,
    LENGTH_AT,
    LOG_OVERHEAD,
    MIN_MESSAGE_OVERHEAD,
    BatchHeader,
    Buffer,
    iter_headers,
)
from pybroker.protocol.records.legacy import SetBuilder
from pybroker.protocol.records.reading import Meter, reading
from pybroker.protocol.work import Work

CHUNK = 128 << 10  # converted bytes that are worth sending
WINDOW = 128 << 10  # read from the log at once

_LENGTH = Struct(">i")
_OVERFLOW = Struct(">qi")

#: The bytes of the slice at a position, fewer only where it is no longer there; blocks.
Read = Callable[[int, int], Buffer]


class ConversionFailed(Exception):
    """What was announced can't be delivered: Kafka has begun its answer by then and closes the connection."""


class DownConversion:
    """A slice of a log, as consumers of message format `magic` 0 or 1 get it: `begin`, then `chunk` while `left`.

    Control batches and headers are dropped, as are uncompressed records of newer formats below `first_offset`, the
    offset asked for. Batches that are old enough are copied. Where conversion is not `allowed`
    (message.downconversion.enable), newer batches are refused. limit: bytes that a batch may decompress to.
    """

    __slots__ = (
        "_allowed", "_at", "_done", "_first_offset", "_limit", "_magic", "_meter", "_padding", "_ready", "_size",
        "_source", "_window", "_window_at", "left", "length",
    )  # fmt: skip

    def __init__(
        self, source: Read, size: int, magic: int, first_offset: int = 0, *, allowed: bool = True,
        limit: int = DEFAULT_LIMIT,
    ) -> None:  # fmt: skip
        self.length = 0  # of the answer, in bytes
        self.left = 0  # of these, not given out yet
        self._source = source
        self._size = size
        self._magic = magic
        self._first_offset = first_offset
        self._allowed = allowed
        self._limit = limit
        self._meter = Meter()
        self._at = 0
        self._window: memoryview = memoryview(b"")
        self._window_at = 0
        self._ready = bytearray()  # converted, not given out
        self._done = False  # nothing more comes out of the slice
        self._padding = False

    def begin(self) -> Work[None]:
        """Convert the first batch with anything in it; sets `length`: 12 bytes where nothing is left of the slice.

        Raises KafkaError for that batch: UNSUPPORTED_COMPRESSION_TYPE if it is zstd, UNSUPPORTED_VERSION where it may
        not be converted, otherwise what is wrong with it.
        """
        while not self._ready and not self._done:
            yield from self._convert_next()
        if self._ready:
            self.length = max(self._size, len(self._ready))
        elif self._at:
            self.length = LOG_OVERHEAD
        self.left = self.length

    def chunk(self) -> Work[memoryview]:
        """The next bytes of the answer. Raises ConversionFailed where a batch can't be converted; one of zstd, or one
        that may not be converted, ends what is sent of the slice."""
        try:
            while len(self._ready) < min(CHUNK, self.left) and not self._done:
                yield from self._convert_next()
        except KafkaError as error:
            if error.code not in (Errors.UNSUPPORTED_COMPRESSION_TYPE, Errors.UNSUPPORTED_VERSION):
                raise ConversionFailed(str(error)) from error
            self._done = True
        self._window = memoryview(b"")  # only what is sent is kept while it is sent
        piece = memoryview(self._ready or self._overflow())[: self.left]
        self._ready = bytearray()
        self.left -= len(piece)
        return piece

    def _overflow(self) -> bytes:
        """The beginning of a message that is larger than what is left, then zeros."""
        size = min(CHUNK, self.left)
        if self._padding:
            return bytes(size)
        self._padding = True
        head = _OVERFLOW.pack(-1, max(self.left + 1, BATCH_OVERHEAD))[:size]
        return head + bytes(size - len(head))

    # --- the slice

    def _convert_next(self) -> Work[None]:
        batch = yield from self._next_batch()
        if batch is None:
            self._done = True
            return
        converted = yield from self._converted(*batch)
        if not self._ready and isinstance(converted, bytearray):
            self._ready = converted  # it may be many megabytes, too long a copy
        else:
            self._ready += converted

    def _next_batch(self) -> Work[tuple[Buffer, BatchHeader] | None]:
        left = self._size - self._at
        if left < HEADER_UP_TO_MAGIC:
            return None
        start = yield from self._bytes(HEADER_UP_TO_MAGIC)
        size = max(_LENGTH.unpack_from(start, LENGTH_AT)[0], MIN_MESSAGE_OVERHEAD) + LOG_OVERHEAD
        piece = yield from self._bytes(min(size, left))
        found = next(iter_headers(piece), None)
        if found is None:
            return None
        self._at += found[1].size
        return piece, found[1]

    def _bytes(self, count: int) -> Work[memoryview]:
        at = self._at - self._window_at
        if at < 0 or at + count > len(self._window):
            wanted = min(max(count, WINDOW), self._size - self._at)
            data: Buffer = yield partial(self._source, self._at, wanted)
            if len(data) < count:
                raise ConversionFailed("a slice of a log that was promised is no longer there")
            self._window, self._window_at, at = memoryview(data), self._at, 0
        return self._window[at : at + count]

    # --- one batch

    def _converted(self, batch: Buffer, header: BatchHeader) -> Work[Buffer]:
        if header.magic <= self._magic or header.is_control:
            if self._meter.due(header.size):
                yield None
            return b"" if header.is_control else batch
        if not self._allowed:
            raise KafkaError(Errors.UNSUPPORTED_VERSION)
        builder = SetBuilder(
            magic=self._magic, codec=header.codec, timestamp_type=header.timestamp_type,
            log_append_time=header.max_timestamp, limit=self._limit,
        )  # fmt: skip
        records = yield from reading(batch, header, self._limit)
        for found in records:
            if header.codec or found.offset >= self._first_offset:
                builder.append_record(found)
            if self._meter.due_after(found):
                yield None
        if not header.codec:
            return builder.build()
        compressed: bytearray = yield builder.build
        return compressed
