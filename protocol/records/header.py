"""Headers of record batches, the only part of a batch that Produce, Fetch and recovery look at.

Magic 2 (`org.apache.kafka.common.record.DefaultRecordBatch`, KIP-98), big-endian, 61 bytes, then the records:
base offset i64, length i32 (bytes after this field), partition leader epoch i32, magic i8, CRC32C u32 (of everything
from attributes on), attributes i16, last offset delta i32, base timestamp i64, max timestamp i64, producer id i64,
producer epoch i16, base sequence i32, count i32.

Attributes: bits 0-2 codec, 3 LogAppendTime, 4 transactional, 5 control, 6 base timestamp is a delete horizon.

Messages of magic 0 and 1 share the first 17 bytes except that a CRC32 stands where the leader epoch is; `read_header`
presents one as a batch of one offset, so that a log is walked without asking for the format.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from struct import Struct
from typing import NamedTuple, TypeAlias, cast
from zlib import crc32

from pybroker.protocol.errors import Errors, KafkaError

Buffer: TypeAlias = bytes | bytearray | memoryview

BASE_OFFSET_AT = 0
LENGTH_AT = 8
LEADER_EPOCH_AT = 12
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21
LAST_OFFSET_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
MAX_TIMESTAMP_AT = 35
PRODUCER_ID_AT = 43
PRODUCER_EPOCH_AT = 51
BASE_SEQUENCE_AT = 53
COUNT_AT = 57

LOG_OVERHEAD = 12  # base offset and length, which the length does not count
HEADER_UP_TO_MAGIC = 17
BATCH_OVERHEAD = 61
MIN_MESSAGE_OVERHEAD = 14  # the smallest legal length: an empty message of magic 0

MAGIC_V0 = 0
MAGIC_V1 = 1
MAGIC_V2 = 2

CODEC_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

CREATE_TIME = 0
LOG_APPEND_TIME = 1
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1

HEADER = Struct(">qiibIhiqqqhii")
UINT32 = Struct(">I")
_PREFIX = Struct(">qiib")
_INT64 = Struct(">q")


def _load_crc32c() -> Callable[[Buffer], int]:
    """The C function of the crc32c package without running its __init__, whose metadata look-up costs 60 ms at start.

    Before 2.5 the package is the extension itself; that, and an installation laid out otherwise, is imported plainly.
    """
    if "crc32c" not in sys.modules:
        spec = PathFinder.find_spec("crc32c")
        locations = spec.submodule_search_locations if spec else None
        inner = PathFinder.find_spec("crc32c._crc32c", list(locations)) if locations else None
        if inner is not None and inner.loader is not None:
            module = module_from_spec(inner)
            inner.loader.exec_module(module)
            return cast("Callable[[Buffer], int]", module.crc32c)
    import crc32c as package

    return cast("Callable[[Buffer], int]", package.crc32c)


crc32c = _load_crc32c()


class BatchHeader(NamedTuple):
    """One batch's header. Offsets are absolute, timestamps are milliseconds since 1970 or -1, size fields are bytes.

    Of a message of magic 0 or 1: base_offset is its offset (of a compressed wrapper that is its LAST inner offset),
    count is -1 (unknown without decompressing), what the format lacks is -1, timestamp type and codec are as usual.
    """

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.length + LOG_OVERHEAD

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        return LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME_FLAG else CREATE_TIME

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_FLAG)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG) and self.magic >= MAGIC_V2

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG) and self.magic >= MAGIC_V2

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & DELETE_HORIZON_FLAG) and self.magic >= MAGIC_V2

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID


def read_header(buf: Buffer, at: int = 0) -> BatchHeader:
    """The header of the batch at `at`, of any magic.

    Raises KafkaError(CORRUPT_MESSAGE) if the size field is below the minimum, the magic is unknown, or the batch's
    own size has no room for its header. The caller makes sure that the batch is there whole.
    """
    offset, length, second, magic = _PREFIX.unpack_from(buf, at)
    if length < MIN_MESSAGE_OVERHEAD:
        raise KafkaError(
            Errors.CORRUPT_MESSAGE,
            f"Record size {length} is less than the minimum record overhead ({MIN_MESSAGE_OVERHEAD})",
        )
    if magic == MAGIC_V2:
        if length < BATCH_OVERHEAD - LOG_OVERHEAD:
            raise KafkaError(
                Errors.CORRUPT_MESSAGE,
                f"Record batch is corrupt (the size {length + LOG_OVERHEAD} is smaller than the minimum allowed "
                f"overhead {BATCH_OVERHEAD})",
            )
        return BatchHeader._make(HEADER.unpack_from(buf, at))
    if magic not in (MAGIC_V0, MAGIC_V1):
        raise KafkaError(Errors.CORRUPT_MESSAGE, f"Invalid magic found in record: {magic}")
    if magic == MAGIC_V1 and length < MIN_MESSAGE_OVERHEAD + 8:
        raise KafkaError(Errors.CORRUPT_MESSAGE, f"Record is corrupt (size {length} has no room for a timestamp)")
    attributes = buf[at + 17]
    timestamp = _INT64.unpack_from(buf, at + 18)[0] if magic == MAGIC_V1 else NO_TIMESTAMP
    return BatchHeader(
        offset, length, NO_LEADER_EPOCH, magic, second & 0xFFFFFFFF, attributes, 0, timestamp, timestamp,
        NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE, -1,
    )  # fmt: skip


def iter_headers(buf: Buffer, at: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every whole batch from `at` on; what is cut off at the end is passed over in silence.

    Raises as read_header. CRCs are not checked.
    """
    end = len(buf)
    while end - at >= HEADER_UP_TO_MAGIC:
        length = int.from_bytes(buf[at + LENGTH_AT : at + LENGTH_AT + 4], "big", signed=True)
        if length >= MIN_MESSAGE_OVERHEAD and length + LOG_OVERHEAD > end - at:
            # A batch that is not whole is not an error, unless what is there of it is wrong already.
            magic = buf[at + MAGIC_AT]
            if magic > MAGIC_V2:
                signed = magic - 256 if magic > 127 else magic
                raise KafkaError(Errors.CORRUPT_MESSAGE, f"Invalid magic found in record: {signed}")
            return
        header = read_header(buf, at)
        yield at, header
        at += length + LOG_OVERHEAD


def stored_crc(buf: Buffer, at: int) -> int:
    """The CRC field of the batch at `at`, of any magic."""
    where = CRC_AT if buf[at + MAGIC_AT] >= MAGIC_V2 else LEADER_EPOCH_AT
    return cast("int", UINT32.unpack_from(buf, at + where)[0])


def computed_crc(buf: Buffer, at: int, size: int) -> int:
    """What the CRC field of the batch of `size` bytes at `at` should be: CRC32C for magic 2, CRC32 before."""
    view = memoryview(buf)
    if view[at + MAGIC_AT] >= MAGIC_V2:
        return crc32c(view[at + ATTRIBUTES_AT : at + size])
    return crc32(view[at + MAGIC_AT : at + size])


def check_crc(buf: Buffer, at: int, size: int) -> bool:
    """Whether the batch of `size` bytes at `at` carries its own CRC. It must be at least as large as its header."""
    return stored_crc(buf, at) == computed_crc(buf, at, size)


def ensure_crc(buf: Buffer, at: int, size: int) -> None:
    """KafkaError(CORRUPT_MESSAGE) with both sums if check_crc fails."""
    stored, computed = stored_crc(buf, at), computed_crc(buf, at, size)
    if stored != computed:
        raise KafkaError(
            Errors.CORRUPT_MESSAGE, f"Record is corrupt (stored crc = {stored}, computed crc = {computed})"
        )
